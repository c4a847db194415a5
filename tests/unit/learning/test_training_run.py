import json
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import REGISTRY

from helpers.environments import assignment, spec_of
from helpers.training import CPU, make_learner
from penstock.acting.collector import Collector
from penstock.acting.environments import make_environments
from penstock.acting.inference import PolicyRunner
from penstock.config import Config, build
from penstock.errors import Unavailable
from penstock.learning import checkpoints
from penstock.learning.batches import BatchFeed
from penstock.learning.checkpoints import RunProgress
from penstock.learning.evaluations import Evaluations
from penstock.learning.journal import Journal
from penstock.learning.learner import Learner
from penstock.learning.statistics import RunStatistics
from penstock.learning.training import Conclusion, TrainingRun
from penstock.learning.versions import VersionMark
from penstock.run_folder import RunFolder
from penstock.types import (
    ActorReport,
    Batch,
    CommitOutcome,
    Drops,
    EvaluationResult,
    EvaluationTask,
    SamplingPlan,
    StoreCounts,
    Weights,
)

WINDOW_STEPS = 4 * 32


class InProcess:
    """Collects, plays evaluations and keeps weights where the learner is: its source, its sink and its desk."""

    def __init__(self, answers_evaluations: bool = True, fresh_segments: int = 4) -> None:
        environments = make_environments("CartPole-v1", 4, kwargs={})
        self._collector = Collector(environments, assignment(*range(4)), unroll_length=32, discount=0.99)
        self._answers, self._fresh_segments = answers_evaluations, fresh_segments
        self.inserted = 0
        self.batches_when_asked: list[int] = []
        self.batches_when_answered: list[int] = []
        self._results: deque[EvaluationResult] = deque()
        self._weights: Weights | None = None
        self.batches = 0
        self.evaluations_asked = 0
        self.lost = False
        self.waiting_for = "fresh segments"
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
        return Batch(
            number=self._next - 1,
            fresh_segments=self._fresh_segments,
            keys=np.arange(4, dtype=np.uint64),
            versions=np.full(4, self._weights.version, np.int64),
            priorities=np.zeros(4),
            probabilities=np.ones(4),
            counts=StoreCounts(capacity=1000, inserted=self.inserted),
            columns=self._collector.collect(PolicyRunner(self._weights)).columns,
        )

    def commit(self, batch: Batch, priorities: NDArray[np.float64], version: int) -> Future[CommitOutcome]:
        if self.lost:
            raise Unavailable("the replay service is gone")
        answered: Future[CommitOutcome] = Future()
        answered.set_result(CommitOutcome(3, 1, False))
        return answered

    def publish(self, weights: Weights) -> None:
        self._weights = weights

    def ask(self, task: EvaluationTask) -> None:
        self.evaluations_asked += 1
        self.batches_when_asked.append(self.batches)
        if self._answers:
            self._results.append(EvaluationResult(task.id, task.weights.version, (9.0, 11.0), (9, 11), 0.1))

    def result(self, timeout_s: float) -> EvaluationResult | None:
        if not self._results or timeout_s == 0.0:
            return None
        self.batches_when_answered.append(self.batches)
        return self._results.popleft()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


def config_of(total_steps: int, evaluation: dict[str, object], **sampling: object) -> Config:
    return build(
        {
            "run": {"total_steps": total_steps},
            "actor": {"environments": 4},
            "sampling": {"batch_segments": 4, "fresh_fraction": 1.0, **sampling},
            "evaluation": evaluation,
            "policy": {"normalise_observations": False, "normalise_returns": False},
        }
    )


def conclude(
    folder: RunFolder,
    outside: InProcess,
    stopping: Callable[[], bool],
    *,
    batches: int = 3,
    evaluation: dict[str, object] | None = None,
    earlier: RunProgress | None = None,
    **sampling: object,
) -> tuple[Conclusion, Learner]:
    config = config_of(batches * WINDOW_STEPS - 60, evaluation or {}, **sampling)
    learner, resumed = make_learner("CartPole-v1"), earlier or RunProgress()
    assert learner.policy.spec == spec_of("CartPole-v1")
    statistics = RunStatistics(total_steps=config.run.total_steps, earlier_s=0.0)
    journal = Journal(folder.metrics, resumed_at=0)
    evaluations = Evaluations(
        outside, config.evaluation, seed=0, folder=folder, journal=journal, statistics=statistics, resumed=resumed
    )
    run = TrainingRun(
        config,
        learner,
        feed=BatchFeed(CPU),
        source=outside,
        sink=outside,
        evaluations=evaluations,
        journal=journal,
        statistics=statistics,
        versions=VersionMark(folder.versions),
        folder=folder,
        resumed=resumed,
        stopping=stopping,
    )
    try:
        return run.run(), learner
    finally:
        journal.close()


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


