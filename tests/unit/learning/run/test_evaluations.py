"""Choice of the best checkpoint despite kills, damage and delays, and evaluations that never end."""

import dataclasses
import errno
import os
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import build
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.durable.journal import Journal
from penstock.learning.durable.records import Records
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.evaluations import Evaluations
from penstock.learning.run.session import Session as RunSession
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.extents import Amounts, Extent
from penstock.types.run import ActorReport, Episode
from penstock.types.statistics import Timing
from tests.support.training.training import make_learner

EPISODES = 2


class FakeEvaluator:
    """An evaluator that returns the results queued by the test, and answers at once while `answers` has returns."""

    def __init__(self) -> None:
        self.tasks: list[EvaluationTask] = []
        self.results: deque[EvaluationResult] = deque()
        self.answers: list[float] = []

    def ask(self, task: EvaluationTask) -> None:
        self.tasks.append(task)
        if self.answers:
            value = self.answers.pop(0)
            self.results.append(EvaluationResult(task.id, task.weights.version, (value, value), (1, 1), 0.1))

    def result(self, timeout_s: float) -> EvaluationResult | None:
        return self.results.popleft() if self.results else None


class Session:
    """The evaluations of one learner process. Tests replace it by another session to simulate a kill."""

    def __init__(self, folder: RunFolder, evaluator: FakeEvaluator | None = None, **settings: object) -> None:
        self.evaluator = evaluator or FakeEvaluator()
        self.now = 1000.0
        self.folder = folder
        self.recovered = checkpoints.recover(folder)
        self.statistics = RunStatistics(limits=Amounts(steps=10**6), earlier_s=0.0, clock=lambda: self.now)
        writes = RetriedWrites(self.statistics.notice, lambda: self.now)
        evaluation = {"episodes": EPISODES, "timeout_s": 100.0, "threshold": 475.0, **settings}
        config = build({"run": {"seed": 7}, "evaluation": evaluation})
        self.evaluations = Evaluations(
            self.evaluator,
            RunSession(config, folder, self.recovered, self.statistics, writes),
            Records([Journal(folder.metrics, writes=writes, notice=self.statistics.notice)], resumed_at=10**9),
            clock=lambda: self.now,
        )

    def ask(self, learner: Learner, version: int) -> EvaluationTask:
        progress = RunProgress(version=version, env_steps=1000 * version)
        self.evaluations.ask(checkpoints.take(learner, progress))
        return self.evaluator.tasks[-1]

    def answer(self, learner: Learner, version: int, value: float, **result: Any) -> None:
        """Answers an evaluation of this version with the returns `value` - 1 and `value` + 1."""
        task = self.ask(learner, version)
        answered = EvaluationResult(task.id, version, (value - 1.0, value + 1.0), (3, 5), 0.1)
        self.evaluator.results.append(dataclasses.replace(answered, **result))
        assert self.evaluations.collect()

    @property
    def notices(self) -> list[str]:
        return [notice.text for notice in self.statistics.status().notices]

    def save(self, learner: Learner, version: int) -> None:
        """Saves a numbered checkpoint, as the training run does."""
        progress = RunProgress(
            version=version,
            env_steps=1000 * version,
            best_return=self.evaluations.best_return,
            env_steps_to_threshold=self.evaluations.env_steps_to_threshold,
            learn_wall_s_to_threshold=self.evaluations.learn_wall_s_to_threshold,
        )
        checkpoints.save(self.folder, checkpoints.take(learner, progress), keep=3)


@pytest.fixture(scope="module")
def learner() -> Learner:
    return make_learner()


def best_version(folder: RunFolder) -> int:
    return checkpoints.read_progress(folder.best_checkpoint).version


def test_the_evaluation_with_the_highest_return_is_the_best(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder)
    for version, value in enumerate((100.0, 400.0, 200.0), start=1):
        session.answer(learner, version, value)
    assert (best_version(folder), session.evaluations.best_return) == (2, 400.0)
    status = session.statistics.status()
    assert status.best_evaluation is not None and status.last_evaluation is not None
    assert (status.best_evaluation.version, status.last_evaluation.version) == (2, 3)


