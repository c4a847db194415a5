"""Layers of a small network in NumPy, for batches of columns. This module does not import torch.

Arrays are feature-major, [features, columns] with one column per environment, so that elementwise functions and
reductions over features run over contiguous memory. Products are computed in blocks of `BLOCK` columns: the last bits
of a column of a larger product depend on the number of columns and on the column's place among them (OpenBLAS with
AVX2 sums in another order at the edges). Within one block all columns are lanes of the same vectors.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.algo import published

BLOCK = 16
"""Columns of one product: one vector of AVX-512 in float32, or two of AVX2."""

_ZERO = np.zeros((), np.float32)

Tensors = Mapping[str, NDArray[np.generic]]
"""Tensors of a published policy by name."""


def padded(count: int) -> int:
    """Returns the number of columns for this many environments, a multiple of `BLOCK`."""
    return -(-count // BLOCK) * BLOCK


def tensor_of(tensors: Tensors, name: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Returns a tensor. Raises `ConfigurationError` if there is none of this name and shape."""
    found = tensors.get(name)
    if found is None or found.shape != shape:
        has = "is missing" if found is None else f"has the shape {found.shape}"
        raise published.unfitting(f"{name} {has}, where {shape} is expected")
    return found


class Layers:
    """Linear layers with the same activation after each but the last. Used by one thread.

    Attributes:
        inputs: <float32>[features, columns] inputs of the first layer, to be filled before `run`.
        outputs: <float32>[rows, outputs, columns] results, one row for each `run`.
    """

    inputs: NDArray[np.float32]
    outputs: NDArray[np.float32]

    def __init__(self, names: Sequence[str], widths: Sequence[int], activation: Literal["tanh", "relu"]) -> None:
        """Makes room for layers with these names in a policy, between these widths: one more than names."""
        self._names, self._widths, self._is_tanh = tuple(names), tuple(widths), activation == "tanh"
        # The last column is the bias. In Fortran order, as BLAS stores them, products take a tenth less time.
        self._weights = [
            np.zeros((width, before + 1), np.float32, order="F") for before, width in pairwise(self._widths)
        ]
        self.resize(1, 1)

    def load(self, tensors: Tensors) -> None:
        """Copies weights and biases. Raises `ConfigurationError` if they do not fit."""
        for name, weights in zip(self._names, self._weights, strict=True):
            width, before = weights.shape[0], weights.shape[1] - 1
            weights[:, :before] = tensor_of(tensors, f"{name}.weight", (width, before))
            weights[:, before] = tensor_of(tensors, f"{name}.bias", (width,))

    def resize(self, count: int, rows: int) -> None:
        """Makes room for this many environments and rows. The columns beyond them stay 0 in the inputs."""
        columns = padded(count)
        # The last row multiplies the biases.
        values = [np.zeros((width + 1, columns), np.float32) for width in self._widths[:-1]]
        for each in values:
            each[-1] = 1.0
        self.inputs = values[0][:-1]
        self.outputs = np.zeros((rows, self._widths[-1], columns), np.float32)
        hidden = [each[:-1] for each in values[1:]]
        *weights, self._last_weights = self._weights
        *sources, self._last_source = [_blocks(each) for each in values]
        self._hidden = [
            (weight, source, _blocks(result), result)
            for weight, source, result in zip(weights, sources, hidden, strict=True)
        ]
        self._results = [_blocks(result) for result in self.outputs]

    def run(self, row: int) -> None:
        """Computes a row of the `outputs` from the inputs."""
        for weights, source, result, hidden in self._hidden:
            np.matmul(weights, source, out=result)
            if self._is_tanh:
                np.tanh(hidden, out=hidden)
            else:
                np.maximum(hidden, _ZERO, out=hidden)
        np.matmul(self._last_weights, self._last_source, out=self._results[row])


def _blocks(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns [features, columns] as a view [blocks, features, BLOCK]."""
    return values.reshape(len(values), -1, BLOCK).transpose(1, 0, 2)
