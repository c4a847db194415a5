"""A link, a hard link or another file that another user left in a folder is neither written through nor followed."""

import asyncio
import contextlib
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.learning.durable.journal import Journal
from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.durable.versions import VersionMark
from penstock.local import child_log
from penstock.local.child_log import ChildLog
from penstock.machine.files import open_new, open_own, write_atomically, write_json
from penstock.process.disk_watch import DiskWatch
from penstock.replay.snapshots import chunk_files
from penstock.replay.store.staging import StagingAreas
from penstock.replay.store.store_files import allocate
from penstock.rpc.ready_file import ReadyFile
from penstock.runs.folder import RunFolder
from penstock.runs.restoring import _held
from penstock.types.evaluation import EvaluationSummary
from tests.support.machine.other_user import NOBODY

PRECIOUS = b"precious" * 128


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which every user may write."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    return open_to_all


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(PRECIOUS)
    return path


def journal(path: Path) -> None:
    evaluation = EvaluationSummary(version=1, env_steps=1, episodes=2, return_mean=1.0, return_std=0.0)
    writes = RetriedWrites(lambda reason: None)
    Journal(path, writes=writes, notice=lambda text: None).write(Record.of_evaluation(evaluation, 1.0, final=False))


def damaged_lines(path: Path) -> None:
    records = path.with_name("metrics.jsonl")
    records.write_text("no record\n")
    writes = RetriedWrites(lambda reason: None)
    Journal(records, writes=writes, notice=lambda text: None).resume(0)


def versions(path: Path) -> None:
    mark = VersionMark(path, notice=lambda text: None)
    mark.use(1)
    mark.settle()


def watched_disk(path: Path) -> None:
    seen = threading.Event()
    watch = DiskWatch(path.parent, lambda sound: seen.set())
    assert seen.wait(60.0)
    watch.close()


def ready_file(path: Path) -> None:
    async def serve() -> None:
        ReadyFile(path).close()

    asyncio.run(serve())


def log(path: Path) -> None:
    with ChildLog(path).opened() as file:
        file.write(b"a line\n")


def long_log(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("MOST_BYTES", 10), ("HEAD_BYTES", 1), ("TAIL_BYTES", 1)):
            patch.setattr(child_log, name, value)
        ChildLog(path).cut()


def snapshot_file(path: Path) -> None:
    with chunk_files._opened(path) as descriptor:
        # The file may bypass the page cache, which needs an aligned buffer.
        os.write(descriptor, mmap.mmap(-1, 4096))


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a small file": ("services.json", lambda path: write_json(path, {})),
    "the journal": ("metrics.jsonl", journal),
    "damaged lines": ("metrics.damaged", damaged_lines),
    "versions": ("versions.json", versions),
    "the disk watch": (".disk-watch", watched_disk),
    "a ready file": ("ready", ready_file),
    "a log": ("learner.log", log),
    "a log that is cut": ("learner.log", long_log),
    "a store": ("segments.bin", lambda path: allocate(path.parent, path.name, len(PRECIOUS))),
    "a store of an empty file": ("segments.bin", lambda path: allocate(path.parent, path.name, 4096)),
    "a file of a snapshot": ("chunk-0", snapshot_file),
    "the probe of a run's folder": (f".writable-{os.getpid()}", lambda path: RunFolder(path.parent).create()),
    "a temporary file": (f".file.{os.getpid()}", lambda path: write_atomically(path.with_name("file"), b"")),
}
"""Every kind of file that Penstock writes, with its name, and what writes it."""


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_planted_link_is_not_written_through(
    folder: Path, victim: Path, kind: str, plant: Callable[[Path, Path], None]
) -> None:
    name, write = WRITERS[kind]
    plant(victim, folder / name)
    with contextlib.suppress(OSError, ConfigurationError):
        write(folder / name)
    assert victim.read_bytes() == PRECIOUS


@pytest.mark.parametrize("kind", WRITERS)
def test_a_link_to_a_file_that_does_not_exist_makes_none(folder: Path, tmp_path: Path, kind: str) -> None:
    name, write = WRITERS[kind]
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with contextlib.suppress(OSError, ConfigurationError):
        write(folder / name)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", WRITERS)
def test_without_a_link_each_kind_is_written(folder: Path, kind: str) -> None:
    name, write = WRITERS[kind]
    if kind == "a log that is cut":
        (folder / name).write_bytes(b"line\n" * 100)
    write(folder / name)
    assert len(list(folder.iterdir())) > 0 or kind in ("the disk watch", "a ready file")


def test_a_small_file_takes_the_place_of_a_link(folder: Path, victim: Path) -> None:
    (folder / "services.json").symlink_to(victim)
    write_json(folder / "services.json", {})
    assert not (folder / "services.json").is_symlink()
    assert [path.name for path in folder.iterdir()] == ["services.json"]


def test_a_file_that_can_lead_elsewhere_is_refused_with_a_remedy(folder: Path, victim: Path) -> None:
    (folder / "link").symlink_to(victim)
    (folder / "name").hardlink_to(victim)
    os.mkfifo(folder / "pipe")
    for name, reason in (
        ("link", "it is a link; remove it"),
        ("name", r"the file has 2 names \(hard links\)"),
        ("pipe", "it is not a regular file; remove it"),
    ):
        with pytest.raises(OSError, match=reason):
            open_own(folder / name, os.O_RDWR)


def test_a_file_of_another_user_is_refused_unless_the_folder_is_theirs(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of another user")
    (folder / "theirs").touch()
    os.chown(folder / "theirs", NOBODY, NOBODY)
    with pytest.raises(OSError, match=f"it belongs to the user with the number {NOBODY}; remove it"):
        open_own(folder / "theirs", os.O_WRONLY)
    os.chown(folder, NOBODY, NOBODY)
    os.close(open_own(folder / "theirs", os.O_WRONLY))


def test_a_new_file_replaces_a_link_and_not_its_target(folder: Path, victim: Path) -> None:
    (folder / "new").symlink_to(victim)
    descriptor = open_new(folder / "new")
    os.write(descriptor, b"new")
    os.close(descriptor)
    assert (folder / "new").read_bytes() == b"new"
    assert victim.read_bytes() == PRECIOUS


def test_writes_to_a_file_that_is_written_in_place_block(folder: Path) -> None:
    descriptor = open_own(folder / "file", os.O_WRONLY | os.O_CREAT)
    assert os.get_blocking(descriptor)
    os.close(descriptor)


def test_a_link_to_a_folder_is_not_emptied(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "theirs").write_bytes(PRECIOUS)
    (folder / "staging").symlink_to(other)
    (folder / ".run.unfinished").symlink_to(other)
    StagingAreas(folder, 2**20)
    with (
        pytest.raises(ConfigurationError, match="is a link or belongs to another user"),
        _held(folder / ".run.unfinished", folder / "run"),
    ):
        pass
    assert (other / "theirs").read_bytes() == PRECIOUS
