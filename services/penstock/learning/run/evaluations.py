"""Schedule and results of evaluations, and the choice of the best checkpoint."""

import dataclasses
import math
import operator
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from penstock.errors import ConfigurationError
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import Snapshot
from penstock.learning.durable.records import Record, Records
from penstock.learning.members.population import Population
from penstock.learning.protocols import EvaluationDesk
from penstock.learning.run.own_score import OwnScore
from penstock.learning.run.session import Session
from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluationResult, EvaluationSummary, EvaluationTask
from penstock.types.extents import Extent, Recurrence
from penstock.types.run import Weights

_STREAM, _FINAL_STREAM = 0xE7A1, 0xE7A2
"""Seed streams that separate evaluations from other uses of the run's seed, and the final evaluation from earlier ones.
"""

_PLAYED_SHARE = 0.9
"""Share of an evaluation's timeout within which it must be played, so that its result arrives in time."""

_LEAST_PLAYED_S = 60.0
"""Seconds that an evaluation may take in any run: a short run has hardly trained before its evaluations."""

_UNTIMED_EPISODES, _LEAST_UNTIMED_STEPS = 10, 1000
"""Longest of the training episodes before the first evaluation, as a multiple, and steps, that evaluations play in an
environment without a time limit. A good policy may need longer than the one in training, and one that never ends must
not delay the run."""

_POLL_S = 0.1
_NOTED_DELAY_S = 1.0
"""Seconds of training that a due evaluation waits for, above which it is noted."""

_NOTICE_INTERVAL_S = 60.0
"""Seconds between notices of one kind, so that an environment that always fails does not hide other events."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Outstanding task and the policy that it evaluates. It is abandoned at `deadline`, in monotonic seconds."""

    task: EvaluationTask
    snapshot: Snapshot
    training_s: float
    deadline: float


