"""A whole run in one process and in virtual time: a replay service, a learner, actors and a network, with faults.

The services are those of production: `ReplayServicer` with its buffer, `RunServicer` with its roster, `act` with
`Membership` and `ReplaySegmentSink`, and `ReplayBatchSource`. Only the environments, the policy and the gradient steps
are replaced, as by `tests.support.torture`: segments have their names as content, and priorities are drawn. Messages
go by gRPC or shared memory, because simulated processes have no sockets.

A seed decides everything: the settings, the faults, the delays and the order of callbacks.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

import grpc
import numpy as np

from penstock.acting import loop as acting
from penstock.errors import ConfigurationError, PenstockError
from penstock.learning.durable import versions as version_marks
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.durable.versions import VersionMark
from penstock.learning.members.replay_places import ReplayPlaces
from penstock.learning.members.roster import Roster
from penstock.learning.members.targets import Targets
from penstock.learning.report.statistics import RunStatistics
from penstock.machine import files
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.ring_store import RingStore
from penstock.rpc import channel
from penstock.rpc.clients import connection, sampling_stream, segment_sink
from penstock.rpc.clients.absence import Absence
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.clients.membership import Membership
from penstock.rpc.clients.replay_watch import ReplayWatch
from penstock.rpc.clients.segment_sink import ReplaySegmentSink
from penstock.rpc.service import Reception
from penstock.rpc.servicers.replay import ReplayServicer
from penstock.rpc.servicers.run import RunServicer
from penstock.telemetry import logs
from penstock.types.block import Column, Extent, Schema
from penstock.types.extents import Amounts
from penstock.types.location import UNKNOWN
from penstock.types.replay import Window, WindowHead
from penstock.types.run import Assignment, Weights
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree
from penstock.types.statistics import Timing
from tests.support.segments.segments import capacity_bytes
from tests.support.simulation.disk import Disk
from tests.support.simulation.guarantees import Ledger, StoreCheck
from tests.support.simulation.loop import (
    MainThread,
    Process,
    SimulatedCondition,
    SimulatedLoop,
    SimulatedLoopThread,
    current_process,
    sleep,
)
from tests.support.simulation.network import Network
from tests.support.simulation.schedule import CODES, Fault, Schedule
from tests.support.simulation.stranger import Stranger

REPLAY, LEARNER = "replay:7431", "learner:7432"
SCHEMA = Schema(
    1,
    (
        Column("name", "int64", (3,), Extent.SEGMENT),
        Column("version", "int64", (), Extent.SEGMENT),
        Column("reward", "float32"),
    ),
)
SPEC = EnvironmentSpec("Marked-v0", Tree.of(BoxSpace("float32", (1,), (0.0,), (1.0,))), Tree.of(DiscreteSpace(2)))

_GRANT_TIMEOUT_S = 5.0
_COLLECT_S, _TRAIN_S = (0.02, 0.15), (0.01, 0.1)
_RESTART_S = 1.0
_WAIT_S = 0.5
_UNIX_S = 1.8e9

PROGRESS_S = 60.0
"""Virtual seconds within which a run must make progress after the last fault: all timeouts together, and some pauses.
"""

_PROGRESS_BATCHES = 8


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a simulated run.

    Attributes:
        schedule: Seed, settings and faults.
        violations: Guarantees that did not hold.
        batches: Number of batches whose commits were applied.
        callbacks: Number of events.
        virtual_s: Virtual seconds.
        digest: Checksum of all events.
        notes: Log lines of all processes, each with its time and process.
    """

    schedule: Schedule
    violations: tuple[str, ...]
    batches: int
    callbacks: int
    virtual_s: float
    digest: int
    notes: tuple[str, ...]


def simulate(schedule: Schedule, folder: Path) -> Outcome:
    """Runs a schedule to its end or to the first violation. `folder` is empty, and gets the files of the services."""
    return World(schedule, folder).run()


