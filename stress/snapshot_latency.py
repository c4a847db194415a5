"""`make stress-snapshot-latency`: latencies of a learner's batches with and without a snapshot in progress.

A learner requests batches of 256 segments one after another and returns priorities, while an actor inserts at a steady
pace. Rounds with and without a snapshot alternate, so that other load on the machine affects both. The snapshots of a
round are removed before the next one, so that snapshots never share chunks. The service is the real command in a
separate process. Its store is a file, but columns travel by gRPC, so that the service does all the work.

The test fails if the 99.9th percentile with a snapshot exceeds 1.5 times that without, or if the longest wait exceeds
the longest without by more than 20 ms. The result is build/bench/snapshot_latency.json.
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from penstock.process.service import keep_freed_memory
from penstock.rpc import methods
from penstock.rpc.channel import connect, open_stream
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.clients.snapshots import SnapshotClient
from penstock.rpc.loop import LoopThread
from penstock.types.block import Schema
from penstock.types.location import Place
from penstock.types.replay import Batch, Window, WindowHead
from penstock.types.run import Assignment, Weights
from penstock.types.snapshots import Snapshot, SnapshotRequest
from penstock.v1 import replay_pb2
from penstock.wire import batches as wire
from stress import results
from stress.healthy_pair import plan_of
from stress.replay_process import replay_process
from tests.support.segments.random_segments import PIXEL, VECTOR, random_columns

PATIENCE_S = 60.0
MOST_RATIO, MOST_STALL_S = 1.5, 0.020
POLICY = Weights.of(0, bytes(2**20))
"""A policy as large as a checkpoint of two layers of 256 with its optimizer."""
SEGMENTS = {"vector": (VECTOR, 256, 64), "pixel": (PIXEL, 8, 2)}
"""Schema, segments per batch and segments per window, by kind of segment."""


class Inserter:
    """An actor that sends windows at a steady pace."""

    def __init__(self, thread: LoopThread, address: str, schema: Schema, segments: int) -> None:
        self._sink = ReplaySegmentSink(
            thread, Assignment(0, 1, tuple(range(segments)), b"", 0, Place((address,))), schema
        )
        self._columns, self._environments = random_columns(schema, segments, 1), np.arange(segments, dtype=np.uint32)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: None)
        self.sent = 0

    def send(self) -> None:
        """Sends one window."""
        assert self._sink.next_grant(PATIENCE_S) is not None
        self._sink.send(Window(WindowHead(0, 1, self.sent + 1, 0, self._environments), self._columns))
        self.sent += self._environments.size

    def begin(self, windows_per_s: float) -> None:
        """Starts to send this number of windows per second."""

        def run() -> None:
            due = time.monotonic()
            while not self._stop.wait(max(0.0, due - time.monotonic())):
                self.send()
                due = max(due + 1.0 / windows_per_s, time.monotonic())

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def close(self) -> None:
        """Stops the actor."""
        self._stop.set()
        self._thread.join()
        assert self._sink.drain(PATIENCE_S)
        self._sink.close()


class Sampler:
    """A learner that requests one batch after another and measures their latencies."""

    def __init__(self, thread: LoopThread, address: str, schema: Schema, batch: int) -> None:
        self._thread, self._schema, self._batch = thread, schema, batch
        self._plan = plan_of(batch, 0)
        self._number = 0
        self._priorities = np.random.default_rng(3).random(batch) + 0.1
        thread.run(self._open(address))

    async def _open(self, address: str) -> None:
        self._channel = connect(address)
        self._call = open_stream(self._channel, methods.SAMPLE_BATCHES)
        self._responses = aiter(self._call)
        await self._call.write(replay_pb2.SampleBatchesRequest(plan=wire.encode_plan(self._plan)))

    def opened(self) -> None:
        """Waits until the store has its schema."""

        async def wait() -> None:
            while not (await anext(self._responses)).message.HasField("opened"):
                pass

        self._thread.run(wait(), PATIENCE_S)

    def sample(self, stop: threading.Event) -> NDArray[np.float64]:
        """Returns the seconds from each request to the last byte of its batch, <float64>[batches], until `stop`."""
        return np.array(self._thread.run(self._sample(stop)))

    async def _sample(self, stop: threading.Event) -> list[float]:
        assembler = wire.BatchAssembler(2**31)
        seconds = []
        while not stop.is_set():
            asked = time.perf_counter()
            await self._call.write(replay_pb2.SampleBatchesRequest(batch=replay_pb2.BatchRequest(batch=self._number)))
            while (batch := assembler.add(self._schema, await anext(self._responses))) is None:
                pass
            seconds.append(time.perf_counter() - asked)
            # This client has named no codec.
            assert isinstance(batch, Batch)
            commit = replay_pb2.CommitBatchRequest(
                session=self._plan.session,
                batch=self._number,
                keys=batch.keys.tobytes(),
                priorities=self._priorities.tobytes(),
            )
            await self._call.write(replay_pb2.SampleBatchesRequest(commit=commit))
            assert (await anext(self._responses)).message.HasField("committed")
            self._number += 1
        return seconds

    def close(self) -> None:
        """Closes the learner."""
        self._thread.run(self._channel.close())


def of_round(
    sampler: Sampler, loop: LoopThread, client: SnapshotClient | None, seconds: float
) -> tuple[NDArray[np.float64], list[Snapshot]]:
    """Returns the latencies of a round, and the snapshots that were taken throughout it; none without a client."""
    stop, taken = threading.Event(), list[Snapshot]()

    def run() -> None:
        end = time.monotonic() + seconds
        while client is not None and time.monotonic() < end:
            request = SnapshotRequest(f"round-{time.monotonic_ns()}", 0, automatic=False)
            taken.append(loop.run(client.take(request, POLICY)))
            for each in taken:
                shutil.rmtree(each.folder, ignore_errors=True)
        stop.wait(max(0.0, end - time.monotonic()))
        stop.set()

    thread = threading.Thread(target=run)
    thread.start()
    latencies = sampler.sample(stop)
    thread.join()
    return latencies, taken


@dataclass(frozen=True, slots=True)
class Waits:
    """Latencies with or without snapshots, in milliseconds."""

    batches: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    @classmethod
    def of(cls, rounds: list[NDArray[np.float64]]) -> "Waits":
        """Computes them from latencies in seconds."""
        all_ms = 1e3 * np.concatenate(rounds)
        p50, p99, p999 = np.quantile(all_ms, (0.5, 0.99, 0.999)).tolist()
        return cls(all_ms.size, p50, p99, p999, float(all_ms.max()))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Latencies for one kind of segment with and without snapshots, and the snapshots."""

    segment: str
    capacity_bytes: int
    inserted_per_s: float
    without: Waits
    during: Waits
    snapshots: int
    snapshot_seconds: float
    snapshot_bytes: float
    absent: int
    damaged: int
    p999_ratio: float
    longer_stall_ms: float

    @property
    def held(self) -> bool:
        """Whether both bounds held."""
        return self.p999_ratio <= MOST_RATIO and self.longer_stall_ms <= 1e3 * MOST_STALL_S


