import dataclasses
import json
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import REGISTRY

from penstock.errors import Diverged, SchemaMismatch, TrainingFailed, Unavailable
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.durable.versions import VersionMark
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.learner import TrainingOutcome
from penstock.runs.folder import RunFolder
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.replay import Batch, CommitOutcome
from penstock.types.run import Weights
from penstock.types.statistics import Drops
from penstock.types.waits import Awaited, WaitReason
from tests.support.services.in_process import WINDOW_STEPS, InProcess, conclude, open_session
from tests.support.training.training import SMALL, make_learner


def saved_version(folder: RunFolder) -> int:
    newest = checkpoints.newest(folder)
    assert newest is not None
    return checkpoints.read_progress(newest).version


def test_a_run_trains_to_its_last_step_and_evaluates_the_best_checkpoint(folder: RunFolder) -> None:
    outside = InProcess()
    conclusion, _ = conclude(folder, outside, lambda: False)
    assert conclusion.stopped == "total_steps"
    assert conclusion.progress.version == outside.batches == saved_version(folder)
    assert conclusion.evaluation is not None
    assert (conclusion.evaluation.episodes, conclusion.evaluation.return_mean) == (2, 10.0)


def test_the_latest_of_equally_evaluated_policies_is_the_best(folder: RunFolder) -> None:
    outside = InProcess()
    conclusion, _ = conclude(folder, outside, lambda: False, evaluation={"interval_steps": 100, "mode": "synchronous"})
    assert outside.evaluations_asked > 2
    assert checkpoints.read_progress(folder.best_checkpoint).version == conclusion.progress.version


class Recorded(InProcess):
    """Records, for each version that leaves the learner, the first version of a learner started at that time."""

    def __init__(self, versions: Path) -> None:
        super().__init__()
        self._versions = versions
        self.left: list[tuple[int, int]] = []

    def publish(self, weights: Weights) -> None:
        self.left.append((weights.version, VersionMark(self._versions).first))
        super().publish(weights)

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        self.left.append((batch.number + 1, VersionMark(self._versions).first))
        return super().commit(batch, priorities)


@pytest.mark.parametrize("publish_interval", [1, 103])
def test_every_version_is_recorded_before_it_leaves_the_learner(folder: RunFolder, publish_interval: int) -> None:
    outside = Recorded(folder.versions)
    conclude(folder, outside, lambda: False, batches=4, publish_interval=publish_interval)
    assert {version for version, _ in outside.left} == {0, 1, 2, 3, 4}
    assert all(first == version + 1 for version, first in outside.left)


def test_a_run_begins_at_the_first_version_that_no_process_used(folder: RunFolder) -> None:
    killed = VersionMark(folder.versions)
    killed.use(9)
    outside = InProcess()
    conclusion, _ = conclude(folder, outside, lambda: False, batches=2, earlier=RunProgress(version=4, env_steps=5))
    assert [plan.next_batch for plan in outside.plans] == [10]
    assert conclusion.progress.version == saved_version(folder) == 12


def test_a_cleanly_stopped_run_resumes_at_its_version(folder: RunFolder) -> None:
    outside = InProcess()
    conclusion, _ = conclude(folder, outside, lambda: outside.batches == 3, batches=9)
    assert conclusion.stopped == "interrupted"
    resumed = InProcess()
    conclude(folder, resumed, lambda: False, batches=9, earlier=conclusion.progress)
    # A change of the automatic degree sends the plan again.
    assert {plan.next_batch for plan in resumed.plans} == {3}
    # A power cut after the end skips no version either.
    version = saved_version(folder)
    assert VersionMark(folder.versions, version, boot="another").first == version


def test_the_journal_contains_the_last_batch_and_no_version_twice(folder: RunFolder) -> None:
    conclusion, _ = conclude(folder, InProcess(), lambda: False)
    lines = [line for line in folder.metrics.read_text().splitlines() if '"kind": "training"' in line]
    versions = [int(line.partition('"version": ')[2].partition(",")[0]) for line in lines]
    assert versions == sorted(set(versions))
    assert versions[-1] == conclusion.progress.version


