"""Copies of the segments that a run may replay, with their priorities, for studies that evaluate them again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.learning.batches import TrainingBatch, to_tensors
from penstock.types.block import Columns, Schema
from penstock.types.replay import Batch, BatchHead, StoreCounts

_CPU = torch.device("cpu")


@dataclass(slots=True)
class Kept:
    """A segment that may be replayed, with the priority that was committed last."""

    key: int
    version: int
    columns: tuple[NDArray[np.generic], ...]
    priority: float


class Pool:
    """Segments that the next batch may replay.

    Attributes:
        segments: The segments by key, in the order in which they were trained first.
    """

    def __init__(self, max_staleness: int) -> None:
        """Begins empty, for replay up to this age in versions."""
        self._max_staleness = max_staleness
        self._schema: Schema | None = None
        self.segments: dict[int, Kept] = {}

    def see_commit(self, batch: Batch, priorities: NDArray[np.float64]) -> None:
        """Keeps the fresh segments of a batch that was trained, and all new priorities, <float64>[keys]."""
        self._schema = batch.columns.schema
        for index, (key, priority) in enumerate(zip(batch.keys.tolist(), priorities.tolist(), strict=True)):
            if index < batch.fresh_segments:
                columns = tuple(array[index].copy() for array in batch.columns.arrays)
                self.segments[key] = Kept(key, int(batch.head.versions[index]), columns, priority)
            elif key in self.segments:
                self.segments[key].priority = priority
        oldest = batch.number + 1 - self._max_staleness
        self.segments = {key: kept for key, kept in self.segments.items() if kept.version >= oldest}

    def batch(self, segments: Sequence[Kept], number: int) -> TrainingBatch:
        """Returns some of the segments as a batch with this number and without fresh segments."""
        assert self._schema is not None
        arrays = tuple(np.stack(each) for each in zip(*(each.columns for each in segments), strict=True))
        versions, zeros = np.array([each.version for each in segments]), np.zeros(len(segments))
        keys = np.array([each.key for each in segments], np.uint64)
        head = BatchHead(number, 0, keys, versions, zeros, zeros, StoreCounts())
        return to_tensors(Batch(head, Columns(self._schema, arrays)), _CPU)
