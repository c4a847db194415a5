"""Rewards with an offset that is large beside their differences."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from penstock.config import build
from tests.support.tiers import gate_of
from tests.support.training.single_process import train

CONTEXTS = 4

Outcome = tuple[np.int64, float, bool, bool, dict[str, Any]]


class Arms(gymnasium.Env[np.int64, np.int64]):
    """A context of four in each step of an episode, whose own arm earns 1 more than the `offset`."""

    def __init__(self, offset: float, steps: int) -> None:
        self.observation_space = gymnasium.spaces.Discrete(CONTEXTS * steps)
        self.action_space = gymnasium.spaces.Discrete(CONTEXTS)
        self._offset, self._steps, self._step = offset, steps, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step = 0
        return self._draw(), {}

    def step(self, action: np.int64) -> Outcome:
        reward = self._offset + float(action == self._context)
        self._step += 1
        return self._draw(), reward, self._step == self._steps, False, {}

    def _draw(self) -> np.int64:
        self._context = self.np_random.integers(CONTEXTS)
        return self._context + CONTEXTS * min(self._step, self._steps - 1)


gymnasium.register("Arms-v0", f"{__name__}:Arms")


@pytest.mark.parametrize("trunk", gate_of(1, ["separate", "shared"]))
@pytest.mark.parametrize(
    ("offset", "episode", "total"),
    gate_of(
        3,
        [
            *((0.0, 1, 2000), (4.0, 1, 2000), (12.0, 1, 2000), (1e2, 1, 2000)),
            *((-1e4, 1, 2000), (1e6, 1, 2000), (50.0, 2, 8000)),
        ],
    ),
)
def test_the_right_arm_is_found_whatever_the_offset(offset: float, episode: int, total: int, trunk: str) -> None:
    config = build(
        {
            "environment": {"id": f"{__name__}:Arms-v0", "kwargs": {"offset": offset, "steps": episode}},
            "run": {"seed": 1, "total_steps": total},
            "actor": {"environments": 16},
            "evaluation": {"interval_steps": total // 2, "episodes": 20},
            "policy": {"trunk": trunk},
        }
    )
    assert train(config).curve[-1][1] == episode * (offset + 1.0)
