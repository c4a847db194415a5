"""`--actors auto` adds and removes actors during a run."""

import json
import os
import signal
from pathlib import Path

import pytest

from penstock.local.actor_count import ActorCount
from penstock.local.actors import Actors
from penstock.local.children import Children
from penstock.local.sockets import sockets_of
from penstock.rpc.health import is_serving
from penstock.runs.folder import RunFolder
from penstock.types.status import RunStatus
from tests.support.machine.timing import wait_for_run
from tests.support.services.processes import WITH_HELPERS, Command, end_of

pytestmark = pytest.mark.nightly

SETTINGS = (
    # Slow enough to starve the learner on any machine.
    "--env-id=Paced-v0 --env-import=tests.support.environments.paced --environment.kwargs=pause_s=0.002"
    " --actors=auto --envs-per-actor=8 --ppo.epochs=1"
    " --evaluation.episodes=5 --evaluation.interval-steps=1000000 --total-steps=10000000"
)


def services(folder: RunFolder) -> list[str]:
    return list(json.loads(folder.services.read_text())) if folder.services.exists() else []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one actor")
def test_a_run_with_a_starved_learner_gets_another_actor_and_leaves_no_process(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with Command("train", *SETTINGS.split(), f"--run-dir={folder.root}", environment=WITH_HELPERS) as command:
        first = command.until(lambda: [name for name in services(folder) if name.startswith("actor")], "a first actor")
        another = f"actor-{len(first)}"
        command.until(lambda: another in services(folder), "another actor")
        command.until(lambda: f"now {len(first) + 1} actors: " in command.stdout, "the notice of another actor")
        log = folder.logs / f"{another}.log"
        command.until(lambda: log.exists() and "joined" in log.read_text(), "the actor to join")
        os.kill(command.pid, signal.SIGINT)
        end = end_of(command)
    assert end.left_behind == []
    assert not folder.services.exists()


def test_a_superfluous_actor_ends_in_order_and_is_not_restarted(tmp_path: Path) -> None:
    folder, count = RunFolder(tmp_path / "run"), ActorCount(least=2, most=2)
    folder.create()
    with sockets_of(folder) as sockets, Children(max_restarts=0) as children:
        learner = sockets.address("learner")
        actors = Actors(
            sockets,
            2,
            count,
            children,
            folder=folder,
            settings=["--env-id=CartPole-v1", f"--actor.learner-address={learner}"],
            others={"learner": learner},
            step_timeout_s=120.0,
        )
        assert services(folder) == ["learner", "actor-0", "actor-1"]
        actors.start()
        leaving = children.find("actor-1")
        wait_for_run(lambda: is_serving(sockets.address("actor-1"), 5.0), "the actor to start")
        count.number = 1
        actors.adapt(RunStatus())
        assert services(folder) == ["learner", "actor-0"]
        wait_for_run(lambda: children.revive() == [] and not children.dismissed, "the actor to end")
        assert leaving.exit_code == 0
        assert [child.name for child in children.members] == ["actor-0"]
        assert children.find("actor-0").exit_code is None