def test_a_very_short_run_has_a_curve(folder: RunFolder) -> None:
    conclusion, _ = conclude(folder, InProcess(), lambda: False, batches=20)
    records = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    versions = [record["version"] for record in records if record["kind"] == "training"]
    assert versions == list(range(1, conclusion.progress.version + 1))


def test_every_record_of_the_journal_has_lag_staleness_and_times_since_the_previous_record(folder: RunFolder) -> None:
    conclude(folder, InProcess(), lambda: False)
    records = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    records = [record for record in records if record["kind"] == "training"]
    assert records
    for record in records:
        assert (record["fresh_lag_mean"], record["fresh_lag_max"]) == (0.0, 0)
        assert (record["staleness_mean"], record["off_policy_degree"], record["late_segments"]) == (0.0, 1, 0)
        assert record["batch_train_s"] > 0.0 and record["batch_wait_s"] > 0.0
        # No actor reports in this test.
        assert record["collect_environment_s"] is None


def test_metrics_contain_ages_their_bound_and_the_age_of_the_publication(folder: RunFolder) -> None:
    began = time.monotonic()
    conclude(folder, InProcess(), lambda: False, batches=2, max_staleness=3, off_policy_degree=4, publish_interval=2)
    # The second of two batches was collected by the policy of the first.
    assert REGISTRY.get_sample_value("penstock_learner_oldest_versions") == 1
    assert REGISTRY.get_sample_value("penstock_learner_staleness_bound_versions") == 5
    age_s = REGISTRY.get_sample_value("penstock_learner_publication_age_seconds")
    assert age_s is not None and 0.0 <= age_s <= time.monotonic() - began
    conclude(folder, InProcess(), lambda: False, max_staleness=7)
    assert REGISTRY.get_sample_value("penstock_learner_staleness_bound_versions") == 7


def test_a_run_concludes_with_the_statistics_of_its_session(folder: RunFolder) -> None:
    outside = InProcess()
    conclusion, _ = conclude(folder, outside, lambda: False)
    statistics = conclusion.statistics
    assert statistics is not None
    assert (statistics.mode, statistics.off_policy_degree) == ("asynchronous", 1)
    assert statistics.batches_trained == outside.batches
    assert statistics.segments_trained == 4 * outside.batches
    assert statistics.drops == Drops(overwritten_priorities=outside.batches)
    # All segments are collected while the learner waits.
    (wait,) = statistics.waits
    assert wait.reason == WaitReason(Awaited.FRESH_SEGMENTS) and 0.0 < wait.share < 1.0
    assert statistics.times.batch_wait_s == pytest.approx(wait.seconds / outside.batches)
    assert (statistics.evaluations, statistics.times.evaluation_s) == (1, 0.1)


def test_a_run_stopped_during_its_last_evaluation_is_interrupted(folder: RunFolder) -> None:
    outside = InProcess(answers_evaluations=False)
    conclusion, _ = conclude(folder, outside, lambda: outside.evaluations_asked > 0)
    assert conclusion.stopped == "interrupted"
    assert conclusion.evaluation is None
    assert saved_version(folder) == conclusion.progress.version


def test_a_replay_service_stopped_with_the_learner_does_not_prevent_the_checkpoint(folder: RunFolder) -> None:
    outside = InProcess()

    def stopping() -> bool:
        outside.lost = outside.batches == 2
        return outside.lost

    outside.lost = False
    conclusion, _ = conclude(folder, outside, stopping, batches=9)
    assert conclusion.stopped == "interrupted"
    assert conclusion.progress.version == 2 == saved_version(folder)


def test_a_failed_commit_ends_the_run_after_a_checkpoint(folder: RunFolder) -> None:
    outside = InProcess()
    outside.lost = True
    with pytest.raises(Unavailable, match="is gone"):
        conclude(folder, outside, lambda: False)
    assert saved_version(folder) == 1


