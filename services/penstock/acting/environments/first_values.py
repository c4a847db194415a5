"""Warnings about the first observations and rewards of environments: values that are allowed and probably not meant."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.bounds import outside
from penstock.types.spaces import BoxSpace, EnvironmentSpec, Leaves

EXTREME = 1e10
"""Largest magnitude without a warning. Larger values outweigh all others, even after standardisation."""

_TOLERANCE = 1e-3
"""Largest excess of a rounded observation over its bounds, as a share of the space's range."""


def of_observation(spec: EnvironmentSpec, observation: Leaves) -> Iterator[str]:
    """Yields a warning for each box of an observation, [N, ...] per leaf, that has a strange value."""
    for leaf, values in zip(spec.observation.leaves, observation, strict=True):
        if not isinstance(leaf.space, BoxSpace):
            continue
        least, largest = float(values.min()), float(values.max())
        if max(leaf.space.low) <= least and largest <= min(leaf.space.high) and max(-least, largest) <= EXTREME:
            continue
        flat = values.reshape(len(values), -1).astype(np.float64)
        # Bounds of stacked frames begin with the bounds of the newest frame, which is recorded, and may be one for all.
        low, high = (np.resize(side, flat.shape[1]) for side in (leaf.space.low, leaf.space.high))
        with np.errstate(all="ignore"):
            slack = _TOLERANCE * np.where(np.isfinite(high - low), high - low, np.maximum(1.0, np.abs(flat)))
            beyond = (flat < low - slack) | (flat > high + slack)
        if beyond.any():
            row, element = np.argwhere(beyond)[0].tolist()
            yield outside(flat[row, element], element, leaf.name, low[element], high[element])
        elif max(-least, largest) > EXTREME:
            yield f"an observation with {max(-least, largest):g}{leaf.place}; scale it to about 1"


def of_reward(reward: NDArray[np.float32]) -> Iterator[str]:
    """Yields a warning if a reward, <float32>[N], is extreme."""
    extreme = reward[np.abs(reward) > EXTREME]
    if extreme.size:
        yield f"a reward of {extreme[0]:g}; scale rewards to about 1"
