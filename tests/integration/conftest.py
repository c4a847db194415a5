"""One finished run of CartPole that uses every source of settings, shared by all tests of its results."""

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.support.services.processes import Command, Ended, EndedRun, end_of

OPTIONS = (
    "--seed=1 --total-steps=6000 --stop-at-return=None --actors=1 --envs-per-actor=8 --ppo.epochs=3"
    " --sampling.batch-segments=32 --sampling.fresh-fraction=0.5 --evaluation.episodes=5"
    " --evaluation.interval-steps=2000 --evaluation.threshold=20"
    " --checkpoint.save-interval=1000 --checkpoint.max-checkpoints=2"
)
FILE = "[ppo]\nepochs = 7\nminibatches = 2\ndiscount = 0.98\n"
VARIABLES = {"PENSTOCK__PPO__EPOCHS": "5", "PENSTOCK__PPO__MINIBATCHES": "3"}


@pytest.fixture(scope="session")
def ended_run(tmp_path_factory: pytest.TempPathFactory) -> EndedRun:
    """The run, which the first worker that needs it trains. No test may change its folder."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "ended"
    place.mkdir(exist_ok=True)
    kept = place / "ended.json"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists():
            found = json.loads(kept.read_text())
            return EndedRun(place / "run", Ended(**found["end"]), set(found["ports"]))
        ended = _train(place)
        kept.write_text(json.dumps({"end": asdict(ended.end), "ports": sorted(ended.ports)}))
        return ended


def _train(place: Path) -> EndedRun:
    file, folder = place / "settings.toml", place / "run"
    file.write_text(FILE)
    options = [*OPTIONS.split(), f"--config={file}", f"--run-dir={folder}"]
    with Command("train", *options, environment=VARIABLES) as command:
        # The metrics of replay, learner, evaluator and actor.
        ports = set[int]()

        def all_seen() -> bool:
            # Not necessarily at the same time: the run may end soon after the last of them has started.
            ports.update(command.ports())
            return len(ports) == 4

        command.until(all_seen, "all ports")
        return EndedRun(folder, end_of(command), ports)
