"""Raw observations as the inputs of a small network in NumPy. It is `algo.encoders` without learned encoders.

Inputs are feature-major, [features, columns] (`small.layers`). This module does not import torch.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.algo.network import LEAST_RELATIVE_DEVIATION, LEAST_VARIANCE, MAX_OBSERVATION, MAX_STANDARDISED, Network
from penstock.algo.spaces import alternatives, encoders_of
from penstock.small.layers import Tensors, tensor_of
from penstock.types.spaces import EnvironmentSpec, Leaves, MultiBinarySpace, Space


def _range(bound: float) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns both ends of a range as arrays <float32>[], which operations read faster than numbers."""
    return np.array(-bound, np.float32), np.array(bound, np.float32)


_STANDARDISED = _range(MAX_STANDARDISED)


class Inputs:
    """Conversion of observations to inputs. Used by one thread.

    Attributes:
        width: Number of features.
    """

    def __init__(self, spec: EnvironmentSpec, network: Network) -> None:
        """Prepares the leaves, whose encoders are in `PLAIN_ENCODERS`."""
        leaves = zip(spec.observation.spaces, encoders_of(spec, network.encoders), strict=True)
        self._parts = [_OneHot(space) if encoder == "one_hot" else _Numbers(space) for space, encoder in leaves]
        self.width = sum(part.width for part in self._parts)
        numbers = [part for part in self._parts if isinstance(part, _Numbers) and not part.is_bits]
        self._standardised = numbers if network.normalise_observations else []
        self._epsilon = network.variance_epsilon

    def load(self, tensors: Tensors) -> None:
        """Copies the running moments. Raises `ConfigurationError` if they do not fit."""
        if not self._standardised:
            return
        shape = (sum(part.width for part in self._standardised),)
        mean, variance = (
            tensor_of(tensors, f"observation_moments.{name}", shape).astype(np.float64) for name in ("mean", "variance")
        )
        squared = variance + (self._epsilon or np.square(LEAST_RELATIVE_DEVIATION * mean))
        # As `RunningMoments.scale`.
        scale = np.where(squared > LEAST_VARIANCE, 1.0 / np.sqrt(np.maximum(squared, LEAST_VARIANCE)), 1.0)
        first = 0
        for part in self._standardised:
            own = slice(first, first := first + part.width)
            part.moments = mean[own, None].astype(np.float32), scale[own, None].astype(np.float32)

    def resize(self, inputs: NDArray[np.float32], count: int) -> None:
        """Chooses the array that `fill` writes to: the first `count` columns of <float32>[width, columns]."""
        first = 0
        for part in self._parts:
            part.whole = inputs[first : first + part.width]
            part.rows = part.whole[:, :count]
            first += part.width

    def fill(self, observation: Leaves) -> None:
        """Converts raw observations, [count, ...] for each leaf."""
        for part, values in zip(self._parts, observation, strict=True):
            part.fill(values.T if values.ndim == 2 else values.reshape(len(values), -1).T)


class _Numbers:
    """Numbers, which are standardised or bounded, or bits, which are taken as they are."""

    rows: NDArray[np.float32]
    whole: NDArray[np.float32]
    """The rows with the columns beyond the environments, which stay 0. Operations on contiguous memory are faster."""

    def __init__(self, space: Space) -> None:
        self.is_bits = isinstance(space, MultiBinarySpace)
        self.width = math.prod(space.observation_array[1])
        self.moments: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None
        bound = math.inf if self.is_bits else MAX_OBSERVATION
        self._low, self._high = _range(bound)

    def fill(self, values: NDArray[Any]) -> None:
        rows, whole = self.rows, self.whole
        if values.dtype != np.float32:
            # Rounded first, as in torch: a difference of float64 numbers has other digits.
            np.copyto(rows, values, casting="unsafe")
            values = rows
        if self.moments is None:
            np.maximum(values, self._low, out=rows)
            np.minimum(whole, self._high, out=whole)
            return
        mean, scale = self.moments
        np.subtract(values, mean, out=rows)
        np.multiply(whole, scale, out=whole)
        np.maximum(whole, _STANDARDISED[0], out=whole)
        np.minimum(whole, _STANDARDISED[1], out=whole)


class _OneHot:
    """Integers, each of which is 1 in one of its alternatives."""

    rows: NDArray[np.float32]
    whole: NDArray[np.float32]

    def __init__(self, space: Space) -> None:
        integers = alternatives(space)
        assert integers is not None
        low, counts = (each[:, None] for each in integers)
        self.width = int(counts.sum())
        self._low, self._most, self._first = low, counts - 1, np.cumsum(counts)[:, None] - counts

    def fill(self, values: NDArray[Any]) -> None:
        codes = np.clip(values.astype(np.int64) - self._low, 0, self._most) + self._first
        self.rows[...] = 0.0
        self.rows[codes, np.arange(self.rows.shape[1])] = 1.0
