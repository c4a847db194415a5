"""An environment in another Python is that of this one, also if it has the interface of old Gym.

The other Python is this one here; that the file of its process needs no newer syntax is read in its text.
"""

import ast
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from penstock.acting.environments.registry import import_and_find, make
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.workers import foreign_worker
from penstock.errors import ConfigurationError, EnvironmentFailed
from tests.support.environments.made import make_environments
from tests.support.tiers import gate_of

COURIER = "tests.support.environments.courier"

OLD = '''
"""An environment with the interface of Gym 0.21."""
import os, sys
from types import SimpleNamespace
import numpy as np
import gymnasium.spaces as spaces

class Old:
    observation_space = spaces.Dict(
        {"board": spaces.MultiBinary((2, 2)), "seed": spaces.Box(-1.0, 1e9, (1,), np.float64)}
    )
    action_space = spaces.Discrete(3, start=1)
    metadata = {"render.modes": ["rgb_array"], "unplain": object()}
    spec = SimpleNamespace(max_episode_steps=4)

    def __init__(self, kind="", at=3):
        print("made")
        os.close(1)
        self.kind, self.at, self.last, self.steps = kind, at, -1.0, 0
        if kind == "text":
            self.observation_space = spaces.Sequence(spaces.Discrete(2))

    @property
    def unwrapped(self):
        return self

    def seed(self, seed=None):
        self.last = float(seed)

    def reset(self):
        self.steps = 0
        return self._observe()

    def step(self, action):
        assert action == 2 and self.action_space.contains(action)
        self.steps += 1
        if self.kind == "raises" and self.steps == self.at:
            raise ValueError("broken simulator")
        if self.kind == "leaves" and self.steps == self.at:
            os._exit(5)
        if self.kind == "sends" and self.steps == self.at:
            return object(), 1.0, False, {}
        done = self.steps == 4
        info = {"TimeLimit.truncated": self.kind != "ends", "unplain": object()} if done else {}
        return self._observe(), np.float32(0.5), done, info

    def action_masks(self):
        return np.array([0, 1, int(self.steps % 2)])

    def render(self, mode="human"):
        assert mode == "rgb_array"
        return np.full((2, 2, 3), self.steps, np.uint8)

    def close(self):
        pass

    def _observe(self):
        return {"board": np.full((2, 2), self.steps % 2, np.int8), "seed": np.array([self.last])}
'''

LINE = 1 + next(number for number, line in enumerate(OLD.splitlines()) if "broken simulator" in line)


@pytest.fixture
def old(tmp_path: Path) -> str:
    """Returns the name of an environment with the interface of old Gym."""
    file = tmp_path / "old_environment.py"
    file.write_text(OLD)
    return f"{file}:Old"


def made(name: str, kwargs: Mapping[str, Any], count: int = 1, python: str = sys.executable) -> SingleEnvironments:
    environments = make_environments(name, count, kwargs=kwargs, python=python)
    assert isinstance(environments, SingleEnvironments)
    return environments


def processes() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if any("foreign_worker" in word for word in each.cmdline())]


def test_the_file_of_the_process_is_of_python_3_7() -> None:
    ast.parse(Path(foreign_worker.__file__).read_text(), feature_version=(3, 7))


def test_rows_are_those_of_this_python() -> None:
    here = make_environments("Courier-v0", 2, kwargs={}, imports=[COURIER])
    there = make_environments("Courier-v0", 2, kwargs={}, imports=[COURIER], python=sys.executable)
    with closing(there):
        assert there.spec == here.spec and there.timed == here.timed
        for environments in (here, there):
            environments.reset([3, 2**61])
        for _ in range(60):
            for leaf, other in zip(here.observation, there.observation, strict=True):
                np.testing.assert_array_equal(leaf, other, strict=True)
            assert here.action_mask is not None and there.action_mask is not None
            np.testing.assert_array_equal(here.action_mask, there.action_mask)
            action = (here.action_mask.argmax(1),)
            for one, other in zip(here.step(action)[:5], there.step(action)[:5], strict=True):
                np.testing.assert_array_equal(one, other, strict=True)
    assert not processes()


