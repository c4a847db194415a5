"""Results of evaluations whose environments raise exceptions."""

from collections.abc import Sequence

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray
from structlog.testing import capture_logs

from penstock.acting.environments.single_environments import StepOutcome
from penstock.acting.environments.vectors import Environments
from penstock.acting.evaluator import Evaluator, play
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_weights


class Raising:
    """Environments that raise in their second step or in their reset."""

    def __init__(self, error: BaseException, at: str) -> None:
        self._inner, self._error, self._at, self._steps = make_environments("Counting-v0", 2, kwargs={}), error, at, 0
        self.spec, self.count, self.timed = self._inner.spec, self._inner.count, self._inner.timed

    @property
    def observation(self) -> tuple[NDArray[np.generic], ...]:
        return self._inner.observation

    @property
    def action_mask(self) -> NDArray[np.bool_] | None:
        return self._inner.action_mask

    acting_observation = observation

    def reset(self, seeds: Sequence[int]) -> None:
        if self._at == "reset":
            raise self._error
        self._inner.reset(seeds)

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        self._steps += 1
        if self._steps == 2:
            raise self._error
        return self._inner.step(action)


TASK = EvaluationTask(9, fresh_weights(spec_of("Counting-v0"), version=4), 2, deterministic=True, seed=1)


@pytest.mark.parametrize("at", ["reset", "step"])
@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (RuntimeError("simulator\nlost"), "RuntimeError: simulator lost"),
        (AssertionError(), "AssertionError"),
        (SystemExit("no display"), "SystemExit: no display"),
        (SystemExit(0), "SystemExit: 0"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_any_exception_of_an_environment_is_a_failure_of_the_task_in_one_line(
    error: BaseException, failure: str, at: str
) -> None:
    environments: Environments = Raising(error, at)  # type: ignore[assignment]
    result = play(TASK, environments, lambda: False)
    assert result is not None
    assert (result.id, result.version, result.returns, result.failure) == (9, 4, (), failure)


def test_an_abandoned_evaluation_is_not_a_failure() -> None:
    assert play(TASK, make_environments("Counting-v0", 2, kwargs={}), lambda: True) is None


class Queue:
    """A queue of tasks for an evaluator, whose process stops with the last one. Each result takes 20 s."""

    def __init__(self, tasks: int) -> None:
        self.left, self.delivered, self.now = tasks, 0, 0.0

    def next(self, timeout_s: float) -> EvaluationTask | None:
        self.left -= 1
        return TASK

    def deliver(self, result: EvaluationResult) -> None:
        self.delivered += 1
        self.now += 20.0


class StoppingProcess:
    """The part of a process that an evaluator uses, which stops when its queue is empty."""

    supervised = False

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    @property
    def stopping(self) -> bool:
        return not self._queue.left

    def wait(self, timeout_s: float) -> bool:
        return self.stopping

    def seed_generators(self, *key: int | str) -> None:
        """Does nothing."""

    def take_signals(self) -> None:
        """Does nothing."""

    def restore_process(self) -> None:
        """Does nothing."""


def test_the_log_has_one_line_per_minute_about_results_and_counts_the_others() -> None:
    queue = Queue(8)
    with capture_logs() as events:
        evaluator = Evaluator(
            lambda count, played: make_environments("Counting-v0", count, kwargs={}),
            episodes=2,
            variants=1,
            process=StoppingProcess(queue),
            log=structlog.get_logger(),
            clock=lambda: queue.now,
        )
        evaluator.run(queue)
    assert queue.delivered == 7
    assert [event["evaluations"] for event in events if event["event"] == "evaluated"] == [1, 3, 3]