def test_a_score_of_ones_own_chooses_the_best_also_after_a_kill(folder: RunFolder, learner: Learner) -> None:
    file = folder.root.parent / "own.py"
    file.write_text("def steadiest(evaluation):\n    return -evaluation.return_std\n")
    session = Session(folder, score=f"{file}:steadiest")
    session.answer(learner, 1, 100.0, returns=(100.0, 100.0))
    session.answer(learner, 2, 400.0)
    assert (best_version(folder), session.evaluations.best_return) == (1, 100.0)
    again = Session(folder, score=f"{file}:steadiest")
    again.answer(learner, 3, 500.0)
    assert best_version(folder) == 1
    again.answer(learner, 4, 50.0, returns=(50.0, 50.0))
    assert best_version(folder) == 4


def test_the_later_of_equal_evaluations_is_the_best_also_in_the_status(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder)
    for version in (1, 2):
        session.answer(learner, version, 500.0)
    status = session.statistics.status()
    assert status.best_evaluation is not None
    assert status.best_evaluation.version == best_version(folder) == 2


def test_a_kill_right_after_an_evaluation_never_makes_the_best_checkpoint_worse(
    folder: RunFolder, learner: Learner
) -> None:
    first = Session(folder)
    first.answer(learner, 10, 300.0)
    first.save(learner, 12)
    first.answer(learner, 20, 480.0)
    # The first learner is killed before its next numbered checkpoint.
    second = Session(folder)
    assert second.evaluations.best_return == 480.0
    second.answer(learner, 113, 310.0)
    assert best_version(folder) == 20
    third = Session(folder)
    third.answer(learner, 114, 480.5)
    assert best_version(folder) == 114


def test_a_kill_after_the_evaluation_that_reached_the_threshold_loses_no_record_of_it(
    folder: RunFolder, learner: Learner
) -> None:
    first = Session(folder)
    first.save(learner, 12)
    first.answer(learner, 20, 480.0)
    second = Session(folder)
    assert second.evaluations.env_steps_to_threshold == 20_000
    second.answer(learner, 30, 490.0)
    assert (second.evaluations.env_steps_to_threshold, second.evaluations.learn_wall_s_to_threshold) == (20_000, 0.0)


def test_the_threshold_in_the_best_checkpoint_counts_if_the_newest_lacks_it(
    folder: RunFolder, learner: Learner
) -> None:
    Session(folder).answer(learner, 20, 480.0)
    newer = RunProgress(version=30, env_steps=30_000)
    checkpoints.save(folder, checkpoints.take(learner, newer), keep=3)
    session = Session(folder)
    assert session.recovered.progress.version == 30
    assert session.evaluations.env_steps_to_threshold == 20_000


def test_the_first_evaluation_that_reaches_the_threshold_counts(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder)
    for version, value in ((1, 474.9), (2, 475.0), (3, 500.0)):
        session.answer(learner, version, value)
    assert session.evaluations.env_steps_to_threshold == 2_000


def test_the_status_of_a_resumed_run_shows_the_best_evaluation(folder: RunFolder, learner: Learner) -> None:
    first = Session(folder)
    first.answer(learner, 4, 200.0)
    assert Session(folder).statistics.status().best_evaluation == first.statistics.status().best_evaluation


def test_a_hundred_kills_never_make_the_best_worse_or_lose_the_threshold(folder: RunFolder, learner: Learner) -> None:
    random = np.random.default_rng(5)
    best, threshold, version = -np.inf, None, 0
    for _ in range(100):
        session = Session(folder)
        assert (session.evaluations.best_return or -np.inf) == best
        assert session.evaluations.env_steps_to_threshold == threshold
        for _ in range(int(random.integers(0, 4))):
            version, value = version + 1, float(random.integers(0, 500))
            if random.random() < 0.3:
                session.save(learner, version)
            else:
                session.answer(learner, version, value)
                best = max(best, value)
                threshold = 1000 * version if threshold is None and value >= 475.0 else threshold
    assert threshold is not None


