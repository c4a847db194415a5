"""Sampling from Reverb at its fastest: `TrajectoryDataset`, batched by tf.data, whole columns as NumPy arrays.

`reverb_replay.py` lists the slower alternatives.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import reverb
import tensorflow as tf
import tree

from benchmarks.peers.reverb_segments import Segment
from benchmarks.peers.reverb_table import FullTable, Rate, metered


@dataclass(frozen=True, slots=True)
class DatasetSampling:
    """A tf.data pipeline over `TrajectoryDataset`.

    Attributes:
        workers: Value of num_workers_per_iterator.
        in_flight: Value of max_in_flight_samples_per_worker.
        batch: Segments per batch.
        prefetch: Batches that are prepared ahead.
    """

    workers: int
    in_flight: int
    batch: int
    prefetch: int

    @property
    def label(self) -> str:
        """Description of the configuration."""
        return (
            f"TrajectoryDataset, num_workers_per_iterator={self.workers}, "
            f"max_in_flight_samples_per_worker={self.in_flight}, batch({self.batch}), prefetch({self.prefetch})"
        )

    def measure(self, table: FullTable, seconds: float) -> Rate:
        """Samples batches for this number of seconds and reads every column of each."""
        batches = self.batches(table)
        self._take(batches, 0.5)
        rate = metered(table, lambda: self._take(batches, seconds))
        shape = next(batches).data.observation.shape
        expected = (self.batch, 1, *table.pool[0].observation.shape)
        if shape != expected:
            raise RuntimeError(f"batches of observations have shape {shape}, expected {expected}")
        return rate

    def batches(self, table: FullTable) -> Iterator[reverb.ReplaySample]:
        """Yields batches without end; fails if the server sends nothing for 10 s."""
        dtypes, shapes = _column_specs(table.pool[0])
        dataset = reverb.TrajectoryDataset(
            table.address,
            table.name,
            dtypes,
            shapes,
            max_in_flight_samples_per_worker=self.in_flight,
            num_workers_per_iterator=self.workers,
            rate_limiter_timeout_ms=10_000,
        )
        return iter(dataset.batch(self.batch, drop_remainder=True).prefetch(self.prefetch).as_numpy_iterator())

    def _take(self, batches: Iterator[reverb.ReplaySample], seconds: float) -> int:
        end, segments = time.perf_counter() + seconds, 0
        while time.perf_counter() < end:
            batch = next(batches)
            for column in tree.flatten(batch.data):
                column.reshape(-1)[-1].item()
            segments += batch.info.key.size
        return segments


def sampling_candidates(kind: str) -> tuple[DatasetSampling, ...]:
    """Returns the fastest candidates for this kind of segment."""
    if kind == "vector":
        return (DatasetSampling(4, 100, 256, 2), DatasetSampling(3, 100, 256, 2), DatasetSampling(4, 200, 1024, 2))
    if kind == "frames_once":
        return (DatasetSampling(4, 16, 32, 2), DatasetSampling(2, 16, 32, 1), DatasetSampling(1, 16, 32, 1))
    return (DatasetSampling(1, 64, 32, 1), DatasetSampling(1, 16, 32, 1), DatasetSampling(1, 4, 32, 1))


def _column_specs(segment: Segment) -> tuple[Segment, Segment]:
    """Returns the types and shapes of a stored segment's columns."""
    dtypes = Segment(*(tf.as_dtype(column.dtype) for column in segment))
    # The older Writer stores a step as a sequence of length 1.
    return dtypes, Segment(*(tf.TensorShape((1, *column.shape)) for column in segment))
