"""The files of runs and stores: who can read them, how they are opened for writing, and atomic writes of small ones.

Files and folders that Penstock makes are the user's alone, whatever the umask, because they hold tokens, data and
policies. A folder that the user made keeps its mode, so other users may be able to write there: a link that they left
is never followed. After an atomic write, a reader finds all of the new content or all of the old, even after a crash.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import DamagedFile

PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Modes of files and folders that only the user can use."""

READABLE_FILE = 0o644
"""Mode of a file for processes of other users, such as Prometheus."""

_ZEROS = bytes(2**20)


def make_folder(folder: Path) -> None:
    """Makes a private folder, in private folders as far as they are missing. Raises `OSError`."""
    for place in (*reversed(folder.parents), folder):
        # An existing one that can't be written must not be an error.
        if place == folder or not place.exists():
            place.mkdir(PRIVATE_FOLDER, exist_ok=True)


def open_own(path: Path, flags: int) -> int:
    """Opens a file that is written in place, and returns its descriptor. A new one is private.

    Raises `OSError`, also if another user could have led the write elsewhere: the path is a link, the file has other
    names, is not a regular file, or belongs neither to this user nor to the owner of the folder.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO would block.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, PRIVATE_FILE)
    except OSError as error:
        raise _refusal(path, "it is a link; remove it") if error.errno == errno.ELOOP else error from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _refusal(path, "it is not a regular file; remove it")
        if found.st_nlink > 1:
            raise _refusal(path, f"the file has {found.st_nlink} names (hard links); replace it by a copy")
        if found.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise _refusal(path, f"it belongs to the user with the number {found.st_uid}; remove it")
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_new(path: Path, flags: int = os.O_WRONLY, mode: int = PRIVATE_FILE) -> int:
    """Opens a file that did not exist, in place of any other of this name, and returns its descriptor.

    It has this mode, less the bits of the umask. Raises `OSError`.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    # O_EXCL also refuses a link.
    return os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)


def sync_data(descriptor: int) -> None:
    """Makes the bytes of an open file durable; its times may be lost. Raises `OSError`."""
    # macOS has fsync alone.
    getattr(os, "fdatasync", os.fsync)(descriptor)


def allocate_bytes(descriptor: int, size: int) -> None:
    """Gives a file space on the disk for this many bytes; its content stays, and zeros follow it. Raises `OSError`.

    On a full disk, writing to a hole of a mapped file would raise a bus error.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    # macOS. There, files that were allocated in this way have no holes before their end.
    for start in range(os.fstat(descriptor).st_size, size, len(_ZEROS)):
        part = _ZEROS[: size - start]
        if os.pwrite(descriptor, part, start) != len(part):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def temporary_of(path: Path) -> Path:
    """Returns a path beside this one for a temporary file, which no other user can predict."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}")


def write_atomically(path: Path, data: bytes, mode: int = PRIVATE_FILE) -> None:
    """Replaces a file atomically and durably. It has this mode, less the bits of the umask.

    Raises `OSError` and leaves no temporary file. The old content is then unchanged, unless only the sync of the folder
    failed.
    """
    temporary = temporary_of(path)
    try:
        _write_and_sync(temporary, data, mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def mark_of(path: Path) -> tuple[int, int] | None:
    """Returns a value that changes when a file is replaced; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def remove_leftovers(folder: Path) -> list[Path]:
    """Removes the temporary files of processes that died in `write_atomically`, and returns them.

    Call this before this process writes, because files with its own process ID are removed too. Files of other live
    processes, and files that can't be removed, are left.
    """
    removed: list[Path] = []
    for path in folder.glob(".*.*"):
        owner = path.name.rpartition(".")[2]
        if owner.isdecimal() and path.is_file() and (int(owner) == os.getpid() or not _is_alive(int(owner))):
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


@contextlib.contextmanager
def restored_after(error: type[Exception], *paths: Path) -> Iterator[None]:
    """Restores files to their previous content, or removes them if there were none, if the block raises this error.

    A failure to restore a file does not replace the error.
    """
    before = [path.read_bytes() if path.exists() else None for path in paths]
    try:
        yield
    except error:
        for path, data in zip(paths, before, strict=True):
            with contextlib.suppress(OSError):
                if data is None:
                    path.unlink(missing_ok=True)
                else:
                    write_atomically(path, data)
        raise


@contextlib.contextmanager
def briefly_in_a_file(data: bytes) -> Iterator[str]:
    """Yields the path of a private file with this content, for a library that reads files alone, until the block ends.

    It is in memory where the system can do that.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("penstock")
        path = f"/proc/self/fd/{descriptor}"
    else:
        descriptor, path = tempfile.mkstemp()
    try:
        os.write(descriptor, data)
        yield path
    finally:
        os.close(descriptor)
        if sys.platform != "linux":
            Path(path).unlink()


def write_json(path: Path, value: object, mode: int = PRIVATE_FILE) -> None:
    """Replaces a small JSON file as `write_atomically`, encoded by `json_of`. Raises `OSError`."""
    write_atomically(path, (json_of(value, indent=2) + "\n").encode(), mode)


def json_of(value: object, *, indent: int | None = None) -> str:
    """Returns standard JSON. NaN and infinity, which JSON does not have, become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def encode_record(value: object) -> bytes:
    """Encodes a JSON value with its SHA-256, for `decode_record`."""
    content = json_of(value)
    return f'{{"sha256": "{_digest(content)}", "content": {content}}}\n'.encode()


def decode_record(data: bytes) -> object:
    """Decodes the result of `encode_record`. Raises `DamagedFile` if a single bit differs from the written data."""
    head, _, content = data.removesuffix(b"}\n").partition(b', "content": ')
    try:
        text = content.decode()
        if head == f'{{"sha256": "{_digest(text)}"'.encode() and data.endswith(b"}\n"):
            return json.loads(text)
    except ValueError:
        pass
    raise DamagedFile("the bytes differ from those that were written (SHA-256 mismatch)")


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable. Raises `OSError`."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_and_sync(path: Path, data: bytes, mode: int) -> None:
    descriptor = open_new(path, mode=mode)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refusal(path: Path, reason: str) -> OSError:
    return OSError(errno.ELOOP, reason, str(path))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
