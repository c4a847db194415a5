"""Policy versions that were ever published, so that none is published twice."""

import json
from pathlib import Path

from penstock.errors import ConfigurationError
from penstock.files import write_json

_RESERVED_AHEAD = 100
"""Versions reserved by one write, so that publishing costs no disk access of its own."""


class VersionMark:
    """A high-water mark on disk, written before a version under it is used. Used by one thread."""

    def __init__(self, path: Path) -> None:
        """Reads the mark an earlier process left. Raises `ConfigurationError` if it can't be read."""
        self._path = path
        try:
            self._mark = int(json.loads(path.read_text())) if path.exists() else -1
        except (OSError, ValueError, TypeError) as error:
            raise ConfigurationError(f"can't read {path}: {error}; it should hold one number") from None

    @property
    def first_free(self) -> int:
        """The lowest version that a process that starts now may use; 0 in a new run."""
        return self._mark + 1

    def reserve(self, version: int) -> None:
        """Makes sure that no later process uses this version."""
        if version > self._mark:
            self._mark = version + _RESERVED_AHEAD
            write_json(self._path, self._mark)

    def settle(self, version: int) -> None:
        """At a clean end: `version` was the last that was used."""
        self._mark = version
        write_json(self._path, self._mark)
