"""The learner's services over gRPC: joining, weights, evaluation tasks and status.

The training loop calls `publish`, `ask`, `result` and `finish` from its own thread. Everything else runs on the
server's event loop.
"""

import asyncio
import contextlib
import queue
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace

from penstock.errors import Overloaded, SchemaMismatch
from penstock.learning.members.population import Population
from penstock.learning.members.replay_places import ReplayPlaces
from penstock.learning.members.roster import Roster
from penstock.learning.members.targets import Targets
from penstock.learning.report.statistics import RunStatistics
from penstock.rpc import methods
from penstock.rpc.errors import logged_refusal
from penstock.rpc.loop import LoopThread
from penstock.rpc.server import Server
from penstock.rpc.service import Context, Method, logged_stay, opening_message, write_whole
from penstock.telemetry import metrics
from penstock.types.differences import contrast, same_spaces
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.location import Location, Place
from penstock.types.run import ActorProgress, ActorReport, Assignment, EnvironmentFault, PlayedVariant, Weights
from penstock.types.spaces import EnvironmentSpec
from penstock.v1 import evaluation_pb2, run_pb2
from penstock.wire import run as wire

_LOOK_S = 1.0
_JOINING_AT_ONCE = 64
"""Joins in progress, which share a write. Each takes 2 ms of the event loop, which serves other clients in between."""

_MOST_WAITING = 512
"""Actors that wait for their turn, which takes about 2 s for so many. Further ones are asked to try again."""

_RECORDED_S = 1.0
"""Seconds to wait for the disk. An actor is then admitted without, as far as `Roster.confirm` permits it."""

_REFUSED_S = 10.0
"""Seconds to wait for the disk if `Roster.confirm` would refuse the actor, as it does before the first write."""

_WRITES = 2
"""Writes to wait for: one may have begun before the actor joined."""

_BETWEEN_WRITES_S = 0.05
"""Least seconds between two writes, in which further actors join."""

_ANSWERED_TASKS = 64
"""Tasks of which a second answer is recognised. An evaluator answers an older one only if it was abandoned since."""


_Value = Weights | EvaluationTask | tuple[PlayedVariant, ...]


class _Latest:
    """Latest value, with a wait for a newer one. Used on one event loop."""

    def __init__(self) -> None:
        self._value: _Value | None = None
        self._count = 0
        self._changed = asyncio.Event()

    def set(self, value: "_Value | None") -> None:
        self._value, self._count = value, self._count + 1
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def count(self) -> int:
        return self._count

    async def newer_than(self, count: int) -> "_Value | None":
        while self._count <= count:
            await self._changed.wait()
        return self._value


