"""The file system of a folder: on the host's own disks and memory, or a file system that the host reaches over a
network.

A mapped store belongs on the former. Over a network, pages that one host maps are not the pages of another host,
allocation may write every block through the network, and a server that does not answer kills the process with a bus
error. The kernel names the kind of every mount; its descriptors name the mount of a file, which holds for bind mounts,
automounts and containers too. Where it names neither, as on other systems than Linux, a folder counts as local.
"""

import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import ConfigurationError

_NETWORK = frozenset(
    {
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
        "wekafs",
    }
)
"""Kinds of mounts whose files are on other hosts. 9p is also how a virtual machine sees the files of its host."""

_LOCAL_FUSE = frozenset({"fuseblk", "fuse.fuse-overlayfs"})
"""Disks, and the root of containers without privileges.

Of all other kinds of FUSE, a process on the host serves each page, and it may fetch them from anywhere (sshfs, s3fs,
gcsfuse, ceph-fuse, glusterfs, most of which the kernel calls just fuse).
"""

_SCRATCH_VARIABLES = ("SLURM_TMPDIR", "TMPDIR")
_SCRATCH_FOLDERS = ("/tmp", "/var/tmp")

_MOUNTS = Path("/proc/self/mountinfo")


def is_of_network(kind: str) -> bool:
    """Returns whether a kind of file system, as the kernel names it, may be served over a network."""
    return kind in _NETWORK or (kind.startswith("fuse") and kind not in _LOCAL_FUSE)


def network_kind(folder: Path) -> str:
    """Returns the kind of network file system that a folder is on, or would be created on; empty if it is local."""
    kind = kind_of(folder)
    return kind if is_of_network(kind) else ""


def kind_of(folder: Path) -> str:
    """Returns the kind of file system that a folder is on, or would be created on; empty if it is unknown."""
    try:
        # The dot makes the kernel mount file systems that are mounted on demand.
        descriptor = os.open(f"{existing(folder)}/.", getattr(os, "O_PATH", os.O_RDONLY))
        try:
            mount = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
        finally:
            os.close(descriptor)
        number = re.search(r"^mnt_id:\s*(\d+)$", mount, re.MULTILINE)
        return kinds_of_mounts(_MOUNTS.read_text()).get(int(number[1]), "") if number is not None else ""
    except OSError:
        return ""


def kinds_of_mounts(mountinfo: str) -> dict[int, str]:
    """Returns the kind of each mount by its number, from the text of /proc/self/mountinfo (proc(5))."""
    kinds = {}
    for line in mountinfo.splitlines():
        # The number of optional fields before the lone hyphen varies.
        mount, _, source = line.partition(" - ")
        kinds[int(mount.split()[0])] = source.split()[0]
    return kinds


def existing(folder: Path) -> Path:
    """Returns the folder itself, or the nearest one above it that exists."""
    place = folder.absolute()
    return next(parent for parent in (place, *place.parents) if parent.exists())


def mount_of(path: Path) -> Path:
    """Returns the folder at which the file system is mounted that a path is on, or would be created on."""
    place = existing(path).resolve()
    return next(folder for folder in (place, *place.parents) if folder.is_mount() or folder == folder.parent)


def is_own_folder(path: Path) -> bool:
    """Returns whether a path is a folder of this user, and no link, which another user could have made."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def free_bytes(folder: Path) -> int:
    """Returns the bytes that are free where a folder is, or would be created."""
    return shutil.disk_usage(existing(folder)).free


def scratch() -> Path:
    """Returns a folder for temporary files on the host's own disk or memory.

    Raises `ConfigurationError` if there is none.
    """
    folder = next(scratch_folders(), None)
    if folder is None:
        raise ConfigurationError(
            "no folder for temporary files on this host's own disk was found; name one in the variable TMPDIR, or in"
            " --replay.folder"
        )
    return folder


def scratch_folders() -> Iterator[Path]:
    """Yields the folders for temporary files on the host's own disk or memory that this process can write."""
    named = [os.environ[name] for name in _SCRATCH_VARIABLES if os.environ.get(name)]
    for folder in (Path(path) for path in [*named, *_SCRATCH_FOLDERS]):
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) and not network_kind(folder):
            yield folder
