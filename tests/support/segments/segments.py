"""Schemas, windows, stores and plans for tests.

A segment's content follows from its name, so that it can be checked.
"""

from pathlib import Path

import numpy as np

from penstock.replay.store.layout import HEADER
from penstock.replay.store.ring_store import RingStore
from penstock.types.block import Column, Columns, Extent, Schema
from penstock.types.codecs import encodable
from penstock.types.replay import SamplingPlan, Window, WindowHead

SCHEMA = Schema(
    unroll_length=3,
    columns=(
        Column("observation", "float32", (2,), Extent.STEP_AND_NEXT),
        Column("action", "int64"),
        Column("terminated", "bool"),
        Column("frame", "uint8", (3, 3), Extent.STEP_AND_NEXT, lead=2),
        Column("memory", "float64", (5,), Extent.SEGMENT),
    ),
)

PLAN = SamplingPlan(
    session=7,
    next_batch=0,
    batch_segments=4,
    fresh_segments=2,
    off_policy_degree=1,
    publish_interval=1,
    alpha=0.5,
    epsilon=1e-3,
    half_life=2.0,
    max_staleness=100,
    min_replay_segments=2,
    seed=3,
)


def make_columns(names: list[tuple[int, int, int]], schema: Schema = SCHEMA) -> Columns:
    """Returns one segment for each (slot, incarnation, sequence)."""
    columns = schema.empty(len(names))
    for position, name in enumerate(names):
        content = np.random.default_rng(name)
        for column, array in zip(schema.columns, columns.arrays, strict=True):
            highest = 2 if column.dtype == "bool" else 200
            array[position] = content.integers(1 if highest > 2 else 0, highest, array[position].shape)
    return columns


def make_window(
    first_sequence: int = 1,
    *,
    segments: int = 2,
    slot: int = 0,
    incarnation: int = 1,
    version: int = 0,
    schema: Schema = SCHEMA,
) -> Window:
    """Returns a window of one actor, whose environments have the numbers from slot * segments on."""
    sequences = range(first_sequence, first_sequence + segments)
    return Window(
        WindowHead(
            slot=slot,
            incarnation=incarnation,
            first_sequence=first_sequence,
            version=version,
            environments=np.arange(slot * segments, (slot + 1) * segments, dtype=np.uint32),
        ),
        make_columns([(slot, incarnation, sequence) for sequence in sequences], schema),
    )


def capacity_bytes(rows: int, schema: Schema = SCHEMA) -> int:
    """Returns the smallest size of a store with this number of rows."""
    forms = len(encodable(schema))
    regions = len(schema.columns) + 1 + bool(forms)
    return rows * (HEADER.itemsize + schema.segment_bytes + 4 * forms) + regions * 4096


def make_store(rows: int, folder: Path | None = None, schema: Schema = SCHEMA) -> RingStore:
    """Creates a store with this number of rows and this schema."""
    store = RingStore(folder, capacity_bytes(rows, schema))
    store.adopt(schema)
    return store


def assert_same_columns(came: Columns, expected: Columns) -> None:
    """Checks that all columns are equal in value and type."""
    for column, one, other in zip(expected.schema.columns, came.arrays, expected.arrays, strict=True):
        assert one.dtype == other.dtype, column.name
        np.testing.assert_array_equal(one, other, err_msg=column.name)
