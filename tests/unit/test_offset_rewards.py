"""Rewards with an offset that is large beside their differences, in episodes of one step."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from helpers.single_process import train
from penstock.config import build

CONTEXTS = 4


class Arms(gymnasium.Env[np.int64, np.int64]):
    """A context of four, whose own arm earns 1 more than the `offset`."""

    def __init__(self, offset: float) -> None:
        self.observation_space, self.action_space = (gymnasium.spaces.Discrete(CONTEXTS) for _ in range(2))
        self.offset = offset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.int64, dict[str, Any]]:
        """Draws a context."""
        super().reset(seed=seed, options=options)
        self.context = self.np_random.integers(CONTEXTS)
        return self.context, {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        """Ends the episode."""
        return self.context, self.offset + float(action == self.context), True, False, {}


gymnasium.register("Arms-v0", f"{__name__}:Arms")


@pytest.mark.parametrize("offset", [1e2, -1e4, 1e6])
def test_the_right_arm_is_found_whatever_the_offset(offset: float) -> None:
    config = build(
        {
            "environment": {"id": f"{__name__}:Arms-v0", "kwargs": {"offset": offset}},
            "run": {"seed": 1, "total_steps": 2000},
            "actor": {"environments": 16},
            "evaluation": {"interval_steps": 1000, "episodes": 20},
        }
    )
    assert train(config).curve[-1][1] == offset + 1.0
