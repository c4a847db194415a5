"""Numbers that environments draw from the generators of their process, in the processes of real runs."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from tests.support.services.processes import run

pytestmark = pytest.mark.nightly

ENVIRONMENT = """
import ctypes
import json
import os
import random
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch


def drawn():
    return [random.random(), np.random.rand(), torch.rand(1).item(), ctypes.CDLL(None).rand()]


MODULE = drawn()


class Drawing(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, log, dies):
        self.log, self.dies, self.constructor, self.told = Path(log), dies, drawn(), False
        self.number = Drawing.made = Drawing.made + 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        service = os.environ["PENSTOCK_SUPERVISED"]
        numbers = {"module": MODULE, "constructor": self.constructor, "reset": drawn()}
        self.steps = 0
        if not self.told and self.number == 1 and service != "environment check":
            with self.log.open("a") as file:
                file.write(json.dumps({"service": service, **numbers}) + "\\n")
            self.told = True
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        service = os.environ["PENSTOCK_SUPERVISED"]
        if self.dies and service.startswith("actor"):
            # The first process of actor-0 ends here, and actor-1 continues when there is a second one.
            while (starts := self.log.read_text().count('"actor-0"')) < 2:
                if service == "actor-0" and starts == 1:
                    os._exit(1)
                time.sleep(0.01)
        return np.zeros(1, np.float32), 1.0, self.steps == 10, False, {}
"""
OPTIONS = ("--env-id=drawing.py:Drawing", "--environment.action-masks=false", "--actors=2", "--ppo.epochs=1")


def drawn(folder: Path, name: str, *options: str, dies: bool = False) -> list[dict[str, object]]:
    """Trains, and returns what each process of the services has drawn, in the order of their first resets."""
    (folder / "drawing.py").write_text(ENVIRONMENT)
    log = folder / f"{name}.log"
    log.unlink(missing_ok=True)
    ended = run(
        "train",
        *(options or (*OPTIONS, f"--run-dir={name}", "--total-steps=1000")),
        *("--evaluation.episodes=1", f"--environment.kwargs=log={log},dies={dies}", "--trust-code"),
        directory=folder,
    )
    assert ended.code == 0, ended.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_actors_evaluators_restarts_and_sessions_draw_other_numbers_at_every_place(tmp_path: Path) -> None:
    first = drawn(tmp_path, "run", dies=True)
    assert sorted(str(each["service"]) for each in first) == ["actor-0", "actor-0", "actor-1", "evaluator"]
    second = drawn(tmp_path, "run", "--resume=run", "--total-steps=2000")
    assert sorted(str(each["service"]) for each in second) == ["actor-0", "actor-1", "evaluator"]
    for place in ("module", "constructor"):
        found = [each[place] for each in (*first, *second)]
        assert all(one != other for one, other in combinations(found, 2)), place
    # Evaluations may play the same episodes.
    resets = [each["reset"] for each in (*first, *second) if each["service"] != "evaluator" or each in first]
    assert all(one != other for one, other in combinations(resets, 2))


def test_runs_with_equal_seeds_draw_equal_numbers_and_others_do_not(tmp_path: Path) -> None:
    def by_service(name: str, seed: int) -> dict[str, dict[str, object]]:
        options = (*OPTIONS, f"--run-dir={name}", "--total-steps=1000", f"--seed={seed}")
        return {str(each["service"]): each for each in drawn(tmp_path, name, *options)}

    first, again, other = by_service("first", 1), by_service("again", 1), by_service("other", 2)
    for service in ("actor-0", "actor-1", "evaluator"):
        for place in ("module", "constructor"):
            assert first[service][place] == again[service][place] != other[service][place]
    # Actors get their slots in the order in which they join.
    resets = [sorted(repr(each["reset"]) for each in processes.values()) for processes in (first, again, other)]
    assert resets[0] == resets[1] and not set(resets[0]) & set(resets[2])