def test_the_interface_of_old_gym_is_converted(old: str) -> None:
    with closing(made(old, {})) as environments:
        assert environments.timed and environments.spec.mask_bits == 3
        environments.reset([7])
        assert [leaf.tolist() for leaf in environments.observation] == [[[[0, 0], [0, 0]]], [[7.0]]]
        ends = []
        for step in range(6):
            assert environments.action_mask is not None
            # The row after the end of the episode only resets.
            legal = [True, True, True] if step == 4 else [False, True, step in (1, 3)]
            assert environments.action_mask.tolist() == [legal]
            outcome = environments.step((np.array([2]),))
            ends.append((float(outcome.reward[0]), bool(outcome.terminated[0]), bool(outcome.truncated[0])))
        assert ends == [(0.5, False, False)] * 3 + [(0.5, False, True), (0.0, False, False), (0.5, False, False)]


@pytest.mark.nightly
def test_an_old_environment_ends_and_renders(old: str) -> None:
    env = make(import_and_find(old, (), sys.executable), {"kind": "ends"}, render_mode="rgb_array")
    env.reset(seed=1)
    results = [env.step(np.int64(2)) for _ in range(4)]
    assert [result[2:4] for result in results] == [(False, False)] * 3 + [(True, False)]
    picture: Any = env.render()
    assert picture.tolist() == np.full((2, 2, 3), 4).tolist()
    env.close()
    assert not processes()


@pytest.mark.parametrize(
    ("kind", "text"),
    gate_of(
        1,
        [
            ("raises", f"ValueError: broken simulator (FILE, line {LINE})"),
            ("leaves", "RuntimeError: its Python process ended with exit code 5"),
            ("sends", "TypeError: a value of type object can't leave its process"),
        ],
    ),
)
def test_a_fault_in_another_python_is_named_like_one_in_this(old: str, kind: str, text: str) -> None:
    environments = made(old, {"kind": kind})
    environments.reset([7])
    with pytest.raises(EnvironmentFailed) as caught:
        for _ in range(4):
            environments.step((np.array([2]),))
    assert caught.value.what.startswith(
        text.replace("FILE", old.partition(":")[0]) + f" in step 3 of its episode ({old})"
    )
    environments.close()
    assert not processes()


@pytest.mark.parametrize(
    ("name", "python", "text"),
    [
        ("CartPole-v1", "/nowhere/python", "No such file or directory; give the path of a Python interpreter"),
        ("CartPole-v1", "/bin/true", "it ended with exit code 0 at once; it must be a Python from 3.7 on, and"),
        *gate_of(
            1,
            [
                ("no_such_package:Env", "", "No module named 'no_such_package'; install it with"),
                ("nothing.py:Env", "", "there is no file nothing.py"),
                ("Nothing-v0", "", "Nothing"),
                ("OLD", "", "the space Sequence(Discrete(2), stack=False) is not supported"),
            ],
        ),
    ],
)
def test_what_can_not_be_made_is_refused_in_one_line(name: str, python: str, text: str, old: str) -> None:
    kwargs = {"kind": "text"} if name == "OLD" else {}
    with pytest.raises(ConfigurationError) as caught:
        made(old if name == "OLD" else name, kwargs, python=python or sys.executable)
    assert text in str(caught.value) and "\n" not in str(caught.value)
    assert (python or sys.executable) in str(caught.value)
    assert not processes()


def test_an_interpreter_without_numpy_is_told_from_another_fault(tmp_path: Path) -> None:
    python = tmp_path / "python"
    # Without the folder of installed packages.
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(ConfigurationError, match=f"it has no NumPy; install it with {python} -m pip install numpy$"):
        made("CartPole-v1", {}, python=str(python))
    assert not processes()


@pytest.mark.nightly
def test_workers_step_environments_of_another_python(old: str) -> None:
    environments = make_environments(old, 2, kwargs={}, python=sys.executable, vectorization="process", workers=2)
    with closing(environments):
        environments.reset([1, 2])
        for worker in psutil.Process().children():
            assert len(worker.children()) == 1
        assert not environments.step((np.array([2, 2]),)).lost
        os.kill(psutil.Process().children()[0].children()[0].pid, 9)
        ((index, failed),) = environments.step((np.array([2, 2]),)).lost.items()
        assert failed.environment == index and "its Python process was ended by SIGKILL" in failed.what