class World:
    """One simulated run."""

    def __init__(self, schedule: Schedule, folder: Path) -> None:
        self._schedule, self._settings, self._folder = schedule, schedule.settings, folder
        self._random = Random(f"{schedule.seed} choices")
        self._loop = SimulatedLoop(Random(f"{schedule.seed} order"))
        self._network = Network(self._loop, Random(f"{schedule.seed} network"))
        self._disk = Disk("learner", folder / "versions.json", Random(f"{schedule.seed} disk"))
        self._ledger = Ledger()
        self._check = StoreCheck(self._ledger, "replay")
        self._notes: list[str] = []
        self._processes: dict[str, Process] = {}
        self._buffer: ReplayBuffer | None = None
        self._servicer: ReplayServicer | None = None
        self._sinks: dict[str, tuple[Assignment, ReplaySegmentSink]] = {}
        self._disagreeing: set[str] = set()
        self._starts: dict[str, Callable[[Process], None]] = {
            "replay": self._start_replay,
            "learner": lambda process: self._start_main(process, self._learn),
            **{
                f"actor{number}": lambda process: self._start_main(process, self._act)
                for number in range(self._settings.actors)
            },
        }

    def run(self) -> Outcome:
        """Runs until there is progress after the last fault, or a violation."""
        loop, ledger, began = self._loop, self._ledger, self._loop.now
        last = max((fault.at_s + fault.seconds for fault in self._schedule.faults), default=0.0)
        recovered: list[int] = []

        def stops() -> bool:
            if loop.failures:
                ledger.violations += loop.failures
            if loop.now - began > last and not recovered:
                recovered.append(len(ledger.applied))
                self._disagreeing = {f"actor{number}" for number in range(self._settings.actors)}
            trained = len(ledger.applied) - recovered[0] if recovered else 0
            if loop.now - began > last + PROGRESS_S:
                ledger.violations.append(
                    f"{trained} batches were trained in {PROGRESS_S} s after the last fault, and the grants of"
                    f" {sorted(self._disagreeing)} never were those of the gate"
                )
            done = bool(recovered) and trained >= _PROGRESS_BATCHES and not self._disagreeing
            return bool(ledger.violations) or done

        with self._installed():
            for name in self._starts:
                loop.deliver(loop.now, loop.world, self._start, name)
            for fault in self._schedule.faults:
                loop.deliver(began + fault.at_s, loop.world, self._strike, fault)
            loop.run(stops, self._observe)
            outcome = Outcome(
                self._schedule,
                tuple(dict.fromkeys(ledger.violations)),
                len(ledger.applied),
                loop.callbacks,
                loop.now - began,
                loop.digest,
                tuple(self._notes),
            )
            loop.close()
        return outcome

    def _observe(self, process: Process) -> None:
        """Checks the guarantees after an event of a process."""
        if process.name == "replay" and self._buffer is not None and self._servicer is not None:
            self._check.check(self._buffer)
            streams = self._servicer._actors._outboxes.keys()
            if self._buffer.gate._actors.keys() != streams:
                self._ledger.violations.append(f"the gate serves other actors than those with streams, {list(streams)}")
        elif process.name in self._sinks:
            place, sink = self._sinks[process.name]
            if process.name in self._disagreeing and self._agrees(place, sink):
                self._disagreeing.discard(process.name)
            if sink._stored > self._ledger.acknowledged.get((place.slot, place.incarnation), 0):
                self._check.check_acknowledged(place, sink._stored)

    def _agrees(self, place: Assignment, sink: ReplaySegmentSink) -> bool:
        """Returns whether an actor has the grants that the gate counts. While messages are under way, it may not."""
        actor = self._buffer.gate._actors.get(ActorKey(place.slot, place.incarnation)) if self._buffer else None
        if actor is None or sink._pending or sink._resent:
            return False
        return len(actor.grants) == len(sink._grants) + sink._taken

    # Faults

    def _strike(self, fault: Fault) -> None:
        self._note("world", str(fault))
        process = self._processes.get(fault.target) or self._loop.start_process(fault.target)
        match fault.kind:
            case "kill":
                self._end(process, fault.seconds)
            case "pause":
                process.paused = True
                self._loop.deliver(self._loop.now + fault.seconds, self._loop.world, setattr, process, "paused", False)
            case "cut":
                self._network.cut(fault.target, fault.other)
            case "block":
                self._network.block(fault.target, fault.other, fault.seconds)
            case "isolate":
                self._network.block(fault.target, fault.other, fault.seconds)
                self._network.block(fault.other, fault.target, fault.seconds)
            case "reset":
                calls = [call for call in self._network.calls if call.channel.process is process]
                if calls:
                    code = CODES[int(self._random.random() * len(CODES))]
                    calls[int(self._random.random() * len(calls))].reset(code)
            case "clock":
                process.clock_ahead_s += self._random.choice((-3600.0, -60.0, 60.0, 3600.0, 86_400.0))
            case "power":
                if process.alive:
                    self._disk.cut_power()
                self._end(process, fault.seconds)
            case "full":
                self._disk.full = True
                self._loop.deliver(self._loop.now + fault.seconds, self._loop.world, setattr, self._disk, "full", False)
            case "lie":
                self._loop.deliver(self._loop.now, process, lambda: self._loop.create_task(self._lie()))

    async def _lie(self) -> None:
        if self._buffer is None:
            return
        stranger = Stranger(REPLAY, self._settings.plan, SCHEMA, self._buffer, self._random)
        try:
            if answered := await stranger.call():
                self._ledger.violations.append(f"a stranger was answered: {answered}")
        except Exception as error:
            # No code awaits this task.
            self._ledger.violations.append(f"a stranger failed: {error!r}")

    def _start(self, name: str) -> None:
        self._processes[name] = process = self._loop.start_process(name)
        self._note(name, "starts")
        self._starts[name](process)

    def _end(self, process: Process, restart_s: float) -> None:
        """Ends a process at once, and starts another in its place."""
        if not process.alive:
            return
        process.alive = False
        self._network.kill(process)
        self._sinks.pop(process.name, None)
        if process.name == "replay":
            self._buffer = self._servicer = None
            if self._settings.transport == "memory":
                self._check.begin_anew()
        self._loop.deliver(self._loop.now + restart_s, self._loop.world, self._start, process.name)

    def _start_main(self, process: Process, work: Callable[[Process], None]) -> None:
        def body() -> None:
            try:
                work(process)
            except PenstockError as error:
                self._ledger.violations.append(f"{process.name} ended with {type(error).__name__}: {error}")
            self._loop.deliver(self._loop.now, self._loop.world, self._end, process, _RESTART_S)

        MainThread(self._loop, process, body)

    # The services

    def _start_replay(self, process: Process) -> None:
        async def serve() -> None:
            settings = self._settings
            folder = None if settings.transport == "memory" else self._folder / "replay"
            store = RingStore(folder, capacity_bytes(settings.rows, SCHEMA))
            buffer = ReplayBuffer(store, Gate(_GRANT_TIMEOUT_S, 8), time.time)
            staging_bytes = 2**20 if settings.transport == "shared" else 0
            servicer = ReplayServicer(buffer, max_actors=8, staging_bytes=staging_bytes, version_patience_s=30.0)
            self._buffer, self._servicer = buffer, servicer
            await servicer.server.start(REPLAY, stream_port=0)
            await servicer.tick()

        self._loop.deliver(self._loop.now, process, lambda: self._loop.create_task(serve()))

    def _learn(self, process: Process) -> None:
        """Serves the run and trains it, as `apps.learner` and `TrainingRun` do."""
        settings, thread, random = self._settings, SimulatedLoopThread(self._loop), np.random.default_rng()
        random = np.random.default_rng(int(self._random.random() * 2**32))
        statistics = RunStatistics(limits=Amounts(steps=2**60), earlier_s=0.0, clock=time.monotonic)
        writes = RetriedWrites(statistics.notice, time.monotonic)
        roster = Roster(
            self._folder / "roster.json",
            seed=1,
            max_actors=8,
            rejoin_timeout_s=60.0,
            now=time.monotonic(),
            writes=writes,
            notice=statistics.notice,
            unix_s=time.time,
        )
        places = ReplayPlaces([REPLAY], unix_s=time.time)
        targets = _UnwrittenTargets(lambda content: None, UNKNOWN)
        servicer = RunServicer(thread, roster, statistics, targets, places, max_actors=8)
        thread.run(servicer.server.start(LEARNER, stream_port=0))
        ReplayWatch(thread, [REPLAY], places, lambda: None)
        while roster.schema is None:
            sleep(_WAIT_S)
            writes.retry()
        versions = VersionMark(self._folder / "versions.json", notice=statistics.notice, boot=self._disk.boot)
        version, session, identity = versions.first, secrets.randbits(63) | 1, roster.identity
        plan = replace(
            settings.plan,
            session=session,
            next_batch=version,
            run=identity.number,
            actor_key=identity.actor_key,
        )

        def publish() -> None:
            if version % plan.publish_interval == 0 or version == versions.first:
                self._ledger.publishes(version, session)
                servicer.publish(Weights.of(version, b"weights"))

        versions.use(version)
        publish()
        source = ReplayBatchSource(thread, REPLAY, SCHEMA, prefetch_batches=settings.prefetch_batches, key=identity.key)
        source.open(plan)
        while True:
            batch = source.next(_WAIT_S)
            writes.retry()
            if batch is not None:
                sleep(self._random.uniform(*_TRAIN_S))
                priorities = random.uniform(0.1, 2.0, batch.keys.size)
                self._ledger.trains(plan, version, batch, priorities)
                version += 1
                versions.use(version)
                publish()
                source.commit(batch, priorities)

    def _act(self, process: Process) -> None:
        """Collects marked segments, as `apps.actor` does."""
        thread = SimulatedLoopThread(self._loop)
        membership = Membership(thread, LEARNER, SCHEMA, SPEC, self._settings.window_segments, name=process.name)

        def open_sink(assignment: Assignment) -> ReplaySegmentSink:
            sink = ReplaySegmentSink(thread, assignment, SCHEMA, place=membership.replay)
            self._sinks[process.name] = (assignment, sink)
            return sink

        outside = cast(Any, _Outside(self._note, process.name))
        acting.act(
            acting.ActorParts(
                run=membership,
                open_sink=open_sink,
                load=lambda weights, temperature: cast(Any, _Runner()),
                environments=outside,
                process=outside,
                log=outside,
                schema=SCHEMA,
                discount=0.99,
            )
        )
        membership.close()

    # What the services use of this process

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Replaces time, randomness, gRPC, conditions and the collector while a run is simulated."""
        loop, random = self._loop, Random(f"{self._schedule.seed} secrets")

        def unix_s() -> float:
            return _UNIX_S + loop.now + current_process().clock_ahead_s

        def monotonic() -> float:
            return loop.now

        replaced: Sequence[tuple[object, str, object]] = (
            (time, "monotonic", monotonic),
            (time, "perf_counter", monotonic),
            (time, "monotonic_ns", lambda: int(loop.now * 1e9)),
            (time, "time", unix_s),
            (time, "sleep", sleep),
            (Absence.__init__, "__defaults__", (*Absence.__init__.__defaults__[:-1], monotonic)),  # type: ignore[index]
            (Reception.__init__, "__defaults__", (monotonic,)),
            (secrets, "randbits", random.getrandbits),
            (secrets, "token_bytes", random.randbytes),
            (secrets, "token_hex", lambda size: random.randbytes(size).hex()),
            (channel, "_JITTER", random),
            (version_marks, "sync_data", self._disk.sync),
            (files, "_write_and_sync", self._disk.refusing(files._write_and_sync)),
            (grpc.aio, "insecure_channel", self._network.channel),
            (grpc.aio, "server", self._network.server),
            (connection, "threading", _Threading(loop)),
            (acting, "Collector", self._collector),
            (logs, "note", lambda event, **values: self._note(current_process().name, f"{event} {values}")),
        )
        with ExitStack() as stack:
            for owner, name, value in replaced:
                stack.enter_context(patch.object(owner, name, value))
            if self._settings.transport == "messages":
                for module, name in ((segment_sink, "StagingSlots"), (sampling_stream, "StoreReader")):
                    stack.enter_context(patch.object(module, name, _on_another_host))
            yield

    def _collector(self, environments: object, assignment: Assignment, **options: object) -> "_MarkedCollector":
        return _MarkedCollector(assignment, self._ledger, self._random)

    def _note(self, who: str, what: str) -> None:
        self._notes.append(f"{self._loop.now:10.4f} {who}: {what}")


def _on_another_host(*arguments: object) -> None:
    raise ConfigurationError("the file is on another host")


class _Threading:
    """What `penstock.rpc.clients.connection` uses of `threading`."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop

    def Condition(self) -> SimulatedCondition:  # noqa: N802
        """Replaces `threading.Condition`."""
        return SimulatedCondition(self._loop)