def test_a_run_stops_when_an_evaluation_reaches_stop_at_return(folder: RunFolder) -> None:
    outside = InProcess(returns=(100.0, 474.9, 475.0, 500.0))
    evaluation = {"interval_steps": 60, "mode": "synchronous"}
    conclusion, _ = conclude(folder, outside, lambda: False, batches=9, evaluation=evaluation, stop_at_return=475.0)
    assert (conclusion.stopped, conclusion.progress.version) == ("stop_at_return", 3)


def test_a_resumed_run_keeps_threshold_best_and_totals_of_its_sessions(folder: RunFolder) -> None:
    settings: dict[str, object] = {"interval_steps": 60, "mode": "synchronous", "threshold": 400.0}
    first = InProcess(returns=(450.0,))
    stopped = open_session(folder, first, lambda: first.batches == 2, batches=6, evaluation=settings)
    earlier = stopped.run.run().progress
    second = open_session(folder, InProcess(returns=(420.0,)), batches=6, evaluation=settings, resume=True)
    progress = second.run.run().progress
    assert (earlier.sessions, progress.sessions) == (1, 2)
    assert progress.wall_s >= earlier.wall_s > 0.0
    assert progress.env_steps_to_threshold == earlier.env_steps_to_threshold is not None
    assert progress.env_steps_taken >= progress.env_steps > earlier.env_steps
    best = second.statistics.status().best_evaluation
    assert best is not None and best.return_mean == 450.0


def test_a_threshold_reached_by_an_evaluation_that_is_not_the_best_is_saved_at_once(folder: RunFolder) -> None:
    every_batch: dict[str, object] = {"interval_steps": 60, "mode": "synchronous"}
    first = InProcess(returns=(480.0,))
    open_session(folder, first, lambda: first.batches == 1, batches=9, evaluation=every_batch).run.run()
    # Only the second session has a threshold, which is below the best return.
    second = InProcess(returns=(476.0,))
    settings = {**every_batch, "threshold": 475.0}
    session = open_session(folder, second, lambda: False, batches=9, evaluation=settings, resume=True)
    seen: list[int | None] = []
    ask = second.ask

    def record_and_ask(task: EvaluationTask) -> None:
        seen.append(checkpoints.recover(folder).progress.env_steps_to_threshold)
        ask(task)

    second.ask = record_and_ask  # type: ignore[method-assign]
    progress = session.run.run().progress
    assert seen[0] is None
    assert seen[1] == progress.env_steps_to_threshold is not None


EVERY_TWO_BATCHES: dict[str, object] = {"interval_steps": 2 * WINDOW_STEPS - 60}


def test_a_run_ends_by_updates_and_its_schedules_follow_them(folder: RunFolder) -> None:
    outside = InProcess()
    session = open_session(
        folder, outside, batches=100, limits={"total_updates": 5}, evaluation={"interval_updates": 2}
    )
    shares: list[float] = []
    train = session.learner.train

    def watched(batch: TrainingBatch, progress: float) -> TrainingOutcome:
        shares.append(progress)
        return train(batch, progress)

    session.learner.train = watched  # type: ignore[method-assign]
    conclusion = session.run.run()
    per_batch = conclusion.progress.updates // outside.batches
    assert conclusion.stopped == "total_updates"
    assert conclusion.progress.updates >= 5 > conclusion.progress.updates - per_batch
    assert shares == [batch * per_batch / 5 for batch in range(outside.batches)]
    assert outside.evaluations_asked >= 2


def test_the_status_names_the_environment_from_the_first_moment_and_says_that_a_batch_is_trained(
    folder: RunFolder,
) -> None:
    session = open_session(folder, InProcess(), batches=2)
    statuses = [session.statistics.status()]
    train = session.learner.train

    def watched(batch: TrainingBatch, progress: float) -> TrainingOutcome:
        statuses.append(session.statistics.status())
        return train(batch, progress)

    session.learner.train = watched  # type: ignore[method-assign]
    session.run.run()
    assert {status.environment_id for status in statuses} == {"CartPole-v1"}
    assert [status.phase for status in statuses] == ["waiting", "training", "training"]
    assert [status.env_steps > 0 for status in statuses] == [False, False, True]


