"""Errors of the operating system in words: the full, read-only or used-up resource, the free space, and the remedy.

Every message about a failed file, process or thread takes its reason and its remedy from here. The remedy follows the
error number: free space does not help a process that has too many open files.
"""

import contextlib
import errno
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from penstock.machine.file_systems import existing, mount_of

_OF_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""Errors that another folder does not cure."""

_NO_THREAD = "can't start new thread"
"""Text of the RuntimeError that Python raises for it."""


def in_words(error: OSError, place: Path | None = None, otherwise: str = "") -> str:
    """Returns the reason of a failed operation on a file, and the remedy, in one line.

    Args:
        error: The error.
        place: The file or folder that was to be written, which need not exist; None: the file that the error names.
            A failed copy names its source.
        otherwise: A further remedy for a fault of the place, such as "choose another --run-dir".
    """
    if place is None and isinstance(error.filename, str | bytes):
        place = Path(os.fsdecode(error.filename))
    reason = error.strerror or str(error) or type(error).__name__
    description, remedy = _EXPLAINED.get(error.errno or 0, _unexplained)(place)
    remedies = [remedy, "" if error.errno in _OF_PROCESS else otherwise]
    what_to_do = ", or ".join(filter(None, remedies))
    return f"{reason}{f' ({description})' if description else ''}{f'; {what_to_do}' if what_to_do else ''}"


def exhaustion(error: BaseException) -> str:
    """Returns the words for an error that says that the machine, and not a file or setting, is at fault; else empty."""
    if isinstance(error, MemoryError):
        description, remedy = _of_memory(None)
        return f"{os.strerror(errno.ENOMEM)} ({description}); {remedy}"
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        description, remedy = _of_processes(None)
        return f"{_NO_THREAD} ({description}); {remedy}"
    if isinstance(error, OSError) and error.errno in _EXPLAINED and error.errno not in (errno.EACCES, errno.EPERM):
        named = f"{error.filename}: " if error.filename is not None else ""
        return f"{named}{in_words(error)}"
    return ""


def disk_fault(folder: Path) -> str:
    """Returns the fault of the file system of a folder, and the remedy; empty if it can be written."""
    try:
        found = os.statvfs(existing(folder))
    except OSError as error:
        return in_words(error, folder)
    code = 0
    if found.f_flag & os.ST_RDONLY:
        code = errno.EROFS
    elif (found.f_blocks and _free_bytes(found) < found.f_frsize) or _lacks_inodes(found):
        code = errno.ENOSPC
    return in_words(OSError(code, os.strerror(code)), folder) if code else ""


def not_utf8(name: str) -> str:
    """Returns the fault of a path or another text that messages between services can't hold, or empty."""
    try:
        name.encode()
    except UnicodeEncodeError:
        coding = sys.getfilesystemencoding()
        mode = "" if coding == "utf-8" else f", or start Python in UTF-8 mode, not with {coding} (PYTHONUTF8=1)"
        return f"{name!a} is not text in UTF-8, which messages between services need; rename the file or folder{mode}"
    return ""


def _of_space(place: Path | None) -> tuple[str, str]:
    with contextlib.suppress(OSError):
        if place is not None and _lacks_inodes(os.statvfs(existing(place))):
            return f"{_file_system(place)}, but no inodes for further files", "remove files there"
    return _file_system(place), "free space there"


def _of_quota(place: Path | None) -> tuple[str, str]:
    return f"the user's quota is used up; {_file_system(place)}", "remove files there, or have the quota raised"


def _of_read_only(place: Path | None) -> tuple[str, str]:
    return _file_system(place), "mount it writable"


def _of_device(place: Path | None) -> tuple[str, str]:
    return _file_system(place), "see the kernel's log (dmesg), and repair or replace its disk"


def _of_permission(place: Path | None) -> tuple[str, str]:
    return f"the user is {os.geteuid()}", "change the owner or the mode"


def _of_descriptors(place: Path | None) -> tuple[str, str]:
    return f"the limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} per process", "raise it (ulimit -n)"


def _of_all_descriptors(place: Path | None) -> tuple[str, str]:
    return "the limit of the whole machine", "end other programs, or raise it (sysctl fs.file-max)"


def _of_memory(place: Path | None) -> tuple[str, str]:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        return f"this process may use {limit:,} bytes", "raise the limit (ulimit -v), or train with less"
    return "of the machine or of its container", "end other programs, give it more memory, or use fewer actors"


def _of_processes(place: Path | None) -> tuple[str, str]:
    lacks = "the limit of processes and threads is reached, or memory is used up"
    return lacks, "raise the limits (ulimit -u, ulimit -v, pids_limit of the container), or use fewer actors"


def _of_file_size(place: Path | None) -> tuple[str, str]:
    return f"the limit is {resource.getrlimit(resource.RLIMIT_FSIZE)[0]} bytes", "raise it (ulimit -f)"


def _unexplained(place: Path | None) -> tuple[str, str]:
    return "", ""


_EXPLAINED: dict[int, Callable[[Path | None], tuple[str, str]]] = {
    errno.ENOSPC: _of_space,
    errno.EDQUOT: _of_quota,
    errno.EROFS: _of_read_only,
    errno.EIO: _of_device,
    errno.EACCES: _of_permission,
    errno.EPERM: _of_permission,
    errno.EMFILE: _of_descriptors,
    errno.ENFILE: _of_all_descriptors,
    errno.ENOMEM: _of_memory,
    errno.EAGAIN: _of_processes,
    errno.EFBIG: _of_file_size,
}
"""For each error number the details of the reason, and the remedy."""


def _file_system(place: Path | None) -> str:
    if place is None:
        return ""
    try:
        return f"the file system {mount_of(place)} has {_free_bytes(os.statvfs(existing(place))):,} bytes free"
    except OSError:
        # Its state is as unreadable as the file.
        return ""


def _free_bytes(found: os.statvfs_result) -> int:
    return (found.f_bfree if os.geteuid() == 0 else found.f_bavail) * found.f_frsize


def _lacks_inodes(found: os.statvfs_result) -> bool:
    # Some file systems have no fixed number of inodes and report 0 for all of them.
    return bool(found.f_files) and found.f_favail == 0
