"""Environments that can't be pickled, print, or close their output have the same rows in a worker process."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.environments.made import make_environments
from tests.support.tiers import gate_of

OWN = """
import os, sys, threading
from gymnasium.envs.classic_control import CartPoleEnv

class Unpicklable(CartPoleEnv):
    def __init__(self):
        super().__init__()
        self.lock, self.function, self.file = threading.Lock(), lambda: 1, open(os.devnull)

class Prints(CartPoleEnv):
    def step(self, action):
        print("noise" * 1000)
        os.write(1, b"more of it")
        print("and errors", file=sys.stderr)
        return super().step(action)

class Closes(CartPoleEnv):
    def __init__(self):
        super().__init__()
        sys.stdout.close()
        sys.stderr.close()
"""


@pytest.mark.parametrize("name", gate_of(1, ["Unpicklable", "Prints", "Closes"]))
def test_rows_of_a_worker_are_those_of_the_plain_environment(name: str, tmp_path: Path) -> None:
    (tmp_path / "awkward.py").write_text(OWN)
    plain = make_environments("gymnasium.envs.classic_control:CartPoleEnv", 2, kwargs={})
    with closing(
        make_environments(f"{tmp_path / 'awkward.py'}:{name}", 2, kwargs={}, vectorization="process", workers=1)
    ) as worked:
        for environments in (plain, worked):
            environments.reset([1, 2])
        for _ in range(12):
            expected, found = (each.step((np.array([0, 1]),)) for each in (plain, worked))
            assert not found.lost
            np.testing.assert_array_equal(expected.terminated, found.terminated)
            np.testing.assert_array_equal(plain.observation[0], worked.observation[0])
