"""A run of Penstock in one process and one thread, without the network, for studies of the algorithm.

Environments, collector, replay buffer, learner and training loop are those of the services; calls replace the streams
between them. A run is therefore repeatable bit for bit regardless of other load. Collection and training alternate, and
the lag between them is exactly the requested one.
"""

import json
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from helpers.curves import final_return
from helpers.direct_buffer import append, gather
from penstock.acting.collector import Collector
from penstock.acting.environments import Environments
from penstock.acting.evaluation import evaluate
from penstock.acting.inference import PolicyRunner
from penstock.acting.spaces import segment_schema
from penstock.apps.environments import make_configured, variants_of
from penstock.config import Config
from penstock.learning.assembly import learner_of, open_session, training_run
from penstock.learning.batches import BatchFeed
from penstock.learning.checkpoints import Recovered
from penstock.learning.protocols import BatchSource, EvaluationDesk, WeightSink
from penstock.learning.run_snapshots import RunSnapshots
from penstock.learning.session import LearnerParts
from penstock.learning.training import Conclusion
from penstock.replay.admission import ActorKey, Gate
from penstock.replay.buffer import ReplayBuffer
from penstock.replay.store.ring_store import RingStore
from penstock.run_folder import RunFolder
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan
from penstock.types.run import Assignment, Weights
from penstock.types.spaces import EnvironmentSpec

_GRANT_TIMEOUT_S = 1e9


def _ignore(*values: object) -> None:
    del values


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        curve: Environment steps and mean evaluation return, one pair per evaluation.
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


class Pipeline:
    """Batches on demand: collects only what the next batch lacks, with the policy from `lag` versions before.

    It is the `BatchSource` and the `WeightSink` of the training run.
    """

    waiting_for = None

    def __init__(
        self,
        config: Config,
        environments: Environments,
        lag: int,
        watch: Callable[[Batch], None] = _ignore,
        watch_weights: Callable[[Weights], None] = _ignore,
        watch_commit: Callable[[Batch, NDArray[np.float64]], None] = _ignore,
    ) -> None:
        """Resets the environments.

        The functions get every batch before it is trained, every version, and every batch with its new priorities.
        """
        self._watch, self._watch_weights, self._watch_commit = watch, watch_weights, watch_commit
        self._schema = segment_schema(environments.spec, **config.recorded)
        self._buffer = ReplayBuffer(RingStore(None, config.replay.store_bytes), Gate(_GRANT_TIMEOUT_S, max_actors=1))
        assignment = Assignment(
            slot=0,
            incarnation=1,
            environments=tuple(range(environments.count)),
            token=b"",
            seed=config.run.seed,
            replay_address="",
        )
        self._collector = Collector(environments, assignment, schema=self._schema, discount=config.ppo.discount)
        self._window = environments.count
        self._published: deque[Weights] = deque(maxlen=lag + 1)
        self._runner: PolicyRunner | None = None

    def publish(self, weights: Weights) -> None:
        """Keeps as many versions as the lag requires."""
        self._published.append(weights)
        self._watch_weights(weights)

    def open(self, plan: SamplingPlan) -> None:
        """Opens both ends of the buffer."""
        self._buffer.intakes.open(ActorKey(0, 1), self._schema, self._window, 0.0)
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
        weights = self._published[0]
        if self._runner is None:
            self._runner = PolicyRunner(weights)
        self._runner.refresh(weights)
        self._buffer.intakes.issue_grants(0.0)
        stored = append(self._buffer, self._collector.collect(self._runner), 0.0)
        assert stored is not None, "the gate granted no window although the next batch is incomplete"

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Commits at once."""
        self._watch_commit(batch, priorities)
        done: Future[CommitOutcome] = Future()
        done.set_result(self._buffer.leases.commit(self._plan.session, batch.number, batch.keys, priorities))
        self._number = batch.number + 1
        return done


class Desk:
    """Evaluates immediately on request, so that a curve has a point at every interval."""

    def __init__(self, environments: Environments) -> None:
        self._environments = environments
        self._results: deque[EvaluationResult] = deque()

    def ask(self, task: EvaluationTask) -> None:
        """Runs the episodes."""
        result = evaluate(task, self._environments, lambda: False)
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
    watch_commit: Callable[[Batch, NDArray[np.float64]], None] = _ignore,
) -> Outcome:
    """Trains with this configuration; writes a run's files to the folder, if there is one.

    Args:
        config: Configuration as for `penstock train`; addresses, actors and paces are ignored.
        lag: Exact number of versions between the acting policy and the one in training. The configured
            `off_policy_degree` must permit it.
        folder: Folder of the run; None for none.
        watch: Called with every batch before it is trained.
        watch_weights: Called with every version of the policy, from version 0.
        watch_commit: Called with every batch and its new priorities, <float64>[B].
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="penstock-study-") as temporary:
            return train(config, lag, Path(temporary), watch, watch_weights, watch_commit)
    began = time.monotonic()
    torch.set_num_threads(1)
    environment = config.environment
    acting = variants_of(environment, environment.training_variants).make_mixed(config.actor.environments)
    watched = make_configured(environment, config.evaluation.episodes)
    run_folder = RunFolder(folder)
    run_folder.create()
    pipeline = Pipeline(config, acting, lag, watch, watch_weights, watch_commit)
    conclusion = learn(config, acting.spec, source=pipeline, sink=pipeline, desk=Desk(watched), folder=run_folder)
    acting.close()
    watched.close()
    curve = _read_curve(run_folder.metrics)
    return Outcome(
        curve=curve,
        env_steps_to_threshold=conclusion.progress.env_steps_to_threshold,
        final_return=final_return(curve, config.run.total_steps),
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
    """
    device, session = torch.device("cpu"), open_session(config, folder, Recovered())
    parts = LearnerParts(
        learner=learner_of(config, spec, device),
        feed=BatchFeed(device),
        source=source,
        sink=sink,
        desk=desk,
        snapshots=RunSnapshots(None, session.statistics, interval_s=0.0),
        stopping=stopping,
        largest_window=lambda: 1,
    )
    conclusion = training_run(session, parts).run()
    session.writes.finish("free space")
    return conclusion


def _read_curve(metrics: Path) -> tuple[tuple[int, float], ...]:
    records: list[dict[str, Any]] = [json.loads(line) for line in metrics.read_text().splitlines()]
    return tuple((r["env_steps"], r["return_mean"]) for r in records if r["kind"] == "evaluation")
