"""When to evaluate, what became of it, and which checkpoint is the best."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from penstock.config import EvaluationConfig
from penstock.learning import checkpoints
from penstock.learning.checkpoints import Snapshot
from penstock.learning.journal import Journal
from penstock.learning.protocols import EvaluationDesk
from penstock.learning.statistics import RunStatistics
from penstock.run_folder import RunFolder
from penstock.types import EvaluationResult, EvaluationSummary, EvaluationTask, Weights

_STREAM = 0xE7A1
"""Keeps evaluation seeds apart from any other use of the run's seed."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A task that is out, with the policy it is about as it was then."""

    task: EvaluationTask
    snapshot: Snapshot
    training_s: float


class Evaluations:
    """Evaluates beside the training, one policy at a time. Used by the training thread."""

    def __init__(
        self,
        desk: EvaluationDesk,
        config: EvaluationConfig,
        *,
        seed: int,
        folder: RunFolder,
        journal: Journal,
        statistics: RunStatistics,
        resumed: checkpoints.RunProgress,
        variants: int = 0,
    ) -> None:
        """Args:
        desk: Where evaluations are done.
        config: When to evaluate, and how.
        seed: The run's.
        folder: Of the run, for the best checkpoint.
        journal: For results.
        statistics: For results too.
        resumed: Where the run stands.
        variants: Environment variants over which the episodes are spread; 0: the run has none.
        """
        self._desk, self._config, self._seed, self._variants = desk, config, seed, variants
        self._folder, self._journal, self._statistics = folder, journal, statistics
        self._asked: _Asked | None = None
        self._next_id = resumed.version + 1
        self._due_at = resumed.env_steps + config.interval_steps
        self._latest_version = -1
        self.best_return = resumed.best_return
        self.latest_return: float | None = None
        self.env_steps_to_threshold = resumed.env_steps_to_threshold
        self.learn_wall_s_to_threshold = resumed.learn_wall_s_to_threshold

    def is_due(self, env_steps: int) -> bool:
        """Whether it is time for the next evaluation, and none is out."""
        return self._asked is None and env_steps >= self._due_at

    def ask(self, snapshot: Snapshot) -> None:
        """Sends a policy to be evaluated."""
        self._due_at = snapshot.progress.env_steps + self._config.interval_steps
        self._asked = _Asked(self._task(snapshot), snapshot, self._statistics.training_s)
        self._desk.ask(self._asked.task)

    def collect(self, timeout_s: float = 0.0) -> bool:
        """Takes in a result, if one is there; True if so."""
        result = self._desk.result(timeout_s)
        if result is None or self._asked is None or result.id != self._asked.task.id:
            return False
        asked, self._asked = self._asked, None
        summary = self._summarise(result, asked.snapshot.progress.env_steps)
        self._latest_version, self.latest_return = summary.version, summary.return_mean
        self._statistics.evaluated(summary, result.seconds)
        self._journal.evaluation(summary, asked.training_s, final=False)
        threshold = self._config.threshold
        if self.env_steps_to_threshold is None and threshold is not None and summary.return_mean >= threshold:
            self.env_steps_to_threshold = summary.env_steps
            self.learn_wall_s_to_threshold = asked.training_s
        # Of equals the later one, which has learnt longer.
        if self.best_return is None or summary.return_mean >= self.best_return:
            self.best_return = summary.return_mean
            checkpoints.save_best(self._folder, asked.snapshot)
        return True

    def wait(self, stopping: Callable[[], bool]) -> bool:
        """Waits for the evaluation that is out; False if it took too long or the run is being stopped."""
        return self._await(time.monotonic() + self._config.timeout_s, stopping)

    def conclude(self, snapshot: Snapshot, stopping: Callable[[], bool]) -> EvaluationSummary | None:
        """Evaluates the last policy, and then the best one on episodes that played no part in choosing it.

        Returns:
            The evaluation of the best checkpoint; None if no evaluator answered in time or the run is being stopped.
        """
        deadline = time.monotonic() + self._config.timeout_s
        if self._asked is not None and not self._await(deadline, stopping):
            return None
        if self._latest_version != snapshot.progress.version:
            self.ask(snapshot)
            if not self._await(deadline, stopping):
                return None
        path = self._folder.best_checkpoint
        progress = checkpoints.read_progress(path)
        task = self._task(Snapshot(progress, path.read_bytes()))
        self._desk.ask(task)
        while time.monotonic() < deadline and not stopping():
            result = self._desk.result(0.1)
            if result is not None and result.id == task.id:
                summary = self._summarise(result, progress.env_steps)
                self._journal.evaluation(summary, self._statistics.training_s, final=True)
                return summary
        return None

    def _await(self, deadline: float, stopping: Callable[[], bool]) -> bool:
        while time.monotonic() < deadline and not stopping():
            if self.collect(0.1):
                return True
        return False

    def _task(self, snapshot: Snapshot) -> EvaluationTask:
        identity, self._next_id = self._next_id, self._next_id + 1
        seed = np.random.SeedSequence([self._seed & 0xFFFFFFFF, self._seed >> 32, _STREAM, identity])
        return EvaluationTask(
            id=identity,
            weights=Weights.of(snapshot.progress.version, snapshot.data),
            episodes=self._config.episodes,
            deterministic=self._config.deterministic,
            seed=int(seed.generate_state(1, np.uint64)[0]),
            variants=max(1, self._variants),
        )

    def _summarise(self, result: EvaluationResult, env_steps: int) -> EvaluationSummary:
        return EvaluationSummary(
            version=result.version,
            env_steps=env_steps,
            episodes=len(result.returns),
            return_mean=result.return_mean,
            return_std=result.return_std,
            variants=result.by_variant(self._variants),
        )
