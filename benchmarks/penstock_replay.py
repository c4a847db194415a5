"""Loads a Penstock replay service like user processes, and prints the throughput as one JSON line.

The service is `penstock replay` in a separate process. This process is the actor and the learner, and uses their
clients. Called by `replay.py`, alternately with the peer.

A sampling measurement covers the whole cycle: the service draws and sends a batch, the client reads every column of it,
and a commit returns new priorities. The store is filled once before the measurement, so that the service overwrites
rows as it does in a long run. Windows are taken in turn from a pool of as many distinct segments as the peer's.
"""

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from benchmarks import frames
from benchmarks.peers.place import Place, add_arguments, place_of
from penstock.process.service import keep_freed_memory
from penstock.rpc import methods
from penstock.rpc.channel import connect, open_stream
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.loop import LoopThread
from penstock.types import location as places
from penstock.types.block import Column, Columns, Extent, Schema
from penstock.types.replay import SamplingPlan, Window, WindowHead
from penstock.types.run import Assignment
from penstock.v1 import replay_pb2
from penstock.wire import batches as wire
from tests.support.segments.random_segments import PIXEL, VECTOR, random_columns
from tests.support.services.another_host import as_from_another_host
from tests.support.services.ports import free_ports

PATIENCE_S = 30.0
PREFETCH = 4
ACTORS = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """The load for one kind of segment.

    Attributes:
        schema: Schema of the segments.
        capacity_bytes: Size of the store in bytes.
        windows: Candidates for the number of segments per window; the best result counts.
        batches: Candidates for the batch size; the best result counts.
        pool: Distinct segments.
    """

    schema: Schema
    capacity_bytes: int
    windows: tuple[int, ...]
    batches: tuple[int, ...]
    pool: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of one measurement.

    Attributes:
        per_s: Segments (or priorities) per second.
        cpu_s_per_million: User and system seconds of service and client together, per million of them.
        wire_bytes: Bytes between service and client for each of them.
    """

    per_s: float
    cpu_s_per_million: float
    wire_bytes: float


FRAMES_ONCE = replace(
    PIXEL,
    columns=(
        Column("observation", "uint8", (84, 84), Extent.STEP_AND_NEXT, lead=frames.STACK - 1),
        *PIXEL.columns[1:],
    ),
)
"""T = 32 steps of 84 x 84 uint8 observations, of which a learner stacks four: 255 kB."""

CASES = ("sample", "sample_same_host", "insert", "insert_same_host", "priorities")
"""Measured operations, over TCP, or over the path used on one host alone (shared memory)."""

SETTINGS = {
    "vector": Setting(VECTOR, 128 * 2**20, (128, 512), (256, 1024, 2048), 256),
    "pixel": Setting(PIXEL, 2**30, (4, 8), (32,), 16),
    "frames": Setting(PIXEL, 2**30, (16, 32, 64), (32, 64), frames.SEGMENTS),
    "frames_once": Setting(FRAMES_ONCE, 2**29, (32, 64), (64, 256), frames.SEGMENTS),
}
PRIORITIES = 4096
"""Priorities per commit."""

LEASES = 60


def plan_of(batch: int) -> SamplingPlan:
    """Returns a plan for batches of this many seen segments, under which windows never wait for a learner."""
    return SamplingPlan(
        session=secrets.randbits(62) + 1,
        next_batch=0,
        batch_segments=batch,
        fresh_segments=0,
        off_policy_degree=1,
        publish_interval=1,
        alpha=0.6,
        epsilon=1e-3,
        half_life=1e6,
        max_staleness=2**31,
        min_replay_segments=1,
    )


class Load:
    """A service with a full store, one learner and two actors."""

    def __init__(self, segment: str, address: str, *, batch: int, window: int) -> None:
        setting = SETTINGS[segment]
        self.batch, self.window = batch, window
        self.plan = plan_of(batch)
        self._address, self._thread = address, LoopThread()
        self.source = ReplayBatchSource(self._thread, address, setting.schema, prefetch_batches=PREFETCH)
        self._sinks = [
            ReplaySegmentSink(
                self._thread,
                Assignment(slot, 1, tuple(range(window)), b"", 0, places.Place((address,))),
                setting.schema,
            )
            for slot in range(ACTORS)
        ]
        self._sent = [0] * ACTORS
        self._windows = windows_of(pool_of(segment), window)
        self.source.open(self.plan)
        self._collect(lambda: sum(self._sent) * setting.schema.segment_bytes < 1.1 * setting.capacity_bytes)

    def insert(self, seconds: float) -> int:
        """Inserts for this number of seconds; returns the stored segments, up to the last acknowledgement."""
        end, before = time.monotonic() + seconds, sum(self._sent)
        self._collect(lambda: time.monotonic() < end)
        return sum(self._sent) - before

    def sample(self, seconds: float) -> int:
        """Samples for this number of seconds; returns the segments that were sampled, read and committed."""
        priorities = np.random.default_rng(2).random(self.batch) + 0.1
        end, segments = time.monotonic() + seconds, 0
        while True:
            batch = self.source.next(PATIENCE_S)
            assert batch is not None and batch.keys.size == self.batch
            for array in batch.columns.arrays:
                array.reshape(-1)[-1].item()
            outcome = self.source.commit(batch, priorities)
            segments += self.batch
            if time.monotonic() > end:
                assert outcome.result(PATIENCE_S).updated == self.batch
                return segments

    def commit(self, seconds: float, cpu_s: Callable[[], float]) -> tuple[int, float, float]:
        """Commits for this number of seconds; returns the stored priorities, and seconds and CPU without leasing."""
        return self._thread.run(self._commit(seconds, cpu_s))

    async def _commit(self, seconds: float, cpu_s: Callable[[], float]) -> tuple[int, float, float]:
        channel = connect(self._address)
        plan, updated, spent, used, number = self.plan, 0, 0.0, 0.0, 0
        call = open_stream(channel, methods.SAMPLE_BATCHES)
        responses = aiter(call)
        await call.write(replay_pb2.SampleBatchesRequest(plan=wire.encode_plan(plan)))
        await anext(responses)
        rng = np.random.default_rng(3)
        priorities = rng.random(self.batch) + 0.1
        while spent < seconds:
            heads = []
            for _ in range(LEASES):
                request = replay_pb2.BatchRequest(batch=number, head_only=True)
                await call.write(replay_pb2.SampleBatchesRequest(batch=request))
                heads.append(wire.decode_batch_head((await anext(responses)).message))
                number += 1
            # Drawn keys ascend, which spares the caches. A learner returns them in the same order, the peer does not.
            shuffled = [rng.permutation(head.keys) for head in heads]
            before, started = cpu_s(), time.monotonic()
            for head, keys in zip(heads, shuffled, strict=True):
                commit = replay_pb2.CommitBatchRequest(
                    session=plan.session,
                    batch=head.number,
                    keys=keys.tobytes(),
                    priorities=priorities.tobytes(),
                )
                await call.write(replay_pb2.SampleBatchesRequest(commit=commit))
            for _ in heads:
                updated += (await anext(responses)).message.committed.updated
            spent, used = spent + time.monotonic() - started, used + cpu_s() - before
        await channel.close()
        return updated, spent, used

    def close(self) -> None:
        """Closes the clients."""
        for sink in self._sinks:
            sink.close()
        self.source.close()
        self._thread.close()

    def _collect(self, should_continue: Callable[[], bool]) -> None:
        with ThreadPoolExecutor(ACTORS) as threads:
            for acted in [threads.submit(self._act, slot, should_continue) for slot in range(ACTORS)]:
                acted.result()

    def _act(self, slot: int, should_continue: Callable[[], bool]) -> None:
        size, sink = self.window, self._sinks[slot]
        environments = np.arange(size, dtype=np.uint32)
        while should_continue():
            assert sink.next_grant(PATIENCE_S) is not None
            columns = self._windows[self._sent[slot] // size % len(self._windows)]
            sink.send(Window(WindowHead(slot, 1, self._sent[slot] + 1, 0, environments), columns))
            self._sent[slot] += size
        assert sink.drain(PATIENCE_S)


def pool_of(segment: str) -> Columns:
    """Returns the distinct segments of a kind: recorded frames or random bytes, and random numbers."""
    setting = SETTINGS[segment]
    columns = random_columns(setting.schema, setting.pool, seed=1)
    if segment.startswith("frames"):
        recorded = frames.recorded()
        columns.arrays[0][...] = frames.stacked(recorded) if segment == "frames" else recorded
    return columns


def windows_of(pool: Columns, size: int) -> list[Columns]:
    """Returns windows of `size` segments, which have the pool's in turn."""
    whole = range(0, max(size, pool.segments), size)
    return [
        Columns(pool.schema, tuple(array.take(range(start, start + size), 0, mode="wrap") for array in pool.arrays))
        for start in whole
    ]


