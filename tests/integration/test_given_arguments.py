"""The arguments of an environment reach every process of a run as they were given."""

import sys
from pathlib import Path

import pytest

from tests.support.services.processes import run

pytestmark = pytest.mark.nightly

ENVIRONMENT = """
from pathlib import Path

import gymnasium
import numpy as np


class Told(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, log, **arguments):
        with Path(log).open("a") as file:
            file.write(f"{arguments!r}\\n")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), float(action), self.steps == 5, False, {}
"""
ARGUMENTS = "goal=((1, 2), None),names={1: 'a', True: (), None: [0.5, -inf]},word='None'"
RECEIVED: dict[str, object] = {"goal": ((1, 2), None), "names": {1: (), None: [0.5, float("-inf")]}, "word": "None"}
TRAIN = ("--actors=2", "--ppo.epochs=1", "--evaluation.episodes=2", "--evaluation.interval-steps=1000")


def received(log: Path) -> set[str]:
    lines = set(log.read_text().splitlines())
    log.unlink()
    return lines


@pytest.mark.parametrize("program", [False, True], ids=["options", "python"])
def test_every_process_and_a_resumed_run_get_the_arguments_that_were_given(tmp_path: Path, program: bool) -> None:
    (tmp_path / "told.py").write_text(ENVIRONMENT)
    log = tmp_path / "log"
    variants: list[dict[str, object]] = [{"size": (1,)}, {"size": {0: 2}}]
    told = {repr({**RECEIVED, **variant}) for variant in variants}
    if program:
        (tmp_path / "script.py").write_text(
            "import penstock\nfrom math import inf\nfrom told import Told\nif __name__ == '__main__':\n"
            f"    arguments = {{'log': {str(log)!r}, **{RECEIVED!r}}}\n"
            f"    settings = dict(kwargs=arguments, variants={variants!r}, actors=2, total_steps=1000, run_dir='run')\n"
            "    penstock.train(Told, epochs=1, evaluation={'episodes': 2, 'interval_steps': 1000}, **settings)\n"
        )
        ended = run(str(tmp_path / "script.py"), directory=tmp_path, program=(sys.executable,))
    else:
        options = (f"--environment.kwargs=log={log},{ARGUMENTS}", f"--environment.variants={variants!r}")
        ended = run(
            "train",
            "--env-id=told.py:Told",
            *options,
            *TRAIN,
            "--total-steps=1000",
            "--run-dir=run",
            directory=tmp_path,
        )
    assert ended.code == 0, ended.stderr
    assert received(log) == told
    more = ("--resume=run", "--total-steps=2000", "--trust-code")
    ended = run("train", *more, directory=tmp_path)
    assert ended.code == 0, ended.stderr
    assert received(log) == told
    ended = run("evaluate", "run", "--episodes=2", "--trust-code", directory=tmp_path)
    assert ended.code == 0, ended.stderr
    assert received(log) == told
