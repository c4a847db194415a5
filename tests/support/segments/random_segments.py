"""Segments of random content: the `vector` and `pixel` segments of the replay benchmark (docs/BENCHMARKS.md)."""

import numpy as np

from penstock.types.block import Column, Columns, Extent, Schema

VECTOR = Schema(
    64,
    (
        Column("observation", "float32", (8,), Extent.STEP_AND_NEXT),
        Column("action", "int64"),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("truncated", "bool"),
        Column("valid", "bool"),
        Column("behaviour_log_prob", "float32"),
        Column("discounted_return", "float32"),
    ),
)
"""T = 64 steps of 8 float32 observations: 3.6 kB."""

PIXEL = Schema(
    32,
    (
        Column("observation", "uint8", (84, 84, 4), Extent.STEP_AND_NEXT),
        Column("action", "int64"),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("truncated", "bool"),
        Column("valid", "bool"),
        Column("behaviour_log_prob", "float32"),
        Column("discounted_return", "float32"),
    ),
)
"""T = 32 steps of 84 x 84 x 4 uint8 observations: 932 kB."""


def random_columns(schema: Schema, segments: int, seed: int) -> Columns:
    """Returns segments of random content: incompressible bytes, and every step valid."""
    random = np.random.default_rng(seed)
    columns = schema.empty(segments)
    for column, array in zip(schema.columns, columns.arrays, strict=True):
        if column.name == "valid":
            array[...] = True
        elif column.dtype == "bool":
            array[...] = random.random(array.shape) < 0.01
        elif column.dtype == "uint8":
            array[...] = np.frombuffer(random.bytes(array.size), np.uint8).reshape(array.shape)
        elif column.dtype.startswith("float"):
            array[...] = random.standard_normal(array.shape)
        else:
            array[...] = random.integers(0, 4, array.shape)
    return columns
