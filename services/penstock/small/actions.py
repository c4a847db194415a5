"""Actions and their log probabilities from the outputs of a small network in NumPy.

It is `algo.action_heads` with the `sample`, `mode` and `log_prob` of `algo.distributions`, for feature-major outputs,
[outputs, columns] (`small.layers`). Outputs of several rows are kept, so that log probabilities, which no
environment needs, are computed for all of them at once. This module does not import torch.
"""

from typing import Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock.algo.network import Network, Noise
from penstock.small.choices import Choices, Pairs
from penstock.small.gaussian import Gaussian
from penstock.small.layers import Tensors, padded, tensor_of
from penstock.types.spaces import BoxSpace, DiscreteSpace, Leaves, MultiBinarySpace, MultiDiscreteSpace, Space, Tree

_KEPT = 2**16
"""Numbers of the outputs that are kept, unless one row has more: few enough for a processor's cache."""


class Head(Protocol):
    """The actions of one leaf. Its rows are steps, and its columns environments.

    Attributes:
        outputs: Number of the network's outputs.
        cells: Numbers that it keeps of each column of a row.
        bits: Bits of the mask.
        log_stds: Log standard deviations of the policy.
        noise: Random numbers from which one action is sampled.
    """

    outputs: int
    cells: int
    bits: int
    log_stds: int
    noise: Noise

    def load(self, log_std: NDArray[np.generic]) -> None:
        """Copies the log standard deviations, <number>[log_stds]."""

    def resize(self, outputs: NDArray[np.float32], count: int) -> None:
        """Chooses the arrays of its outputs, <float32>[rows, outputs, columns]."""

    def begin(self, noise: NDArray[np.float32]) -> None:
        """Prepares to sample T times from <float32>[T, size of `noise`, columns], which it may keep."""

    def sample(self, row: int, step: int, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Returns actions [count, ...] from the outputs in a row and the noise of a step; valid until the next call."""

    def log_probs(self, rows: int) -> NDArray[np.float32]:
        """Returns the log probabilities of the actions sampled from the first rows, <float32>[rows, columns]."""

    def mode(self, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Returns the most likely actions [count, ...] from the outputs in the first row, in an array of their own."""


class Actions:
    """The actions of all leaves. Used by one thread.

    Attributes:
        outputs: Number of the network's outputs.
        noise: Random numbers from which each leaf of one action is sampled.
    """

    def __init__(self, tree: Tree, network: Network, *, temperature: float) -> None:
        """Describes the actions in this space, sampled at this temperature."""
        self._heads = [_head(space, network, temperature) for space in tree.spaces]
        self.outputs = sum(head.outputs for head in self._heads)
        self.noise = tuple(head.noise for head in self._heads)
        self._log_stds = sum(head.log_stds for head in self._heads)
        self._bits = sum(head.bits for head in self._heads)

    def load(self, tensors: Tensors) -> None:
        """Copies the standard deviations. Raises `ConfigurationError` if they do not fit."""
        if not self._log_stds:
            return
        log_std, first = tensor_of(tensors, "log_std", (self._log_stds,)), 0
        for head in self._heads:
            head.load(log_std[first : first + head.log_stds])
            first += head.log_stds

    def most_rows(self, count: int) -> int:
        """Returns the largest number of rows whose outputs for this many environments should be kept."""
        return max(1, _KEPT // (padded(count) * sum(head.cells for head in self._heads)))

    def resize(self, outputs: NDArray[np.float32], count: int) -> None:
        """Chooses the array that the actions are read from, <float32>[rows, outputs, columns].

        The environments are its first `count` columns.
        """
        self._count, self._columns = count, padded(count)
        self._illegal = np.zeros((self._bits, self._columns), np.bool_)
        self._parts: list[tuple[Head, slice]] = []
        output = bit = 0
        for head in self._heads:
            head.resize(outputs[:, output : output + head.outputs], count)
            self._parts.append((head, slice(bit, bit + head.bits)))
            output, bit = output + head.outputs, bit + head.bits

    def begin(self, noise: NDArray[np.float32]) -> None:
        """Prepares to sample T times. `noise` is <float32>[count, T, sum of sizes]."""
        by_step = np.zeros((*noise.shape[1:], self._columns), np.float32)
        by_step[..., : self._count] = noise.transpose(1, 2, 0)
        first = 0
        for head in self._heads:
            head.begin(by_step[:, first : first + head.noise.size])
            first += head.noise.size

    def sample(self, row: int, step: int, mask: NDArray[np.bool_] | None) -> Leaves:
        """Returns actions, [count, ...] for each leaf, from the outputs in a row and the noise of a step.

        `mask` is <bool>[count, bits]. The next call may overwrite the actions.
        """
        illegal = self._illegal_of(mask)
        return tuple([head.sample(row, step, None if illegal is None else illegal[bits]) for head, bits in self._parts])

    def log_probs(self, rows: int) -> NDArray[np.float32]:
        """Returns the log probabilities of the actions sampled from the first rows, <float32>[rows, count]."""
        first, *others = (head.log_probs(rows) for head in self._heads)
        for other in others:
            first = first + other
        return first[:, : self._count]

    def mode(self, mask: NDArray[np.bool_] | None) -> Leaves:
        """Returns the most likely actions, [count, ...] for each leaf, from the outputs in the first row."""
        illegal = self._illegal_of(mask)
        return tuple(head.mode(None if illegal is None else illegal[bits]) for head, bits in self._parts)

    def _illegal_of(self, mask: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        if mask is None:
            return None
        # Every action is legal in the columns beyond the environments.
        np.logical_not(mask.T, out=self._illegal[:, : self._count])
        return self._illegal


def _head(space: Space, network: Network, temperature: float) -> Head:
    match space:
        case DiscreteSpace() | MultiDiscreteSpace() | MultiBinarySpace():
            return (Pairs if set(space.choices) == {2} else Choices)(space, temperature)
        case BoxSpace():
            return Gaussian(space, network, temperature)
        case _:
            assert_never(space)
