"""A run of Penstock in one process and one thread, without the network, for studies of the algorithm.

One actor or several collect in turn, as the gate grants. An actor takes no time, so it always uses its whole share.

Environments, collector, replay buffer, learner and training loop are those of the services; calls replace the streams
between them. A run is therefore repeatable bit for bit regardless of other load. Collection and training alternate, and
the lag between them is exactly the requested one.
"""

import json
import math
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.environments.vectors import Environments
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.runners import runner_of
from penstock.acting.protocols import Runner
from penstock.acting.values.spaces import segment_schema
from penstock.apps.environments import make_configured, variants_of
from penstock.config import Config
from penstock.learning.durable.checkpoints import Recovered
from penstock.learning.protocols import BatchSource, EvaluationDesk, WeightSink
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.assembly import learner_of, open_session, training_run
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.learning.run.session import LearnerParts
from penstock.learning.run.training import Conclusion
from penstock.learning.step.batches import BatchFeed
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.layout import bytes_of
from penstock.replay.store.ring_store import RingStore
from penstock.runs.folder import RunFolder
from penstock.types.block import Schema
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan, Window
from penstock.types.run import ActorReport, Assignment, Weights
from penstock.types.spaces import EnvironmentSpec
from tests.support.segments.direct_buffer import append, gather
from tests.support.training.curves import final_return

_GRANT_TIMEOUT_S = 1e9


def _ignore(*values: object) -> None:
    del values


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        curve: Environment steps and mean evaluation return, one pair per evaluation. With environment variants, it is
            the mean return of the worst one.
        env_steps_to_threshold: Environment steps at the first evaluation that reached it; None if none did.
        final_return: Mean of the evaluations in the last fifth of the run.
        updates: Gradient steps.
        seconds: Duration including evaluations; not meaningful if other runs share the machine.
    """

    curve: tuple[tuple[int, float], ...]
    env_steps_to_threshold: int | None
    final_return: float
    updates: int
    seconds: float


class _Actor:
    """An actor in a slot, which collects one window per call."""

    def __init__(self, config: Config, environments: Environments, slot: int, schema: Schema) -> None:
        """Resets the environments, whose run-wide numbers follow those of the slots before."""
        self.window = environments.count
        assignment = Assignment(
            slot=slot,
            incarnation=1,
            environments=tuple(range(slot * self.window, (slot + 1) * self.window)),
            token=b"",
            seed=config.run.seed,
        )
        self.key, self._config = ActorKey(slot, 1), config
        self._collector = Collector(environments, assignment, schema=schema, discount=config.ppo.discount)
        self._runner: Runner | None = None

    def collect(self, weights: Weights) -> Window:
        """Collects a window, which the next call overwrites."""
        if self._runner is None:
            own = self._config.policy.module
            self._runner = runner_of(weights, inference=self._config.actor.inference, module=own)
        self._runner.refresh(weights)
        return self._collector.collect(self._runner)

    def report(self) -> ActorReport:
        """Returns its activity since the last call."""
        episodes, steps = self._collector.take_episodes()
        keys = self._config.environment.info_metrics
        return ActorReport(steps, 0.0, episodes, self._collector.take_timing(), info_metrics=keys)


class Pipeline:
    """Batches on demand: collects only what the next batch lacks, with the policy from `lag` versions before.

    It is the `BatchSource` and the `WeightSink` of the training run.
    """

    waiting_for = None

    def __init__(
        self,
        config: Config,
        environments: Sequence[Environments],
        lag: int,
        watch: Callable[[Batch], None] = _ignore,
        watch_weights: Callable[[Weights], None] = _ignore,
    ) -> None:
        """Resets the environments of each actor.

        The functions get every batch before it is trained, and every version.
        """
        self._watch, self._watch_weights = watch, watch_weights
        self._schema = segment_schema(environments[0].spec, **config.recorded)
        gate = Gate(_GRANT_TIMEOUT_S, max_actors=len(environments))
        store = RingStore(None, bytes_of(config.replay.store_size, self._schema))
        self._buffer = ReplayBuffer(store, gate)
        self._actors = [_Actor(config, each, slot, self._schema) for slot, each in enumerate(environments)]
        self._variants = max(1, len(config.environment.variants))
        self._granted: deque[_Actor] = deque()
        self._published: deque[Weights] = deque(maxlen=lag + 1)
        self.statistics: RunStatistics | None = None

    def publish(self, weights: Weights) -> None:
        """Keeps as many versions as the lag requires."""
        self._published.append(weights)
        self._watch_weights(weights)

    def open(self, plan: SamplingPlan) -> None:
        """Opens both ends of the buffer."""
        for actor in self._actors:
            self._buffer.intakes.open(actor.key, self._schema, actor.window, 0.0)
        self._buffer.adopt_plan(plan)
        self._plan, self._number = plan, plan.next_batch

    def adjust(self, plan: SamplingPlan) -> None:
        """Adjusts the gate, like the service."""
        self._buffer.adjust_plan(plan)
        self._plan = plan

    def next(self, timeout_s: float) -> Batch:
        """Collects until a batch is complete."""
        del timeout_s
        while (lease := self._buffer.leases.draw(self._number)) is None:
            self._collect()
        batch = gather(self._buffer, lease)
        self._watch(batch)
        return batch

    def _collect(self) -> None:
        self._granted.extend(self._actors[key.slot] for key, _ in self._buffer.intakes.issue_grants(0.0))
        assert self._granted, "the gate granted no window although the next batch is incomplete"
        actor = self._granted.popleft()
        append(self._buffer, actor.collect(self._published[0]), 0.0)
        if self.statistics is not None:
            self.statistics.report(actor.report(), actor.key.slot % self._variants)

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Commits at once."""
        done: Future[CommitOutcome] = Future()
        done.set_result(self._buffer.leases.commit(self._plan.session, batch.number, batch.keys, priorities))
        self._number = batch.number + 1
        return done


