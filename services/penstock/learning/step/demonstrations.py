"""Demonstrations (`sampling.demonstrations`), of which each batch gets some segments beside those of the store.

They are not in the store: there, priorities would decay with the age of the data, and new segments would replace them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.algo.policies import Policy
from penstock.algo.spaces import scaled
from penstock.config import SamplingConfig
from penstock.errors import ConfigurationError
from penstock.types.block import Column, Columns, Extent, Schema
from penstock.types.demonstrations import Demonstrations
from penstock.types.differences import contrast, same_spaces
from penstock.types.replay import Batch
from penstock.types.spaces import BoxSpace


@dataclass(frozen=True, slots=True)
class DemonstratedSegments:
    """Segments of demonstrations, some of which are added to each batch.

    Attributes:
        columns: All segments, with the run's schema.
        per_batch: Number of segments that are added to a batch.
        seed: Seed of the draws.
        notice: A line about them for the user.
    """

    columns: Columns
    per_batch: int
    seed: int
    notice: str

    @classmethod
    def of(
        cls, found: Demonstrations, sampling: SamplingConfig, schema: Schema, policy: Policy, seed: int
    ) -> "DemonstratedSegments":
        """Cuts the demonstrations of `sampling.demonstrations` into segments.

        Raises `ConfigurationError` if they do not fit the policy or the schema of its actors.
        """
        path = sampling.demonstrations
        _check_fits(path, found, policy)
        if found.rows < schema.unroll_length:
            raise ConfigurationError(
                f"{path} has {found.rows} rows, fewer than a segment of actor.unroll_length {schema.unroll_length};"
                " record more steps"
            )
        columns = _segments_of(found, schema, policy.spec.frames)
        per_batch = max(1, round(sampling.demonstration_fraction * sampling.batch_segments))
        unknown = "" if found.has_log_probs else ", whose log probabilities are unknown: their ratios begin at 1"
        notice = (
            f"demonstrations: {per_batch} of {columns.segments} segments ({found.steps:,} steps) are added to each"
            f" batch{unknown} (sampling.demonstrations)"
        )
        return cls(columns, per_batch, seed, notice)

    def added_to(self, batch: Batch) -> Batch:
        """Returns the batch with some segments, drawn by its number, behind its own. Its head stays as it is."""
        count = self.columns.segments
        generator = np.random.default_rng([self.seed, batch.number])
        drawn = generator.choice(count, self.per_batch, replace=count < self.per_batch)
        pairs = zip(batch.columns.arrays, self.columns.arrays, strict=True)
        arrays = tuple(np.concatenate([stored, shown[drawn]]) for stored, shown in pairs)
        return Batch(batch.head, Columns(batch.columns.schema, arrays))


def _check_fits(path: str | None, found: Demonstrations, policy: Policy) -> None:
    remedy = "record them with the environment and the [policy] settings of this run"
    if not same_spaces(found.spec, policy.spec):
        then, now = contrast(found.spec, policy.spec)
        raise ConfigurationError(f"{path} was recorded for {then}, and the run has {now}; {remedy}")
    network = policy.network
    for name in ("squash_actions", "widest_range"):
        then, now = getattr(found, name), getattr(network, name)
        if _scaling(found) != _scaling(replace(found, **{name: now})):
            raise ConfigurationError(f"{path} was recorded with policy.{name} {then}, and the run has {now}; {remedy}")
    if any(network.observation_offsets):
        raise ConfigurationError(
            f"sampling.demonstrations can't be used with policy.observation_offsets, which {policy.spec.id} needs;"
            " subtract them in a wrapper"
        )


def _scaling(found: Demonstrations) -> list[tuple[bool, ...]]:
    """Returns which elements of each box are scaled to their bounds, and whether by a tanh."""
    boxes = [space for space in found.spec.action.spaces if isinstance(space, BoxSpace)]
    flags = [scaled(space, found.widest_range) for space in boxes]
    return [(*each.tolist(), found.squash_actions and bool(each.any())) for each in flags]


def _segments_of(found: Demonstrations, schema: Schema, frames: int) -> Columns:
    """Cuts the rows into segments of T. The last one overlaps the one before it unless T divides the rows."""
    steps, rows = schema.unroll_length, found.rows
    starts = np.minimum(np.arange(0, rows, steps), rows - steps)
    columns = dict(found.columns)
    if not found.has_log_probs:
        columns["behaviour_log_prob"] = np.full(rows, np.nan, np.float32)
    columns["frame_age"] = _ages(columns, max(frames - 1, 1))
    return Columns(schema, tuple(_column(column, columns, starts, steps) for column in schema.columns))


def _column(
    column: Column, columns: Mapping[str, NDArray[Any]], starts: NDArray[np.int64], steps: int
) -> NDArray[np.generic]:
    shape = (len(starts), *column.segment_shape(steps))
    if column.extent is Extent.SEGMENT:
        # States of another policy would be of no use. The steps of burn-in come from a state of zeros.
        return np.zeros(shape, column.dtype)
    rows = columns[column.name]
    # Rows before the first are of no episode, and are not used.
    padded = np.concatenate([np.zeros((column.lead, *rows.shape[1:]), rows.dtype), rows])
    cut: NDArray[np.generic] = padded[starts[:, None] + np.arange(shape[1])]
    assert cut.shape == shape and cut.dtype == column.dtype, (column, cut.shape, cut.dtype)
    return cut


def _ages(columns: Mapping[str, NDArray[Any]], oldest: int) -> NDArray[np.uint8]:
    """Returns the rows since each row's episode began, at most `oldest`, <uint8>[R + 1], as actors record them.

    A row is the first of an episode after a reset row, and after an end that no reset row follows.
    """
    valid, ended = columns["valid"], columns["terminated"] | columns["truncated"]
    begun = np.concatenate([[True], ~valid])
    begun[1:-1] |= ended[:-1] & valid[1:]
    numbers = np.arange(len(begun))
    first = np.maximum.accumulate(np.where(begun, numbers, 0))
    return np.minimum(numbers - first, oldest).astype(np.uint8)