class Evaluations:
    """Evaluations during training, of one policy at a time. Used by the training thread.

    Attributes:
        best: Evaluation of the best checkpoint; None before the first.
        env_steps_to_threshold: Environment steps when an evaluation first reached the threshold; None: not yet.
        learn_wall_s_to_threshold: Seconds from the first environment step to the same point.
        untimed_episode_steps: Bound that the first evaluation chose for episodes without a time limit; 0 before it.
    """

    def __init__(
        self,
        desk: EvaluationDesk,
        session: Session,
        records: Records,
        population: Population | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Continues the evaluations of earlier sessions. `population` has variants that may change; None: none."""
        config, resumed = session.config, session.recovered.progress
        self._desk, self._records, self._clock = desk, records, clock
        self._environments = config.actor.environments
        self._config, self._seed, self._population = config.evaluation, config.run.seed, population
        self._configured = range(len(config.environment.variants))
        score = config.evaluation.score
        keys = config.environment.info_metrics
        self._score: Callable[[EvaluationSummary], float] = (
            operator.attrgetter("return_mean") if score is None else OwnScore(score, len(self._configured), keys)
        )
        # The variants of the best evaluation; None before the first of this session.
        self._best_of: Sequence[int] | None = None
        self._folder, self._statistics, self._writes = session.folder, session.statistics, session.writes
        if score is not None:
            self._statistics.notice(f"evaluation.score {score} chooses the best checkpoint")
        self._asked: _Asked | None = None
        # An evaluator may outlive a learner and answer the next one, so task numbers must differ between learners.
        self._session = secrets.randbits(31) << 32
        self._number = resumed.version + 1
        self._due = Recurrence(config.evaluation.intervals, resumed.extent)
        # Training per second of evaluations, and when it has taken as long as the last evaluation demands.
        share = config.evaluation.most_time_share
        self._training_per_evaluation = (1.0 - share) / share
        self._played_s, self._free_at = 0.0, -math.inf
        self._latest_version = -1
        self._answered = True
        self._noticed_at: dict[str, float] = {}
        self._best_snapshot: Snapshot | None = None
        self.best = session.recovered.best
        self.env_steps_to_threshold = resumed.env_steps_to_threshold
        self.learn_wall_s_to_threshold = resumed.learn_wall_s_to_threshold
        self.untimed_episode_steps = resumed.untimed_episode_steps
        self._statistics.best_evaluation = self.best

    @property
    def best_return(self) -> float | None:
        """Mean return of the best checkpoint; None before the first evaluation."""
        return self.best.return_mean if self.best is not None else None

    def is_due(self, now: Extent) -> bool:
        """Returns whether the next evaluation is due, none is outstanding, and training has had its share of time."""
        if self._asked is not None or not self._due.is_due(now):
            return False
        if self._config.mode == "synchronous" or self._clock() >= self._free_at:
            return True
        self._note_delay()
        return False

    def restart_interval(self, now: Extent) -> None:
        """Makes the next evaluation due one interval after `now`."""
        self._due.restart(now)

    def ask(self, snapshot: Snapshot) -> None:
        """Sends a policy for evaluation."""
        self.restart_interval(snapshot.progress.extent)
        self._asked = self._send(snapshot, _STREAM)

    def collect(self, timeout_s: float = 0.0) -> bool:
        """Processes the outstanding evaluation's result, or abandons a late one. Returns whether none is left."""
        if self._asked is None:
            return True
        result = self._answer_to(self._asked, timeout_s)
        if result is None and self._clock() < self._asked.deadline:
            return False
        asked, self._asked = self._asked, None
        self._answered = result is not None
        if result is not None:
            self._played_s = result.seconds
            self._free_at = self._clock() + self._training_per_evaluation * result.seconds
        if result is not None and not result.failure:
            self._judge(asked, result)
        return True

    def wait(self, stopping: Callable[[], bool]) -> None:
        """Waits for the outstanding evaluation, if any, until it is abandoned or the run is being stopped."""
        self._await("an evaluation", stopping)

    def conclude(self, snapshot: Snapshot, stopping: Callable[[], bool]) -> EvaluationSummary | None:
        """Evaluates the last policy, and then the best one on episodes that were not used to choose it.

        Returns None if the latter failed, if no evaluator answered in time, or if the run is being stopped.
        """
        if not self._await("the running evaluation", stopping):
            return None
        if self._latest_version != snapshot.progress.version:
            self.ask(snapshot)
            if not self._await("the last evaluation", stopping):
                return None
        asked = self._send(self._best_or(snapshot), _FINAL_STREAM)
        while not stopping():
            result = self._answer_to(asked, _POLL_S)
            if result is not None and result.failure:
                return None
            if result is not None:
                summary = self._summarise(result, asked)
                self._records.write(Record.of_evaluation(summary, self._statistics.training_s, final=True))
                return summary
            if self._clock() >= asked.deadline:
                return None
            self._show_wait("the evaluation of the best checkpoint", asked)
        return None

    def _await(self, what: str, stopping: Callable[[], bool]) -> bool:
        """Waits for the outstanding evaluation. Returns False if it was not answered or the run is being stopped."""
        self._answered = True
        while not stopping():
            if self.collect(_POLL_S):
                return self._answered
            if self._asked is not None:
                self._show_wait(what, self._asked)
        return False

    def _show_wait(self, what: str, asked: _Asked) -> None:
        self._statistics.waits(f"{what}, at most {max(1.0, asked.deadline - self._clock()):.0f} s more")

    def _send(self, snapshot: Snapshot, stream: int) -> _Asked:
        number, self._number = self._number, self._number + 1
        seed = np.random.SeedSequence([self._seed & 0xFFFFFFFF, self._seed >> 32, stream, number])
        timeout_s = self._config.timeout_s
        played = () if self._population is None else self._population.played
        task = EvaluationTask(
            id=self._session | number & 0xFFFFFFFF,
            weights=Weights.of(snapshot.progress.version, snapshot.data),
            # At least one episode of each variant.
            episodes=max(self._config.episodes, len(played)),
            deterministic=self._config.deterministic,
            seed=int(seed.generate_state(1, np.uint64)[0]),
            variants=len(played) or max(1, len(self._configured)),
            max_episode_steps=self._config.most_episode_steps,
            untimed_episode_steps=self._untimed_steps(),
            max_seconds=min(_PLAYED_SHARE * timeout_s, self._most_seconds()),
            played=played,
        )
        self._desk.ask(task)
        return _Asked(task, snapshot, self._statistics.training_s, self._clock() + timeout_s)

    def _most_seconds(self) -> float:
        """Returns the seconds of an evaluation that leave the training until now its share of the run's time."""
        if not self._training_per_evaluation:
            return math.inf
        return max(_LEAST_PLAYED_S, self._statistics.training_s / self._training_per_evaluation)

    def _untimed_steps(self) -> int:
        """Returns the bound on the steps of an episode in an environment without a time limit.

        A run keeps its first bound, because returns that are cut at different bounds can't be compared.
        """
        most = self._config.most_episode_steps
        if self._config.max_episode_steps != "auto":
            return most
        if not self.untimed_episode_steps:
            # Until an episode has ended, no environment has taken more steps in its first one than this.
            longest = self._statistics.session.longest_episode or self._statistics.env_steps_taken // self._environments
            self.untimed_episode_steps = min(most, max(_LEAST_UNTIMED_STEPS, _UNTIMED_EPISODES * longest))
        return self.untimed_episode_steps

    def _answer_to(self, asked: _Asked, timeout_s: float) -> EvaluationResult | None:
        """Returns the task's result; None if there is none. Notifies the user if it is late, failed or unfinished."""
        result, task = self._desk.result(timeout_s), asked.task
        version = task.weights.version
        if result is None or (result.id, result.version) != (task.id, version):
            if self._clock() >= asked.deadline:
                self._note_cut(
                    "unanswered",
                    f"the evaluation of version {version} was not answered within {self._config.timeout_s:g} s"
                    " (evaluation.timeout_s); check that an evaluator is running",
                )
            return None
        if result.failure:
            self._note_cut("error", f"the evaluation of version {version} failed: {result.failure}")
        elif result.unfinished:
            reason = "seconds" if result.out_of_time else "steps"
            steps = max(result.steps)
            setting = "timeout_s" if task.max_seconds >= _PLAYED_SHARE * self._config.timeout_s else "most_time_share"
            bound = (
                f"{task.max_seconds:.0f} s (evaluation.{setting}); it can't become the best evaluation"
                if result.out_of_time
                else f"{steps:,} steps ({_bound_of(task, steps)}); their partial returns count"
            )
            unfinished = f"{result.unfinished} of {task.episodes} episodes did not end within {bound}"
            self._note_cut(reason, f"evaluation of version {version}: {unfinished}")
        return result

    def _note_delay(self) -> None:
        delay_s = self._free_at - self._clock()
        if delay_s > _NOTED_DELAY_S:
            self._note(
                "delayed",
                f"the last evaluation took {self._played_s:.1f} s, so the next one, which is due, starts in"
                f" {delay_s:.1f} s (evaluation.most_time_share)",
            )

    def _note_cut(self, reason: str, text: str) -> None:
        metrics.EVALUATIONS_CUT.labels(reason).inc()
        self._note(reason, text)

    def _note(self, reason: str, text: str) -> None:
        now = self._clock()
        if now - self._noticed_at.get(reason, -_NOTICE_INTERVAL_S) >= _NOTICE_INTERVAL_S:
            self._noticed_at[reason] = now
            self._statistics.notice(text)

    def _judge(self, asked: _Asked, result: EvaluationResult) -> None:
        """Applies a result. Writes the best checkpoint before reporting it, so that a reported result is on disk."""
        summary = self._summarise(result, asked)
        self._latest_version = summary.version
        # A return cut by the time limit depends on the evaluator's speed.
        if not result.out_of_time:
            threshold = self._config.threshold
            if self.env_steps_to_threshold is None and threshold is not None and summary.return_mean >= threshold:
                self.env_steps_to_threshold, self.learn_wall_s_to_threshold = summary.env_steps, asked.training_s
            # On a tie the later policy wins, because it has trained longer. Returns in other variants don't compare.
            variants = self._variants_of(asked.task)
            others = self._best_of not in (None, variants)
            if self.best is None or others or self._score(summary) >= self._score(self.best):
                self._crown(asked.snapshot, summary)
            self._best_of = variants
        self._statistics.evaluated(summary, result.seconds)
        self._records.write(Record.of_evaluation(summary, asked.training_s, final=False))

    def _crown(self, snapshot: Snapshot, summary: EvaluationSummary) -> None:
        """Makes this snapshot the best checkpoint."""
        progress = dataclasses.replace(
            snapshot.progress,
            best_return=summary.return_mean,
            env_steps_to_threshold=self.env_steps_to_threshold,
            learn_wall_s_to_threshold=self.learn_wall_s_to_threshold,
            untimed_episode_steps=self.untimed_episode_steps,
        )
        self.best, self._best_snapshot = summary, checkpoints.judged(snapshot, progress, summary)
        self._save_best(self._best_snapshot)
        self._statistics.best_evaluation = summary

    def _save_best(self, snapshot: Snapshot) -> None:
        self._writes.write("best.safetensors", partial(checkpoints.save_best, self._folder, snapshot))

    def _best_or(self, last: Snapshot) -> Snapshot:
        """Returns the best checkpoint, or the last policy if there is none. Repairs the file of the best checkpoint."""
        path, ours = self._folder.best_checkpoint, self._best_snapshot
        try:
            found = checkpoints.read_snapshot(path)
            if ours is None or found.data == ours.data:
                return found
        except ConfigurationError as error:
            if path.exists():
                instead = "it is rewritten" if ours else "the last policy is evaluated instead"
                self._statistics.notice(f"{error}; {instead}")
        if ours is None:
            return last
        self._save_best(ours)
        return ours

    def _variants_of(self, task: EvaluationTask) -> Sequence[int]:
        return self._configured if self._population is None else [each.number for each in task.played]

    def _summarise(self, result: EvaluationResult, asked: _Asked) -> EvaluationSummary:
        return EvaluationSummary(
            version=result.version,
            env_steps=asked.snapshot.progress.env_steps,
            episodes=len(result.returns),
            return_mean=result.return_mean,
            return_std=result.return_std,
            variants=result.by_variant(self._variants_of(asked.task)),
            unfinished=result.unfinished,
            info_metrics=result.info_metrics,
        )


def _bound_of(task: EvaluationTask, steps: int) -> str:
    """Returns the setting that cut an evaluation after this number of steps, with its reason."""
    if steps >= task.max_episode_steps:
        return "evaluation.max_episode_steps"
    return (
        "evaluation.max_episode_steps auto: the environment has no time limit, and the first training episodes were"
        " shorter"
    )