class _Admissions:
    """Turns of the actors that join, whose places one thread writes to disk. Used on one event loop.

    A write covers all joins before it, and the loop goes on meanwhile, also while the disk does not answer.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._turns = asyncio.Semaphore(_JOINING_AT_ONCE)
        self._waiting = 0
        self._write: asyncio.Task[None] | None = None
        self._write_from = 0.0

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn, which the block uses. Raises `Overloaded` if too many wait already."""
        if self._waiting >= _MOST_WAITING:
            metrics.LEARNER_DEFERRED_JOINS.inc()
            raise Overloaded(f"{self._waiting} actors are joining, which is the limit; join again in 1 s")
        self._waiting += 1
        try:
            async with self._turns:
                yield
        finally:
            self._waiting -= 1

    async def recorded(self, place: Assignment) -> None:
        """Waits until a place is on disk, as long as `_RECORDED_S` and `_REFUSED_S` say. Raises as `Roster.confirm`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RECORDED_S if self._roster.permits(place) else _REFUSED_S):
                for _ in range(_WRITES):
                    if self._roster.is_recorded(place):
                        return
                    if self._write is None or self._write.done():
                        self._write = asyncio.create_task(self._record())
                    # A write that has begun does not end with the actor that waits for it.
                    await asyncio.shield(self._write)
        self._roster.confirm(place)

    async def _record(self) -> None:
        await asyncio.sleep(self._write_from - time.monotonic())
        await asyncio.to_thread(self._roster.record)
        self._write_from = time.monotonic() + _BETWEEN_WRITES_S


class RunServicer:
    """Servicer of a run; implements `learning.protocols.WeightSink` and `EvaluationDesk`.

    Attributes:
        identity: Identity of this learner process among all learners, as `Place` has it.
    """

    def __init__(
        self,
        thread: LoopThread,
        roster: Roster,
        statistics: RunStatistics,
        targets: Targets,
        places: ReplayPlaces,
        *,
        max_actors: int,
        population: Population | None = None,
        more_methods: Mapping[Method, Callable[..., Awaitable[object]]] | None = None,
    ) -> None:
        """Creates the servicer and its server, which is not started.

        Args:
            thread: Thread whose loop runs the server, with its credentials.
            roster: Actors of the run.
            statistics: Statistics of the run.
            targets: Metrics addresses of the run's services.
            places: Places of the replay services.
            max_actors: Limit on concurrent join streams.
            population: The variants that actors play in turn; None: their slots decide.
            more_methods: Further methods of the same server.
        """
        self._thread, self._roster, self._statistics = thread, roster, statistics
        self._targets, self._places = targets, places
        self._admissions = _Admissions(roster)
        self._weights, self._tasks, self._variants = _Latest(), _Latest(), _Latest()
        self._population = population
        if population is not None:
            population.changed = lambda: thread.call(self._variants.set, population.played)
        self._results: queue.Queue[EvaluationResult] = queue.Queue()
        self._answered: deque[int] = deque(maxlen=_ANSWERED_TASKS)
        self._finished = asyncio.Event()
        self._reason = ""
        self._streams = 0
        self.evaluators = 0
        self.identity = secrets.randbits(63) | 1
        statistics.connected_actors = lambda: roster.connected
        self.server = thread.run(self._make_server(max_actors, more_methods or {}))
        thread.spawn(self._look_after_actors())

    async def _make_server(
        self, max_actors: int, more_methods: Mapping[Method, Callable[..., Awaitable[object]]]
    ) -> Server:
        behaviours: dict[Method, Callable[..., Awaitable[object]]] = {
            methods.JOIN: self._join,
            methods.GET_RUN_STATUS: self._get_status,
            methods.RUN_EVALUATIONS: self._run_evaluations,
            **more_methods,
        }
        # In addition to the actors: evaluators, health checks and status queries.
        return Server(
            behaviours,
            max_streams=max_actors + 64,
            direct=True,
            identity=lambda: self.identity,
            credentials=self._thread.credentials,
        )

    # For the training loop

    def publish(self, weights: Weights) -> None:
        """Makes these the latest weights. Each stream sends the latest when it can and skips those in between."""
        self._thread.call(self._weights.set, weights)

    def ask(self, task: EvaluationTask) -> None:
        """Makes this the latest task, which each evaluator takes when it is free, until a result arrives."""
        self._thread.call(self._tasks.set, replace(task, run=self._roster.identity.number))

    def result(self, timeout_s: float) -> EvaluationResult | None:
        """Waits for an evaluation's result; None after `timeout_s`."""
        try:
            return self._results.get(timeout=timeout_s) if timeout_s > 0.0 else self._results.get_nowait()
        except queue.Empty:
            return None

    def finish(self, reason: str, timeout_s: float) -> None:
        """Announces the end of the run and waits up to `timeout_s` for all streams to close."""
        self._reason = reason
        self._thread.call(self._finished.set)
        deadline = time.monotonic() + timeout_s
        while self._streams and time.monotonic() < deadline:
            time.sleep(0.01)

    # Actors

    async def _join(self, requests: AsyncIterator[run_pb2.JoinRequest], context: Context) -> None:
        hello = wire.decode_hello(await opening_message(requests))
        async with self._admissions.turn():
            with logged_refusal("actor", peer=context.peer()):
                self._roster.check_run(hello.run, "actor")
                if hello.lost is not None:
                    largest = self._places.largest_incarnation(hello.lost.slot, time.monotonic())
                    self._roster.taken(hello.lost.slot, hello.lost.taken_by, largest)
                assignment = self._roster.join(
                    hello.schema, hello.spec, hello.environments, hello.token, time.monotonic()
                )
            try:
                await self._admissions.recorded(assignment)
            except BaseException:
                self._roster.leave(assignment, time.monotonic())
                raise
        metrics.LEARNER_ACTORS.set(self._roster.connected)
        name = hello.name or f"slot {assignment.slot}"
        self._statistics.actors.joined(name, assignment.slot, hello.location)
        place = {"actor": name, "slot": str(assignment.slot), "incarnation": str(assignment.incarnation)}
        listing = self._targets.listing("actor", hello.location, context.origin(), assignment.slot)
        try:
            with (
                listing,
                logged_stay("actor", returned=assignment.token == hello.token, **place, **_where(hello.location)),
            ):
                replay = self._places.of_slot(assignment.slot)
                seen, population = self._variants.count, self._population
                variants = () if population is None else population.played
                joined = replace(assignment, replay=replay, variants=variants)
                await context.write(wire.encode_join_assignment(joined, self._places.address(assignment.slot)))
                # gRPC accepts one message at a time, and the chunks of one version follow each other.
                writing = asyncio.Lock()
                if await self._serve(
                    self._send_weights(context, writing),
                    self._send_places(context, writing, assignment.slot, replay),
                    self._send_variants(context, writing, seen),
                    self._read(requests, name, assignment.variant),
                ):
                    await context.write(wire.encode_join_finished(self._reason))
        finally:
            self._statistics.actors.left(name)
            self._roster.leave(assignment, time.monotonic())
            metrics.LEARNER_ACTORS.set(self._roster.connected)

    async def _send_places(self, context: Context, writing: asyncio.Lock, slot: int, known: Place) -> None:
        while True:
            known = await self._places.other_than(slot, known)
            async with writing:
                await write_whole(context, wire.encode_join_replay(known))

    async def _send_variants(self, context: Context, writing: asyncio.Lock, seen: int) -> None:
        while True:
            variants = await self._variants.newer_than(seen)
            seen = self._variants.count
            assert isinstance(variants, tuple)
            async with writing:
                await write_whole(context, wire.encode_join_variants(variants))

    async def _send_weights(self, context: Context, writing: asyncio.Lock) -> None:
        seen, answer_seconds = 0, metrics.STREAM_SECONDS.labels(methods.RUN, methods.JOIN.name)
        while True:
            weights = await self._weights.newer_than(seen)
            seen = self._weights.count
            assert isinstance(weights, Weights)
            async with writing:
                with answer_seconds.time():
                    for message in wire.encode_join_weights(weights):
                        await write_whole(context, message)
            metrics.LEARNER_WEIGHTS_BYTES.inc(len(weights.data))

    async def _read(self, requests: AsyncIterator[run_pb2.JoinRequest], name: str, variant: int) -> None:
        actors = self._statistics.actors
        async for request in requests:
            match wire.decode_join_request(request):
                case ActorReport() as report:
                    self._statistics.report(report, variant)
                    actors.delivered(name, report.segments, report.timing)
                case ActorProgress() as progress:
                    actors.progressed(name, progress)
                case EnvironmentFault() as fault:
                    actors.failed(name, fault)

    async def _look_after_actors(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self._statistics.look()

    # Evaluators

    async def _run_evaluations(
        self, requests: AsyncIterator[evaluation_pb2.RunEvaluationsRequest], context: Context
    ) -> None:
        hello = wire.decode_evaluator_hello(await opening_message(requests))
        with logged_refusal("evaluator", peer=context.peer()):
            self._roster.check_run(hello.run, "evaluator")
            self._check_spaces(hello.spec)
        self.evaluators += 1
        try:
            with (
                self._targets.listing("evaluator", hello.location, context.origin()),
                logged_stay("evaluator", returned=False, peer=context.peer(), **_where(hello.location)),
            ):
                if await self._serve(self._work_through_tasks(requests, context)):
                    await context.write(wire.encode_evaluations_finished(self._reason))
        finally:
            self.evaluators -= 1

    def _check_spaces(self, spec: EnvironmentSpec) -> None:
        if self._roster.spec is not None and not same_spaces(self._roster.spec, spec):
            ours, theirs = contrast(self._roster.spec, spec)
            raise SchemaMismatch(
                f"this run trains {ours}, and the evaluator offered {theirs}; start it with the run's configuration"
            )

    async def _work_through_tasks(
        self, requests: AsyncIterator[evaluation_pb2.RunEvaluationsRequest], context: Context
    ) -> None:
        seen = 0
        while True:
            task = await self._tasks.newer_than(seen)
            seen = self._tasks.count
            if not isinstance(task, EvaluationTask):
                continue
            for message in wire.encode_task(task):
                await write_whole(context, message)
            # A task stays the latest until its result arrives, so that another evaluator takes it if this one is lost.
            result = await self._read_result(requests, task)
            if result is None:
                return
            if seen == self._tasks.count:
                self._tasks.set(None)
                seen = self._tasks.count
            if task.id in self._answered:
                # Another evaluator was faster.
                metrics.IGNORED_RESULTS.inc()
                continue
            self._answered.append(task.id)
            self._results.put(result)

    @staticmethod
    async def _read_result(
        requests: AsyncIterator[evaluation_pb2.RunEvaluationsRequest], task: EvaluationTask
    ) -> EvaluationResult | None:
        """Returns the result of the task that this evaluator was sent; None if it left.

        Ignores results of other tasks, as from before a break, and further ones of those that it has answered.
        """
        async for request in requests:
            if (result := wire.decode_result_request(request, task)) is not None:
                return result
            metrics.IGNORED_RESULTS.inc()
        return None

    # All clients

    async def _get_status(self, request: run_pb2.GetRunStatusRequest, context: Context) -> run_pb2.GetRunStatusResponse:
        return wire.encode_status(self._statistics.status())

    async def _serve(self, *activities: Awaitable[None]) -> bool:
        """Runs a stream's activities until one of them or the run ends. Returns whether the run has ended."""
        tasks = [asyncio.ensure_future(activity) for activity in activities]
        finished = asyncio.ensure_future(self._finished.wait())
        self._streams += 1
        try:
            done, _ = await asyncio.wait([*tasks, finished], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            return self._finished.is_set()
        finally:
            for task in (*tasks, finished):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, finished, return_exceptions=True)
            self._streams -= 1


def _where(location: Location) -> dict[str, str]:
    """Returns the fields of a log entry about a peer that say where it runs."""
    return {f"peer_{name}": value for name in ("node", "job") if (value := getattr(location, name))}
