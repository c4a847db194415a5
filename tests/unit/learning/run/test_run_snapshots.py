"""Schedule of the snapshots of a run, and outcomes of requests."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from penstock.errors import ConfigurationError, NotReady, Overloaded, PenstockError, Unavailable
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.run_snapshots import RunSnapshots
from penstock.types.extents import Amounts
from penstock.types.run import Weights
from penstock.types.snapshots import Snapshot, SnapshotProgress, SnapshotRequest


class Stores:
    """A store that starts a snapshot at once and completes it when the test requests it."""

    def __init__(self) -> None:
        self.asked: list[tuple[SnapshotRequest, Weights]] = []
        self.taking: Future[list[Snapshot]] = Future()
        self.refusal: PenstockError | None = None

    def begin(
        self, request: SnapshotRequest, policy: Weights, show: Callable[[SnapshotProgress], None]
    ) -> "Future[list[Snapshot]]":
        if self.refusal is not None:
            raise self.refusal
        self.asked.append((request, policy))
        show(SnapshotProgress(1, 2, 3, 6))
        self.taking = Future()
        return self.taking

    def complete(self, version: int) -> Snapshot:
        request = self.asked[-1][0]
        snapshot = Snapshot(request.name, "", 0.0, 1, 0, 0, 0, 0, 0.0, version, request.automatic)
        self.taking.set_result([snapshot])
        return snapshot


def checkpoint(version: int) -> checkpoints.Snapshot:
    return checkpoints.Snapshot(RunProgress(version=version, env_steps=10 * version), b"policy")


def make(interval_s: float = 0.0) -> tuple[RunSnapshots, Stores, RunStatistics]:
    stores, statistics = Stores(), RunStatistics(limits=Amounts(steps=1), earlier_s=0.0)
    return RunSnapshots(stores, statistics, interval_s=interval_s), stores, statistics


def test_a_snapshot_is_taken_after_the_batch_with_the_current_policy() -> None:
    run, stores, _ = make()
    run.open()
    run.take_what_is_due(lambda: pytest.fail("nothing is due"))
    asked = run.request("mine")
    with pytest.raises(Overloaded, match="in progress"):
        run.request("another")
    run.take_what_is_due(lambda: checkpoint(5))
    assert stores.asked == [(SnapshotRequest("mine", 5, automatic=False), Weights.of(5, b"policy"))]
    assert asked.progress == SnapshotProgress(1, 2, 3, 6)
    # Training continues meanwhile.
    run.take_what_is_due(lambda: pytest.fail("a snapshot is in progress"))
    with pytest.raises(Overloaded, match="in progress"):
        run.request("another")
    store = stores.complete(version=5)
    taken = asked.outcome.result(0.0)
    assert (taken.name, taken.version, taken.env_steps, taken.stores) == ("mine", 5, 50, (store,))
    run.request("another")


def test_stores_at_another_version_than_the_policy_fail_the_snapshot() -> None:
    run, stores, _ = make()
    run.open()
    asked = run.request("mine")
    run.take_what_is_due(lambda: checkpoint(5))
    stores.complete(version=6)
    with pytest.raises(PenstockError, match=r"policy of version 5 and stores of versions \[6\]"):
        asked.outcome.result(0.0)


def test_automatic_snapshots_are_named_after_time_and_version_and_failures_are_reported() -> None:
    run, stores, statistics = make(interval_s=1e-6)
    run.open()
    run.take_what_is_due(lambda: checkpoint(7))
    request, _ = stores.asked[0]
    assert request.automatic and request.name.endswith("-v7")
    stores.complete(version=7)
    stores.refusal = ConfigurationError("the disk is full")
    run.take_what_is_due(lambda: checkpoint(8))
    assert [notice.text for notice in statistics.status().notices] == ["no snapshot was taken: the disk is full"]
    stores.refusal = None
    run.take_what_is_due(lambda: checkpoint(9))
    assert stores.asked[-1][0].version == 9


def test_the_first_interval_begins_with_training() -> None:
    run, stores, _ = make(interval_s=3600.0)
    run.open()
    run.take_what_is_due(lambda: checkpoint(7))
    assert not stores.asked


def test_a_snapshot_is_refused_while_the_learner_is_not_training() -> None:
    run, stores, _ = make()
    with pytest.raises(NotReady, match="is not training"):
        run.request("early")
    run.open()
    begun = run.request("begun")
    run.take_what_is_due(lambda: checkpoint(1))
    run.close()
    stores.taking.cancel()
    stores.taking.set_running_or_notify_cancel()
    with pytest.raises(Unavailable, match="the learner ended"):
        begun.outcome.result(0.0)
    run.open()
    pending = run.request("pending")
    run.close()
    with pytest.raises(Unavailable, match="training ended before the snapshot began"):
        pending.outcome.result(0.0)
    with pytest.raises(NotReady, match="is not training"):
        run.request("late")
