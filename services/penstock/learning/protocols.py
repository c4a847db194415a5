"""What the learner needs from the outside; `rpc` implements it."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.types import (
    Batch,
    CommitOutcome,
    EvaluationResult,
    EvaluationTask,
    SamplingPlan,
    Snapshot,
    SnapshotProgress,
    SnapshotRequest,
    Weights,
)


class BatchSource(Protocol):
    """Where batches come from and priorities go."""

    def open(self, plan: SamplingPlan) -> None:
        """Announces how batches are wanted, and asks for the first ones."""

    def adjust(self, plan: SamplingPlan) -> None:
        """Changes, while it runs, how batches are made up and how far collection may run ahead; the session stays."""

    def next(self, timeout_s: float) -> Batch | None:
        """Waits for the next batch; None if none came in time (`waiting_for` says why)."""

    @property
    def waiting_for(self) -> str:
        """What the next batch is waiting for; empty when it is on its way."""

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Ends a batch's lease with <float64>[B] new priorities.

        Does not wait for the answer, which comes as the future's result; waits while too many are outstanding.
        """


class WeightSink(Protocol):
    """Where weights go."""

    def publish(self, weights: Weights) -> None:
        """Makes these the latest weights. Does not wait for anybody."""


class EvaluationDesk(Protocol):
    """Where evaluations are done."""

    def ask(self, task: EvaluationTask) -> None:
        """Queues a task; one that is queued and not begun gives way to it."""

    def result(self, timeout_s: float) -> EvaluationResult | None:
        """Waits for a result; None if none came in time."""


class SnapshotDesk(Protocol):
    """Where the stores of a run take their snapshots."""

    def begin(
        self, request: SnapshotRequest, policy: Weights, show: Callable[[SnapshotProgress], None]
    ) -> Future[list[Snapshot]]:
        """Has all stores take a snapshot with this policy; returns when each is frozen at the request's version.

        `show` is called with how far they are together, on any thread. The snapshots come as the future's result.

        Raises:
            PenstockError: A store refused, or did not answer in time. There is no snapshot.
        """
