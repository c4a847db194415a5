"""A full Reverb table in a separate server process, and the measurement that all cases share.

The table is filled to its `max_size` before the measurement, so that every later insert removes the oldest item, as in
a long run. Reverb's calls have no deadlines; `reverb_replay.py` bounds the whole run.
"""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import psutil
import reverb

from benchmarks.peers.place import Place
from benchmarks.peers.reverb_segments import Segment, SegmentKind


@dataclass(frozen=True, slots=True)
class FullTable:
    """A table that holds `kind.stored` segments.

    Attributes:
        name: Name of the table.
        address: Address of its server.
        server_pid: Process id of the server.
        place: Place of the server.
        kind: Kind of its segments.
        pool: Distinct segments, inserted in turn.
    """

    name: str
    address: str
    server_pid: int
    place: Place
    kind: SegmentKind
    pool: tuple[Segment, ...]

    def inserted(self) -> int:
        """Returns the number of items that the server has accepted since it started."""
        info = reverb.Client(self.address).server_info(timeout=10)[self.name]
        return int(info.rate_limiter_info.insert_stats.completed)


@dataclass(frozen=True, slots=True)
class Rate:
    """The result of one measurement.

    Attributes:
        per_s: Segments (or priorities) per second.
        cpu_s_per_million: User and system seconds of server and client together, per million of them.
        wire_bytes: Bytes between server and client for each of them.
    """

    per_s: float
    cpu_s_per_million: float
    wire_bytes: float


class Candidate(Protocol):
    """One way to load the server."""

    @property
    def label(self) -> str:
        """Description of the configuration, in one line."""

    def measure(self, table: FullTable, seconds: float) -> Rate:
        """Warms up, loads the server for this number of seconds, and checks that everything arrived."""


def metered(table: FullTable, work: Callable[[], int]) -> Rate:
    """Runs `work`, which returns a count, and measures its time and CPU seconds."""
    cpu_before, carried, started = _cpu_s(table.server_pid), table.place.bytes_carried(), time.perf_counter()
    done = work()
    elapsed_s, cpu_s = time.perf_counter() - started, _cpu_s(table.server_pid) - cpu_before
    return Rate(done / elapsed_s, cpu_s / done * 1e6, (table.place.bytes_carried() - carried) / done)


@contextlib.contextmanager
def full_table(kind: SegmentKind, place: Place) -> Iterator[FullTable]:
    """Starts a server and fills its table; the server always ends with the context."""
    rng = np.random.default_rng(0)
    with _server("replay", kind.stored, place) as (address, pid):
        table = FullTable("replay", address, pid, place, kind, kind.segments(rng))
        _fill(table, rng)
        yield table


@contextlib.contextmanager
def _server(table: str, max_size: int, place: Place) -> Iterator[tuple[str, int]]:
    command = [*place.prefix, sys.executable, "-m", "benchmarks.peers.reverb_server"]
    command += ["--table", table, "--max-size", str(max_size)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield f"{place.host}:{_read_port(process)}", process.pid
    finally:
        _end(process)


def _read_port(process: subprocess.Popen[str], limit_s: float = 60.0) -> int:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], limit_s)
    line = process.stdout.readline() if ready else ""
    if not line:
        raise RuntimeError(f"the Reverb server printed no port within {limit_s:g} s; its stderr has the reason")
    return int(line)


def _end(process: subprocess.Popen[str], limit_s: float = 15.0) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(limit_s)
    process.stdout.close()


def _fill(table: FullTable, rng: np.random.Generator) -> None:
    # Reverb's older Writer puts all columns of a step into one chunk; TrajectoryWriter makes one chunk per column.
    # Vector segments of a table filled by the older Writer are sampled 1.5 times as fast.
    with reverb.Client(table.address).writer(1, chunk_length=1, max_in_flight_items=64) as writer:
        for number in range(table.kind.stored):
            writer.append(table.pool[number % len(table.pool)])
            writer.create_item(table.name, 1, 0.1 + rng.random())
    if table.inserted() != table.kind.stored:
        raise RuntimeError(f"{table.inserted()} segments arrived in the table, expected {table.kind.stored}")


def _cpu_s(server_pid: int) -> float:
    both = (psutil.Process(server_pid).cpu_times(), psutil.Process(os.getpid()).cpu_times())
    return sum(times.user + times.system for times in both)
