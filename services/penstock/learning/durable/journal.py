"""The journal of a run, metrics.jsonl: one JSON object per line, for plots and for jq.

Its size is bounded. Above `MOST_BYTES`, its records are thinned out evenly over the steps of the run, so that curves
keep their shape. Readers find all of the old file or all of the new one.
"""

import contextlib
import json
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.machine.files import json_of, open_own, write_atomically
from penstock.machine.system_errors import in_words
from penstock.runs.folder import damaged_lines_of
from penstock.telemetry import logs, metrics
from penstock.types.records import plain

MOST_BYTES = 64 * 2**20
"""Size in bytes above which the journal is thinned to half of it: about a day of records, at one per second."""

MAX_WAITING = 10_000
"""Records kept while the disk accepts none: some hours of records. Then the oldest are dropped."""


_THINNED = {"evaluation": 0.5, "training": 1.0}
"""Kinds of records that are thinned, with the share that each may use of the bytes that are left."""

_FINEST = 16
"""Most intervals per record, where some parts of the run have more records than others."""

_LEAST = 2
"""Records of a kind that are never removed: the first and the last."""


class Waiting:
    """Records that a file does not have yet, at most `MAX_WAITING`."""

    def __init__(self, path: Path, notice: Callable[[str], None]) -> None:
        """Names the file. `notice` notifies the user of dropped records, once the file has the others."""
        self._path, self._notice = path, notice
        self._records: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._dropped = 0

    def append(self, record: bytes) -> None:
        """Adds a record; drops the oldest one if there are too many."""
        self._dropped += len(self._records) == MAX_WAITING
        self._records.append(record)

    def data(self) -> bytes:
        """Returns the records."""
        return b"".join(self._records)

    def clear(self) -> None:
        """Forgets the records, which the file has."""
        self._records.clear()
        if self._dropped:
            self._notice(f"{self._path} lacks {self._dropped:,} records of the time in which the disk accepted none")
            self._dropped = 0


class Journal:
    """Sink of records that writes whole lines, later if they can't be written now. Used by one thread."""

    def __init__(self, path: Path, *, writes: RetriedWrites, notice: Callable[[str], None]) -> None:
        """Names the journal's file. `notice` notifies the user."""
        self._path, self._writes, self._notice = path, writes, notice
        self._waiting = Waiting(path, notice)
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
        records = [(line, steps_of(line)) for line in lines]
        kept = b"".join(line for line, steps in records if steps is not None and steps <= env_steps)
        strays = [line.rstrip(b"\n") + b"\n" for line, steps in records if steps is None]
        if strays:
            aside = damaged_lines_of(path)
            self._notice(f"{len(strays)} lines of {path} are damaged or incomplete; they were moved to {aside.name}")
            self._writes.write(aside.name, partial(append, aside, b"".join(strays)))
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
        self._written = append(self._path, self._waiting.data(), at=self._written)
        self._waiting.clear()
        if self._written > MOST_BYTES:
            self._thin()

    def _thin(self) -> None:
        """Thins the file to half of its bound. Raises `OSError`."""
        lines = self._path.read_bytes().splitlines(keepends=True)
        kept = thinned(lines, MOST_BYTES // 2)
        write_atomically(self._path, b"".join(kept))
        self._written = sum(map(len, kept))
        metrics.THINNED_RECORDS.inc(len(lines) - len(kept))
        logs.note("journal thinned", path=str(self._path), records=str(len(kept)), removed=str(len(lines) - len(kept)))


def thinned(lines: list[bytes], most_bytes: int) -> list[bytes]:
    """Returns as many of these records as fit into a number of bytes, in their order and evenly over the steps.

    Evaluations, which are few, are thinned only if they alone need more than half of it. The first and the last record
    of each of both kinds, and all other records, are kept.
    """
    kinds = [_kind(line) for line in lines]
    sizes = [len(line) for line in lines]
    free = most_bytes - sum(size for kind, size in zip(kinds, sizes, strict=True) if kind not in _THINNED)
    kept = [kind not in _THINNED for kind in kinds]
    for kind, share in _THINNED.items():
        mine = [index for index, each in enumerate(kinds) if each == kind]
        chosen = _evenly(mine, [steps_of(lines[index]) or 0 for index in mine], sizes, int(share * free))
        free -= sum(sizes[index] for index in chosen)
        for index in chosen:
            kept[index] = True
    return [line for line, stays in zip(lines, kept, strict=True) if stays]


def _evenly(mine: list[int], steps: list[int], sizes: list[int], most_bytes: int) -> list[int]:
    """Returns the last of these records in each of equal intervals of steps, and the first, in at most so many bytes.

    Only the first and the last are kept, whatever their size.
    """
    total = sum(sizes[index] for index in mine)
    if total <= most_bytes or len(mine) <= _LEAST:
        return mine
    span, best = max(1, steps[-1] - steps[0]), [mine[0], mine[-1]]
    few, many = 1, _FINEST * len(mine)
    while few < many:
        intervals = (few + many + 1) // 2
        last = {(step - steps[0]) * intervals // span: index for step, index in zip(steps, mine, strict=True)}
        chosen = sorted({mine[0], *last.values()})
        if sum(sizes[index] for index in chosen) <= most_bytes:
            few, best = intervals, chosen
        else:
            many = intervals - 1
    return best


def append(path: Path, data: bytes, *, at: int | None = None) -> int:
    """Truncates a file to at most `at` bytes and appends data. Returns its new size in bytes. Raises `OSError`."""
    descriptor = open_own(path, os.O_WRONLY | os.O_CREAT)
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


def _kind(line: bytes) -> str:
    """Returns the kind of a record; empty if the line is not a record."""
    try:
        return str(json.loads(line)["kind"])
    except (ValueError, KeyError, TypeError):
        return ""


def steps_of(line: bytes) -> int | None:
    """Returns the environment steps of a record; None if the line is not a record."""
    try:
        return int(json.loads(line)["env_steps"])
    except (ValueError, KeyError, TypeError):
        return None
