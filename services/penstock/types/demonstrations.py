"""Demonstrations: the steps that an expert took in an environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.types.spaces import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Consecutive rows of one environment: its steps, and a reset row after each episode.

    Attributes:
        spec: Spaces of the environment.
        squash_actions, widest_range: How elements of boxes are scaled, as in the [policy] of the run.
        has_log_probs: Whether the log probabilities of the actions are known.
        columns: [R, ...] columns of a segment by name, without lead; those of observations have R + 1 rows, each with
            one frame.
    """

    spec: EnvironmentSpec
    squash_actions: bool
    widest_range: float
    has_log_probs: bool
    columns: Mapping[str, NDArray[Any]]

    @property
    def rows(self) -> int:
        """Number of rows, R."""
        return len(self.columns["valid"])

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(np.count_nonzero(self.columns["valid"]))
