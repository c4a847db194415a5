"""`penstock actor`: joins a run, collects windows under grants, sends them."""

import contextlib
import time

from penstock.acting.collector import Collector
from penstock.acting.environments import Environments
from penstock.acting.inference import PolicyRunner, use_one_thread
from penstock.acting.protocols import SegmentSink
from penstock.acting.spaces import segment_schema
from penstock.acting.variants import make_variant
from penstock.algo.spaces import check_spaces
from penstock.apps.service import Service
from penstock.config import Config
from penstock.errors import PlaceLost, RunFinished
from penstock.rpc.loop import LoopThread
from penstock.rpc.membership import Membership
from penstock.rpc.segment_sink import ReplaySegmentSink
from penstock.rpc.server import serve_health_only
from penstock.telemetry import metrics
from penstock.types import ActorReport, Assignment, EnvironmentSpec

_WAIT_S = 0.5
_REPORT_INTERVAL_S = 0.5
_FIRST_REPORT_INTERVAL_S = 0.05
"""Doubled with every report: a run of a moment has something to tell too."""
_DRAIN_S = 2.0


def run(config: Config) -> None:
    """Collects until the run is over or told to stop.

    Raises:
        ConfigurationError: The environment or address can't be used.
        SchemaMismatch: The run trains something else.
    """
    settings = config.actor
    use_one_thread()
    with Service("actor", config.telemetry, listen=settings.listen, metrics_port=settings.metrics_port) as service:
        # Before it joins it knows of no variant, and needs spaces to join with; all variants have the same.
        environments, variant = _make(config, 0), 0
        spec = environments.spec
        check_spaces(spec)
        thread = LoopThread()
        server = thread.run(serve_health_only(settings.listen))
        membership = Membership(
            thread,
            settings.learner_address,
            segment_schema(spec, settings.unroll_length),
            spec,
            settings.environments,
        )
        try:
            with contextlib.suppress(RunFinished):
                while not service.stopping:
                    assignment = membership.assignment(_WAIT_S)
                    if assignment is not None:
                        if assignment.variant != variant:
                            environments.close()
                            environments, variant = _make(config, assignment.variant, spec), assignment.variant
                        try:
                            _collect_as(assignment, config, service, thread, membership, environments)
                        except PlaceLost as lost:
                            service.logger.warning("joining again", reason=str(lost))
                            membership.join_again()
        finally:
            membership.close()
            environments.close()
            thread.run(server.stop())
            thread.close()


def _make(config: Config, variant: int, spec: EnvironmentSpec | None = None) -> Environments:
    return make_variant(
        config.environment.id,
        config.actor.environments,
        variants=config.environment.training_variants,
        variant=variant,
        spec=spec,
        imports=config.environment.imports,
        vectorization=config.environment.vectorization,
        frames=config.environment.frame_stack,
    )


def _collect_as(
    assignment: Assignment,
    config: Config,
    service: Service,
    thread: LoopThread,
    membership: Membership,
    environments: Environments,
) -> None:
    """Collects under one assignment, until told to stop or given another."""
    service.logger.info(
        "joined",
        slot=assignment.slot,
        incarnation=assignment.incarnation,
        variant=assignment.variant,
        temperature=assignment.temperature,
    )
    collector = Collector(
        environments, assignment, unroll_length=config.actor.unroll_length, discount=config.ppo.discount
    )
    sink = ReplaySegmentSink(thread, assignment, segment_schema(environments.spec, config.actor.unroll_length))
    reporter = _Reporter(membership, collector)
    runner: PolicyRunner | None = None
    try:
        while not service.stopping and membership.assignment(0.0) == assignment:
            waited = time.perf_counter()
            grant = sink.next_grant(_WAIT_S)
            weights = membership.at_least(grant.minimum_version, _WAIT_S) if grant else None
            while grant is not None and weights is None and not service.stopping:
                weights = membership.at_least(grant.minimum_version, _WAIT_S)
            collector.timing.waiting_s += time.perf_counter() - waited
            if weights is not None:
                if runner is None:
                    runner = PolicyRunner(weights, temperature=assignment.temperature)
                elif weights.version != runner.version:
                    runner.update(weights)
                reporter.begin()
                _collect_window(collector, runner, sink)
                metrics.ACTOR_VERSION.set(runner.version)
            reporter.report_if_due()
        sink.drain(_DRAIN_S)
        reporter.report()
    finally:
        sink.close()


def _collect_window(collector: Collector, runner: PolicyRunner, sink: SegmentSink) -> None:
    timing, started = collector.timing, time.perf_counter()
    stepped_s = timing.environment_s + timing.policy_s
    sink.send(collector.collect(runner))
    stepped_s = timing.environment_s + timing.policy_s - stepped_s
    timing.building_s += time.perf_counter() - started - stepped_s


class _Reporter:
    """Tells the learner, and the metrics, what an actor did."""

    def __init__(self, membership: Membership, collector: Collector) -> None:
        self._membership, self._collector = membership, collector
        self._first_step_at_s = 0.0
        self._due, self._interval_s = 0.0, _FIRST_REPORT_INTERVAL_S

    def begin(self) -> None:
        """Before a window: tells when the first one begins, at once, since training is timed from there."""
        if not self._first_step_at_s:
            self._first_step_at_s = time.time()
            self.report()

    def report_if_due(self) -> None:
        """Reports twice a second, and sooner at first."""
        if time.monotonic() >= self._due:
            self.report()

    def report(self) -> None:
        """Reports what happened since the last time."""
        self._due = time.monotonic() + self._interval_s
        self._interval_s = min(2.0 * self._interval_s, _REPORT_INTERVAL_S)
        episodes, steps = self._collector.take_episodes()
        timing = self._collector.take_timing()
        metrics.ACTOR_STEPS.inc(steps)
        metrics.ACTOR_SECONDS.labels("environment").inc(timing.environment_s)
        metrics.ACTOR_SECONDS.labels("policy").inc(timing.policy_s)
        metrics.ACTOR_SECONDS.labels("building").inc(timing.building_s)
        metrics.ACTOR_SECONDS.labels("waiting").inc(timing.waiting_s)
        self._membership.report(
            ActorReport(
                env_steps=steps,
                first_step_at_s=self._first_step_at_s,
                episodes=episodes,
                environment_s=timing.environment_s,
                policy_s=timing.policy_s,
                waiting_s=timing.waiting_s,
                building_s=timing.building_s,
            )
        )
