"""Segments that resemble those of a game: observations that LZ4 shrinks many times, beside columns that it does not."""

import numpy as np

from penstock.types.block import Column, Columns, Extent, Schema
from penstock.types.replay import Window, WindowHead

FRAMES = Schema(
    unroll_length=8,
    columns=(
        Column("observation", "uint8", (40, 40), Extent.STEP_AND_NEXT, lead=3),
        Column("speeds", "float32", (200,), Extent.STEP_AND_NEXT),
        Column("action", "int64"),
        Column("valid", "bool"),
        Column("noise", "uint8", (40, 40)),
    ),
)
"""Segments of 19 kB, 7 kB and 13 kB in the columns that may be encoded, of which the last does not shrink."""


def frame_columns(segments: int, seed: int = 0) -> Columns:
    """Returns segments in which a few pixels of a still image move, and every row is valid."""
    random, columns = np.random.default_rng(seed), FRAMES.empty(segments)
    observation, speeds, action, valid, noise = columns.arrays
    observation[...] = np.arange(40, dtype=np.uint8) // 8
    observation[..., 5, random.integers(0, 40)] = 255
    observation[:, :, 0, 0] = random.integers(0, 256, observation.shape[:2])
    speeds[..., ::50] = random.standard_normal((*speeds.shape[:2], 4))
    action[...] = random.integers(0, 6, action.shape)
    valid[...] = True
    noise[...] = random.integers(0, 256, noise.shape)
    return columns


def frame_window(first_sequence: int = 1, *, segments: int = 2, slot: int = 0, version: int = 0) -> Window:
    """Returns a window of one actor, of which each window has other content."""
    environments = np.arange(slot * segments, (slot + 1) * segments, dtype=np.uint32)
    head = WindowHead(slot, 1, first_sequence, version, environments)
    return Window(head, frame_columns(segments, seed=first_sequence + 1000 * slot))
