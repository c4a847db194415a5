"""Results of evaluations whose environments raise exceptions."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.environments import fresh_weights, spec_of
from penstock.acting.environments import Environments, make_environments
from penstock.acting.evaluator import play
from penstock.acting.single_environments import StepOutcome
from penstock.types.evaluation import EvaluationTask


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