def test_a_result_for_an_earlier_learner_is_ignored(folder: RunFolder, learner: Learner) -> None:
    dead = Session(folder)
    old = dead.ask(learner, 8)
    live = Session(folder)
    new = live.ask(learner, 109)
    assert old.id != new.id
    live.evaluator.results.append(EvaluationResult(old.id, 8, (499.0, 499.0), (1, 1), 0.1))
    assert not live.evaluations.collect()
    # A result of another version is ignored even if the ids are equal.
    live.evaluator.results.append(EvaluationResult(new.id, 8, (499.0, 499.0), (1, 1), 0.1))
    assert not live.evaluations.collect()
    assert not folder.best_checkpoint.exists()
    live.evaluator.results.append(EvaluationResult(new.id, 109, (1.0, 2.0), (1, 1), 0.1))
    assert live.evaluations.collect()
    assert best_version(folder) == 109


def test_a_repeated_run_evaluates_on_the_same_seeds(folder: RunFolder, learner: Learner, tmp_path: Path) -> None:
    other = RunFolder(tmp_path / "other")
    other.create()
    seeds = [[session.ask(learner, 1).seed, session.ask(learner, 2).seed] for session in map(Session, (folder, other))]
    assert seeds[0] == seeds[1]
    assert seeds[0][0] != seeds[0][1]


def conclude(session: Session, learner: Learner, version: int, *returns: float) -> tuple[int, float]:
    """Concludes a run at this version, and returns version and return of the final evaluation."""
    session.evaluator.answers = list(returns)
    snapshot = checkpoints.take(learner, RunProgress(version=version, env_steps=1000 * version))
    summary = session.evaluations.conclude(snapshot, lambda: False)
    assert summary is not None
    return summary.version, summary.return_mean


def test_the_final_evaluation_plays_the_best_checkpoint_on_separate_seeds(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder)
    session.answer(learner, 1, 400.0)
    assert conclude(session, learner, 2, 300.0, 390.0) == (1, 390.0)
    chosen, last, final = session.evaluator.tasks
    assert len({chosen.seed, last.seed, final.seed}) == 3
    # The evaluations of a learner that continues the run do not repeat the seed of the final one.
    other = Session(folder)
    assert final.seed not in [other.ask(learner, version).seed for version in range(1, 5)]


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_best_checkpoint_damaged_during_the_run_is_rewritten(
    folder: RunFolder, learner: Learner, damage: str
) -> None:
    session = Session(folder)
    session.answer(learner, 1, 400.0)
    data = folder.best_checkpoint.read_bytes()
    folder.best_checkpoint.write_bytes(data[:300] + bytes(1) + data[301:])
    if damage == "missing":
        folder.best_checkpoint.unlink()
    assert conclude(session, learner, 2, 300.0, 390.0) == (1, 390.0)
    assert folder.best_checkpoint.read_bytes() == data
    assert len(session.notices) == (damage == "flipped")


