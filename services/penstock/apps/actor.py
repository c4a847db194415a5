"""`penstock actor`: joins a run, collects windows under grants and sends them."""

import contextlib
import time

from penstock.acting.collector import Collector
from penstock.acting.inference import PolicyRunner, use_one_thread
from penstock.acting.progress import Progress
from penstock.acting.protocols import SegmentSink
from penstock.acting.spaces import segment_schema
from penstock.algo.spaces import check_spaces
from penstock.apps.actor_environments import ActorEnvironments
from penstock.apps.actor_reports import Reporter, actor_name, tell_failure
from penstock.apps.hang_watch import HangWatch
from penstock.apps.service import Service
from penstock.config import Config
from penstock.errors import EnvironmentFailed, PlaceLost, RunFinished
from penstock.rpc.loop import LoopThread
from penstock.rpc.membership import Membership
from penstock.rpc.segment_sink import ReplaySegmentSink
from penstock.rpc.server import serve_health_only
from penstock.telemetry import metrics
from penstock.types import Assignment, Grant, Weights, Window

_WAIT_S = 0.5
_DRAIN_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
"""Seconds of pause after an environment failure, doubled with each consecutive failure."""


def run(config: Config) -> None:
    """Collects until the run is over or the service is stopped.

    Raises:
        ConfigurationError: The environment or an address can't be used.
        EnvironmentFailed: The environments failed and could not be made again.
        SchemaMismatch: The run has another schema or other spaces.
    """
    settings = config.actor
    use_one_thread()
    with Service("actor", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        progress = Progress()
        watch = HangWatch(progress, service, settings.step_timeout_s, config.environment.id)
        environments = ActorEnvironments(config, service, progress)
        check_spaces(environments.spec)
        thread = LoopThread()
        server = thread.run(serve_health_only(settings.listen))
        membership = Membership(
            thread,
            settings.learner_address,
            segment_schema(environments.spec, settings.unroll_length),
            environments.spec,
            settings.environments,
            name=actor_name(settings.listen),
            progress=progress.now,
        )

        def tell(failure: EnvironmentFailed) -> None:
            tell_failure(membership, service.logger, failure)
            membership.drain(_DRAIN_S)

        watch.tell = tell
        code = 1
        try:
            with contextlib.suppress(RunFinished):
                while not service.stopping:
                    assignment = membership.assignment(_WAIT_S)
                    if assignment is not None:
                        try:
                            environments.become(assignment.variant)
                            _Collection(assignment, config, service, thread, membership, environments, progress).run()
                        except PlaceLost as lost:
                            service.logger.warning("joining again", reason=str(lost))
                            membership.join_again(lost.taken_by)
            code = 0
        except EnvironmentFailed as failure:
            tell(failure)
            raise
        finally:
            watch.ending(code)
            membership.close()
            environments.close()
            thread.run(server.stop())
            thread.close()


class _Collection:
    """The collection of windows under one assignment."""

    def __init__(
        self,
        assignment: Assignment,
        config: Config,
        service: Service,
        thread: LoopThread,
        membership: Membership,
        environments: ActorEnvironments,
        progress: Progress,
    ) -> None:
        self._assignment, self._config, self._service = assignment, config, service
        self._thread, self._membership = thread, membership
        self._environments, self._progress = environments, progress
        self._runner: PolicyRunner | None = None
        self._failures = self._failures_in_a_row = 0

    def run(self) -> None:
        """Collects until the service is stopped or the actor gets another assignment.

        Raises:
            EnvironmentFailed: The environments failed and could not be made again.
            PlaceLost: The assignment is no longer valid.
        """
        assignment, schema = self._assignment, segment_schema(self._environments.spec, self._config.actor.unroll_length)
        self._service.logger.info(
            "joined",
            slot=assignment.slot,
            incarnation=assignment.incarnation,
            variant=assignment.variant,
            temperature=assignment.temperature,
        )
        collector = self._begin()
        if collector is None:
            return
        sink = ReplaySegmentSink(self._thread, assignment, schema, lambda: self._progress.steps)
        reporter = Reporter(self._membership, collector)
        try:
            while self._goes_on:
                waited = time.perf_counter()
                grant = sink.next_grant(_WAIT_S)
                weights = self._await_weights(grant) if grant else None
                collector.timing.waiting_s += time.perf_counter() - waited
                if weights is not None:
                    reporter.begin()
                    self._deliver_window(collector, self._runner_of(weights), sink, reporter)
                reporter.report_if_due()
            sink.drain(_DRAIN_S)
            reporter.report()
        finally:
            sink.close()

    @property
    def _goes_on(self) -> bool:
        return not self._service.stopping and self._membership.assignment(0.0) == self._assignment

    def _begin(self) -> Collector | None:
        """Resets the environments and returns their collector; None if the collection ends first."""
        while self._goes_on:
            try:
                return Collector(
                    self._environments.current,
                    self._assignment,
                    unroll_length=self._config.actor.unroll_length,
                    discount=self._config.ppo.discount,
                    failures=self._failures,
                )
            except EnvironmentFailed as failure:
                self._recover(failure)
        return None

    def _await_weights(self, grant: Grant) -> Weights | None:
        weights = None
        while weights is None and not self._service.stopping:
            weights = self._membership.at_least(grant.minimum_version, _WAIT_S)
        return weights

    def _runner_of(self, weights: Weights) -> PolicyRunner:
        if self._runner is None:
            self._runner = PolicyRunner(weights, temperature=self._assignment.temperature)
        elif weights.version != self._runner.version:
            self._runner.update(weights)
        return self._runner

    def _deliver_window(
        self, collector: Collector, runner: PolicyRunner, sink: SegmentSink, reporter: Reporter
    ) -> None:
        timing, started = collector.timing, time.perf_counter()
        stepped_s = timing.environment_s + timing.policy_s
        window = self._collect(collector, runner)
        if window is None:
            return
        sink.send(window)
        stepped_s = timing.environment_s + timing.policy_s - stepped_s
        timing.building_s += time.perf_counter() - started - stepped_s
        reporter.delivered(window.columns.segments)
        metrics.ACTOR_VERSION.set(runner.version)

    def _collect(self, collector: Collector, runner: PolicyRunner) -> Window | None:
        """Collects a window, making the environments again after each failure; None if the collection ends first."""
        failed = False
        while self._goes_on:
            try:
                if failed:
                    collector.begin_again(self._environments.current)
                window = collector.collect(runner)
            except EnvironmentFailed as failure:
                failed = True
                self._recover(failure)
            else:
                self._failures_in_a_row = 0
                return window
        return None

    def _recover(self, failure: EnvironmentFailed) -> None:
        """Reports a failure, pauses, and makes the environments again. Raises `EnvironmentFailed` if that fails."""
        tell_failure(self._membership, self._service.logger, failure)
        resume_at = time.monotonic() + min(_FIRST_PAUSE_S * 2.0**self._failures_in_a_row, _LONGEST_PAUSE_S)
        self._failures, self._failures_in_a_row = self._failures + 1, self._failures_in_a_row + 1
        while time.monotonic() < resume_at and not self._service.wait(_FIRST_PAUSE_S):
            pass
        self._environments.make_again()
