"""Full, read-only and broken disks under the run's folder: training continues to its last save."""

import errno
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError, Unavailable
from penstock.learning.durable import checkpoints, retried_writes
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.runs.folder import RunFolder
from tests.support.machine.disks import make_full, make_read_only, mounted
from tests.support.machine.timing import wait_for
from tests.support.services.in_process import InProcess, Session, open_session
from tests.support.services.servers import sample

BATCHES = 8
BROKEN_FROM, BROKEN_UNTIL = 2, 6
ERRORS = {code: os.strerror(code) for code in (errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE)}
CALLS = ("open", "write", "pwrite", "fsync", "rename", "truncate")


class Disk:
    """A disk on which one kind of call fails while it is broken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
        self.broken, self.refused = False, 0
        module, name = {"rename": (Path, "replace"), "truncate": (os, "ftruncate")}.get(call, (os, call))
        original = getattr(module, name)

        def refuse(*arguments: object, **options: object) -> object:
            if not self.broken:
                return original(*arguments, **options)
            self.refused += 1
            raise OSError(code, ERRORS[code])

        monkeypatch.setattr(module, name, refuse)


def session_on(folder: RunFolder, breaks: Callable[[bool], None], until: int = BROKEN_UNTIL) -> Session:
    """Returns a session that saves and evaluates after each batch, and whose disk is broken during some of them."""
    outside = InProcess(returns=[100.0 + 10.0 * number for number in range(BATCHES)])

    def stopping() -> bool:
        if outside.batches >= BROKEN_FROM:
            # Checkpoints are written beside the training, and the first ones must be complete when the disk breaks.
            wait_for(lambda: len(folder.numbered_checkpoints()) >= BROKEN_FROM - 1, "checkpoint", poll_s=0.001)
        breaks(BROKEN_FROM <= outside.batches < until)
        return False

    return open_session(
        folder,
        outside,
        stopping,
        batches=BATCHES,
        evaluation={"interval_steps": 60, "mode": "synchronous"},
        checkpoint={"save_interval": 60},
    )


def assert_complete(folder: RunFolder, session: Session) -> None:
    """Asserts that the last save is complete and that failed ones left no file."""
    saved = checkpoints.recover(folder)
    assert saved.complaints == ()
    assert saved.progress.version == BATCHES
    assert saved.best is not None
    assert saved.best == session.best
    records = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    versions = [record["version"] for record in records if record["kind"] == "training"]
    assert versions == list(range(1, BATCHES + 1))
    assert len([record for record in records if record["kind"] == "evaluation"]) == BATCHES
    assert [path for path in folder.root.rglob("*") if path.name.startswith(".")] == []


@pytest.mark.parametrize(("call", "code"), list(zip(CALLS, itertools.cycle(ERRORS), strict=False)))
def test_a_temporary_disk_failure_loses_no_data(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    disk = Disk(monkeypatch, call, code)
    before = sum(sample("penstock_learner_write_failures_total", file=file) for file in ("checkpoint", "metrics.jsonl"))
    session = session_on(folder, lambda broken: setattr(disk, "broken", broken))
    conclusion = session.run.run()
    assert conclusion.stopped == "total_steps"
    assert disk.refused > 0
    assert_complete(folder, session)
    failed = [line for line in session.notices if "can't write" in line]
    assert failed and all(ERRORS[code] in line and "training continues" in line for line in failed)
    assert any(line.endswith("can be written again") for line in session.notices)
    after = sum(sample("penstock_learner_write_failures_total", file=file) for file in ("checkpoint", "metrics.jsonl"))
    assert after > before


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_a_permanent_disk_failure_ends_the_run_with_advice_and_keeps_the_last_good_checkpoint(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(retried_writes, "_LAST_CHANCE_S", 0.0)
    disk = Disk(monkeypatch, call, errno.ENOSPC)
    session = session_on(folder, lambda broken: setattr(disk, "broken", broken), until=10**9)
    with pytest.raises(
        PenstockError, match=r"can't write the results of the run .*No space left.*train --resume"
    ) as ended:
        session.run.run()
    disk.broken = False
    saved = checkpoints.recover(folder)
    assert saved.path is not None and str(saved.path) in str(ended.value)
    # The disk may break during the evaluation before the last good save.
    assert saved.complaints == ()
    assert saved.progress.version in (BROKEN_FROM - 1, BROKEN_FROM)
    assert [path for path in folder.root.rglob("*") if path.name.startswith(".")] == []


def test_the_first_error_is_raised_if_the_final_checkpoint_also_fails(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, "write", errno.ENOSPC)
    outside = InProcess()

    def stopping() -> bool:
        disk.broken = outside.lost = outside.batches >= 2
        return False

    session = open_session(folder, outside, stopping, batches=BATCHES)
    with pytest.raises(Unavailable, match="the replay service is gone"):
        session.run.run()
    assert disk.refused > 0


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_writes_are_retried_at_growing_intervals_with_the_newest_content() -> None:
    clock, notices, tries = FakeClock(), list[str](), list[tuple[float, str]]()
    writes = RetriedWrites(notices.append, clock)
    full = True

    def write(content: str) -> Callable[[], None]:
        def action() -> None:
            tries.append((clock.now, content))
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")

        return action

    assert not writes.write("checkpoint", write("first"))
    for second in range(1, 200):
        clock.now = float(second)
        if second == 50:
            assert not writes.write("checkpoint", write("second"))
        writes.retry()
    times = [at for at, _ in tries]
    assert times == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]
    assert [content for at, content in tries if at > 50.0] == ["second"] * 3
    assert len(notices) == 1
    full = False
    clock.now = 243.0
    writes.retry()
    writes.retry()
    assert tries[-1] == (243.0, "second")
    assert len(tries) == len(times) + 1
    assert notices[1:] == ["checkpoint can be written again"]


def test_a_failing_file_does_not_delay_another() -> None:
    writes = RetriedWrites(lambda text: None, FakeClock())
    done: list[str] = []

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    assert not writes.write("a", fail)
    assert writes.write("b", lambda: done.append("b"))
    assert done == ["b"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "disk", "4m")


@pytest.mark.parametrize("breaks", [make_full, make_read_only])
def test_training_continues_to_its_last_save_on_a_full_or_read_only_disk(
    small_disk: Path, breaks: Callable[[Path, bool], None]
) -> None:
    folder = RunFolder(small_disk / "run")
    folder.create()
    session = session_on(folder, lambda broken: breaks(small_disk, broken))
    assert session.run.run().stopped == "total_steps"
    assert any("can't write" in line for line in session.notices)
    assert_complete(folder, session)


@pytest.mark.parametrize("breaks", [make_full, make_read_only])
def test_a_disk_that_stays_full_or_read_only_keeps_the_last_good_checkpoint_and_no_partial_file(
    small_disk: Path, breaks: Callable[[Path, bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retried_writes, "_LAST_CHANCE_S", 0.0)
    folder = RunFolder(small_disk / "run")
    folder.create()
    session = session_on(folder, lambda broken: breaks(small_disk, broken), until=10**9)
    with pytest.raises(PenstockError, match=r"can't write the results of the run"):
        session.run.run()
    breaks(small_disk, False)
    assert checkpoints.recover(folder).progress.version in (BROKEN_FROM - 1, BROKEN_FROM)
    assert [path for path in folder.root.rglob("*") if path.name.startswith(".")] == []
