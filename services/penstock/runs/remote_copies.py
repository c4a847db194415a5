"""Copies of a run's results to other storage: `checkpoint.copy_to`, a local folder or a URL of fsspec.

`python -m penstock.runs.remote_copies` makes one round of copies in a process of its own, started by `copying`,
so that neither a library of a cloud nor a storage that hangs can harm training. The process ends at its deadline,
whatever it waits for, also if the learner is dead by then. `check` is for commands before a run begins.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

from penstock.errors import ConfigurationError
from penstock.machine import background, extras
from penstock.machine.files import make_folder, temporary_of
from penstock.runs.folder import RunFolder

SETTING = "checkpoint.copy_to"

Copied = Mapping[str, list[int]]
"""Time of change in ns and size in bytes of the files that were copied, by their paths in the run's folder."""

CHECK_S = 30
_PROBE = ".penstock-probe"
_GRACE_S = 5.0
_NUMBERED = re.compile(r"checkpoints/\d+\.safetensors")
_CHECK = "--check"


class _Storage(Protocol):
    """Where copies go. Its methods raise the errors of the storage."""

    def put(self, file: Path, name: str) -> None:
        """Copies a file to a path below the target."""

    def remove(self, name: str) -> None:
        """Removes a copy, if it is there."""


def is_url(target: str) -> bool:
    """Returns whether a target needs fsspec; otherwise it is a local folder."""
    return "://" in target


def shown(target: str) -> str:
    """Returns a target without a password or options that may be secret."""
    scheme, separator, rest = target.partition("://")
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}" if separator else target


def check(target: str) -> None:
    """Writes and removes a small file at a target. Raises `ConfigurationError` with the reason if that fails."""
    if is_url(target):
        extras.require("fsspec", f"{SETTING} {shown(target)}")
    if failure := called([_CHECK, target], b"", CHECK_S)[1]:
        raise ConfigurationError(f"{SETTING}: can't write to {shown(target)}: {failure}")


def one_round(folder: RunFolder, target: str, copied: Copied, longest_s: int) -> tuple[Copied, str]:
    """Copies changed files, by a process of its own. Returns the copied files, and why it failed, or nothing."""
    printed, failure = called([str(folder.root.absolute()), target], json.dumps(copied).encode(), longest_s)
    with contextlib.suppress(ValueError):
        copied = json.loads(printed)
    return copied, failure


def called(arguments: list[str], given: bytes, longest_s: int) -> tuple[bytes, str]:
    """Calls this module as a process; returns its output, and why it failed in one line, or nothing."""
    command = [sys.executable, "-m", "penstock.runs.remote_copies", str(longest_s), *arguments]
    try:
        ended = subprocess.run(
            command,
            input=given,
            capture_output=True,
            timeout=longest_s + _GRACE_S,
            env=os.environ.copy(),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return b"", f"no answer within {longest_s} s"
    except OSError as error:
        return b"", str(error)
    if ended.returncode == -signal.SIGALRM:
        return b"", f"no answer within {longest_s} s"
    lines = ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {ended.returncode}"]
    return ended.stdout, lines[-1] if ended.returncode else ""


def copy(folder: RunFolder, storage: _Storage, copied: dict[str, list[int]]) -> None:
    """Copies the files that have changed, and notes them in `copied`, to a folder with the name of the run's.

    Of the numbered checkpoints, the newest is copied, and former copies are removed after it.
    """
    steps = folder.newest_checkpoint_steps()
    newest = [] if steps is None else [folder.checkpoint(steps)]
    for file in (folder.config, folder.summary, folder.best_measured, folder.best_checkpoint, *newest):
        name = str(file.relative_to(folder.root))
        try:
            found = file.stat()
            signature = [found.st_mtime_ns, found.st_size]
            if copied.get(name) != signature:
                storage.put(file, f"{folder.root.name}/{name}")
                copied[name] = signature
        except FileNotFoundError:
            # There is none yet, or a newer checkpoint has replaced it; otherwise the storage lacks a folder.
            if file.exists():
                raise
    current = [str(file.relative_to(folder.root)) for file in newest]
    if current and current[0] in copied:
        for name in [name for name in copied if _NUMBERED.fullmatch(name) and name not in current]:
            storage.remove(f"{folder.root.name}/{name}")
            del copied[name]


class LocalStorage:
    """A local folder, which is made if it is missing. A copy replaces the former one when it is complete."""

    def __init__(self, target: str) -> None:
        self._root = Path(target).expanduser()

    def put(self, file: Path, name: str) -> None:
        """Implements `_Storage`."""
        place = self._root / name
        make_folder(place.parent)
        temporary = temporary_of(place)
        try:
            shutil.copyfile(file, temporary)
            temporary.replace(place)
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Implements `_Storage`."""
        (self._root / name).unlink(missing_ok=True)


class RemoteStorage:
    """A place of fsspec. The place itself must exist, so that a misspelt bucket is not made."""

    def __init__(self, target: str) -> None:
        import fsspec

        self._files, root = fsspec.core.url_to_fs(target)
        self._root = PurePosixPath(root)

    def put(self, file: Path, name: str) -> None:
        """Implements `_Storage`."""
        place = self._root / name
        for parent in reversed([each for each in place.parents if self._root in each.parents]):
            if not self._files.isdir(str(parent)):
                self._files.mkdir(str(parent), create_parents=False)
        self._files.put_file(str(file), str(place))

    def remove(self, name: str) -> None:
        """Implements `_Storage`."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(str(self._root / name))


def storage_of(target: str) -> _Storage:
    """Returns the storage of a target."""
    return RemoteStorage(target) if is_url(target) else LocalStorage(target)


def main(arguments: list[str]) -> int:
    """Makes one round of copies, or a check; returns the exit code."""
    longest_s, first, target = arguments
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(longest_s))
    background.lower_priority()
    try:
        storage = storage_of(target)
        if first == _CHECK:
            with tempfile.NamedTemporaryFile() as probe:
                storage.put(Path(probe.name), _PROBE)
                storage.remove(_PROBE)
            return 0
        copied = json.load(sys.stdin)
        try:
            copy(RunFolder(Path(first)), storage, copied)
        finally:
            sys.stdout.write(json.dumps(copied))
    except Exception as error:  # Each library of a storage has errors of its own.
        sys.stderr.write(" ".join(str(error).split()) or type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
