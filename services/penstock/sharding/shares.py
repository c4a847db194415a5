"""How a draw is spread over shards: each shard's share of the global mass, and whole numbers that follow the shares.

Pure functions over a handful of shards. Called by `rpc.sharded_source` alone.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.types import Mass


def shares_of_mass(masses: Sequence[Mass], alpha: float, half_life: float) -> NDArray[np.float64]:
    """<float64>[n] shares of total * 2^(alpha * reference / half_life), of sum 1; all zero where there is no mass.

    In logarithms, since the stores rebase apart and the factors between them may be more than a double holds.
    """
    totals = np.array([mass.total for mass in masses])
    references = np.array([mass.reference for mass in masses], np.float64)
    present = totals > 0.0
    if not present.any():
        return np.zeros(totals.size)
    exponents = np.full(totals.size, -np.inf)
    exponents[present] = np.log2(totals[present]) + alpha * references[present] / half_life
    relative = np.exp2(exponents - exponents.max())
    shares: NDArray[np.float64] = relative / relative.sum()
    return shares


def rounded(shares: NDArray[np.float64], count: int, uniform: float) -> NDArray[np.int64]:
    """<int64>[n] of sum `count`, each within 1 of its share of it and equal to it in expectation over `uniform`.

    Systematic sampling (Madow 1949): one number in [0, 1) shifts a grid of `count` points over the shares laid end to
    end.
    """
    if shares.sum() <= 0.0:
        return np.zeros(shares.size, np.int64)
    ends = np.floor(np.cumsum(shares) * count + uniform)
    # Of sum 1 but for rounding: the last point must not fall off the end.
    last = int(np.flatnonzero(shares)[-1])
    ends[last:] = count
    counts: NDArray[np.int64] = np.diff(np.minimum(ends, count), prepend=0.0).astype(np.int64)
    return counts