@contextmanager
def service(
    capacity_bytes: int, folder: Path | None, place: Place, options: Sequence[str] = ()
) -> Iterator[tuple[str, int]]:
    """Runs a replay service with these options, and yields its address and process id."""
    address = f"{place.host}:{free_ports(1)[0]}"
    command = [
        *place.prefix,
        sys.executable,
        "-c",
        "from penstock.cli.main import main; main()",
        "replay",
        "--replay.listen",
        address,
    ]
    command += ["--replay.metrics-port", "0", "--replay.capacity-bytes", str(capacity_bytes)]
    command += ["--replay.folder", str(folder)] if folder is not None else []
    command += options
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield address, process.pid
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def cpu_s(pid: int) -> float:
    """Returns user and system seconds of the service and of this process."""
    both = (psutil.Process(pid).cpu_times(), psutil.Process().cpu_times())
    return sum(times.user + times.system for times in both)


def measure(case: str, segment: str, seconds: float, place: Place, *, batch: int, window: int) -> Measured:
    """Measures one configuration."""
    mapped = case.endswith("same_host")
    with tempfile.TemporaryDirectory() as folder:
        # Without a folder there is nothing to map, so all columns go over TCP.
        store, seen_from = (Path(folder), nullcontext()) if mapped else (None, as_from_another_host())
        with seen_from, service(SETTINGS[segment].capacity_bytes, store, place) as (address, pid):
            load = Load(segment, address, batch=batch, window=window)
            if case.startswith("sample"):
                load.sample(0.5)
                assert load.source.reads == ("mapped store" if mapped else "messages"), load.source.reads
            before, carried, started = cpu_s(pid), place.bytes_carried(), time.monotonic()
            if case == "priorities":
                count, spent, used = load.commit(seconds, lambda: cpu_s(pid))
            else:
                count = (load.insert if case.startswith("insert") else load.sample)(seconds)
                spent, used = time.monotonic() - started, cpu_s(pid) - before
            carried = place.bytes_carried() - carried
            load.close()
    return Measured(count / spent, used / count * 1e6, carried / count)


def main() -> None:
    """Measures one case and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, required=True)
    parser.add_argument("--segment", choices=tuple(SETTINGS), required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    add_arguments(parser)
    arguments = parser.parse_args()
    keep_freed_memory()
    setting = SETTINGS[arguments.segment]
    if arguments.case.startswith("insert"):
        tried = {f"{ACTORS} actors, windows of {window}": (setting.batches[0], window) for window in setting.windows}
    elif arguments.case == "priorities":
        tried = {f"commits of {PRIORITIES}": (PRIORITIES, setting.windows[0])}
    else:
        tried = {f"batches of {batch}": (batch, setting.windows[0]) for batch in setting.batches}
    seconds = arguments.seconds / len(tried)
    measured = {
        name: measure(arguments.case, arguments.segment, seconds, place_of(arguments), batch=batch, window=window)
        for name, (batch, window) in tried.items()
    }
    configuration, fastest = max(measured.items(), key=lambda item: item[1].per_s)
    print(
        json.dumps(
            {
                "case": arguments.case,
                "segment": arguments.segment,
                "configuration": configuration,
                **asdict(fastest),
                "tried": {name: rate.per_s for name, rate in measured.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