def measure(segment: str, arguments: argparse.Namespace, place: Path) -> Comparison:
    """Measures one kind of segment with and without snapshots."""
    schema, batch, window = SEGMENTS[segment]
    rate = arguments.insert_share * arguments.capacity_bytes / schema.segment_bytes
    rounds: dict[bool, list[NDArray[np.float64]]] = {False: [], True: []}
    taken: list[Snapshot] = []
    with replay_process(arguments.capacity_bytes, folder=place / "store") as service:
        clients, actors = LoopThread(), LoopThread()
        inserter = Inserter(actors, service.address, schema, window)
        sampler = Sampler(clients, service.address, schema, batch)
        sampler.opened()
        while inserter.sent * schema.segment_bytes < 1.1 * arguments.capacity_bytes:
            inserter.send()
        snapshots = SnapshotClient(actors, service.address)
        inserter.begin(rate / window)
        of_round(sampler, actors, None, 1.0)
        for _ in range(arguments.rounds):
            for client in (None, snapshots):
                latencies, new = of_round(sampler, actors, client, arguments.seconds)
                rounds[client is not None].append(latencies)
                taken += new
        inserter.close()
        sampler.close()
        snapshots.close()
        clients.close()
        actors.close()
    without, during = Waits.of(rounds[False]), Waits.of(rounds[True])
    return Comparison(
        segment=segment,
        capacity_bytes=arguments.capacity_bytes,
        inserted_per_s=rate,
        without=without,
        during=during,
        snapshots=len(taken),
        snapshot_seconds=float(np.mean([each.seconds for each in taken])),
        snapshot_bytes=float(np.mean([each.written_bytes for each in taken])),
        absent=sum(each.absent for each in taken),
        damaged=sum(each.damaged for each in taken),
        p999_ratio=during.p999_ms / without.p999_ms,
        longer_stall_ms=during.max_ms - without.max_ms,
    )


def main() -> int:
    """Measures, prints and writes everything; returns 0 if both bounds held."""
    parser = results.options(__doc__)
    parser.add_argument("--segments", nargs="+", choices=tuple(SEGMENTS), default=["vector", "pixel"])
    parser.add_argument("--capacity-bytes", type=int, default=2**30)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of a round")
    parser.add_argument(
        "--insert-share", type=float, default=0.005, help="share of the store that is inserted per second"
    )
    parser.add_argument("--folder", type=Path, help="folder for the store (default: a temporary one)")
    arguments = parser.parse_args()
    keep_freed_memory()
    compared = []
    for segment in arguments.segments:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as place:
            compared.append(measure(segment, arguments, Path(place)))
    table = Table("segment", "snapshot", "batches", "p50 ms", "p99 ms", "p99.9 ms", "max ms")
    for result in compared:
        for side, waits in (("without", result.without), ("with", result.during)):
            times = (waits.p50_ms, waits.p99_ms, waits.p999_ms, waits.max_ms)
            table.add_row(result.segment, side, f"{waits.batches:,}", *(f"{each:.2f}" for each in times))
    Console(width=120).print(table)
    for result in compared:
        print(
            f"{result.segment}: p99.9 {result.p999_ratio:.2f} times, longest stall {result.longer_stall_ms:+.1f} ms;"
            f" {result.snapshots} snapshots of {result.snapshot_bytes / 2**20:.0f} MiB in {result.snapshot_seconds:.1f}"
            f" s, {result.absent} absent, {result.damaged} damaged: {'held' if result.held else 'FAILED'}"
        )
    results.write(arguments, {"segments": [{**asdict(result), "held": result.held} for result in compared]})
    return int(not all(result.held for result in compared))


if __name__ == "__main__":
    sys.exit(main())
