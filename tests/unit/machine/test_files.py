"""Failed writes leave the old content and no other file; records detect every flipped bit."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import DamagedFile
from penstock.machine.files import (
    READABLE_FILE,
    decode_record,
    encode_record,
    json_of,
    make_folder,
    remove_leftovers,
    restored_after,
    write_atomically,
)
from tests.support.machine.timing import PATIENCE_S

ERRORS = [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EMFILE]


def failing(monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    """Makes one system call of a write fail, as on a full, read-only or broken disk."""

    def refuse(*arguments: object, **options: object) -> int:
        raise OSError(code, os.strerror(code))

    if call == "rename":
        monkeypatch.setattr(Path, "replace", refuse)
    elif call == "folder":
        sync = os.fsync

        def refuse_folders(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                refuse()
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", refuse_folders)
    else:
        monkeypatch.setattr(os, call, refuse)


@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename", "folder"])
def test_a_failed_write_leaves_the_old_or_the_new_content_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with monkeypatch.context() as disk:
        failing(disk, call, code)
        with pytest.raises(OSError, match=os.strerror(code)):
            write_atomically(path, b"new")
    # A renamed file is visible before its folder is synced.
    assert path.read_bytes() == (b"new" if call == "folder" else b"old")
    assert list(tmp_path.iterdir()) == [path]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    write_atomically(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_killed_writer_leaves_a_file_that_the_next_process_removes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    program = (
        "import os, signal, sys; from pathlib import Path; from penstock.machine.files import write_atomically\n"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_atomically(Path(sys.argv[1]), b'new')\n"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=PATIENCE_S)
    (leftover,) = set(tmp_path.iterdir()) - {path}
    assert remove_leftovers(tmp_path) == [leftover]
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == b"old"


def test_other_files_and_temporary_files_of_live_processes_are_kept(tmp_path: Path) -> None:
    names = [f".file.{os.getppid()}", "file.1", ".hidden", ".hidden.txt", "plain"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ".folder.999999999").mkdir()
    assert remove_leftovers(tmp_path) == []
    assert {path.name for path in tmp_path.iterdir()} == {*names, ".folder.999999999"}


def test_a_file_that_cannot_be_restored_does_not_hide_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(ValueError, match="the first error"), restored_after(ValueError, path):
        path.write_bytes(b"new")
        failing(monkeypatch, "write", errno.ENOSPC)
        raise ValueError("the first error")


def test_numbers_without_a_json_form_become_null() -> None:
    value = {"nan": float("nan"), "list": [float("inf"), 1.5], "tuple": (-float("inf"),), "text": "NaN"}
    assert json_of(value) == '{"nan": null, "list": [null, 1.5], "tuple": [null], "text": "NaN"}'


def test_a_record_is_read_as_it_was_written() -> None:
    value = {"name": 'ä, "content": ', "numbers": [1, 2.5, None]}
    assert decode_record(encode_record(value)) == value


def damages() -> list[Callable[[bytes], bytes]]:
    return [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: bytes(len(data)),
        lambda data: data + b" ",
        lambda data: data[:-1],
        lambda data: b'{"slots": []}',
    ]


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_record_is_refused(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DamagedFile):
        decode_record(damage(encode_record({"slots": [[0, 3]]})))


def test_every_flipped_bit_of_a_record_is_detected() -> None:
    data = encode_record({"slots": [[0, 3], [1, 17]], "text": "abc"})
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedFile):
            decode_record(bytes(flipped))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_and_folders_are_the_users_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    make_folder(tmp_path / "runs" / "new")
    make_folder(tmp_path / "runs" / "new")
    write_atomically(tmp_path / "secret", b"")
    assert mode_of(tmp_path / "runs") == mode_of(tmp_path / "runs" / "new") == 0o700
    assert mode_of(tmp_path / "secret") == 0o600


def test_a_file_for_others_is_readable_as_far_as_the_umask_allows(tmp_path: Path, umask: int) -> None:
    write_atomically(tmp_path / "list", b"", READABLE_FILE)
    assert mode_of(tmp_path / "list") == 0o644 & ~umask


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o2775)
    make_folder(tmp_path / "mine")
    assert mode_of(tmp_path / "mine") == 0o2775
    make_folder(tmp_path / "mine" / "new")
    assert mode_of(tmp_path / "mine") == 0o2775


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            make_folder(place)
