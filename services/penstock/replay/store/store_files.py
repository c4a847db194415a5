"""Files of a store: their allocation at full size, and checks of those that exist.

A folder on a network file system, a file that can't be allocated, and existing files that do not belong together, are
refused.
"""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.machine.file_systems import network_kind
from penstock.machine.files import allocate_bytes, make_folder, open_own
from penstock.machine.system_errors import in_words
from penstock.replay.store.description import DESCRIPTION_FILE, Description, damaged_store, read_description
from penstock.replay.store.layout import PAGE, RECORDS_BYTES, RECORDS_FILE, SEGMENTS_FILE


def check_place(folder: Path) -> None:
    """Raises `ConfigurationError` if a store's folder is on a network file system."""
    if kind := network_kind(folder):
        raise ConfigurationError(
            f"the replay store in {folder} would be on a network file system ({kind}), where it can't be mapped safely;"
            " choose a folder on this host's own disk or memory, such as --replay.folder $TMPDIR/replay (on Slurm"
            " $SLURM_TMPDIR/replay); its snapshots may be anywhere (--replay.snapshot-folder)"
        )


@contextlib.contextmanager
def held(folder: Path, *, alone: bool) -> Iterator[None]:
    """Holds the store in a folder inside the context, with other users of it or `alone`.

    Others wait until a process that holds it alone has ended. A killed process holds nothing. Does nothing if the
    folder can't be made or read, which the use of the store reports.

    Raises `ConfigurationError` if others use the store that is to be held alone, or if the folder is to be made on a
    network file system.
    """
    if not alone:
        check_place(folder)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            if not alone:
                make_folder(folder)
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
            except BlockingIOError:
                raise ConfigurationError(
                    f"a replay service uses the store in {folder}; stop it, and repeat the command"
                ) from None
        yield


def description_in(folder: Path) -> Description | None:
    """Returns the description of the store in a folder; None if nothing was stored yet.

    Raises:
        ConfigurationError: The store has another format.
        DamagedFile: The description is missing or damaged.
    """
    if (folder / DESCRIPTION_FILE).exists():
        return read_description(folder)
    if _begins_with_data(folder / SEGMENTS_FILE):
        raise damaged_store(folder / DESCRIPTION_FILE, f"is missing, and {SEGMENTS_FILE} holds segments")
    return None


def check_files(folder: Path, described: int, capacity_bytes: int) -> None:
    """Checks the sizes of the files of a store with `described` bytes.

    Raises:
        ConfigurationError: The store has another size than the configured one.
        DamagedFile: A file is missing, or its size has changed.
    """
    segments, records = folder / SEGMENTS_FILE, folder / RECORDS_FILE
    if described != capacity_bytes:
        if segments.exists() and segments.stat().st_size == capacity_bytes:
            raise damaged_store(folder / DESCRIPTION_FILE, f"names {described} bytes, and {segments} has another size")
        raise _another_size(segments, described, capacity_bytes)
    for path, size in ((segments, described), (records, RECORDS_BYTES)):
        present = path.stat().st_size if path.exists() else -1
        if present != size:
            raise damaged_store(
                path, f"has {present} bytes, and was made with {size}" if present >= 0 else "is missing"
            )


def allocate(folder: Path | None, name: str, size: int) -> mmap.mmap:
    """Maps a file of this name and size in bytes, which is created if it does not exist.

    Without a folder, the memory is anonymous. Raises `ConfigurationError` if the file can't be allocated, or has
    another size.
    """
    if folder is None:
        return mmap.mmap(-1, size)
    path = folder / name
    try:
        make_folder(folder)
        descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
        try:
            present = os.fstat(descriptor).st_size
            if present not in (0, size):
                raise _another_size(path, present, size)
            _fill_holes(descriptor, size)
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError as error:
        protected = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        smaller = "lower replay.capacity_bytes, or " if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
        reason = in_words(error, path, f"{smaller}choose another replay.folder")
        doing = "write" if protected else f"allocate {size} bytes for"
        raise ConfigurationError(f"can't {doing} the replay store at {path}: {reason}") from None


def _begins_with_data(path: Path) -> bool:
    """Returns whether the first page, which has the headers of the first used rows, is not all zeros."""
    try:
        with path.open("rb") as file:
            return any(file.read(PAGE))
    except OSError:
        # The file does not exist, or `allocate` reports the error.
        return False


def _another_size(path: Path, present: int, wanted: int) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is a store of {present} bytes, and {wanted} are configured; set replay.capacity_bytes as it"
        " was, or choose another replay.folder"
    )


def _fill_holes(descriptor: int, size: int) -> None:
    """Allocates disk space for the whole file, because on a full disk a hole causes a bus error during the run.

    Raises:
        OSError: There is not enough space. The file keeps its size.
    """
    file, disk = os.fstat(descriptor), os.fstatvfs(descriptor)
    # For a new file, free space is checked first, because a failed attempt would briefly fill the disk for other
    # processes. Some file systems do not report it, and root may use reserved space.
    free = disk.f_bfree if os.geteuid() == 0 else disk.f_bavail
    if file.st_size == 0 and disk.f_blocks and size > free * disk.f_frsize:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        allocate_bytes(descriptor, size)
    except OSError:
        # Ext4 keeps the blocks it has allocated, so the disk would stay full.
        os.ftruncate(descriptor, file.st_size)
        raise
