"""Tasks are learnt whatever their units and the bounds of their actions, in one process.

The best action is near one unit; without its bounds, and with observations and rewards of usual size, it is found.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from penstock.config import build
from tests.support.training.single_process import train

pytestmark = pytest.mark.nightly

LARGEST = float(np.finfo(np.float32).max)


class Reach(gymnasium.Env[Any, Any]):
    """One step: the reward is the negative distance of an action, cut to 5 widths, from the best one."""

    observation_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(
        self, low: float, high: float, best: float, dtype: str = "float32", unit: float = 1.0, width: float = 1.0
    ) -> None:
        odd = Box(low, high, (1,), np.dtype(dtype).type)
        self.action_space = Dict(odd=odd, usual=Box(-2.0, 2.0, (1,), np.float32))
        self._best, self._unit, self._width = best, unit, width

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        beyond = (float(action["odd"][0]) - self._best) / self._width
        distance = abs(np.clip(beyond, -5.0, 5.0)) + abs(float(action["usual"][0]) - 1.0)
        return np.zeros(1, np.float32), -self._unit * distance, True, False, {}


OBSERVED: dict[str, Callable[[Any], Any]] = {
    "plain": lambda values: values,
    "large constants": lambda values: np.append(values, (1e9, -1e9)),
    "int64": lambda values: (1e8 * values).astype(np.int64),
    "uint8": lambda values: np.clip(128 + values * (50, 60, 500, 60), 0, 255).astype(np.uint8),
}
BOUNDS = {"f": (-np.inf, np.inf), "i": (-(2**40), 2**40), "u": (0, 255)}


class Balance(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole in other units: every step is rewarded with `reward`."""

    # Gymnasium before 1.3 refuses a class of a wrapper without its own.
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, unit: float = 1.0, reward: float = 1.0, observed: str = "plain") -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._unit, self._reward, self._form = unit, reward, OBSERVED[observed]
        first = self._observe(np.zeros(4))
        self.observation_space = Box(*BOUNDS[first.dtype.kind], first.shape, first.dtype.type)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return self._observe(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, *rest = self.env.step(action)
        return (self._observe(observation), self._reward, *rest)

    def _observe(self, observation: Any) -> Any:
        values = self._form(self._unit * observation)
        return values.astype(np.float32) if values.dtype.kind == "f" else values


gymnasium.register("Reach-v0", entry_point=f"{__name__}:Reach")
gymnasium.register("Balance-v0", entry_point=f"{__name__}:Balance")


def curve(env_id: str, steps: int, **kwargs: Any) -> list[float]:
    config = {
        "environment": {"id": env_id, "kwargs": kwargs},
        "evaluation": {"episodes": 4, "interval_steps": steps // 4},
        "run": {"seed": 1, "total_steps": steps},
    }
    return [value for _, value in train(build(config)).curve]


@pytest.mark.parametrize(
    ("low", "high", "best", "dtype"),
    [
        (-1e6, 1e6, 0.5, "float32"),
        (-LARGEST, LARGEST, -0.5, "float32"),
        (-1e300, 1e300, 0.5, "float64"),
        (0.0, LARGEST, 1.5, "float32"),
        (100.0, np.inf, 102.0, "float32"),
        (-np.inf, -1000.0, -1001.0, "float32"),
        (-np.inf, np.inf, 0.5, "float32"),
    ],
)
def test_an_action_without_two_bounds_that_are_meant_is_learnt(
    low: float, high: float, best: float, dtype: str
) -> None:
    # Without a policy the distances are about 2, and with the best action at a bound 1.
    assert curve("Reach-v0", 8_000, low=low, high=high, best=best, dtype=dtype)[-1] > -0.3


def test_an_action_of_a_tiny_range_is_learnt() -> None:
    assert curve("Reach-v0", 8_000, low=-1e-6, high=1e-6, best=5e-7, width=1e-6)[-1] > -0.3


@pytest.mark.parametrize("unit", [1e-9, 1e-25, 1e12])
def test_rewards_of_any_unit_are_learnt(unit: float) -> None:
    found = curve("Reach-v0", 8_000, low=-4.0, high=4.0, best=0.5, unit=unit)
    assert found[-1] > -0.3 * unit


@pytest.mark.parametrize(("unit", "reward"), [(1e-9, 1.0), (1e-20, 1e-9), (1e9, 1e9)])
def test_cart_pole_is_learnt_in_other_units(unit: float, reward: float) -> None:
    # A policy that learns nothing returns 10 to 60.
    assert max(curve("Balance-v0", 8_000, unit=unit, reward=reward)) > 150.0 * reward


@pytest.mark.parametrize(
    "changed",
    [{"reward": 1e7}, {"reward": 1e4 + 1.0}, *({"observed": form} for form in ("large constants", "int64", "uint8"))],
    ids=str,
)
def test_cart_pole_is_learnt_as_fast_in_other_forms(changed: dict[str, Any]) -> None:
    # Half of the return of CartPole itself after these steps.
    assert max(curve("Balance-v0", 6_000, **changed)) > 250.0 * changed.get("reward", 1.0)


def test_episodes_that_cost_a_thousand_per_step_are_learnt_to_end() -> None:
    # An untrained policy balances for about 20 steps, and the shortest fall takes 8.
    assert curve("Balance-v0", 6_000, reward=1.0 - 1e3)[-1] > 12.0 * (1.0 - 1e3)
