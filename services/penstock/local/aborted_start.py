"""Restores a run's folder if the run ends before its first training batch, such as after a mistake in an option."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import ConfigurationError, PenstockError
from penstock.machine.files import write_atomically
from penstock.runs.folder import RunFolder


class AbortedStart:
    """Record of a run's folder before its services started, from which an aborted start is undone."""

    def __init__(self, folder: RunFolder) -> None:
        """Records the state of the folder, which need not exist yet."""
        self._folder = folder
        self._missing = [path for path in (folder.root, *folder.root.parents) if not path.exists()]
        self._new = [path for path in folder.everything() if not path.exists()]
        self._config = folder.config.read_bytes() if folder.config.exists() else None
        self._checkpoints = folder.numbered_checkpoints()
        self._has_trained = False

    def made(self, path: Path) -> None:
        """Adds a folder outside the run's folder that this start makes."""
        self._new += [] if path.exists() else [path]

    def note_training(self) -> None:
        """Records that a batch was trained; from then on, nothing is undone."""
        self._has_trained = True

    @property
    def has_trained(self) -> bool:
        """Whether a batch has been trained since the start."""
        return self._has_trained or self._folder.numbered_checkpoints() != self._checkpoints

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """Restores the folder if settings are refused or the user interrupts before training has begun.

        After that, a `ConfigurationError` becomes a `PenstockError`, because the command itself was correct.
        """
        try:
            yield
        except (ConfigurationError, KeyboardInterrupt) as error:
            if not self.has_trained:
                self._undo()
            elif isinstance(error, ConfigurationError):
                raise PenstockError(str(error)) from error
            raise

    def _undo(self) -> None:
        for path in self._new:
            with contextlib.suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
                # Temporary files of interrupted writes.
                for left in path.parent.glob(f".{path.name}.*"):
                    left.unlink(missing_ok=True)
        # The error that ended the start must reach the user.
        with contextlib.suppress(OSError):
            if self._config is not None and self._folder.config.read_bytes() != self._config:
                write_atomically(self._folder.config, self._config)
        for path in self._missing:
            # A folder that is not empty stays.
            with contextlib.suppress(OSError):
                path.rmdir()
