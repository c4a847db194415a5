"""Random numbers from which actions are sampled. This module does not import torch."""

import enum
from dataclasses import dataclass


class NoiseKind(enum.Enum):
    """Distribution of the random numbers from which actions are sampled."""

    UNIFORM = enum.auto()
    """Uniform in [0, 1)."""
    NORMAL = enum.auto()
    """Standard normal."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Random numbers from which one action is sampled: their distribution, and their number per action."""

    kind: NoiseKind
    size: int
