"""Results of a run are copied to a folder or a URL, and a storage that fails or hangs is one line in bounded time."""

import socket
from pathlib import Path

import fsspec
import pytest

from penstock.errors import ConfigurationError
from penstock.runs.folder import RunFolder
from penstock.runs.remote_copies import LocalStorage, RemoteStorage, check, copy, one_round, shown

AMPLE_S = 300
"""Deadline of rounds that succeed."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "walker")
    folder.create()
    folder.config.write_text("settings")
    folder.best_checkpoint.write_bytes(b"best")
    for steps in (10, 20):
        folder.checkpoint(steps).write_bytes(b"%d" % steps)
    return folder


def files_in(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def newest_of(folder: RunFolder) -> str:
    steps = folder.newest_checkpoint_steps()
    assert steps is not None
    return str(folder.checkpoint(steps).relative_to(folder.root))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_best_and_the_newest_checkpoint_are_copied_by_a_process(
    scheme: str, folder: RunFolder, tmp_path: Path
) -> None:
    place = tmp_path / "copies"
    place.mkdir()
    copied, failure = one_round(folder, f"{scheme}{place}", {}, AMPLE_S)
    assert failure == ""
    expected = sorted([newest_of(folder), "checkpoints/best.safetensors", "config.toml"])
    assert files_in(place / "walker") == sorted(copied) == expected
    assert (place / "walker" / "checkpoints" / "best.safetensors").read_bytes() == b"best"
    # A better policy and a newer checkpoint replace the former ones.
    folder.best_checkpoint.write_bytes(b"better")
    folder.checkpoint(30).write_bytes(b"30")
    before = newest_of(folder)
    copied, failure = one_round(folder, f"{scheme}{place}", copied, AMPLE_S)
    assert failure == ""
    assert files_in(place / "walker") == sorted(copied)
    assert before in copied and len(copied) == len(expected)
    assert (place / "walker" / "checkpoints" / "best.safetensors").read_bytes() == b"better"


def test_what_has_not_changed_is_not_copied_again(folder: RunFolder, tmp_path: Path) -> None:
    copied = dict[str, list[int]]()
    copy(folder, LocalStorage(str(tmp_path / "copies")), copied)
    best = tmp_path / "copies" / "walker" / "checkpoints" / "best.safetensors"
    best.write_bytes(b"of another")
    copy(folder, LocalStorage(str(tmp_path / "copies")), copied)
    assert best.read_bytes() == b"of another"


def test_the_memory_of_fsspec_is_a_place(folder: RunFolder) -> None:
    files = fsspec.filesystem("memory")
    files.makedirs("/bucket")
    copied = dict[str, list[int]]()
    copy(folder, RemoteStorage("memory://bucket"), copied)
    assert files.cat("/bucket/walker/config.toml") == b"settings"
    assert sorted(copied) == sorted(name.removeprefix("/bucket/walker/") for name in files.find("/bucket"))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nonsense://bucket/runs", "Protocol not known: nonsense"),
        ("s3://bucket/runs", "s3fs"),
        ("file:///proc/none", "No such file"),
        ("/proc/none", "No such file"),
    ],
)
def test_a_place_that_cannot_be_written_is_one_line_before_the_run(target: str, reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check(target)
    assert str(refused.value).startswith(f"checkpoint.copy_to: can't write to {target}: ")
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_a_check_leaves_nothing(tmp_path: Path) -> None:
    check(str(tmp_path))
    check(f"file://{tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_a_storage_that_hangs_ends_at_the_deadline(folder: RunFolder) -> None:
    """An FTP server that says nothing; its client waits for longer than the deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}/runs"
        target = f"ftp://user:secret@{place}"
        copied, failure = one_round(folder, target, {"config.toml": [1, 2]}, 5)
    assert (copied, failure) == ({"config.toml": [1, 2]}, "no answer within 5 s")
    assert shown(target) == f"ftp://{place}"


def test_a_missing_package_is_one_line_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"copy_to s3://bucket needs fsspec; .*penstock\[remote\]"):
        check("s3://bucket")
