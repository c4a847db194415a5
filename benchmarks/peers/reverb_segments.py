"""The segments of the replay benchmark for Reverb, with the same columns and contents as in `random_segments.py`.

Used by the other files of the Reverb side. It imports nothing of Penstock, which is not installed in Reverb's
environment.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.frames import SEGMENTS, STEPS, recorded, stacked


class Segment(NamedTuple):
    """Columns of one item, or their shapes or types. A tuple, because Reverb and TensorFlow traverse tuples."""

    observation: Any
    action: Any
    reward: Any
    terminated: Any
    truncated: Any
    valid: Any
    behaviour_log_prob: Any
    discounted_return: Any


@dataclass(frozen=True, slots=True)
class SegmentKind:
    """The shape and content of one kind of segment.

    Attributes:
        name: Name of the kind.
        steps: Steps per segment (T).
        observation_shape: Shape of one of the T + 1 observations.
        observation_dtype: Type of observations: float32 or uint8.
        stored: Segments in the table.
        pool: Distinct segments that are inserted in turn.
    """

    name: str
    steps: int
    observation_shape: tuple[int, ...]
    observation_dtype: str
    stored: int
    pool: int

    def segments(self, rng: np.random.Generator) -> tuple[Segment, ...]:
        """Returns the pool: recorded frames or random observations, random numbers, and flags that are mostly 0."""
        if self.name.startswith("frames"):
            frames = recorded()
            return tuple(self._segment(rng, stacked(each) if self.name == "frames" else each) for each in frames)
        return tuple(self._segment(rng, self._random_observations(rng)) for _ in range(self.pool))

    def _segment(self, rng: np.random.Generator, observation: NDArray[np.generic]) -> Segment:
        return Segment(
            observation=observation,
            action=rng.integers(0, 4, self.steps, np.int64),
            reward=rng.standard_normal(self.steps, np.float32),
            terminated=rng.random(self.steps) < 0.01,
            truncated=rng.random(self.steps) < 0.01,
            valid=rng.random(self.steps) < 0.01,
            behaviour_log_prob=rng.standard_normal(self.steps, np.float32),
            discounted_return=rng.standard_normal(self.steps, np.float32),
        )

    def _random_observations(self, rng: np.random.Generator) -> NDArray[np.generic]:
        shape = (self.steps + 1, *self.observation_shape)
        if self.observation_dtype == "uint8":
            return rng.integers(0, 256, shape, np.uint8)
        return rng.standard_normal(shape, np.float32)


def segment_kind(name: str) -> SegmentKind:
    """Returns the kind of this name: vector (3.6 kB), pixel or frames (932 kB), or frames_once (255 kB)."""
    if name == "vector":
        return SegmentKind("vector", 64, (8,), "float32", stored=20_000, pool=256)
    if name == "frames_once":
        return SegmentKind("frames_once", STEPS, (84, 84), "uint8", stored=2000, pool=SEGMENTS)
    return SegmentKind(name, 32, (84, 84, 4), "uint8", stored=500, pool=16 if name == "pixel" else SEGMENTS)