def test_a_run_ends_by_episodes_of_all_its_sessions(folder: RunFolder) -> None:
    outside = InProcess()
    limits: dict[str, object] = {"total_steps": 10**6, "total_episodes": 40}
    conclusion, _ = conclude(folder, outside, lambda: outside.batches == 1, limits=limits)
    assert conclusion.stopped == "interrupted"
    first = conclusion.progress.episodes
    assert 0 < first < 40
    again = InProcess()
    conclusion, _ = conclude(folder, again, lambda: False, limits=limits, resume=True)
    assert conclusion.stopped == "total_episodes"
    assert conclusion.progress.episodes >= 40 and again.batches > 0
    # An episode of CartPole that ends has at least 8 steps.
    assert conclusion.progress.episodes <= conclusion.progress.env_steps / 8


def test_the_minutes_of_a_run_continue_in_the_next_session(folder: RunFolder) -> None:
    outside = InProcess()
    conclude(folder, outside, lambda: outside.batches == 2, limits={"total_minutes": 1000.0})
    newest = checkpoints.newest(folder)
    assert newest is not None
    clock_s = checkpoints.read_progress(newest).clock_s
    assert clock_s > 0.0
    limit = clock_s / 60.0
    again = InProcess()
    conclusion, _ = conclude(folder, again, lambda: False, limits={"total_minutes": limit}, resume=True)
    assert (conclusion.stopped, again.batches) == ("total_minutes", 0)


class Clocked(InProcess):
    """Takes a second for each batch and ten minutes for each evaluation, on a clock of its own."""

    now_s = 0.0

    def next(self, timeout_s: float) -> Batch | None:
        self.now_s += 1.0
        return super().next(timeout_s)

    def result(self, timeout_s: float) -> EvaluationResult | None:
        self.now_s += 600.0 if timeout_s else 0.0
        return super().result(timeout_s)


