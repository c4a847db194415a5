"""A learner that requests no batch before the actors that it awaits are connected."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.runs.folder import RunFolder
from tests.support.services.ports import free_ports
from tests.support.services.processes import Command, end_of, run

pytestmark = pytest.mark.nightly


def test_a_learner_says_how_many_of_its_actors_are_connected_and_begins_with_all_of_them(tmp_path: Path) -> None:
    replay, learner = (f"127.0.0.1:{port}" for port in free_ports(2))
    folder = RunFolder(tmp_path / "run")
    settings = [
        "--preset=textbook",
        f"--run-dir={folder.root}",
        f"--replay.listen={replay}",
        f"--learner.listen={learner}",
        f"--learner.replay-addresses={replay}",
        f"--actor.learner-address={learner}",
        "--replay.metrics-port=0",
        "--learner.metrics-port=0",
        "--train.actors=2",
        "--total-steps=1024",
        f"--evaluation.learner-address={learner}",
        "--evaluation.episodes=1",
    ]
    with ExitStack() as stack:

        def start(service: str) -> Command:
            return stack.enter_context(Command(service, *settings, directory=tmp_path))

        def waiting_for() -> str:
            asked = run("status", str(folder.root), "--json", directory=tmp_path)
            return str(json.loads(asked.stdout)["waiting_for"]) if asked.code == 0 else ""

        for service in ("replay", "evaluator", "actor"):
            start(service)
        trained = start("learner")
        trained.until(lambda: "1 of 2 are connected" in waiting_for(), "the learner waits for the second actor")
        start("actor")
        assert end_of(trained).code == 0
