"""300 flipped bits across the files of a run: each is detected, or the previous file is used with a notice."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ConfigurationError, DamagedFile
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.durable.versions import VersionMark
from penstock.learning.members.roster import Roster
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree
from tests.support.segments.segments import SCHEMA
from tests.support.services.in_process import InProcess, open_session
from tests.support.tiers import gate_of
from tests.support.training.training import make_learner

SPEC = EnvironmentSpec("Counting-v0", Tree.of(BoxSpace("float32", (1,), (0.0,), (1.0,))), Tree.of(DiscreteSpace(2)))
FLIPS = 300


def start(folder: RunFolder) -> list[str]:
    """Returns the notices to the user when a learner starts on this folder."""
    notices: list[str] = []
    recovered = checkpoints.recover(folder)
    notices += recovered.complaints
    assert recovered.path is not None
    checkpoints.restore(LEARNER, recovered.path)
    roster_of(folder, notices)
    VersionMark(folder.versions, notice=notices.append)
    return notices


def roster_of(folder: RunFolder, notices: list[str]) -> Roster:
    return Roster(
        folder.roster,
        seed=1,
        max_actors=8,
        rejoin_timeout_s=10.0,
        now=0.0,
        writes=RetriedWrites(notices.append),
        notice=notices.append,
        expected=True,
    )


LEARNER: Learner = make_learner("CartPole-v1")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Returns the folder of a run with checkpoints, a best checkpoint, a roster and a version mark."""
    folder = RunFolder(tmp_path_factory.mktemp("sound") / "run")
    folder.create()
    session = open_session(
        folder,
        InProcess(returns=(100.0, 400.0, 200.0)),
        batches=4,
        evaluation={"interval_steps": 100, "mode": "synchronous"},
        checkpoint={"save_interval": 100},
    )
    session.run.run()
    roster = roster_of(folder, [])
    for environments in (2, 3):
        roster.join(SCHEMA, SPEC, environments, b"", 0.0)
    roster.record()
    assert start(folder) == []
    return folder


