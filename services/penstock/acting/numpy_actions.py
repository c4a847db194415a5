"""Actions and their log probabilities from the outputs of a small network in NumPy.

It is `algo.action_heads` with the `sample`, `mode` and `log_prob` of `algo.distributions`, for feature-major outputs,
[outputs, columns] (`acting.numpy_layers`). This module does not import torch.
"""

import math
from typing import Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock.acting.numpy_layers import Tensors, padded, tensor_of
from penstock.acting.protocols import Leaves
from penstock.algo.limits import LOG_STD_RANGE, SQUASHED_LOG_STD_RANGE
from penstock.algo.network import Network
from penstock.algo.noise import Noise, NoiseKind
from penstock.types.spaces import BoxSpace, DiscreteSpace, MultiBinarySpace, MultiDiscreteSpace, Space, Tree

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class _Head(Protocol):
    """The actions of one leaf: `outputs` rows of the network, `bits` of the mask, `log_stds` of the policy's."""

    outputs: int
    bits: int
    log_stds: int
    noise: Noise

    def load(self, log_std: NDArray[np.generic]) -> None: ...

    def resize(self, outputs: NDArray[np.float32], count: int) -> None: ...

    def sample(
        self, noise: NDArray[np.float32], illegal: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        """Returns actions [count, ...] and their log probabilities, <float32>[columns], in arrays of their own."""

    def mode(self, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]: ...


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
        self._numbers = sum(noise.size for noise in self.noise)
        self._bits = sum(head.bits for head in self._heads)

    def load(self, tensors: Tensors) -> None:
        """Copies the standard deviations. Raises `ConfigurationError` if they do not fit."""
        if not self._log_stds:
            return
        log_std, first = tensor_of(tensors, "log_std", (self._log_stds,)), 0
        for head in self._heads:
            head.load(log_std[first : first + head.log_stds])
            first += head.log_stds

    def resize(self, outputs: NDArray[np.float32], count: int) -> None:
        """Chooses the array that the actions are read from, and the number of environments: its first columns."""
        self._count, columns = count, padded(count)
        self._noise = np.zeros((self._numbers, columns), np.float32)
        self._illegal = np.zeros((self._bits, columns), np.bool_)
        self._parts: list[tuple[_Head, slice, slice]] = []
        output = bit = number = 0
        for head in self._heads:
            head.resize(outputs[output : output + head.outputs], count)
            numbers, bits = slice(number, number + head.noise.size), slice(bit, bit + head.bits)
            self._parts.append((head, numbers, bits))
            output, bit, number = output + head.outputs, bits.stop, numbers.stop

    def sample(self, noise: NDArray[np.float32], mask: NDArray[np.bool_] | None) -> tuple[Leaves, NDArray[np.float32]]:
        """Returns actions, [count, ...] for each leaf, and their log probabilities, <float32>[count].

        `noise` is <float32>[count, sum of sizes], and `mask` <bool>[count, bits].
        """
        self._noise[:, : self._count] = noise.T
        illegal = self._illegal_of(mask)
        actions, total = [], None
        for head, numbers, bits in self._parts:
            action, log_prob = head.sample(self._noise[numbers], None if illegal is None else illegal[bits])
            actions.append(action)
            total = log_prob if total is None else total + log_prob
        assert total is not None
        return tuple(actions), total[: self._count]

    def mode(self, mask: NDArray[np.bool_] | None) -> Leaves:
        """Returns the most likely actions, [count, ...] for each leaf."""
        illegal = self._illegal_of(mask)
        return tuple(head.mode(None if illegal is None else illegal[bits]) for head, _, bits in self._parts)

    def _illegal_of(self, mask: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        if mask is None:
            return None
        # Every action is legal in the columns beyond the environments.
        np.logical_not(mask.T, out=self._illegal[:, : self._count])
        return self._illegal


class _Choices:
    """k choices, with one logit per alternative, choice after choice.

    They are sampled by inversion of the cumulative distribution: the first legal alternative whose cumulative
    probability exceeds the noise, or the last legal one if rounding leaves none. Probabilities are not normalised;
    their sum multiplies the noise instead.
    """

    def __init__(self, space: DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace, temperature: float) -> None:
        counts = np.array(space.choices)
        self.outputs = self.bits = int(counts.sum())
        self.log_stds = 0
        self.noise = Noise(NoiseKind.UNIFORM, counts.size)
        self._temperature = temperature
        self._is_scalar = isinstance(space, DiscreteSpace)
        self._counts, self._most = counts, int(counts.max())
        alternative = np.arange(self._most)
        # A missing alternative reads the last output of its choice, and is illegal.
        source = (counts.cumsum() - counts)[:, None] + np.minimum(alternative, counts[:, None] - 1)
        exists = alternative < counts[:, None]
        self._source: NDArray[np.int64] | None = None if exists.all() else source
        self._missing = ~exists

    def load(self, log_std: NDArray[np.generic]) -> None:
        del log_std

    def resize(self, outputs: NDArray[np.float32], count: int) -> None:
        choices, columns = self._counts.size, outputs.shape[1]
        shape = choices, self._most, columns
        self._count, self._columns, self._rows = count, columns, outputs
        self._logits = outputs.reshape(shape) if self._source is None else np.zeros(shape, np.float32)
        self._flat = self._logits.reshape(-1)
        self._largest, self._total, self._taken = (np.zeros((choices, columns), np.float32) for _ in range(3))
        self._powers, self._cumulative = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._below = np.zeros((choices, self._most - 1, columns), np.bool_)
        # Place of the first alternative of each choice in the flat logits.
        first = np.arange(choices)[:, None] * self._most * columns
        self._first, self._place = first + np.arange(columns), np.zeros((choices, columns), np.int64)

    def sample(
        self, noise: NDArray[np.float32], illegal: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        logits, forbidden = self._masked(illegal)
        largest, total, taken, place = self._largest, self._total, self._taken, self._place
        _fold(np.maximum, logits, largest)
        np.subtract(logits, largest[:, None], out=logits)
        if self._temperature != 1.0:
            np.divide(logits, self._temperature, out=logits)
        np.exp(logits, out=self._powers)
        _fold(np.add, self._powers, total)
        chosen = self._inverted(noise, total)
        if forbidden is not None:
            np.minimum(chosen, _last_legal(forbidden), out=chosen)
        np.multiply(chosen, self._columns, out=place)
        np.add(place, self._first, out=place)
        np.take(self._flat, place, out=taken, mode="clip")
        np.log(total, out=total)
        log_prob = np.subtract(taken, total)
        return self._shaped(chosen), log_prob[0] if self._is_scalar else np.add.reduce(log_prob, axis=0)

    def mode(self, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        logits, _ = self._masked(illegal)
        return self._shaped(logits.argmax(axis=1))

    def _inverted(self, noise: NDArray[np.float32], total: NDArray[np.float32]) -> NDArray[np.int64]:
        """Returns, <int64>[k, columns], the alternatives whose cumulative probability does not exceed the noise."""
        powers = self._powers[:, :-1]
        if self._most > 2:
            powers = np.add.accumulate(powers, axis=1, out=self._cumulative[:, :-1])
        np.less_equal(powers, np.multiply(noise, total, out=self._largest)[:, None], out=self._below)
        if self._most == 2:
            return self._below[:, 0].astype(np.int64)
        counted: NDArray[np.int64] = np.add.reduce(self._below, axis=1, dtype=np.int64)
        return counted

    def _masked(self, illegal: NDArray[np.bool_] | None) -> tuple[NDArray[np.float32], NDArray[np.bool_] | None]:
        """Returns the logits, <float32>[k, n, columns], and which alternatives are illegal; None: none is."""
        logits = self._logits
        if self._source is not None:
            np.take(self._rows, self._source, axis=0, out=logits, mode="clip")
            missing = self._missing[..., None]
            forbidden = missing if illegal is None else illegal[self._source] | missing
        elif illegal is None:
            return logits, None
        else:
            forbidden = illegal.reshape(logits.shape)
        np.copyto(logits, -np.inf, where=forbidden)
        return logits, forbidden

    def _shaped(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        return chosen[0, : self._count] if self._is_scalar else chosen[:, : self._count].T


class _Gaussian:
    """Real vectors of A elements: A means, followed by A log standard deviations if these depend on the state.

    Actions of squashed policies are those before the tanh.
    """

    def __init__(self, space: BoxSpace, network: Network, temperature: float) -> None:
        size = self._size = space.size
        depends = self._depends = network.state_dependent_std
        self.outputs, self.log_stds, self.bits = (2 * size, 0, 0) if depends else (size, size, 0)
        self.noise = Noise(NoiseKind.NORMAL, size)
        self._range = SQUASHED_LOG_STD_RANGE if network.squash_actions else LOG_STD_RANGE
        self._log_temperature = np.float32(math.log(temperature))
        self._log_std = np.zeros((size, 1), np.float32)

    def load(self, log_std: NDArray[np.generic]) -> None:
        self._log_std = self._bounded(log_std.astype(np.float32)[:, None])
        self._deviation, self._precision = np.exp(self._log_std), np.exp(-self._log_std)

    def resize(self, outputs: NDArray[np.float32], count: int) -> None:
        self._count, self._rows = count, outputs
        self._mean = outputs[: self._size]
        self._scaled = np.zeros_like(self._mean)

    def sample(
        self, noise: NDArray[np.float32], illegal: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        del illegal
        if self._depends:
            self._log_std = self._bounded(self._rows[self._size :])
            self._deviation, self._precision = np.exp(self._log_std), np.exp(-self._log_std)
        scaled = self._scaled
        action = np.multiply(noise, self._deviation)
        np.add(action, self._mean, out=action)
        # From the rounded action, as the learner computes it.
        np.subtract(action, self._mean, out=scaled)
        np.multiply(scaled, self._precision, out=scaled)
        np.multiply(scaled, scaled, out=scaled)
        log_prob: NDArray[np.float32] = np.add.reduce(scaled, axis=0)
        np.multiply(log_prob, np.float32(-0.5), out=log_prob)
        np.subtract(log_prob, np.add.reduce(self._log_std + np.float32(_HALF_LOG_TWO_PI), axis=0), out=log_prob)
        return action[:, : self._count].T, log_prob

    def mode(self, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        del illegal
        return self._mean[:, : self._count].T.copy()

    def _bounded(self, log_std: NDArray[np.float32]) -> NDArray[np.float32]:
        low, high = (np.float32(bound) for bound in self._range)
        bounded: NDArray[np.float32] = np.minimum(np.maximum(log_std, low), high) + self._log_temperature
        return bounded


def _head(space: Space, network: Network, temperature: float) -> _Head:
    match space:
        case DiscreteSpace() | MultiDiscreteSpace() | MultiBinarySpace():
            return _Choices(space, temperature)
        case BoxSpace():
            return _Gaussian(space, network, temperature)
        case _:
            assert_never(space)


def _fold(function: np.ufunc, values: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Reduces <float32>[k, n, columns] over the alternatives to <float32>[k, columns]."""
    if values.shape[1] != 2:
        function.reduce(values, axis=1, out=out)
    else:
        # A quarter of the time of a reduction.
        function(values[:, 0], values[:, 1], out=out)


def _last_legal(forbidden: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Returns, <int64>[k, ...], the last alternative of <bool>[k, n, ...] that is not forbidden; 0 if all are."""
    number = np.arange(forbidden.shape[1])[:, None]
    last: NDArray[np.int64] = np.where(forbidden, 0, number).max(axis=1)
    return last