def test_the_time_of_an_evaluation_does_not_make_the_next_one_due(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = Clocked()
    evaluation: dict[str, object] = {"interval_minutes": 0.1, "mode": "synchronous"}
    session = open_session(folder, outside, batches=20, evaluation=evaluation)
    monkeypatch.setattr(session.statistics, "_clock", lambda: outside.now_s)
    session.run.run()
    # The clock begins with the first batch, and every evaluation comes six batches after the one before.
    assert outside.batches_when_asked[:3] == [7, 13, 19]


def test_training_waits_for_a_synchronous_evaluation(folder: RunFolder) -> None:
    outside = InProcess()
    conclude(folder, outside, lambda: False, batches=8, evaluation={"mode": "synchronous", **EVERY_TWO_BATCHES})
    during = [batches for batches in outside.batches_when_asked if batches < outside.batches]
    assert len(during) >= 3
    assert outside.batches_when_answered[: len(during)] == during


def test_training_continues_during_an_asynchronous_evaluation(folder: RunFolder) -> None:
    outside = InProcess()
    conclude(folder, outside, lambda: False, batches=8, evaluation=EVERY_TWO_BATCHES)
    assert outside.batches_when_asked[0] < outside.batches_when_answered[0] == outside.batches


def test_an_unanswered_synchronous_evaluation_delays_training_by_its_timeout_at_most(folder: RunFolder) -> None:
    outside = InProcess(answers_evaluations=False)
    evaluation = {"mode": "synchronous", "timeout_s": 0.2, **EVERY_TWO_BATCHES}
    conclusion, _ = conclude(folder, outside, lambda: False, batches=8, evaluation=evaluation)
    assert conclusion.stopped == "total_steps"
    assert conclusion.evaluation is None


def test_the_speed_of_a_resumed_run_excludes_earlier_gradient_steps(folder: RunFolder) -> None:
    conclude(folder, InProcess(), lambda: False, batches=3, earlier=RunProgress(updates=10**12))
    records = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    rates = [record["updates_per_s"] for record in records if record["kind"] == "training"]
    assert rates and max(rates) < 1e6


def test_a_plan_without_fresh_segments_counts_steps_when_they_are_stored(folder: RunFolder) -> None:
    outside = InProcess(fresh_segments=0)
    conclusion, _ = conclude(folder, outside, lambda: False, batches=5, fresh_fraction=0.0)
    assert outside.batches == 5
    assert conclusion.progress.env_steps == 5 * WINDOW_STEPS
    assert conclusion.samples_per_insert == 1.0


@pytest.mark.parametrize("store_was_lost", [False, True])
def test_a_resumed_run_without_fresh_segments_counts_only_new_insertions(
    folder: RunFolder, store_was_lost: bool
) -> None:
    first, second = InProcess(fresh_segments=0), InProcess(fresh_segments=0)
    open_session(folder, first, lambda: first.batches == 2, batches=5, fresh_fraction=0.0).run.run()
    second.inserted = 0 if store_was_lost else first.inserted
    progress = open_session(folder, second, batches=5, fresh_fraction=0.0, resume=True).run.run().progress
    assert second.batches == 3
    assert (progress.env_steps, progress.segments_fresh) == (5 * WINDOW_STEPS, 5 * 4)


def test_a_run_restored_without_its_best_checkpoint_chooses_a_new_best(folder: RunFolder) -> None:
    # The best checkpoint was overwritten after the snapshot, and no later evaluation reaches its return.
    earlier = RunProgress(version=1, env_steps=100, best_return=480.0)
    conclusion, _ = conclude(folder, InProcess(), lambda: False, earlier=earlier)
    assert conclusion.evaluation is not None and conclusion.evaluation.return_mean == 10.0
    assert checkpoints.read_progress(folder.best_checkpoint).version == conclusion.progress.version


class Diverging(InProcess):
    """Returns batches with rewards that diverge from the third batch on."""

    def next(self, timeout_s: float) -> Batch | None:
        self.reward_scale = 1e30 if self.batches >= 2 else 1.0
        return super().next(timeout_s)


def test_a_diverged_run_ends_and_keeps_its_last_checkpoint_unchanged(folder: RunFolder) -> None:
    outside, raw = Diverging(), dataclasses.replace(SMALL, normalise_observations=False, normalise_returns=False)
    earlier = checkpoints.save(folder, checkpoints.take(make_learner(), RunProgress(env_steps=1)), keep=3)
    before = earlier.read_bytes()
    with pytest.raises(
        Diverged, match=r"10 batches in a row .* ppo\.learning_rate .* policy\.normalise_returns to true"
    ):
        conclude(folder, outside, lambda: False, batches=40, learner=make_learner(network=raw))
    assert outside.batches == 2 + 10
    assert checkpoints.newest(folder) == earlier
    assert earlier.read_bytes() == before


class Emptied(InProcess):
    """Returns batches of zeros from the third batch on."""

    def next(self, timeout_s: float) -> Batch | None:
        batch = super().next(timeout_s)
        if batch is not None and self.batches > 2:
            for array in batch.columns.arrays:
                array[...] = 0
        return batch


def test_a_batch_without_a_valid_row_ends_the_run_with_one_line_and_a_checkpoint(folder: RunFolder) -> None:
    outside = Emptied()
    with pytest.raises(TrainingFailed, match=r"^none of the 128 rows of a batch is valid[^\n]*$"):
        conclude(folder, outside, lambda: False, batches=40)
    assert outside.batches == 3
    assert checkpoints.newest(folder) is not None


def test_a_batch_with_an_unexpected_number_is_not_trained(folder: RunFolder) -> None:
    outside = InProcess()
    outside.skipped_numbers = 3
    with pytest.raises(SchemaMismatch, match="received batch 3, expected batch 0: batch k trains version k"):
        conclude(folder, outside, lambda: False)