def test_of_policies_that_evaluated_alike_the_one_that_learnt_longest_is_kept_as_the_best(folder: RunFolder) -> None:
    outside = InProcess()
    conclusion, _ = conclude(folder, outside, lambda: False, evaluation={"interval_steps": 100, "mode": "synchronous"})
    assert outside.evaluations_asked > 2
    assert checkpoints.read_progress(folder.best_checkpoint).version == conclusion.progress.version


def test_the_journal_holds_the_last_batch_and_no_version_twice(folder: RunFolder) -> None:
    conclusion, _ = conclude(folder, InProcess(), lambda: False)
    lines = [line for line in folder.metrics.read_text().splitlines() if '"kind": "training"' in line]
    versions = [int(line.partition('"version": ')[2].partition(",")[0]) for line in lines]
    assert versions == sorted(set(versions))
    assert versions[-1] == conclusion.progress.version


def test_a_run_of_a_moment_has_a_curve_too(folder: RunFolder) -> None:
    conclusion, _ = conclude(folder, InProcess(), lambda: False, batches=20)
    records = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    versions = [record["version"] for record in records if record["kind"] == "training"]
    assert versions == list(range(1, conclusion.progress.version + 1))


def test_every_record_of_the_journal_has_lag_staleness_and_the_times_since_the_one_before(folder: RunFolder) -> None:
    conclude(folder, InProcess(), lambda: False)
    records = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    records = [record for record in records if record["kind"] == "training"]
    assert records
    for record in records:
        assert (record["fresh_lag_mean"], record["fresh_lag_max"]) == (0.0, 0)
        assert (record["staleness_mean"], record["off_policy_degree"], record["late_segments"]) == (0.0, 1, 0)
        assert record["batch_train_s"] > 0.0 and record["batch_wait_s"] > 0.0
        # Nobody reported here.
        assert record["collect_environment_s"] is None


def test_metrics_tell_how_old_segments_are_and_may_be_and_when_weights_were_published(folder: RunFolder) -> None:
    before = time.time()
    conclude(folder, InProcess(), lambda: False, batches=2, max_staleness=3, off_policy_degree=4, publish_interval=2)
    # The second of two batches is of the policy that acted in the first.
    assert REGISTRY.get_sample_value("penstock_learner_oldest_versions") == 1
    assert REGISTRY.get_sample_value("penstock_learner_staleness_bound_versions") == 5
    assert before <= (REGISTRY.get_sample_value("penstock_learner_published_time_seconds") or 0.0) <= time.time()
    conclude(folder, InProcess(), lambda: False, max_staleness=7)
    assert REGISTRY.get_sample_value("penstock_learner_staleness_bound_versions") == 7


def test_a_run_concludes_with_what_its_batches_waits_and_commits_were(folder: RunFolder) -> None:
    outside = InProcess()
    conclusion, _ = conclude(folder, outside, lambda: False)
    statistics = conclusion.statistics
    assert statistics is not None
    assert (statistics.mode, statistics.off_policy_degree) == ("asynchronous", 1)
    assert statistics.batches_trained == outside.batches
    assert statistics.segments_trained == 4 * outside.batches
    assert statistics.drops == Drops(overwritten_priorities=outside.batches)
    # Everything is collected while the learner waits.
    (wait,) = statistics.waits
    assert wait.reason == "fresh segments" and 0.0 < wait.share < 1.0
    assert statistics.times.batch_wait_s == pytest.approx(wait.seconds / outside.batches)
    assert (statistics.evaluations, statistics.times.evaluation_s) == (1, 0.1)


def test_a_run_that_is_stopped_in_its_last_evaluation_counts_as_interrupted(folder: RunFolder) -> None:
    outside = InProcess(answers_evaluations=False)
    conclusion, _ = conclude(folder, outside, lambda: outside.evaluations_asked > 0)
    assert conclusion.stopped == "interrupted"
    assert conclusion.evaluation is None
    assert saved_version(folder) == conclusion.progress.version