@pytest.fixture
def folder(sound: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(sound.root, tmp_path / "run")
    return RunFolder(tmp_path / "run")


FILES: dict[str, Callable[[RunFolder], Path]] = {
    "newest checkpoint": lambda folder: folder.numbered_checkpoints()[-1],
    "best checkpoint": lambda folder: folder.best_checkpoint,
    "roster": lambda folder: folder.roster,
    "versions": lambda folder: folder.versions,
}


@pytest.mark.parametrize("name", gate_of(2, FILES))
def test_every_flipped_bit_is_reported_and_never_changes_the_resumed_state(folder: RunFolder, name: str) -> None:
    path = FILES[name](folder)
    data, random = path.read_bytes(), np.random.default_rng(3)
    flips = FLIPS // len(FILES)
    # Half of the bits are in the first 2 KiB, because nearly all bits of a checkpoint belong to tensors.
    bits = [*random.integers(0, 8 * min(len(data), 2048), flips // 2), *random.integers(0, 8 * len(data), flips)]
    for bit in bits[:flips]:
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        notices = start(folder)
        assert any(str(path) in line for line in notices), (bit, notices)
        path.with_name(f"{path.name}.damaged").unlink(missing_ok=True)


def test_the_previous_checkpoint_is_used_and_both_are_reported(folder: RunFolder) -> None:
    *_, before, newest = folder.numbered_checkpoints()
    folder.best_checkpoint.unlink()
    newest.write_bytes(newest.read_bytes()[:-1])
    recovered = checkpoints.recover(folder)
    assert recovered.path == before
    assert recovered.progress == checkpoints.read_progress(before)
    damaged, continued = recovered.complaints
    assert str(newest) in damaged and f"moved to {newest.name}.damaged" in damaged
    assert continued == f"the run continues from {before}"
    # The damaged file is reported once, and no longer counts as a checkpoint.
    assert checkpoints.recover(folder).complaints == ()
    assert newest not in folder.numbered_checkpoints()


def test_a_damaged_best_checkpoint_is_reported_and_replaced_by_the_next_evaluation(folder: RunFolder) -> None:
    data = folder.best_checkpoint.read_bytes()
    folder.best_checkpoint.write_bytes(data[:5000] + bytes(8) + data[5008:])
    session = open_session(folder, InProcess(returns=(50.0,)), batches=5, resume=True)
    assert str(folder.best_checkpoint) in session.notices[0]
    session.run.run()
    assert session.best is not None and session.best.return_mean == 50.0
    assert checkpoints.recover(folder).best == session.best


def test_a_run_with_only_damaged_checkpoints_is_refused_and_no_file_is_renamed(folder: RunFolder) -> None:
    paths = [*folder.numbered_checkpoints(), folder.best_checkpoint]
    for path in paths:
        path.write_bytes(path.read_bytes()[:1000])
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="all checkpoints of the run are damaged") as refused:
            checkpoints.recover(folder)
        assert all(str(path) in str(refused.value) for path in paths)


def test_a_run_killed_after_its_first_evaluation_resumes_from_the_best_checkpoint(folder: RunFolder) -> None:
    for path in folder.numbered_checkpoints():
        path.unlink()
    recovered = checkpoints.recover(folder)
    assert recovered.path == folder.best_checkpoint
    assert recovered.best is not None and recovered.best.return_mean == 400.0


def rewrite_without_digests(path: Path, best_return: float | None) -> None:
    """Rewrites a checkpoint in the format of releases without digests."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    progress = json.loads(header["__metadata__"]["penstock.progress"]) | {"best_return": best_return}
    for name in ("env_steps_taken", "wall_s", "sessions"):
        progress.pop(name, None)
    kept = {"penstock": header["__metadata__"]["penstock"], "penstock.progress": json.dumps(progress)}
    text = json.dumps({**header, "__metadata__": kept}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def test_checkpoints_without_digests_are_read_and_reported_as_unverified(folder: RunFolder) -> None:
    newest = folder.numbered_checkpoints()[-1]
    expected = checkpoints.read_progress(newest)
    # Such releases stored the return of the best evaluation in the newest checkpoint and not in the best one.
    rewrite_without_digests(newest, 400.0)
    rewrite_without_digests(folder.best_checkpoint, None)
    recovered = checkpoints.recover(folder)
    assert recovered.path == newest
    assert (recovered.progress.env_steps, recovered.progress.version) == (expected.env_steps, expected.version)
    assert recovered.best is not None and recovered.best.return_mean == 400.0
    (complaint,) = recovered.complaints
    assert str(newest) in complaint and "can't be verified" in complaint
    checkpoints.restore(make_learner("CartPole-v1", seed=3), newest)


def test_damaged_headers_without_digests_never_cause_a_traceback(folder: RunFolder) -> None:
    newest = folder.numbered_checkpoints()[-1]
    rewrite_without_digests(newest, 400.0)
    data, random = newest.read_bytes(), np.random.default_rng(9)
    for bit in random.integers(0, 8 * (8 + int.from_bytes(data[:8], "little")), 300):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        newest.write_bytes(changed)
        try:
            checkpoints.restore(LEARNER, newest)
        except ConfigurationError as error:
            assert newest.name in str(error)


def test_a_checkpoint_damaged_after_the_start_raises_an_error_with_its_name(folder: RunFolder) -> None:
    newest = folder.numbered_checkpoints()[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    for attempt in (checkpoints.read_progress, checkpoints.read_snapshot):
        with pytest.raises(DamagedFile, match=newest.name):
            attempt(newest)


def test_saving_beside_a_damaged_checkpoint_removes_no_sound_checkpoint(folder: RunFolder) -> None:
    for path in folder.numbered_checkpoints():
        path.unlink()
    future = folder.checkpoints / f"{10**9:012d}.safetensors"
    future.write_bytes(b"damaged, and not renamed because of the disk")
    saved = checkpoints.save(folder, checkpoints.take(LEARNER, RunProgress(env_steps=5)), keep=1)
    assert saved.exists()
    assert checkpoints.read_progress(saved).env_steps == 5
