"""The work of an actor: it joins the run and, per grant, collects one window with new enough weights and sends it.

It reaches services only through Protocols, so that it runs in one process in tests as it does over gRPC.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

from penstock.acting.collector import Collector
from penstock.acting.environments.replaceable import ReplaceableEnvironments
from penstock.acting.environments.vectors import Environments, device_of
from penstock.acting.protocols import Log, Process, RunLink, Runner, SegmentSink
from penstock.acting.ready_collector import ReadyCollector
from penstock.acting.reports import Reports, report_failure
from penstock.acting.values import faults
from penstock.errors import EnvironmentFailed, PlaceLost
from penstock.types.block import Schema
from penstock.types.replay import Grant, Window
from penstock.types.run import Assignment, PlayedVariant, Weights

_WAIT_S = 0.5
_DRAIN_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
"""Seconds of pause after an environment failure, doubled with each consecutive failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorParts:
    """The parts of an actor.

    Attributes:
        run: Its place in the run.
        open_sink: Function that opens the stream of windows under an assignment.
        load: Function that loads a policy that samples at a temperature, for all weights of the assignment.
        environments: Its environments.
        process: Its process.
        log: Its log.
        schema: Columns of a segment.
        discount: Gamma of the running discounted return.
        largest_magnitude: Bound on the numbers in a window.
        ready_share: Share of the environments that complete a window.
        info_metrics: Keys of the infos whose values the environments report.
        play: Function that has the environments play these variants in turn from their next episodes on.
        exchange: Function that returns a context which measures an activity of the exchange with other services.
    """

    run: RunLink
    open_sink: Callable[[Assignment], SegmentSink]
    load: Callable[[Weights, float], Runner]
    environments: ReplaceableEnvironments
    process: Process
    log: Log
    schema: Schema
    discount: float
    largest_magnitude: float = faults.LARGEST
    ready_share: float = 1.0
    info_metrics: tuple[str, ...] = ()
    play: Callable[[tuple[PlayedVariant, ...]], None] = lambda variants: None
    exchange: Callable[[str], AbstractContextManager[None]] = lambda activity: nullcontext()


def act(parts: ActorParts) -> None:
    """Collects under one assignment after the other until the process is stopped. Raises as `ActorLoop.run`."""
    while not parts.process.stopping:
        assignment = parts.run.assignment(_WAIT_S)
        if assignment is not None:
            try:
                parts.process.seed_generators(assignment.seed, assignment.slot, assignment.incarnation)
                parts.play(assignment.variants)
                parts.environments.become(None if assignment.variants else assignment.variant)
                ActorLoop(parts, assignment).run()
            except PlaceLost as lost:
                parts.log.warning("slot lost, joining as a new actor", reason=str(lost))
                parts.run.join_again(lost.taken_by)