def test_a_replay_service_that_is_stopped_with_the_learner_costs_no_checkpoint(folder: RunFolder) -> None:
    outside = InProcess()

    def stopping() -> bool:
        outside.lost = outside.batches == 2
        return outside.lost

    outside.lost = False
    conclusion, _ = conclude(folder, outside, stopping, batches=9)
    assert conclusion.stopped == "interrupted"
    assert conclusion.progress.version == 2 == saved_version(folder)


def test_a_commit_that_fails_while_nobody_stops_ends_the_run_after_a_checkpoint(folder: RunFolder) -> None:
    outside = InProcess()
    outside.lost = True
    with pytest.raises(Unavailable, match="is gone"):
        conclude(folder, outside, lambda: False)
    assert saved_version(folder) == 1


def test_a_learner_that_waits_lets_collection_run_further_ahead_if_it_may(folder: RunFolder) -> None:
    outside = InProcess()
    # Everything is collected while the learner waits.
    conclude(folder, outside, lambda: False, batches=70, off_policy_degree=-1)
    degrees = [plan.off_policy_degree for plan in outside.plans]
    assert degrees[:2] == [1, 2]
    assert len({plan.session for plan in outside.plans}) == 1


def test_a_degree_that_was_chosen_by_hand_stays(folder: RunFolder) -> None:
    fixed = InProcess()
    conclude(folder, fixed, lambda: False, batches=40)
    assert [plan.off_policy_degree for plan in fixed.plans] == [1]


EVERY_TWO_BATCHES: dict[str, object] = {"interval_steps": 2 * WINDOW_STEPS - 60}


def test_training_waits_for_a_synchronous_evaluation(folder: RunFolder) -> None:
    outside = InProcess()
    conclude(folder, outside, lambda: False, batches=8, evaluation={"mode": "synchronous", **EVERY_TWO_BATCHES})
    during = [batches for batches in outside.batches_when_asked if batches < outside.batches]
    assert len(during) >= 3
    assert outside.batches_when_answered[: len(during)] == during


def test_time_spent_waiting_for_an_evaluation_is_no_training_time() -> None:
    statistics = RunStatistics(total_steps=1000, earlier_s=5.0)
    statistics.report(ActorReport(0, time.time(), (), environment_s=0.0, policy_s=0.0, waiting_s=0.0, building_s=0.0))
    time.sleep(0.3)
    begun, before = time.time(), statistics.training_s
    assert before >= 5.3
    statistics.stood_still(0.2)
    after, meanwhile_s = statistics.training_s, time.time() - begun
    assert before - 0.2 <= after + 1e-6 and after <= before - 0.2 + meanwhile_s + 1e-6


def test_training_goes_on_during_an_asynchronous_evaluation(folder: RunFolder) -> None:
    outside = InProcess()
    conclude(folder, outside, lambda: False, batches=8, evaluation=EVERY_TWO_BATCHES)
    assert outside.batches_when_asked[0] < outside.batches_when_answered[0] == outside.batches


def test_an_evaluation_that_never_comes_holds_training_no_longer_than_it_may(folder: RunFolder) -> None:
    outside = InProcess(answers_evaluations=False)
    evaluation = {"mode": "synchronous", "timeout_s": 0.2, **EVERY_TWO_BATCHES}
    conclusion, _ = conclude(folder, outside, lambda: False, batches=8, evaluation=evaluation)
    assert conclusion.stopped == "total_steps"
    assert conclusion.evaluation is None


def test_a_resumed_run_is_as_fast_as_its_own_gradient_steps(folder: RunFolder) -> None:
    conclude(folder, InProcess(), lambda: False, batches=3, earlier=RunProgress(updates=10**12))
    records = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    rates = [record["updates_per_s"] for record in records if record["kind"] == "training"]
    assert rates and max(rates) < 1e6


def test_where_nothing_is_fresh_steps_are_counted_when_they_are_stored(folder: RunFolder) -> None:
    outside = InProcess(fresh_segments=0)
    conclusion, _ = conclude(folder, outside, lambda: False, batches=5, fresh_fraction=0.0)
    assert outside.batches == 5
    assert conclusion.progress.env_steps == 5 * WINDOW_STEPS
    assert conclusion.samples_per_insert == 1.0
