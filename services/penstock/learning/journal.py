"""The journal of a run, metrics.jsonl: one JSON object per line, for plots and for jq."""

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.files import PRIVATE_FILE, json_of, write_atomically
from penstock.learning.records import Record
from penstock.learning.retried_writes import RetriedWrites
from penstock.run_folder import damaged_lines_of
from penstock.system_errors import in_words
from penstock.types.records import plain

_MAX_WAITING = 10_000
"""Records kept while the disk accepts none: some hours of records."""


class Journal:
    """Sink of records that writes whole lines, later if they can't be written now. Used by one thread."""

    def __init__(self, path: Path, *, writes: RetriedWrites, notice: Callable[[str], None]) -> None:
        """Names the journal's file. `notice` notifies the user."""
        self._path, self._writes, self._notice = path, writes, notice
        self._waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)
        self._rewritten: bytes | None = None
        self._written = 0

    def resume(self, env_steps: int) -> None:
        """Implements `RecordSink`.

        Lines that are not records are moved to a file beside the journal, with a notice: damaged lines, and the last
        line of a process that was killed.
        """
        path = self._path
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        except OSError as error:
            self._notice(f"can't read {path}: {in_words(error, path)}; new records are appended to it")
            with contextlib.suppress(OSError):
                self._written = path.stat().st_size
            return
        records = [(line, _steps(line)) for line in lines]
        kept = b"".join(line for line, steps in records if steps is not None and steps <= env_steps)
        strays = [line.rstrip(b"\n") + b"\n" for line, steps in records if steps is None]
        if strays:
            aside = damaged_lines_of(path)
            self._notice(f"{len(strays)} lines of {path} are damaged or incomplete; they were moved to {aside.name}")
            self._writes.write(aside.name, partial(_append, aside, b"".join(strays)))
        self._written = len(kept)
        if len(kept) < sum(len(line) for line in lines):
            self._rewritten = kept
            self._writes.write(path.name, self._write)

    def write(self, record: Record) -> None:
        """Implements `RecordSink`."""
        variants = {"variants": [plain(variant) for variant in record.variants]} if record.variants else {}
        line = json_of({"kind": record.kind, "env_steps": record.env_steps, **record.values, **variants})
        self._waiting.append(f"{line}\n".encode())
        self._writes.write(self._path.name, self._write)

    def _write(self) -> None:
        """Writes the waiting records. The next write overwrites one that failed halfway. Raises `OSError`."""
        if self._rewritten is not None:
            write_atomically(self._path, self._rewritten)
            self._rewritten = None
        data = b"".join(self._waiting)
        self._written = _append(self._path, data, at=self._written)
        self._waiting.clear()


def _append(path: Path, data: bytes, *, at: int | None = None) -> int:
    """Truncates a file to at most `at` bytes and appends data. Returns its new size in bytes. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, PRIVATE_FILE)
    try:
        size = os.fstat(descriptor).st_size
        position = size if at is None else min(at, size)
        os.ftruncate(descriptor, position)
        rest = memoryview(data)
        while rest:
            written = os.pwrite(descriptor, rest, position)
            rest, position = rest[written:], position + written
        return position
    finally:
        os.close(descriptor)


def _steps(line: bytes) -> int | None:
    """Returns the environment steps of a record; None if the line is not a record."""
    try:
        return int(json.loads(line)["env_steps"])
    except (ValueError, KeyError, TypeError):
        return None
