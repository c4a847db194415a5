"""Assembly of one training batch from the parts of several shards, at the cost of one copy of the columns. No I/O."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.types.block import Schema
from penstock.types.payloads import PayloadPool, allocate
from penstock.types.records import total
from penstock.types.replay import Batch, BatchHead

Rows = NDArray[np.int64]


def place(parts: Sequence[Batch]) -> list[Rows]:
    """Returns <int64>[B_i] rows of the whole batch for the segments of each part.

    Fresh segments come first, by environment and then in their shard's order. An environment belongs to one shard, so
    this is the order that a single store would produce. If a shard does not report environments, fresh segments are
    ordered by shard. Replayed segments follow, shard by shard.
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
    """Copies parts with the same batch number, at least one segment in total, and rows from `place` into one batch.

    `shares` are the shares of the parts' shards in the global mass with which the parts were drawn. They convert the
    parts' probabilities to global ones. The pool provides the memory for the columns.
    """
    heads = [part.head for part in parts]
    columns = allocate(schema, sum(places.size for places in rows), pool)
    for part, places in zip(parts, rows, strict=True):
        for whole, array in zip(columns.arrays, part.columns.arrays, strict=True):
            whole[places] = array
    fresh_rows = [places[: head.fresh_segments] for head, places in zip(heads, rows, strict=True)]
    probabilities = [head.probabilities.copy() for head in heads]
    for head, drawn, share in zip(heads, probabilities, shares, strict=True):
        drawn[head.fresh_segments :] *= share
    return Batch(
        BatchHead(
            number=heads[0].number,
            fresh_segments=sum(places.size for places in fresh_rows),
            keys=_placed([head.keys for head in heads], rows),
            versions=_placed([head.versions for head in heads], rows),
            priorities=_placed([head.priorities for head in heads], rows),
            probabilities=_placed(probabilities, rows),
            counts=total([head.counts for head in heads]),
            environments=_placed([head.environments for head in heads], fresh_rows),
            slots=_placed([head.slots for head in heads], fresh_rows),
            skipped=_placed([head.skipped for head in heads], rows),
        ),
        columns,
    )


def _placed(arrays: Sequence[NDArray[Any]], rows: Sequence[Rows]) -> NDArray[Any]:
    """Returns the values of the arrays in their rows of the whole batch, and 0 for empty ones; empty if all are."""
    present = any(array.size for array in arrays)
    whole = np.zeros(sum(places.size for places in rows) if present else 0, arrays[0].dtype)
    for array, places in zip(arrays, rows, strict=True):
        if array.size:
            whole[places] = array
    return whole
