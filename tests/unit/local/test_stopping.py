"""The end of an interrupted run, with a small program in place of the learner."""

import sys
from pathlib import Path

from penstock.local import stopping
from penstock.local.children import Children
from penstock.types.status import RunStatus
from tests.support.machine.timing import wait_for


def test_a_stop_is_announced_even_if_the_learner_has_already_ended(tmp_path: Path) -> None:
    shown: list[tuple[RunStatus, list[str]]] = []
    with Children(max_restarts=0) as children:
        children.add("learner", [sys.executable, "-c", ""], tmp_path / "learner.log")
        learner = children.find("learner")
        wait_for(lambda: learner.exit_code is not None, "the end of the learner")
        finished = stopping.finish(learner, RunStatus(env_steps=9), lambda status, news: shown.append((status, news)))
    assert finished
    assert [news for _, news in shown] == [
        ["stopping: finishing a batch and saving a checkpoint (Ctrl-C again to kill)"]
    ]
    assert shown[0][0].phase == "stopping"
