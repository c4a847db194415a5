"""The two segments of the replay benchmark, as Reverb takes them: same columns and contents as `segments.py` has.

Used by the other files of the Reverb side; imports nothing of Penstock, which Reverb's environment lacks.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Segment(NamedTuple):
    """One item's columns, or their shapes, or their types. A tuple because Reverb and TensorFlow walk through those."""

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
    """What one kind of segment is made of.

    Attributes:
        name: vector or pixel.
        steps: T.
        observation_shape: Of one row of the T + 1.
        observation_dtype: float32 or uint8.
        stored: Segments in the table.
    """

    name: str
    steps: int
    observation_shape: tuple[int, ...]
    observation_dtype: str
    stored: int

    def random(self, rng: np.random.Generator) -> Segment:
        """A segment of random content: bytes that no compression shrinks, and flags that are mostly 0."""
        return Segment(
            observation=self._random_observations(rng),
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
    """The kind of this name: vector (3.6 kB) or pixel (932 kB)."""
    if name == "vector":
        return SegmentKind("vector", 64, (8,), "float32", stored=20_000)
    return SegmentKind("pixel", 32, (84, 84, 4), "uint8", stored=500)
