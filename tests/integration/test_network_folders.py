"""A run whose folder is on a network file system: its store is on a local disk, and everything else in the folder."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.runs.folder import RunFolder
from tests.support.machine.network_mounts import mounted_over_fuse
from tests.support.services.processes import WITH_HELPERS, Command, Ended, end_in_time, end_of, run, watching

pytestmark = pytest.mark.nightly

SETTINGS = (
    "--env-id=Paced-v0 --env-import=tests.support.environments.paced --actors=1 --envs-per-actor=8 --ppo.epochs=1"
    " --evaluation.episodes=5 --evaluation.interval-steps=100000"
)


@dataclass(frozen=True, slots=True)
class Sessions:
    """An interrupted session of a run, the session that ended it, and where its store was in between."""

    folder: RunFolder
    scratch: Path
    store: Path
    interrupted: Ended
    finished: Ended


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("shared")
    yield from mounted_over_fuse(place / "real", place / "nodes")


@pytest.fixture(scope="module")
def sessions(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Sessions:
    folder, scratch = RunFolder(shared / "run"), tmp_path_factory.mktemp("scratch")
    environment = {**WITH_HELPERS, "TMPDIR": str(scratch), "SLURM_TMPDIR": ""}
    new = (*SETTINGS.split(), "--total-steps=10000000", f"--run-dir={folder.root}")
    with Command("train", *new, environment=environment) as command:
        with watching(command, folder.root) as watch:
            trained = watch.until(lambda now: now.env_steps >= 1_000, "training").env_steps
        command.interrupt()
        interrupted = end_in_time(command)
    (store,) = scratch.glob("penstock-*")
    more = (f"--resume={folder.root}", "--trust-code", f"--total-steps={trained + 3_000}")
    with Command("train", *more, environment=environment) as command:
        return Sessions(folder, scratch, store, interrupted, end_of(command))


def test_the_run_says_in_one_line_where_its_store_is(sessions: Sessions) -> None:
    assert sessions.interrupted.code == 130, sessions.interrupted.stderr
    line = f"is on a network file system (fuse), so its replay store is in {sessions.store}"
    assert sessions.interrupted.stdout.count(line) == 1
    assert not sessions.folder.replay.exists()


def test_the_resumed_run_finds_its_segments_and_removes_the_store_at_its_end(sessions: Sessions) -> None:
    assert sessions.finished.code == 0, sessions.finished.stderr
    assert "network file system" not in sessions.finished.stdout
    logged = [json.loads(line) for line in (sessions.folder.logs / "replay.log").read_text().splitlines()]
    recovered = [entry["segments"] for entry in logged if entry["event"] == "store recovered"]
    assert len(recovered) == 1 and recovered[0] > 0
    assert sessions.folder.best_checkpoint.exists()
    assert list(sessions.scratch.glob("penstock-*")) == []
    assert not sessions.folder.store_place.exists()


def test_a_service_refuses_a_store_there_in_one_line(shared: Path) -> None:
    end = run("replay", "--replay.listen=127.0.0.1:0", "--replay.metrics-port=0", f"--replay.folder={shared / 'store'}")
    assert end.code == 2
    line = end.stderr.splitlines()[-1]
    assert line.startswith(f"penstock: the replay store in {shared / 'store'} would be on a network file system (fuse)")
    assert not (shared / "store").exists()