def test_a_best_checkpoint_not_yet_on_disk_is_evaluated_at_the_end(
    folder: RunFolder, learner: Learner, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(folder)
    session.answer(learner, 1, 400.0)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", refuse)
        session.answer(learner, 2, 450.0)
    assert best_version(folder) == 1
    session.now += 10.0
    assert conclude(session, learner, 3, 300.0, 440.0) == (2, 440.0)
    assert best_version(folder) == 2


def test_a_resumed_run_with_a_damaged_best_checkpoint_concludes_with_its_last_policy(
    folder: RunFolder, learner: Learner
) -> None:
    first = Session(folder)
    first.save(learner, 1)
    first.answer(learner, 1, 400.0)
    second = Session(folder)
    folder.best_checkpoint.write_bytes(b"damaged")
    assert conclude(second, learner, 2, 300.0, 290.0) == (2, 290.0)


def test_episodes_cut_by_the_step_limit_are_reported_and_count_with_their_returns(
    folder: RunFolder, learner: Learner
) -> None:
    session = Session(folder, max_episode_steps=50)
    session.answer(learner, 3, 100.0, steps=(3, 50), unfinished=1)
    assert session.evaluator.tasks[0].max_episode_steps == 50
    assert session.notices == [
        "evaluation of version 3: 1 of 2 episodes did not end within 50 steps (evaluation.max_episode_steps); their"
        " partial returns count"
    ]
    assert best_version(folder) == 3
    last = session.statistics.status().last_evaluation
    assert last is not None and last.unfinished == 1


def reported(session: Session, *steps: int, taken: int = 0) -> None:
    """Reports training episodes of these steps, and further steps that ended none."""
    episodes = tuple(Episode(1.0, each, environment=0, truncated=False) for each in steps)
    session.statistics.report(ActorReport(sum(steps) + taken, 1.0, episodes, Timing()))


@pytest.mark.parametrize(
    ("steps", "taken", "bound"),
    # In the second row, no episode has ended in 8,000 steps of 8 environments.
    [((300, 700, 500), 0, 7000), ((), 8000, 10_000), ((20,) * 100, 0, 1000), ((9000,), 0, 30_000)],
)
def test_the_first_evaluation_without_a_time_limit_chooses_the_bound_of_the_run(
    folder: RunFolder, learner: Learner, steps: tuple[int, ...], taken: int, bound: int
) -> None:
    session = Session(folder)
    reported(session, *steps, taken=taken)
    session.answer(learner, 3, 100.0)
    reported(session, 2000)
    session.answer(learner, 4, 100.0)
    assert [task.untimed_episode_steps for task in session.evaluator.tasks] == [bound, bound]
    resumed = Session(folder)
    reported(resumed, 5000)
    resumed.answer(learner, 5, 100.0)
    assert resumed.evaluator.tasks[-1].untimed_episode_steps == bound


@pytest.mark.parametrize(("reward", "later", "best"), [(-1, 5, 4), (1, 500, 3)])
def test_evaluations_without_a_time_limit_are_compared_at_one_bound(
    folder: RunFolder, learner: Learner, reward: int, later: int, best: int
) -> None:
    # Version 3 ends no episode, and version 4 ends one of two: better if steps cost, worse if they are rewarded.
    session = Session(folder)
    for version, longest, ended in ((3, 100, None), (4, 2000, later)):
        reported(session, longest)
        task = session.ask(learner, version)
        cut = task.untimed_episode_steps
        steps = (ended or cut, cut)
        returns = tuple(float(reward * each) for each in steps)
        unfinished = steps.count(cut)
        session.evaluator.results.append(EvaluationResult(task.id, version, returns, steps, 0.1, unfinished=unfinished))
        assert session.evaluations.collect()
    assert best_version(folder) == best


def test_a_set_bound_on_the_steps_of_episodes_is_kept_without_a_time_limit(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder, max_episode_steps=5000)
    session.answer(learner, 3, 100.0)
    assert session.evaluator.tasks[-1].untimed_episode_steps == 5000


def test_one_line_says_which_bound_has_cut_an_environment_without_a_time_limit(
    folder: RunFolder, learner: Learner
) -> None:
    session = Session(folder)
    for version in (3, 4):
        session.answer(learner, version, -1000.0, steps=(1000, 1000), unfinished=2)
    assert session.notices == [
        "evaluation of version 3: 2 of 2 episodes did not end within 1,000 steps (evaluation.max_episode_steps auto:"
        " the environment has no time limit, and the first training episodes were shorter); their partial returns count"
    ]


def test_episodes_cut_by_the_time_limit_are_reported_and_reach_neither_best_nor_threshold(
    folder: RunFolder, learner: Learner
) -> None:
    session = Session(folder, most_time_share=1.0)
    session.answer(learner, 3, 480.0, unfinished=2, out_of_time=True)
    assert session.evaluator.tasks[0].max_seconds == pytest.approx(90.0)
    assert "2 of 2 episodes did not end within 90 s (evaluation.timeout_s)" in session.notices[0]
    assert not folder.best_checkpoint.exists()
    assert session.evaluations.env_steps_to_threshold is None
    last = session.statistics.status().last_evaluation
    assert last is not None and last.return_mean == 480.0


@pytest.mark.parametrize(
    ("share", "trained_s", "most_s"), [(0.5, 10.0, 60.0), (0.5, 80.0, 80.0), (0.25, 300.0, 90.0), (1.0, 10.0, 90.0)]
)
def test_an_evaluation_may_be_played_for_its_share_of_the_time_but_at_least_a_minute(
    folder: RunFolder, learner: Learner, share: float, trained_s: float, most_s: float
) -> None:
    session = Session(folder, most_time_share=share)
    session.statistics.report(ActorReport(1, 1.0, (), Timing()))
    session.now += trained_s
    session.answer(learner, 3, 1.0, unfinished=2, out_of_time=True)
    assert session.evaluator.tasks[0].max_seconds == pytest.approx(most_s)
    assert ("evaluation.most_time_share" in session.notices[0]) == (most_s < 90.0)


@pytest.mark.parametrize(("mode", "wait_s"), [("asynchronous", 60.0), ("synchronous", 0.0)])
def test_a_due_evaluation_waits_until_training_has_had_its_share_of_the_time(
    folder: RunFolder, learner: Learner, mode: str, wait_s: float
) -> None:
    session = Session(folder, interval_steps=1000, most_time_share=0.25, mode=mode)
    session.answer(learner, 1, 0.0, seconds=20.0)
    assert session.evaluations.is_due(Extent(2_000)) == (not wait_s)
    assert len(session.notices) == bool(wait_s)
    session.now += 60.0
    assert session.evaluations.is_due(Extent(2_000))
    assert all("took 20.0 s, so the next one, which is due, starts in 60.0 s" in text for text in session.notices)


def test_a_short_delay_of_an_evaluation_is_not_noted(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder, interval_steps=1000)
    session.answer(learner, 1, 0.0, seconds=0.9)
    assert not session.evaluations.is_due(Extent(2_000))
    assert not session.notices


def test_a_failed_evaluation_is_reported_and_the_next_one_is_requested(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder, interval_steps=1000)
    session.answer(learner, 1, 0.0, returns=(), steps=(), failure="RuntimeError: simulator lost")
    assert session.notices == ["the evaluation of version 1 failed: RuntimeError: simulator lost"]
    session.now += 0.1
    assert session.evaluations.is_due(Extent(2_000))
    assert session.statistics.status().last_evaluation is None


def test_an_unanswered_evaluation_is_abandoned_and_reported(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder, interval_steps=1000)
    late = session.ask(learner, 1)
    session.now += 99.0
    assert not session.evaluations.collect()
    assert not session.evaluations.is_due(Extent(10_000))
    session.now += 1.0
    assert session.evaluations.collect()
    assert session.evaluations.is_due(Extent(10_000))
    assert "the evaluation of version 1 was not answered within 100 s (evaluation.timeout_s)" in session.notices[0]
    # A late result is ignored, because another evaluation is pending.
    session.ask(learner, 2)
    session.evaluator.results.append(EvaluationResult(late.id, 1, (499.0, 499.0), (1, 1), 0.1))
    assert not session.evaluations.collect()
    assert not folder.best_checkpoint.exists()


def test_repeated_failures_are_reported_once_per_minute(folder: RunFolder, learner: Learner) -> None:
    session = Session(folder)
    for version in range(1, 131):
        session.answer(learner, version, 0.0, returns=(), steps=(), failure="RuntimeError: simulator lost")
        session.now += 1.0
    assert len(session.notices) == 3


def test_the_status_shows_the_awaited_evaluation_and_its_remaining_time(folder: RunFolder, learner: Learner) -> None:
    session, seen = Session(folder), list[str]()

    def stopping() -> bool:
        session.now += 10.0
        seen.append(session.statistics.status().waiting_for)
        return False

    snapshot = checkpoints.take(learner, RunProgress(version=2, env_steps=2000))
    assert session.evaluations.conclude(snapshot, stopping) is None
    assert seen[2:4] == [f"the last evaluation, at most {left} s more" for left in (90, 80)]
    assert seen[-1] == "the last evaluation, at most 10 s more"
