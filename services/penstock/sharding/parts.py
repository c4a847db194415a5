"""Assembly of one training batch from the parts of several shards.

It costs one copy of the columns, which a run with a single replay service avoids. No I/O; only
`rpc.clients.sharded_source` calls it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import Schema
from penstock.types.payloads import PayloadPool, allocate
from penstock.types.records import total
from penstock.types.replay import Batch, BatchHead

Rows = NDArray[np.int64]


def place(parts: Sequence[Batch]) -> list[Rows]:
    """Assigns a row of the whole batch to each segment of each part.

    Fresh segments come first, by environment and then in their shard's order. An environment belongs to one shard, so
    this is the order that a single store would produce. If a shard does not report environments, fresh segments are
    ordered by shard. Replayed segments follow, shard by shard.

    Returns:
        <int64>[B_i] rows, for each part.
    """
    fresh = [part.fresh_segments for part in parts]
    if all(part.head.environments.size == part.fresh_segments for part in parts):
        order = np.argsort(np.concatenate([part.head.environments for part in parts]), kind="stable")
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
    """Copies the parts into one batch.

    Args:
        parts: Parts with the same batch number and at least one segment in total.
        rows: Rows from `place`.
        shares: Share of each part's shard in the global mass with which the part was drawn. It converts the part's
            probabilities to global ones.
        schema: Schema of the segments.
        pool: Pool that provides the memory for the columns.
    """
    size = sum(part.keys.size for part in parts)
    columns = allocate(schema, size, pool)
    keys, versions = np.empty(size, np.uint64), np.empty(size, np.int64)
    priorities, probabilities = np.empty(size), np.empty(size)
    fresh = sum(part.fresh_segments for part in parts)
    environments = np.zeros(fresh, np.uint32)
    skipped = np.zeros(size if any(part.head.skipped.size for part in parts) else 0, np.int64)
    for part, places, share in zip(parts, rows, shares, strict=True):
        keys[places], versions[places], priorities[places] = part.keys, part.versions, part.priorities
        weight = np.where(np.arange(places.size) < part.fresh_segments, 1.0, share)
        probabilities[places] = part.head.probabilities * weight
        if part.head.environments.size:
            environments[places[: part.fresh_segments]] = part.head.environments
        if part.head.skipped.size:
            skipped[places] = part.head.skipped
        for whole, array in zip(columns.arrays, part.columns.arrays, strict=True):
            whole[places] = array
    return Batch(
        BatchHead(
            number=parts[0].number,
            fresh_segments=fresh,
            keys=keys,
            versions=versions,
            priorities=priorities,
            probabilities=probabilities,
            counts=total([part.counts for part in parts]),
            environments=environments,
            skipped=skipped,
        ),
        columns,
    )
