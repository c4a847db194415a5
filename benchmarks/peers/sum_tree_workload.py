"""Workload and clock of the sum tree benchmark, shared by both sides, which run in separate interpreters.

It needs only NumPy, which both environments have.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

LEAVES = (2**17, 2**20)
BATCHES = (256, 4096)
ALPHA = 0.6
BETA = 0.4
EPSILON = 1e-4

_WARM_UP_CALLS = 20
_CALLS = 200


class Side(Protocol):
    """A full replay buffer with one float column and masses (priority + EPSILON)^ALPHA."""

    dtype: type[np.floating[Any]]
    """Fastest type of the priorities that it accepts."""

    def draw(self, batch: int) -> NDArray[Any]:
        """Draws leaves with new random numbers, computes importance weights and gathers the column's values."""

    def update(self, leaves: NDArray[Any], priorities: NDArray[Any]) -> None:
        """Sets new priorities for drawn leaves."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Median microseconds per call.

    Attributes:
        leaves: Leaves of the tree.
        batch: Leaves per call.
        draw_us: Time of a draw, its weights and one gathered float.
        update_us: Time of setting new priorities for the drawn leaves.
        repeat_us: Time of setting the same priorities again, which changes nothing.
    """

    leaves: int
    batch: int
    draw_us: float
    update_us: float
    repeat_us: float


def run(make_side: Callable[[NDArray[np.float64]], Side], seed: int) -> list[Timing]:
    """Times the loop of a learner, which draws leaves and then sets their priorities.

    Args:
        make_side: Creates a buffer from its priorities, <float64>[leaves].
        seed: Seed of the priorities.
    """
    random = np.random.default_rng(seed)
    timings = []
    for leaves in LEAVES:
        side = make_side(_priorities(random, leaves))
        for batch in BATCHES:
            calls = [_timed_calls(side, batch, random) for _ in range(_WARM_UP_CALLS + _CALLS)][_WARM_UP_CALLS:]
            timings.append(Timing(leaves, batch, *(statistics.median(column) for column in zip(*calls, strict=True))))
    return timings


def _timed_calls(side: Side, batch: int, random: np.random.Generator) -> tuple[float, float, float]:
    priorities = _priorities(random, batch).astype(side.dtype)
    begin = time.perf_counter_ns()
    drawn = side.draw(batch)
    after_draw = time.perf_counter_ns()
    side.update(drawn, priorities)
    after_update = time.perf_counter_ns()
    side.update(drawn, priorities)
    after_repeat = time.perf_counter_ns()
    return (after_draw - begin) / 1e3, (after_update - after_draw) / 1e3, (after_repeat - after_update) / 1e3


def _priorities(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    # Heavy-tailed, like errors: a few leaves have most of the mass.
    return random.pareto(2.0, count)
