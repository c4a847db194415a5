"""A training run in one process: real segments of a collector, and evaluations with results that a test sets."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.values.spaces import segment_schema
from penstock.config import Config, build
from penstock.errors import Unavailable
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import Recovered, RunProgress
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run import assembly
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.learning.run.session import LearnerParts
from penstock.learning.run.training import Conclusion, TrainingRun
from penstock.learning.step.batches import BatchFeed
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from penstock.types.evaluation import EvaluationResult, EvaluationSummary, EvaluationTask
from penstock.types.replay import Batch, BatchHead, CommitOutcome, SamplingPlan, StoreCounts
from penstock.types.run import Weights
from penstock.types.waits import Awaited, WaitReason
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment, spec_of
from tests.support.training.training import CPU, make_learner

WINDOW_STEPS = 4 * 32


class InProcess:
    """Replaces the services of a run: collects segments, returns evaluations and keeps weights, in one process."""

    def __init__(
        self,
        answers_evaluations: bool = True,
        fresh_segments: int = 4,
        returns: Sequence[float] = (10.0,),
    ) -> None:
        """Creates the actor's environments and the buffer.

        Args:
            answers_evaluations: Whether an evaluator is present.
            fresh_segments: Fresh segments of the 4 in a batch.
            returns: Mean returns of its evaluations, in order; the last one applies to all further evaluations.
        """
        environments = make_environments("CartPole-v1", 4, kwargs={})
        schema = segment_schema(environments.spec, 32)
        self._collector = Collector(environments, assignment(*range(4)), schema=schema, discount=0.99)
        self._answers, self._fresh_segments = answers_evaluations, fresh_segments
        self._returns = list(returns)
        self.reward_scale = 1.0
        self.skipped_numbers = 0
        self.tasks: list[EvaluationTask] = []
        self.inserted = 0
        self.capacity = 1000
        self.batches_when_asked: list[int] = []
        self.batches_when_answered: list[int] = []
        self._results: deque[EvaluationResult] = deque()
        self._weights: Weights | None = None
        self.batches = 0
        self.evaluations_asked = 0
        self.lost = False
        self.waiting_for: WaitReason | None = WaitReason(Awaited.FRESH_SEGMENTS)
        self.plans: list[SamplingPlan] = []

    def open(self, plan: SamplingPlan) -> None:
        self._next = plan.next_batch
        self.plans.append(plan)

    def adjust(self, plan: SamplingPlan) -> None:
        self.plans.append(plan)

    def next(self, timeout_s: float) -> Batch | None:
        assert self._weights is not None
        self.batches += 1
        self._next += 1
        self.inserted += 4
        columns = self._collector.collect(PolicyRunner(self._weights)).columns
        if self.reward_scale != 1.0:
            np.multiply(columns.column("reward"), self.reward_scale, out=columns.column("reward"))
        return Batch(
            BatchHead(
                number=self._next - 1 + self.skipped_numbers,
                fresh_segments=self._fresh_segments,
                keys=np.arange(4, dtype=np.uint64),
                versions=np.full(4, self._weights.version, np.int64),
                priorities=np.zeros(4),
                probabilities=np.ones(4),
                counts=StoreCounts(capacity=self.capacity, inserted=self.inserted),
            ),
            columns,
        )

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        if self.lost:
            raise Unavailable("the replay service is gone")
        answered: Future[CommitOutcome] = Future()
        answered.set_result(CommitOutcome(3, 1, False))
        return answered

    def publish(self, weights: Weights) -> None:
        self._weights = weights

    def ask(self, task: EvaluationTask) -> None:
        self.evaluations_asked += 1
        self.tasks.append(task)
        self.batches_when_asked.append(self.batches)
        if self._answers:
            mean = self._returns.pop(0) if len(self._returns) > 1 else self._returns[0]
            self._results.append(
                EvaluationResult(task.id, task.weights.version, (mean - 1.0, mean + 1.0), (9, 11), 0.1)
            )

    def result(self, timeout_s: float) -> EvaluationResult | None:
        if not self._results or timeout_s == 0.0:
            return None
        self.batches_when_answered.append(self.batches)
        return self._results.popleft()


@dataclass(frozen=True, slots=True)
class Session:
    """A session of a learner, without a separate process."""

    config: Config
    learner: Learner
    statistics: RunStatistics
    writes: RetriedWrites
    run: TrainingRun

    @property
    def best(self) -> EvaluationSummary | None:
        """Evaluation of the best checkpoint."""
        return self.statistics.status().best_evaluation

    @property
    def notices(self) -> list[str]:
        """Notices to the user."""
        return [notice.text for notice in self.statistics.status().notices]


def open_session(
    folder: RunFolder,
    outside: InProcess,
    stopping: Callable[[], bool] = lambda: False,
    *,
    batches: int = 3,
    evaluation: dict[str, object] | None = None,
    checkpoint: dict[str, object] | None = None,
    earlier: RunProgress | None = None,
    resume: bool = False,
    stop_at_return: float | None = None,
    learner: Learner | None = None,
    limits: dict[str, Any] | None = None,
    **sampling: object,
) -> Session:
    """Prepares a session that trains up to this number of batches of 4 segments, including `earlier` ones.

    Args:
        folder: Folder of the run.
        outside: Replacement of the services.
        stopping: Called between batches; the session ends when it returns true.
        batches: Number of batches of the run.
        evaluation: Settings of [evaluation].
        checkpoint: Settings of [checkpoint].
        earlier: Progress of the run in an earlier session; None for a new run.
        resume: Whether to continue from the folder's content, as the learner's service does.
        stop_at_return: Setting `run.stop_at_return`.
        learner: Learner to train; None for a small one.
        limits: Limits of the run in place of its batches.
        sampling: Settings of [sampling].
    """
    config = build(
        {
            "run": {**(limits or {"total_steps": batches * WINDOW_STEPS - 60}), "stop_at_return": stop_at_return},
            "actor": {"environments": 4},
            "sampling": {"batch_segments": 4, "fresh_fraction": 1.0, **sampling},
            "evaluation": evaluation or {},
            "checkpoint": checkpoint or {},
            "policy": {"normalise_observations": False, "normalise_returns": False},
        }
    )
    learner = learner or make_learner("CartPole-v1")
    assert learner.policy.spec == spec_of("CartPole-v1")
    recovered = checkpoints.recover(folder) if resume else Recovered(progress=earlier or RunProgress())
    if recovered.path is not None:
        checkpoints.restore(learner, recovered.path)
    session = assembly.open_session(config, folder, recovered)
    parts = LearnerParts(
        learner=learner,
        feed=BatchFeed(CPU),
        source=outside,
        sink=outside,
        desk=outside,
        snapshots=RunSnapshots(None, session.statistics, interval_s=0.0),
        stopping=stopping,
    )
    return Session(config, learner, session.statistics, session.writes, assembly.training_run(session, parts))


def conclude(
    folder: RunFolder, outside: InProcess, stopping: Callable[[], bool], **options: Any
) -> tuple[Conclusion, Learner]:
    """Runs a session with these options; returns its end and its learner."""
    session = open_session(folder, outside, stopping, **options)
    return session.run.run(), session.learner