class Desk:
    """Evaluates immediately on request, so that a curve has a point at every interval."""

    def __init__(self, environments: Environments, module: str | None, info_metrics: Sequence[str] = ()) -> None:
        self._environments, self._module, self._info_metrics = environments, module, info_metrics
        self._results: deque[EvaluationResult] = deque()

    def ask(self, task: EvaluationTask) -> None:
        """Runs the episodes."""
        result = evaluate(task, self._environments, lambda: False, module=self._module, info_metrics=self._info_metrics)
        assert result is not None
        self._results.append(result)

    def result(self, timeout_s: float) -> EvaluationResult | None:
        """Returns the result, if there is one."""
        del timeout_s
        return self._results.popleft() if self._results else None


def train(
    config: Config,
    lag: int = 0,
    folder: Path | None = None,
    watch: Callable[[Batch], None] = _ignore,
    watch_weights: Callable[[Weights], None] = _ignore,
    actors: int = 1,
    *,
    begun: Callable[[RunStatistics], None] = _ignore,
) -> Outcome:
    """Trains with this configuration; writes a run's files to the folder, if there is one.

    A single actor has environments of all variants. Several have one variant each, as in the services.

    Args:
        config: Configuration as for `penstock train`; addresses, `train.actors` and paces are ignored.
        lag: Exact number of versions between the acting policy and the one in training. The configured
            `off_policy_degree` must permit it.
        folder: Folder of the run; None for none.
        watch: Called with every batch before it is trained.
        watch_weights: Called with every version of the policy, from version 0.
        actors: Number of actors, each with `actor.environments` environments.
        begun: Called once with the statistics of the run.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="penstock-study-") as temporary:
            path = Path(temporary)
            return train(config, lag, path, watch, watch_weights, actors, begun=begun)
    began = time.monotonic()
    torch.set_num_threads(1)
    environment = config.environment
    acting = _made(config, actors)
    watched = make_configured(environment, config.evaluation.episodes)
    run_folder = RunFolder(folder)
    run_folder.create()
    pipeline = Pipeline(config, acting, lag, watch, watch_weights)

    def begin(statistics: RunStatistics) -> None:
        pipeline.statistics = statistics
        begun(statistics)

    conclusion = learn(
        config,
        acting[0].spec,
        source=pipeline,
        sink=pipeline,
        desk=Desk(watched, config.policy.module, config.environment.info_metrics),
        folder=run_folder,
        begun=begin,
    )
    for each in (*acting, watched):
        each.close()
    curve, reached = _read_curve(run_folder.metrics), conclusion.progress.env_steps_to_threshold
    if environment.variants:
        goal = math.inf if config.evaluation.threshold is None else config.evaluation.threshold
        reached = next((steps for steps, value in curve if value >= goal), None)
    return Outcome(
        curve=curve,
        env_steps_to_threshold=reached,
        final_return=final_return(curve, config.run.total_steps or curve[-1][0]),
        updates=conclusion.progress.updates,
        seconds=time.monotonic() - began,
    )


def learn(
    config: Config,
    spec: EnvironmentSpec,
    *,
    source: BatchSource,
    sink: WeightSink,
    desk: EvaluationDesk,
    folder: RunFolder,
    stopping: Callable[[], bool] = lambda: False,
    begun: Callable[[RunStatistics], None] = _ignore,
) -> Conclusion:
    """Runs a learner's part of a new run on the CPU.

    Args:
        config: Configuration as for `penstock train`.
        spec: Spec of the environment.
        source: Source of batches.
        sink: Sink of weights.
        desk: Desk for evaluations.
        folder: Folder of the run.
        stopping: Called between batches; training ends when it returns true.
        begun: Called once with the statistics of the run, to which actors report.
    """
    device, session = torch.device("cpu"), open_session(config, folder, Recovered())
    begun(session.statistics)
    parts = LearnerParts(
        learner=learner_of(config, spec, device),
        feed=BatchFeed(device),
        source=source,
        sink=sink,
        desk=desk,
        snapshots=RunSnapshots(None, session.statistics, interval_s=0.0),
        stopping=stopping,
    )
    conclusion = training_run(session, parts).run()
    session.writes.finish("free space")
    return conclusion


def _read_curve(metrics: Path) -> tuple[tuple[int, float], ...]:
    records: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_text().splitlines()]
    return tuple((r["env_steps"], _of_the_worst(r)) for r in records if r["kind"] == "evaluation")


def _of_the_worst(evaluation: dict[str, Any]) -> float:
    variants: list[dict[str, float]] = evaluation.get("variants", [evaluation])
    return min(each["return_mean"] for each in variants)


def _made(config: Config, actors: int) -> list[Environments]:
    """Makes the environments of each actor."""
    environment, count = config.environment, config.actor.environments
    variants = variants_of(environment, environment.training_variants)
    if actors == 1:
        return [variants.make_mixed(count)]
    made = [variants.make(0, count)]
    for slot in range(1, actors):
        made.append(variants.make(slot % len(variants.makings), count, spec=made[0].spec))
    return made
