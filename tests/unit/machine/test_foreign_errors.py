"""Tests of the line of the user's code that an error names, wherever the user's files are."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import penstock
from penstock.machine import foreign_errors
from penstock.machine.foreign_errors import explain, place_of
from penstock.machine.module_imports import import_module
from tests.support.machine.timing import PATIENCE_S

FOLDERS = (
    "project",
    "penstock",
    "gymnasium",
    "numpy",
    "torch",
    "gymnasium/envs/numpy",
    "services/penstock/acting",
    "lib/python3.11/site-packages",
    "lib/python3.11",
    "<frozen importlib>",
    "wörk späce/Ünï çode",
    "with  two spaces",
)

PROGRAM = """\
import json
from collections.abc import Callable
from dataclasses import make_dataclass

import gymnasium
import numpy as np
import torch

from penstock.acting.values import faults


def raises():
    raise RuntimeError("joint limit")


def calls_numpy():
    np.broadcast_shapes((2,), (3,))


def calls_compiled_numpy():
    np.random.default_rng(0).integers(5, 2)


def calls_torch():
    torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.zeros(1, 3))


def calls_gymnasium():
    gymnasium.spaces.Discrete(-1)


def calls_the_standard_library():
    json.loads("{")


def calls_penstock():
    faults.find_unusable(None)


def calls_generated_code():
    make_dataclass("Point", ["x"], namespace={"__post_init__": lambda self: self.x / 0})(1)


def is_called_by_torch():
    class Mine(torch.nn.Module):
        def forward(self, value):
            return value.reshape(7)

    torch.nn.Sequential(Mine())(torch.zeros(1, 3))


def is_called_by_gymnasium():
    class Mine(gymnasium.Env):
        action_space = observation_space = gymnasium.spaces.Discrete(2)

        def reset(self, **kwargs):
            return 0, {}

        def step(self, action):
            return self.missing

    env = gymnasium.wrappers.TimeLimit(Mine(), 5)
    env.reset()
    env.step(0)


def runs_text():
    exec("1 / 0")
"""
LINES = {
    "raises": 'raise RuntimeError("joint limit")',
    "calls_numpy": "np.broadcast_shapes((2,), (3,))",
    "calls_compiled_numpy": "np.random.default_rng(0).integers(5, 2)",
    "calls_torch": "torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.zeros(1, 3))",
    "calls_gymnasium": "gymnasium.spaces.Discrete(-1)",
    "calls_the_standard_library": 'json.loads("{")',
    "calls_penstock": "faults.find_unusable(None)",
    "calls_generated_code": 'make_dataclass("Point", ["x"], namespace={"__post_init__": lambda self: self.x / 0})(1)',
    "is_called_by_torch": "return value.reshape(7)",
    "is_called_by_gymnasium": "return self.missing",
    "runs_text": 'exec("1 / 0")',
}


def error_of(function: Callable[[], object]) -> BaseException:
    """Returns the exception of a user's function, with the frames of the calls below that of Penstock."""
    with pytest.raises(Exception) as caught:
        function()
    # The first frames are of this file, which is a user's file too.
    traceback = caught.value.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return caught.value.with_traceback(traceback)


def module_in(folder: Path, program: str = PROGRAM, name: str = "arm.py") -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(program)
    return import_module(str(folder / name))


def line_of(function: str) -> int:
    """Returns the number of the line that fails in a function of the program."""
    return [line.strip() for line in PROGRAM.splitlines()].index(LINES[function]) + 1


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("function", LINES)
def test_an_error_names_the_last_line_of_the_user_in_any_folder(function: str, folder: str, tmp_path: Path) -> None:
    module = module_in(tmp_path / folder)
    error = error_of(getattr(module, function))
    shown = " ".join(str(tmp_path / folder / "arm.py").split())
    assert place_of(error) == f"{shown}, line {line_of(function)}"
    assert explain(error).endswith(f" ({place_of(error)})")
    assert "\n" not in explain(error)


def test_code_of_the_libraries_alone_has_no_place() -> None:
    for raises in (
        lambda: np.broadcast_shapes((2,), (3,)),
        lambda: np.random.default_rng(0).integers(5, 2),
        lambda: torch.nn.Linear(2, 2)(torch.zeros(1, 3)),
        lambda: gymnasium.make("NoSuch-v0"),
        lambda: json.loads("{"),
        lambda: __import__("no_such_module_anywhere"),
        lambda: penstock.configure("CartPole-v1", unknown=1),
    ):
        error = error_of(raises)
        assert place_of(error) == "" and explain(error) == foreign_errors.describe(error).rstrip(".")


