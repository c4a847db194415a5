import importlib.util
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_equal

from penstock.acting.environments.packages import WELL_KNOWN, package_of
from penstock.acting.environments.registry import find, has_native_form, make
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.machine.module_imports import import_module
from penstock.presets import preset
from tests.support.environments.made import make_environments

OWN = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

loads = []
loads.append(1)


class Own(CartPoleEnv):
    pass


def factory(**kwargs):
    return gymnasium.wrappers.TimeLimit(CartPoleEnv(**kwargs), 7)


gymnasium.register("FromFile-v0", Own)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own_environments.py").write_text(OWN)
    return tmp_path / "own_environments.py"


@pytest.mark.parametrize("name", ["Own", "factory", "FromFile-v0"])
def test_a_file_has_environments_by_class_by_function_and_by_id(own: Path, name: str) -> None:
    made = make_environments(f"{own}:{name}", 2, kwargs={"sutton_barto_reward": True})
    made.reset([1, 2])
    assert made.count == 2
    made.close()


def test_a_file_is_imported_once_and_never_replaces_a_module(own: Path, tmp_path: Path) -> None:
    assert import_module(str(own)) is import_module(str(own))
    (tmp_path / "json.py").write_text("loads = 'mine'\n")
    module = import_module(str(tmp_path / "json.py"))
    assert module.loads == "mine" and module.__name__ != "json"
    assert import_module(str(tmp_path / "json.py")) is module
    assert import_module("json").loads != "mine"


def test_a_module_has_environments_by_class() -> None:
    made = make_environments("tests.support.environments.tiny:Counting", 1, kwargs={"length": 2})
    assert made.spec.id == "tests.support.environments.tiny:Counting"
    made.close()


def test_an_id_imports_the_package_that_is_known_to_register_it() -> None:
    pytest.importorskip("ale_py")
    assert find("ALE/Assault-v5") == "ALE/Assault-v5"
    assert "ALE/Assault-v5" in gymnasium.registry
    assert has_native_form("ALE/Assault-v5")


@pytest.mark.parametrize("older", ["AssaultNoFrameskip-v4", "Assault-v0"])
def test_an_older_id_of_a_game_takes_the_steps_of_the_new_one(older: str) -> None:
    pytest.importorskip("ale_py")
    kwargs = {**preset("atari").environment.kwargs, "repeat_action_probability": 0.25}
    one, other = (
        make_environments(each, 2, kwargs=kwargs, vectorization="native") for each in (older, "ALE/Assault-v5")
    )
    for each in (one, other):
        each.reset([3, 4])
    for action in np.random.default_rng(0).integers(0, 7, (50, 2)):
        assert_equal(one.step((action,))[:5], other.step((action,))[:5])
        assert_equal(one.observation, other.observation)
    one.close()
    other.close()


def test_every_id_that_ale_registers_is_known() -> None:
    pytest.importorskip("ale_py")
    registered = [each.id for each in gymnasium.registry.values() if str(each.entry_point).startswith("ale_py.")]
    unknown = [env_id for env_id in registered if getattr(package_of(env_id), "module", "") != "ale_py"]
    assert len(registered) > 100 and not unknown


@pytest.mark.parametrize(
    ("env_id", "module"),
    [
        ("ALE/Pong-v5", "ale_py"),
        ("PongNoFrameskip-v4", "ale_py"),
        ("YarsRevenge-v0", "ale_py"),
        ("MiniGrid-Empty-5x5-v0", "minigrid"),
        ("BabyAI-GoToObj-v0", "minigrid"),
        ("retro/Airstriker-Genesis-v0", "stable_retro"),
        ("highway-fast-v0", "highway_env"),
        ("dm_control/cartpole-balance-v0", "shimmy"),
        ("mo-hopper-v5", "mo_gymnasium"),
        ("FlappyBird-v0", "flappy_bird_gymnasium"),
    ],
)
def test_well_known_ids_have_their_package(env_id: str, module: str) -> None:
    package = package_of(env_id)
    assert package is not None and package.module == module


def test_ids_of_gymnasium_belong_to_no_other_package() -> None:
    own = [each for each, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("gymnasium.")]
    assert len(own) > 20
    assert {each for each in own if package_of(each)} == set()


@pytest.mark.skipif(importlib.util.find_spec("minigrid") is not None, reason="minigrid is installed")
def test_a_package_that_is_not_installed_is_named_with_its_installation() -> None:
    assert "minigrid" in {each.module for each in WELL_KNOWN}
    with pytest.raises(
        UnknownEnvironment, match=r"needs minigrid; install it with: pip install 'penstock\[minigrid\]'$"
    ):
        find("MiniGrid-Empty-5x5-v0")


