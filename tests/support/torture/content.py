"""Segments whose content follows from their name, so that every byte of a sampled one can be checked cheaply.

A name is (slot, incarnation, sequence) in one word, and occupies the segment's first 8 bytes. The rest is SplitMix64 in
counter mode: word w of the segment `name` is mix(mix(name) + w * golden ratio).
"""

import numba
import numpy as np
from numpy.typing import NDArray

from penstock.types.block import Column, Columns, Extent, Schema

SCHEMA = Schema(
    16,
    (
        Column("name", "int64", (), Extent.SEGMENT),
        Column("version", "int64", (), Extent.SEGMENT),
        Column("reward", "float32"),
        Column("terminated", "bool"),
        Column("observation", "uint8", (4096,), Extent.STEP_AND_NEXT),
    ),
)
"""Schema of 69.7 kB per segment: a window of 53 travels in two parts."""

MAX_SEQUENCE = 2**32 - 1


def names_of(slot: int, incarnation: int, first_sequence: int, segments: int) -> NDArray[np.int64]:
    """Returns the names of consecutive segments, <int64>[segments]."""
    return (slot << 52 | incarnation << 32) + np.arange(first_sequence, first_sequence + segments, dtype=np.int64)


def parts_of(name: int) -> tuple[int, int, int]:
    """Returns (slot, incarnation, sequence) of a name."""
    return name >> 52, name >> 32 & 0xFFFFF, name & MAX_SEQUENCE


@numba.njit(nogil=True, cache=True, inline="always")
def _mix(word):  # type: ignore[no-untyped-def]
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@numba.njit("void(int64[::1], float32[:, ::1], uint8[:, ::1], uint64[:, ::1])", nogil=True, cache=True)
def _fill(names, rewards, flags, words):  # type: ignore[no-untyped-def]
    golden, unit = np.uint64(0x9E3779B97F4A7C15), np.float32(2.0**-24)
    for row in range(names.size):
        start = _mix(np.uint64(names[row]))
        for word in range(words.shape[1]):
            words[row, word] = _mix(start + np.uint64(word) * golden)
        for step in range(rewards.shape[1]):
            rewards[row, step] = np.float32(words[row, step] >> np.uint64(40)) * unit
            flags[row, step] = np.uint8(words[row, step] & np.uint64(1))


@numba.njit("int64(int64[::1], float32[:, ::1], uint8[:, ::1], uint64[:, ::1])", nogil=True, cache=True)
def _first_wrong(names, rewards, flags, words):  # type: ignore[no-untyped-def]
    golden, unit = np.uint64(0x9E3779B97F4A7C15), np.float32(2.0**-24)
    for row in range(names.size):
        start, same = _mix(np.uint64(names[row])), True
        for word in range(words.shape[1]):
            same &= words[row, word] == _mix(start + np.uint64(word) * golden)
        for step in range(rewards.shape[1]):
            expected = _mix(start + np.uint64(step) * golden)
            same &= rewards[row, step] == np.float32(expected >> np.uint64(40)) * unit
            same &= flags[row, step] == np.uint8(expected & np.uint64(1))
        if not same:
            return row
    return -1


def make_columns(names: NDArray[np.int64], version: int) -> Columns:
    """Returns the segments of these names, collected under one version."""
    columns = SCHEMA.empty(names.size)
    columns.arrays[0][:, 0] = names
    columns.arrays[1][:, 0] = version
    _fill(names, *_contents(columns))
    return columns


def first_wrong(columns: Columns) -> int | None:
    """Returns the first segment whose content does not follow from its name; None if there is none."""
    wrong = _first_wrong(columns.arrays[0][:, 0].copy(), *_contents(columns))
    return None if wrong < 0 else int(wrong)


def _contents(columns: Columns) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint64]]:
    # A batch from one message is a read-only view of it, at any alignment.
    reward, terminated, observation = (np.require(array, requirements=["C", "A", "W"]) for array in columns.arrays[2:])
    words = np.require(observation.reshape(columns.segments, -1).view(np.uint64), requirements=["C", "A"])
    return reward, terminated.view(np.uint8), words
