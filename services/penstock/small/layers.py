"""Layers of a small network in NumPy, for batches of columns. This module does not import torch.

Arrays are feature-major, [features, columns] with one column per environment, so that elementwise functions and
reductions over features run over contiguous memory. Products are computed in blocks of `BLOCK` columns: the last bits
of a column of a larger product depend on the number of columns and on the column's place among them (OpenBLAS with
AVX2 sums in another order at the edges). Within one block all columns are lanes of the same vectors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.algo import published
from penstock.algo.activations import implementations_of
from penstock.types.spaces import ActivationName

BLOCK = 16
"""Columns of one product: one vector of AVX-512 in float32, or two of AVX2."""

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


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer of a policy.

    Attributes:
        name: Name in `algo.policies.Policy`, which has `name.weight`, <float32>[outputs, inputs], and `name.bias`.
        inputs: Number of inputs.
        outputs: Number of outputs.
    """

    name: str
    inputs: int
    outputs: int


class Layers:
    """Linear layers with the same activation after each but the last. Used by one thread.

    Attributes:
        inputs: <float32>[features, columns] inputs of the first layer, to be filled before `run`.
        outputs: <float32>[rows, outputs, columns] results, one row for each `run`.
    """

    inputs: NDArray[np.float32]
    outputs: NDArray[np.float32]

    def __init__(self, layers: Sequence[Layer], activation: ActivationName) -> None:
        """Makes room for these layers, each of which takes the outputs of the one before it."""
        self._layers, self._activate = tuple(layers), implementations_of(activation).in_place
        # The last column is the bias. In Fortran order, as BLAS stores them, products take a tenth less time.
        self._weights = [np.zeros((layer.outputs, layer.inputs + 1), np.float32, order="F") for layer in layers]
        self.resize(1, 1)

    def load(self, tensors: Tensors) -> None:
        """Copies weights and biases. Raises `ConfigurationError` if they do not fit."""
        for layer, weights in zip(self._layers, self._weights, strict=True):
            weights[:, :-1] = tensor_of(tensors, f"{layer.name}.weight", (layer.outputs, layer.inputs))
            weights[:, -1] = tensor_of(tensors, f"{layer.name}.bias", (layer.outputs,))

    def resize(self, count: int, rows: int) -> None:
        """Makes room for this many environments and rows. The columns beyond them stay 0 in the inputs."""
        columns = padded(count)
        # The last row multiplies the biases.
        values = [np.zeros((layer.inputs + 1, columns), np.float32) for layer in self._layers]
        for each in values:
            each[-1] = 1.0
        self.inputs = values[0][:-1]
        self.outputs = np.zeros((rows, self._layers[-1].outputs, columns), np.float32)
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
            self._activate(hidden)
        np.matmul(self._last_weights, self._last_source, out=self._results[row])


def _blocks(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns [features, columns] as a view [blocks, features, BLOCK]."""
    return values.reshape(len(values), -1, BLOCK).transpose(1, 0, 2)