@pytest.mark.parametrize(
    ("name", "kwargs", "said", "not_said"),
    [
        ("CartPole-v1", {"foo": 1}, "no argument 'foo'; it takes sutton_barto_reward, render_mode; check", "Check"),
        ("CartPol-v1", {}, "did you mean CartPole-v1? Otherwise, your own", ".."),
        ("Nothing-v0", {}, "--env-id file.py:Name", ".."),
        ("CartPole-v99", {}, "it is not registered; did you mean CartPole-v1?", "--env-import"),
        ("tests.support.environments.tiny:Nothing", {}, "has no class or function 'Nothing'", ".."),
        ("no_such_package:Thing-v0", {}, "install 'no_such_package', run penstock in the folder", ".."),
        ("nowhere/file.py:Thing", {}, "there is no file", ".."),
        ("os:getcwd", {}, "must inherit from the gymnasium.Env class", "--env-import"),
    ],
)
def test_a_refusal_has_the_reason_and_the_remedy(
    name: str, kwargs: dict[str, object], said: str, not_said: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_environments(name, 1, kwargs=kwargs)
    assert name in str(caught.value) and said in str(caught.value)
    assert not_said not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("statement", ["raise KeyError('x')", "import sys; sys.exit(3)", "import no_such_part"])
def test_a_file_that_fails_when_it_is_imported_is_refused_in_one_line(tmp_path: Path, statement: str) -> None:
    (tmp_path / "failing_file.py").write_text(f"\n{statement}\n")
    with pytest.raises(ConfigurationError, match="can't import") as caught:
        find(f"{tmp_path}/failing_file.py:Thing")
    assert "\n" not in str(caught.value)


FITTING = """
import gymnasium


class Arm(gymnasium.Env):
    action_space = observation_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=1, flaw=""):
        if flaw == "unexpected":
            dict.fromkeys([], sizes=3)
        if flaw == "passed on":
            super().__init__(size=size)
        if flaw == "argument":
            int(None)

    def reset(self, *, seed=None, options=None):
        return 0, {}


class Sized(Arm):
    def __init__(self, size):
        super().__init__(size)


def factory(**kwargs):
    return Arm(**kwargs)
"""


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("Arm", {"sizes": 2}, "it takes no argument 'sizes'; it takes size, flaw; check environment.kwargs"),
        ("factory", {"sizes": 2}, "it takes no argument 'sizes'; check environment.kwargs"),
        ("Sized", {}, "missing 1 required positional argument: 'size'"),
        ("Arm", {"flaw": "unexpected"}, "/arm.py, line 10); correct the environment, or choose another by --env-id"),
        ("Arm", {"flaw": "passed on"}, "/arm.py, line 12); correct the environment, or choose another by --env-id"),
        (
            "Arm",
            {"flaw": "passed on", "size": 2},
            "/arm.py, line 12); correct the environment, or choose another by --env-id",
        ),
        ("Arm", {"flaw": "argument"}, "/arm.py, line 14); correct the environment, or choose another by --env-id"),
    ],
)
@pytest.mark.parametrize("folder", ["project", "gymnasium"])
def test_only_an_argument_of_the_settings_is_blamed_on_the_settings(
    tmp_path: Path, folder: str, name: str, kwargs: dict[str, object], said: str
) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "arm.py").write_text(FITTING)
    with pytest.raises(ConfigurationError) as caught:
        make_environments(f"{tmp_path}/{folder}/arm.py:{name}", 1, kwargs=kwargs)
    assert said in str(caught.value)
    assert ("check environment.kwargs" in str(caught.value)) == ("/arm.py, line" not in str(caught.value))


NAMED = """
import gymnasium


class Named(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, id, level=0, render_mode=None):
        self.id, self.level, self.render_mode = id, level, render_mode
"""


def test_an_argument_of_an_environment_may_have_the_name_of_gymnasiums_own(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text(NAMED)
    made: Any = make(find(f"{tmp_path}/named.py:Named"), {"id": "north", "level": 3}, render_mode="rgb_array").unwrapped
    assert (made.id, made.level, made.render_mode) == ("north", 3, "rgb_array")
    with pytest.raises(ConfigurationError, match=r"it takes no argument 'id'"):
        make_environments("CartPole-v1", 1, kwargs={"id": "north"})
