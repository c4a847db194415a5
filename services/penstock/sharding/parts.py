"""One training batch out of the parts that several shards brought. Pure but for the memory it is laid in.

Called by `rpc.sharded_source` alone. Costs one copy of the columns, which a single replay service does without.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.types import Batch, Schema, StoreCounts
from penstock.wire import block
from penstock.wire.block import PayloadPool

Rows = NDArray[np.int64]


def place(parts: Sequence[Batch]) -> list[Rows]:
    """For each part, <int64>[B_i] the row of the whole batch that each of its segments gets.

    Fresh segments come first, by environment and then as their shard gives them: environments belong to one shard each,
    so that is the order a single store would give. Where a shard does not say the environments, shards follow one
    another. Replayed segments come after, shard by shard.
    """
    fresh = [part.fresh_segments for part in parts]
    if all(part.environments.size == part.fresh_segments for part in parts):
        order = np.argsort(np.concatenate([part.environments for part in parts]), kind="stable")
    else:
        order = np.arange(sum(fresh))
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    replayed = [part.keys.size - part.fresh_segments for part in parts]
    after = sum(fresh) + np.concatenate([[0], np.cumsum(replayed)])
    starts = np.concatenate([[0], np.cumsum(fresh)])
    return [
        np.concatenate([rank[starts[index] : starts[index + 1]], np.arange(after[index], after[index + 1])])
        for index in range(len(parts))
    ]


def join(
    parts: Sequence[Batch], rows: Sequence[Rows], shares: Sequence[float], schema: Schema, pool: PayloadPool
) -> Batch:
    """The whole batch.

    Args:
        parts: Of one number; some segments in all.
        rows: From `place`.
        shares: Of each part's shard in the global mass, by which it was drawn from: they turn its probabilities into
            global ones.
        schema: Of the segments.
        pool: Where the columns are laid.
    """
    size = sum(part.keys.size for part in parts)
    columns = block.allocate(schema, size, pool)
    keys, versions = np.empty(size, np.uint64), np.empty(size, np.int64)
    priorities, probabilities = np.empty(size), np.empty(size)
    fresh = sum(part.fresh_segments for part in parts)
    environments = np.zeros(fresh, np.uint32)
    skipped = np.zeros(size if any(part.skipped.size for part in parts) else 0, np.int64)
    for part, places, share in zip(parts, rows, shares, strict=True):
        keys[places], versions[places], priorities[places] = part.keys, part.versions, part.priorities
        weight = np.where(np.arange(places.size) < part.fresh_segments, 1.0, share)
        probabilities[places] = part.probabilities * weight
        if part.environments.size:
            environments[places[: part.fresh_segments]] = part.environments
        if part.skipped.size:
            skipped[places] = part.skipped
        for whole, array in zip(columns.arrays, part.columns.arrays, strict=True):
            whole[places] = array
    return Batch(
        number=parts[0].number,
        fresh_segments=fresh,
        keys=keys,
        versions=versions,
        priorities=priorities,
        probabilities=probabilities,
        counts=_sum([part.counts for part in parts]),
        columns=columns,
        environments=environments,
        skipped=skipped,
    )


def _sum(counts: Sequence[StoreCounts]) -> StoreCounts:
    return StoreCounts(*(sum(getattr(each, name) for each in counts) for name in StoreCounts.__slots__))
