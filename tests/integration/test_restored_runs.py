"""Snapshots of an active run, and a run restored from one, with a user's commands."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.replay.store.layout import State
from penstock.replay.store.ring_store import RingStore
from penstock.runs.folder import RunFolder
from tests.support.machine.timing import wait_for_run
from tests.support.services.processes import WITH_HELPERS, Command, end_in_time, run, watching

pytestmark = pytest.mark.nightly

CAPACITY = 4_000_000
SETTINGS = (
    "--env-id=Paced-v0 --env-import=tests.support.environments.paced --actors=1 --envs-per-actor=8 --ppo.epochs=1"
    " --evaluation.episodes=5 --evaluation.interval-steps=100000 --total-steps=1000000"
    f" --replay.capacity-bytes={CAPACITY} --sampling.max-staleness=16"
)


def digests(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def headers_of(folder: RunFolder) -> NDArray[Any]:
    """Returns the headers of the store's segments, <HEADER>[...]."""
    store = RingStore(folder.replay, CAPACITY)
    found: NDArray[Any] = store.headers[store.headers["key"] != 0]
    return found


def test_a_run_restored_from_a_snapshot_replays_its_segments(tmp_path: Path) -> None:
    folder, new = tmp_path / "run", RunFolder(tmp_path / "new")
    here = f"--run-dir={folder}"
    with Command("train", *SETTINGS.split(), here, environment=WITH_HELPERS) as command:
        with watching(command, folder) as watch:
            watch.until(lambda now: now.env_steps >= 3_000, "3,000 steps")
            taken = run("replay", "snapshot", here, "early")
            listed = run("replay", "snapshots", here)
            at = watch.status().version
            # More versions than any restored segment would be replayed for in this run.
            watch.until(lambda now: now.version > at + 16, "training to continue")
        command.interrupt()
        ended = end_in_time(command)
    assert ended.code == 130, ended.stdout + ended.stderr
    assert (taken.code, listed.code) == (0, 0), taken.stderr + listed.stderr
    assert "snapshot early: version " in taken.stdout
    assert f"penstock replay restore early --run-dir {folder} --into NEW\n" in taken.stdout
    (row,) = [line.split() for line in listed.stdout.splitlines() if "early" in line]

    before = digests(folder)
    restored = run("replay", "restore", "early", here, f"--into={new.root}")
    assert restored.code == 0, restored.stderr
    assert f"penstock train --resume {new.root}\n" in restored.stdout
    first = headers_of(new)
    version = int(row[3].replace(",", ""))
    assert f"version {version:,}" in restored.stdout and first["version"].max() <= version

    options = (
        f"--resume={new.root}",
        "--trust-code",
        "--checkpoint.snapshot-interval-s=0.2",
        "--replay.snapshots-kept=2",
    )
    with Command("train", *options, environment=WITH_HELPERS) as command:
        with watching(command, new.root) as watch:
            watch.until(lambda now: now.version > version + 10, "training to continue")
            # Automatic snapshots, of which the configured number is kept.
            wait_for_run(lambda: _numbers(new.snapshots)[-1:] > [3], "snapshots on the interval")
        command.interrupt()
        ended = end_in_time(command)
    assert ended.code == 130, ended.stdout + ended.stderr
    assert len(_numbers(new.snapshots)) <= 3
    # Segments trained before the snapshot were trained again, because their priorities have changed.
    last = headers_of(new)
    common, mine, theirs = np.intersect1d(first["key"], last["key"], return_indices=True)
    seen = first["state"][mine] == State.SEEN
    replayed = seen & (first["priority"][mine] != last["priority"][theirs])
    assert common.size == first.size
    assert np.count_nonzero(replayed) > 20
    assert (last["state"][theirs] == State.SEEN).mean() > 0.9
    assert digests(folder) == before


def _numbers(place: Path) -> list[int]:
    """Returns the numbers of the complete snapshots in a folder, ascending."""
    return sorted(json.loads(path.read_text())["number"] for path in place.glob("[!.]*/manifest.json"))