def test_the_last_line_of_a_file_of_the_user_precedes_those_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "elsewhere"
    monkeypatch.setattr("site.getsitepackages", lambda: [str(installed)])
    package = module_in(installed / "maze_package", "def step():\n    raise RuntimeError('no maze')\n", "maze_steps.py")
    assert place_of(error_of(package.step)) == f"{installed}/maze_package/maze_steps.py, line 2"
    user = module_in(tmp_path / "mine", "import maze_steps\n\ndef step():\n    maze_steps.step()\n", "uses_maze.py")
    assert place_of(error_of(user.step)) == f"{tmp_path}/mine/uses_maze.py, line 4"


def test_a_package_below_the_folder_of_the_standard_library_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    package = module_in(tmp_path / "dist-packages" / "apart", "def step():\n    1 / 0\n", "apart_steps.py")
    assert place_of(error_of(package.step)) == f"{tmp_path}/dist-packages/apart/apart_steps.py, line 2"


def test_links_to_folders_lead_to_the_same_owner(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "gymnasium").symlink_to(tmp_path / "real")
    module = module_in(tmp_path / "gymnasium", "def step():\n    1 / 0\n", "linked_arm.py")
    assert place_of(error_of(module.step)) == f"{tmp_path}/gymnasium/linked_arm.py, line 2"
    (tmp_path / "libraries").symlink_to(Path(gymnasium.__file__).parent)
    code = compile("1 / 0", str(tmp_path / "libraries" / "core.py"), "exec")
    assert place_of(error_of(lambda: exec(code, {}))) == ""


def test_a_file_in_an_archive_is_a_file_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "penstock.zip"
    with zipfile.ZipFile(archive, "w") as writing:
        writing.writestr("zipped_arm.py", "def step():\n    1 / 0\n")
    monkeypatch.syspath_prepend(str(archive))
    assert place_of(error_of(import_module("zipped_arm").step)) == f"{archive}/zipped_arm.py, line 2"


@pytest.mark.parametrize(
    "name",
    [
        "<stdin>",
        "<console>",
        "<ipython-input-3-0123456789ab>",
        "<python-input-0>",
        "/tmp/ipykernel_12/345.py",
        "arm.py",
        "numpy/arm.py",
        "/nowhere/numpy/arm.py",
    ],
)
def test_code_of_a_session_is_of_the_user(name: str) -> None:
    code = compile("import numpy\nnumpy.broadcast_shapes((2,), (3,))\n", name, "exec")
    for variables in ({"__name__": "__main__"}, {}):
        assert place_of(error_of(lambda variables=variables: exec(code, variables))) == f"{name}, line 2"  # type: ignore[misc]


def test_generated_code_has_a_place_only_without_a_file() -> None:
    code = compile("1 / 0", "<string>", "exec")
    assert place_of(error_of(lambda: exec(code, {}))) == "<string>, line 1"


def test_an_error_that_a_library_raised_has_the_place_of_its_cause(tmp_path: Path) -> None:
    module = module_in(tmp_path / "penstock")

    def fails() -> None:
        try:
            module.raises()
        except RuntimeError as error:
            raise ValueError("wrapped") from error

    error = error_of(fails).with_traceback(None)
    assert explain(error) == f"ValueError: wrapped ({tmp_path}/penstock/arm.py, line {line_of('raises')})"


@pytest.mark.nightly
def test_a_command_in_a_folder_of_penstock_s_name_finds_the_user_s_line(tmp_path: Path) -> None:
    folder = tmp_path / "penstock"
    folder.mkdir()
    (folder / "arm.py").write_text(PROGRAM)
    command = "from penstock.machine.module_imports import import_module; import_module('fails.py')"
    (folder / "fails.py").write_text("import arm\n\narm.raises()\n")
    result = subprocess.run(
        [sys.executable, "-c", command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])},
    )
    assert f"RuntimeError: joint limit ({folder}/arm.py, line {line_of('raises')}); correct it" in result.stderr
