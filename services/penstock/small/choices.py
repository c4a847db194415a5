"""Choices among alternatives, from the logits of a small network in NumPy (`small.actions`).

They are sampled by inversion of the cumulative distribution: the first legal alternative whose cumulative probability
exceeds the noise, or the last legal one if rounding leaves none. This module does not import torch.
"""

import numpy as np
from numpy.typing import NDArray

from penstock.algo.network import Noise, NoiseKind
from penstock.types.spaces import DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace

ChoiceSpace = DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace


class Pairs:
    """k choices between two alternatives, with two logits each, choice after choice.

    The second alternative is taken if the probability of the first does not exceed the noise u: if the difference of
    the logits is at least log((1 - u) / u), which does not depend on the network.
    """

    log_stds = 0

    def __init__(self, space: ChoiceSpace, temperature: float) -> None:
        """Samples at this temperature."""
        self._choices, self._temperature = len(space.choices), np.float32(temperature)
        self.outputs = self.cells = self.bits = 2 * self._choices
        self.noise = Noise(NoiseKind.UNIFORM, self._choices)
        self._is_scalar = not space.action_array[1]

    def load(self, log_std: NDArray[np.generic]) -> None:
        """Copies nothing, because choices have no standard deviations."""
        del log_std

    def resize(self, outputs: NDArray[np.float32], count: int) -> None:
        """Chooses the arrays of the outputs, as `small.actions.Head`."""
        rows, _, columns = outputs.shape
        self._count, self._logits = count, outputs.reshape(rows, self._choices, 2, columns)
        self._second = np.zeros((rows, self._choices, columns), np.bool_)
        self._difference = np.zeros((self._choices, columns), np.float32)
        # Views, whose making takes as long as an operation on a row.
        self._rows = list(zip(self._logits[:, :, 0], self._logits[:, :, 1], self._second, strict=True))

    def begin(self, noise: NDArray[np.float32]) -> None:
        """Prepares to sample T times, as `small.actions.Head`."""
        self._thresholds = list((np.log1p(-noise) - np.log(noise)) * self._temperature)

    def sample(self, row: int, step: int, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Samples actions, as `small.actions.Head`."""
        if illegal is not None:
            np.copyto(self._logits[row], -np.inf, where=illegal.reshape(self._logits.shape[1:]))
        first, second, takes_second = self._rows[row]
        np.subtract(second, first, out=self._difference)
        np.greater_equal(self._difference, self._thresholds[step], out=takes_second)
        return _shaped(takes_second.astype(np.int64), self._count, is_scalar=self._is_scalar)

    def log_probs(self, rows: int) -> NDArray[np.float32]:
        """Returns log probabilities, as `small.actions.Head`."""
        second = self._second[:rows]
        logits = self._logits[:rows] / self._temperature
        largest = np.maximum(logits[:, :, 0], logits[:, :, 1])
        np.subtract(logits, largest[:, :, None], out=logits)
        taken = np.where(second, logits[:, :, 1], logits[:, :, 0])
        np.exp(logits, out=logits)
        total = np.log(logits[:, :, 0] + logits[:, :, 1])
        log_probs: NDArray[np.float32] = np.add.reduce(taken - total, axis=1)
        return log_probs

    def mode(self, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Returns the most likely actions, as `small.actions.Head`."""
        logits = self._logits[0]
        if illegal is not None:
            np.copyto(logits, -np.inf, where=illegal.reshape(logits.shape))
        return _shaped(logits.argmax(axis=1), self._count, is_scalar=self._is_scalar)


class Choices:
    """k choices, with one logit per alternative, choice after choice.

    Probabilities are not normalised; their sum multiplies the noise instead.
    """

    log_stds = 0

    def __init__(self, space: ChoiceSpace, temperature: float) -> None:
        """Samples at this temperature."""
        counts = np.array(space.choices)
        self.outputs = self.bits = int(counts.sum())
        self.noise = Noise(NoiseKind.UNIFORM, counts.size)
        self._temperature = temperature
        self._is_scalar = not space.action_array[1]
        self._choices, self._most = counts.size, int(counts.max())
        self.cells = self._choices * self._most
        alternative = np.arange(self._most)
        # A missing alternative reads the last output of its choice, and is illegal.
        source = (counts.cumsum() - counts)[:, None] + np.minimum(alternative, counts[:, None] - 1)
        exists = alternative < counts[:, None]
        self._source: NDArray[np.int64] | None = None if exists.all() else source
        self._missing = ~exists

    def load(self, log_std: NDArray[np.generic]) -> None:
        """Copies nothing, because choices have no standard deviations."""
        del log_std

    def resize(self, outputs: NDArray[np.float32], count: int) -> None:
        """Chooses the arrays of the outputs, as `small.actions.Head`."""
        rows, _, columns = outputs.shape
        shape = rows, self._choices, self._most, columns
        self._count, self._outputs = count, outputs
        self._logits = outputs.reshape(shape) if self._source is None else np.zeros(shape, np.float32)
        self._chosen = np.zeros((rows, self._choices, columns), np.int64)
        self._total = np.zeros((rows, self._choices, columns), np.float32)
        self._edge, self._cumulative = np.zeros_like(self._total[0]), np.zeros_like(self._logits[0])
        self._below = np.zeros((self._choices, self._most - 1, columns), np.bool_)

    def begin(self, noise: NDArray[np.float32]) -> None:
        """Prepares to sample T times, as `small.actions.Head`."""
        self._noise = noise

    def sample(self, row: int, step: int, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Samples actions, as `small.actions.Head`."""
        logits, forbidden = self._masked(row, illegal)
        edge, cumulative, total, chosen = self._edge, self._cumulative, self._total[row], self._chosen[row]
        np.maximum.reduce(logits, axis=1, out=edge)
        np.subtract(logits, edge[:, None], out=logits)
        if self._temperature != 1.0:
            np.divide(logits, self._temperature, out=logits)
        np.exp(logits, out=cumulative)
        np.add.accumulate(cumulative, axis=1, out=cumulative)
        total[...] = cumulative[:, -1]
        np.multiply(self._noise[step], total, out=edge)
        np.less_equal(cumulative[:, :-1], edge[:, None], out=self._below)
        np.add.reduce(self._below, axis=1, dtype=np.int64, out=chosen)
        if forbidden is not None:
            np.minimum(chosen, _last_legal(forbidden), out=chosen)
        return _shaped(chosen, self._count, is_scalar=self._is_scalar).copy()

    def log_probs(self, rows: int) -> NDArray[np.float32]:
        """Returns log probabilities, as `small.actions.Head`."""
        taken = np.take_along_axis(self._logits[:rows], self._chosen[:rows, :, None], axis=2)[:, :, 0]
        log_probs: NDArray[np.float32] = np.add.reduce(taken - np.log(self._total[:rows]), axis=1)
        return log_probs

    def mode(self, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Returns the most likely actions, as `small.actions.Head`."""
        logits, _ = self._masked(0, illegal)
        return _shaped(logits.argmax(axis=1), self._count, is_scalar=self._is_scalar)

    def _masked(
        self, row: int, illegal: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Returns the logits, <float32>[k, n, columns], and which alternatives are illegal; None: none is."""
        logits = self._logits[row]
        if self._source is not None:
            np.take(self._outputs[row], self._source, axis=0, out=logits, mode="clip")
            missing = self._missing[..., None]
            forbidden = missing if illegal is None else illegal[self._source] | missing
        elif illegal is None:
            return logits, None
        else:
            forbidden = illegal.reshape(logits.shape)
        np.copyto(logits, -np.inf, where=forbidden)
        return logits, forbidden


def _shaped(chosen: NDArray[np.int64], count: int, *, is_scalar: bool) -> NDArray[np.int64]:
    """Returns <int64>[k, columns] of a space as the actions of the first columns: [count], or [count, k]."""
    return chosen[0, :count] if is_scalar else chosen[:, :count].T


def _last_legal(forbidden: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns, <int64>[k, ...], the last alternative of <bool>[k, n, ...] that is not forbidden; 0 if all are."""
    number = np.arange(forbidden.shape[1])[:, None]
    last: NDArray[np.int64] = np.where(forbidden, 0, number).max(axis=1)
    return last
