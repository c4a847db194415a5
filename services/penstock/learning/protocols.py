"""Interfaces through which the learner uses services. `rpc` implements them."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan
from penstock.types.run import Weights
from penstock.types.snapshots import Snapshot, SnapshotProgress, SnapshotRequest
from penstock.types.waits import WaitReason


class BatchSource(Protocol):
    """Source of batches, to which their priorities return."""

    def open(self, plan: SamplingPlan) -> None:
        """Announces the plan and requests the first batches."""

    def adjust(self, plan: SamplingPlan) -> None:
        """Changes the composition of batches and the off-policy degree within the session."""

    def next(self, timeout_s: float) -> Batch | None:
        """Waits for the next batch. Returns None if it does not arrive in time; `waiting_for` gives the reason."""

    @property
    def waiting_for(self) -> WaitReason | None:
        """Reason why the next batch is delayed; None if it has arrived."""

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Ends a batch's lease with new priorities, <float64>[B].

        Returns without waiting for the answer, which is the future's result. Blocks while too many answers are
        outstanding.
        """


class OtherRanks(Protocol):
    """The other ranks of the learner (`learning.ranks.ranks`), which have the same batches."""

    def train(self, batch: Batch, progress: float) -> None:
        """Has them train on a batch beside this rank, with this progress of the run, 0 to 1.

        Raises `RankLost` if one of them has ended.
        """


class WeightSink(Protocol):
    """Destination of published weights."""

    def publish(self, weights: Weights) -> None:
        """Makes these the latest weights, without blocking."""


class EvaluationDesk(Protocol):
    """Interface to the evaluators."""

    def ask(self, task: EvaluationTask) -> None:
        """Queues a task. It replaces a queued task that has not begun."""

    def result(self, timeout_s: float) -> EvaluationResult | None:
        """Waits for a result. Returns None if none arrives in time."""


class SnapshotDesk(Protocol):
    """Interface through which the stores of a run take snapshots."""

    def begin(
        self, request: SnapshotRequest, policy: Weights, show: Callable[[SnapshotProgress], None]
    ) -> Future[list[Snapshot]]:
        """Begins a snapshot of all stores with this policy. Returns when each is frozen at the request's version.

        `show` is called on any thread with the progress over all stores. The snapshots are the future's result. Raises
        `PenstockError` if a store refused or did not answer in time; there is no snapshot then.
        """