class _UnwrittenTargets(Targets):
    """Targets without the thread that writes them."""

    def _run(self) -> None:
        pass


class _Runner:
    """Replaces an actor's policy."""

    library = "numpy"

    def __init__(self) -> None:
        self.version = -1

    def refresh(self, weights: Weights) -> None:
        self.version = weights.version


class _Outside:
    """Replaces an actor's environments, process and log."""

    stopping = supervised = False
    current = None

    def __init__(self, note: Callable[[str, str], None], name: str) -> None:
        self._note, self._name = note, name

    def become(self, variant: int) -> None:
        pass

    def take_signals(self) -> None:
        pass

    def seed_generators(self, *key: int) -> None:
        pass

    def info(self, event: str, **fields: object) -> None:
        self._note(self._name, f"{event} {fields}")

    warning = info


@dataclass(slots=True)
class _MarkedCollector:
    """Replaces `Collector`: the content of a segment is its name and its version."""

    assignment: Assignment
    ledger: Ledger
    random: Random
    sequence: int = 1
    timing: Timing = field(default_factory=Timing)

    def collect(self, runner: _Runner, minimum_version: int) -> Window:
        sleep(self.random.uniform(*_COLLECT_S))
        place, version = self.assignment, runner.version
        assert version >= minimum_version
        head = WindowHead(
            place.slot, place.incarnation, self.sequence, version, np.array(place.environments, np.uint32)
        )
        columns = SCHEMA.empty(head.segments)
        for row in range(head.segments):
            name = (place.slot, place.incarnation, self.sequence + row)
            self.ledger.collected[name] = version
            columns.column("name")[row], columns.column("version")[row] = name, version
        self.sequence += head.segments
        return Window(head, columns)

    def take_losses(self) -> tuple[()]:
        return ()

    def take_warning(self) -> str:
        return ""

    def take_episodes(self) -> tuple[tuple[()], int]:
        return (), 0

    def take_late_steps(self) -> int:
        return 0

    def take_timing(self) -> Timing:
        return Timing()
