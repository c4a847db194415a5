"""Insertion into Reverb at its fastest: the older `Writer`, kept open, and `StructuredWriter`.

A segment is appended as one step of whole columns. `reverb_replay.py` lists the slower alternatives.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import reverb
from reverb import structured_writer

from benchmarks.peers.reverb_segments import Segment
from benchmarks.peers.reverb_table import FullTable, Rate, metered


@dataclass(frozen=True, slots=True)
class WriterInsertion:
    """Inserts with `Client.writer`, chunk_length=1, one per thread.

    Attributes:
        in_flight: Value of max_in_flight_items.
        threads: Number of threads, each with its own client and writer.
    """

    in_flight: int
    threads: int

    @property
    def label(self) -> str:
        """Description of the configuration."""
        return f"Client.writer, chunk_length=1, max_in_flight_items={self.in_flight}, threads={self.threads}"

    def measure(self, table: FullTable, seconds: float) -> Rate:
        """Inserts for this number of seconds, until the server's last confirmation."""
        return _measured(table, seconds, self.threads, lambda until: self._insert(table, until))

    def _insert(self, table: FullTable, until: float) -> int:
        writer = reverb.Client(table.address).writer(1, chunk_length=1, max_in_flight_items=self.in_flight)
        inserted = 0
        while time.perf_counter() < until:
            writer.append(table.pool[inserted % len(table.pool)])
            writer.create_item(table.name, 1, 1.0)
            inserted += 1
        writer.flush()
        writer.close()
        return inserted


@dataclass(frozen=True, slots=True)
class StructuredInsertion:
    """Inserts with `Client.structured_writer`, one per thread.

    Attributes:
        flush_every: Segments between flushes.
        unconfirmed: Segments that a flush may leave unconfirmed.
        threads: Number of threads, each with its own client and writer.
    """

    flush_every: int
    unconfirmed: int
    threads: int

    @property
    def label(self) -> str:
        """Description of the configuration."""
        return f"Client.structured_writer, flush({self.unconfirmed}) every {self.flush_every}, threads={self.threads}"

    def measure(self, table: FullTable, seconds: float) -> Rate:
        """Inserts for this number of seconds, until the server's last confirmation."""
        return _measured(table, seconds, self.threads, lambda until: self._insert(table, until))

    def _insert(self, table: FullTable, until: float) -> int:
        pattern = structured_writer.pattern_from_transform(
            table.pool[0], lambda step: Segment(*(column[-1] for column in step))
        )
        config = structured_writer.create_config(pattern, table.name)
        writer = reverb.Client(table.address).structured_writer([config])
        inserted = 0
        while time.perf_counter() < until:
            writer.append(table.pool[inserted % len(table.pool)])
            inserted += 1
            if inserted % self.flush_every == 0:
                writer.flush(self.unconfirmed, timeout_ms=10_000)
        writer.flush(0, timeout_ms=10_000)
        return inserted


def insertion_candidates(kind: str) -> tuple[WriterInsertion | StructuredInsertion, ...]:
    """Returns the fastest candidates for this kind of segment."""
    if kind == "vector":
        return (WriterInsertion(1000, 4), WriterInsertion(1000, 2), StructuredInsertion(500, 1000, 1))
    if kind.startswith("frames"):
        return (WriterInsertion(64, 4), WriterInsertion(200, 4), WriterInsertion(8, 2))
    return (WriterInsertion(8, 1), WriterInsertion(25, 1), WriterInsertion(8, 2))


def _measured(table: FullTable, seconds: float, threads: int, insert: Callable[[float], int]) -> Rate:
    _in_threads(threads, insert, 0.3)
    before, inserted = table.inserted(), 0

    def work() -> int:
        nonlocal inserted
        inserted = _in_threads(threads, insert, seconds)
        return inserted

    rate = metered(table, work)
    if table.inserted() - before != inserted:
        raise RuntimeError(f"{table.inserted() - before} segments arrived at the server, {inserted} were sent")
    return rate


def _in_threads(threads: int, insert: Callable[[float], int], seconds: float) -> int:
    until = time.perf_counter() + seconds
    with ThreadPoolExecutor(threads) as executor:
        return sum(executor.map(insert, [until] * threads))