class ActorLoop:
    """The collection of windows under one assignment. Used by one thread."""

    def __init__(self, parts: ActorParts, assignment: Assignment) -> None:
        self._parts, self._run, self._environments = parts, parts.run, parts.environments
        self._assignment, self._variants = assignment, assignment.variants
        self._runner: Runner | None = None
        self._failures = self._failures_in_a_row = 0

    def run(self) -> None:
        """Collects until the process is stopped or the actor gets another assignment.

        Raises:
            EnvironmentFailed: The environments failed and could not be made again.
            PlaceLost: The assignment is no longer valid.
            RunFinished: The run is over.
        """
        assignment = self._assignment
        self._parts.log.info(
            "joined",
            slot=assignment.slot,
            incarnation=assignment.incarnation,
            variant=f"{len(assignment.variants)} in turn" if assignment.variants else assignment.variant,
            temperature=assignment.temperature,
        )
        collector = self._begin()
        if collector is None:
            return
        self._parts.process.take_signals()
        sink = self._parts.open_sink(assignment)
        reports = Reports(self._run, collector, self._parts.info_metrics, varied=bool(self._variants))
        try:
            while self._continues:
                granted = self._await_grant_and_weights(sink, collector)
                if granted is not None:
                    grant, weights = granted
                    with self._parts.exchange("loading"):
                        runner = self._runner_of(weights)
                    reports.begin()
                    window = self._collect_and_send(collector, runner, grant, sink)
                    self._parts.process.take_signals()
                    if window is not None:
                        reports.sent(window.columns.segments)
                reports.send_if_due()
            sink.drain(_DRAIN_S)
            reports.send()
        finally:
            sink.close()

    @property
    def _continues(self) -> bool:
        if self._parts.process.stopping or (current := self._run.assignment(0.0)) != self._assignment:
            return False
        if current is not None and current.variants != self._variants:
            self._variants = current.variants
            self._parts.play(current.variants)
        return True

    def _begin(self) -> Collector | None:
        """Resets the environments and returns their collector; None if the collection ends first."""
        while self._continues:
            try:
                parts, environments = self._parts, self._environments.current
                return self._kind(environments)(
                    environments,
                    self._assignment,
                    schema=parts.schema,
                    discount=parts.discount,
                    failures=self._failures,
                    largest_magnitude=parts.largest_magnitude,
                )
            except EnvironmentFailed as failure:
                self._recover(failure)
        return None

    def _kind(self, environments: Environments) -> Callable[..., Collector]:
        share = self._parts.ready_share
        if share < 1.0:
            return partial(ReadyCollector, ready_share=share)
        if device_of(environments) is None:
            return Collector
        # It imports torch, which most actors do not need.
        from penstock.acting.tensor_collector import TensorCollector

        return TensorCollector

    def _await_grant_and_weights(self, sink: SegmentSink, collector: Collector) -> tuple[Grant, Weights] | None:
        """Waits for a grant, and for weights of its minimum version; None if there is no grant yet or when stopping."""
        started, weights = time.perf_counter(), None
        with self._parts.exchange("granting"):
            grant = sink.next_grant(_WAIT_S)
            while grant is not None and weights is None and not self._parts.process.stopping:
                weights = self._run.at_least(grant.minimum_version, _WAIT_S)
        collector.timing.waiting_s += time.perf_counter() - started
        return None if grant is None or weights is None else (grant, weights)

    def _runner_of(self, weights: Weights) -> Runner:
        if self._runner is None:
            self._runner = self._parts.load(weights, self._assignment.temperature)
            self._parts.log.info("policy loaded", version=weights.version, library=self._runner.library)
        self._runner.refresh(weights)
        return self._runner

    def _collect_and_send(self, collector: Collector, runner: Runner, grant: Grant, sink: SegmentSink) -> Window | None:
        timing, started = collector.timing, time.perf_counter()
        before_s = timing.environment_s + timing.policy_s
        window = self._collect(collector, runner, grant)
        if window is not None:
            with self._parts.exchange("sending"):
                sink.send(window)
            stepped_s = timing.environment_s + timing.policy_s - before_s
            timing.building_s += time.perf_counter() - started - stepped_s
        return window

    def _collect(self, collector: Collector, runner: Runner, grant: Grant) -> Window | None:
        """Collects a window, making the environments again after each failure; None if the collection ends first."""
        failed = False
        while self._continues:
            try:
                if failed:
                    collector.begin_again(self._environments.current)
                window = collector.collect(runner, grant.minimum_version)
            except EnvironmentFailed as failure:
                failed = True
                self._recover(failure)
            else:
                for loss in collector.take_losses():
                    report_failure(self._run, self._parts.log, loss, "episodes lost")
                self._failures_in_a_row = 0
                return window
        return None

    def _recover(self, failure: EnvironmentFailed) -> None:
        """Reports a failure, pauses, and makes the environments again. Raises `EnvironmentFailed` if that fails."""
        report_failure(self._run, self._parts.log, failure)
        resume_at = time.monotonic() + min(_FIRST_PAUSE_S * 2.0**self._failures_in_a_row, _LONGEST_PAUSE_S)
        self._failures, self._failures_in_a_row = self._failures + 1, self._failures_in_a_row + 1
        while time.monotonic() < resume_at and not self._parts.process.wait(_FIRST_PAUSE_S):
            pass
        self._environments.make_again()
