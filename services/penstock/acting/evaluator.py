"""The work of an evaluator: it plays the episodes that the learner requests."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from penstock.acting.environments.replaceable import close_logged
from penstock.acting.environments.vectors import Environments
from penstock.acting.evaluation import evaluate
from penstock.acting.protocols import EvaluationQueue, Log, Process
from penstock.errors import ConfigurationError, EnvironmentFailed, PenstockError
from penstock.machine import foreign_errors
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.run import PlayedVariant

_WAIT_S = 0.5
_HANG_FACTOR = 1.05
"""Multiple of an evaluation's time limit after which a step counts as hung: the limit is checked after each step."""

_DELIVERY_S = 1.0
"""Seconds for sending the last result before the process ends itself."""

_CRASHED = 1

_NOTED_EVERY_S = 60.0
"""Seconds between lines about results in the log. Short episodes give several results per second."""


class Evaluator:
    """An evaluator and its environments. Used only on the process's main thread."""

    def __init__(
        self,
        make: Callable[[int, Sequence[PlayedVariant]], Environments],
        *,
        episodes: int,
        variants: int,
        process: Process,
        log: Log,
        module: str | None = None,
        info_metrics: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes environments for this number of episodes before any task.

        `make` makes a number of environments, which alternate between the variants of a task, or without any between
        all `variants` of the configuration. `module` is the only module that a task's policy may import; a task that
        names another one fails. `info_metrics` are the keys of the infos whose values the environments report. `clock`
        returns monotonic seconds.

        Raises `ConfigurationError` if they can't be made, or `EnvironmentFailed` under a launcher, whose check has made
        them before.
        """
        self._make_environments, self._variants, self._process, self._log = make, variants, process, log
        self._module, self._info_metrics = module, info_metrics
        self._clock, self._note_at, self._unnoted = clock, clock(), 0
        self._usable, self._played = True, dict[int, str]()
        try:
            self.environments = self._make(episodes)
        except EnvironmentFailed as failed:
            if process.supervised:
                raise
            raise ConfigurationError(str(failed)) from failed

    def run(self, queue: EvaluationQueue) -> None:
        """Plays tasks until the process is stopped.

        Raises:
            RunFinished: The run is over.
            ConfigurationError: The run has another number of variants.
            EnvironmentFailed: The environments could not be made again.
        """
        while not self._process.stopping:
            task = queue.next(_WAIT_S)
            if task is not None:
                self._check_variants(task)
                # As with their own generators, environments play the same episodes in each evaluation.
                self._process.seed_generators(task.seed, "evaluation")
                with _ended_if_it_hangs(task, queue):
                    self._prepare(task, queue)
                    result = play(
                        task,
                        self.environments,
                        lambda: self._process.stopping,
                        module=self._module,
                        info_metrics=self._info_metrics,
                    )
                self._process.take_signals()
                if result is not None:
                    queue.deliver(result)
                    self._note(result)

    def close(self) -> None:
        """Closes the environments; an error is only logged."""
        close_logged(self.environments, self._log)

    def _prepare(self, task: EvaluationTask, queue: EvaluationQueue) -> None:
        """Makes the environments again if the last task failed, or had other variants or another number of episodes."""
        # Variants are played in the same environments if only their shares differ.
        played = {each.number: each.arguments for each in task.played}
        if self._usable and task.episodes == self.environments.count and played == self._played:
            return
        self.close()
        try:
            self.environments, self._played = self._make(task.episodes, task.played), played
        except EnvironmentFailed as failed:
            # This failure ends the process, so the learner receives it first.
            queue.deliver(_failed(task, 0.0, str(failed)))
            time.sleep(_DELIVERY_S)
            raise

    def _make(self, count: int, variants: Sequence[PlayedVariant] = ()) -> Environments:
        try:
            return self._make_environments(count, variants)
        except foreign_errors.MISBEHAVIOUR as error:
            raise EnvironmentFailed(_reason(error)) from error
        finally:
            self._process.restore_process()

    def _note(self, result: EvaluationResult) -> None:
        # Environments that raised may be in any state.
        self._usable = not result.failure
        if result.failure:
            self._log.warning("evaluation failed", version=result.version, reason=result.failure)
            return
        self._unnoted += 1
        if self._clock() >= self._note_at:
            mean, unfinished, count = result.return_mean, result.unfinished, self._unnoted
            self._log.info(
                "evaluated", version=result.version, return_mean=mean, unfinished=unfinished, evaluations=count
            )
            self._note_at, self._unnoted = self._clock() + _NOTED_EVERY_S, 0

    def _check_variants(self, task: EvaluationTask) -> None:
        if not task.played and task.variants != self._variants:
            raise ConfigurationError(
                f"the run evaluates in {task.variants} environment variants, and this evaluator has {self._variants};"
                " start all services with the run's configuration"
            )


def play(
    task: EvaluationTask,
    environments: Environments,
    stopping: Callable[[], bool],
    *,
    module: str | None = None,
    info_metrics: Sequence[str] = (),
) -> EvaluationResult | None:
    """Plays a task; returns its result, or None if `stopping` ended it.

    The result is a failure if an environment raised, or the task's policy names another module than `module`.
    """
    started = time.monotonic()
    try:
        return evaluate(task, environments, stopping, module=module, info_metrics=info_metrics)
    except foreign_errors.MISBEHAVIOUR as error:
        # The service handles signals itself, so an interrupt or an exit here comes from the environment.
        return _failed(task, time.monotonic() - started, _reason(error))


def _reason(error: BaseException) -> str:
    """Describes an error in one line, with the exception's class unless the message is Penstock's own."""
    return foreign_errors.one_line(str(error)) if isinstance(error, PenstockError) else foreign_errors.describe(error)


@contextlib.contextmanager
def _ended_if_it_hangs(task: EvaluationTask, queue: EvaluationQueue) -> Iterator[None]:
    """Ends this process, so that it is restarted, if a step hangs: a hung thread can't be ended otherwise."""

    def end() -> None:
        queue.deliver(_failed(task, limit_s, f"the environment did not return from a step within {limit_s:.0f} s"))
        time.sleep(_DELIVERY_S)
        os._exit(_CRASHED)

    limit_s = min(_HANG_FACTOR * task.max_seconds, threading.TIMEOUT_MAX)
    watch = threading.Timer(limit_s, end)
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def _failed(task: EvaluationTask, seconds: float, failure: str) -> EvaluationResult:
    return EvaluationResult(task.id, task.weights.version, (), (), seconds, failure=failure)
