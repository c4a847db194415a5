import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import pytest

import penstock
from penstock.config import Config, build
from penstock.errors import ConfigurationError
from penstock.machine.environment_names import absolute, name_of, same_code, short, split
from tests.support.environments.tiny import Counting


def test_a_name_has_a_module_or_a_file_and_a_rest() -> None:
    assert split("CartPole-v1") == ("", "CartPole-v1")
    assert split("package.module:MyEnv-v0") == ("package.module", "MyEnv-v0")
    assert split("/folder/file.py:Outer.Inner") == ("/folder/file.py", "Outer.Inner")


def test_paths_of_files_are_absolute_in_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = build({"environment": {"id": "my/env.py:MyEnv", "imports": ["more.py", "package"]}})
    assert config.environment.id == f"{tmp_path}/my/env.py:MyEnv"
    assert config.environment.imports == (f"{tmp_path}/more.py", "package")
    assert config.environment.short_name == "env:MyEnv"
    assert absolute("ALE/Pong-v5") == short("ALE/Pong-v5") == "ALE/Pong-v5"


def test_a_class_is_named_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "script.py")
    Path(main.__file__).touch()
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert name_of(Counting) == "tests.support.environments.tiny:Counting"
    config = penstock.configure(environment={"id": Counting, "kwargs": {"length": 3}})
    assert config == Config(environment={"id": "tests.support.environments.tiny:Counting", "kwargs": {"length": 3}})
    assert penstock.configure(environment="Pendulum-v1") == penstock.preset("pendulum")


def test_a_class_of_the_script_is_named_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main, sibling = ModuleType("__main__"), ModuleType("sibling")
    main.__file__, sibling.__file__ = str(tmp_path / "script.py"), str(tmp_path / "sibling.py")
    Path(main.__file__).touch()
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(sys.modules, "sibling", sibling)
    assert name_of(type("MyEnv", (), {"__module__": "__main__"})) == f"{tmp_path}/script.py:MyEnv"
    assert name_of(type("MyEnv", (), {"__module__": "sibling"})) == f"{tmp_path}/sibling.py:MyEnv"
    # A program from standard input has the first of these names; a session of an interpreter or a notebook has none.
    monkeypatch.chdir(tmp_path)
    for name in ("<stdin>", None):
        main.__file__ = name
        assert name_of(type("MyEnv", (), {"__module__": "sibling"})) == f"{tmp_path}/sibling.py:MyEnv"
        with pytest.raises(ConfigurationError, match=r"defined in this session.*write it to a file"):
            name_of(type("MyEnv", (), {"__module__": "__main__"}))


def test_what_other_processes_cannot_import_is_refused_with_a_remedy() -> None:
    class Local:
        pass

    for environment in (Local, lambda: None):
        with pytest.raises(ConfigurationError, match="define the class or function at the top level"):
            name_of(environment)
    with gymnasium.make("CartPole-v1") as env, pytest.raises(ConfigurationError, match="give its class"):
        name_of(env)


def test_a_class_is_not_mistaken_for_the_environment_of_a_preset() -> None:
    assert penstock.configure(environment="my_module:Pendulum").ppo == Config().ppo


@pytest.mark.parametrize(
    ("own", "other", "same"),
    [
        ("package.module:Net", "package.module:Net", True),
        ("/here/net.py:Net", "/there/net.py:Net", True),
        ("/here/net.py:Net", "net.py:Net", True),
        ("/here/net.py:Net", "/there/net.py:Other", False),
        ("/here/net.py:Net", "/here/nets.py:Net", False),
        ("net:Net", "/here/net.py:Net", False),
        ("package.net:Net", "other.net:Net", False),
        ("/here/net.py:Net", "", False),
    ],
)
def test_files_of_one_name_in_different_folders_are_the_same_code(own: str, other: str, same: bool) -> None:
    assert same_code(own, other) is same
