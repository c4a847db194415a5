"""Shares of the shards in the global mass, and integer counts that follow them, as pure functions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.types.replay import Mass


def shares_of_mass(masses: Sequence[Mass], half_life: float) -> NDArray[np.float64]:
    """Returns each shard's share of the global mass: <float64>[n] shares that sum to 1, or zeros if no shard has mass.

    A shard's mass is total * 2^(reference / half_life). The computation uses logarithms because stores rebase
    independently and the ratios of these factors may overflow a double.
    """
    totals = np.array([mass.total for mass in masses])
    references = np.array([mass.reference for mass in masses], np.float64)
    present = totals > 0.0
    if not present.any():
        return np.zeros(totals.size)
    exponents = np.full(totals.size, -np.inf)
    exponents[present] = np.log2(totals[present]) + references[present] / half_life
    relative = np.exp2(exponents - exponents.max())
    shares: NDArray[np.float64] = relative / relative.sum()
    return shares


def rounded(shares: NDArray[np.float64], count: int, uniform: float) -> NDArray[np.int64]:
    """Rounds `count` times <float64>[n] shares, which sum to 1 or are 0, by systematic sampling (Madow 1949).

    `uniform` in [0, 1) shifts a grid of `count` points over the concatenated shares. Returns <int64>[n] counts, each
    within 1 of its exact value and equal to it in expectation; zeros for shares of 0.
    """
    if shares.sum() <= 0.0:
        return np.zeros(shares.size, np.int64)
    ends = np.floor(np.cumsum(shares) * count + uniform)
    # Rounding may leave the sum of the shares below 1. The last point must still be counted.
    last = int(np.flatnonzero(shares)[-1])
    ends[last:] = count
    counts: NDArray[np.int64] = np.diff(np.minimum(ends, count), prepend=0.0).astype(np.int64)
    return counts
