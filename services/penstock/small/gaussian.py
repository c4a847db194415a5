"""Normally distributed actions from the outputs of a small network in NumPy (`small.actions`).

This module does not import torch.
"""

import math

import numpy as np
from numpy.typing import NDArray

from penstock.algo.network import LOG_STD_RANGE, SQUASHED_LOG_STD_RANGE, Network, Noise, NoiseKind
from penstock.types.spaces import BoxSpace

_HALF_LOG_TWO_PI = np.float32(0.5 * math.log(2.0 * math.pi))


class Gaussian:
    """Real vectors of A elements: A means, followed by A log standard deviations if these depend on the state.

    For squashed policies, actions are the values before the tanh.
    """

    bits = 0

    def __init__(self, space: BoxSpace, network: Network, temperature: float) -> None:
        """Samples at this temperature."""
        size = self._size = space.size
        depends = self._depends = network.state_dependent_std
        self.outputs, self.log_stds = (2 * size, 0) if depends else (size, size)
        self.cells = self.outputs + size
        self.noise = Noise(NoiseKind.NORMAL, size)
        self._range = SQUASHED_LOG_STD_RANGE if network.squash_actions else LOG_STD_RANGE
        self._log_temperature = np.float32(math.log(temperature))
        self._log_std = np.zeros((size, 1), np.float32)

    def load(self, log_std: NDArray[np.generic]) -> None:
        """Copies the log standard deviations, as `small.actions.Head`."""
        self._log_std = self._bounded(log_std.astype(np.float32)[:, None])

    def resize(self, outputs: NDArray[np.float32], count: int) -> None:
        """Chooses the arrays of the outputs, as `small.actions.Head`."""
        self._count, self._outputs, self._means = count, outputs, outputs[:, : self._size]
        self._taken = np.zeros_like(self._means)
        # Views, whose making takes as long as an operation on a row.
        actions: NDArray[np.float32] = self._taken[:, :, :count].transpose(0, 2, 1)
        self._rows: list[tuple[NDArray[np.float32], ...]] = list(zip(self._means, self._taken, actions, strict=True))

    def begin(self, noise: NDArray[np.float32]) -> None:
        """Prepares to sample T times, as `small.actions.Head`."""
        self._deviates = list(noise if self._depends else noise * np.exp(self._log_std))

    def sample(self, row: int, step: int, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Samples actions, as `small.actions.Head`."""
        del illegal
        mean, taken, action = self._rows[row]
        deviate = self._deviates[step]
        if self._depends:
            deviate = deviate * np.exp(self._bounded(self._outputs[row, self._size :]))
        np.add(deviate, mean, out=taken)
        return action

    def log_probs(self, rows: int) -> NDArray[np.float32]:
        """Returns log probabilities, as `small.actions.Head`."""
        log_std = self._bounded(self._outputs[:rows, self._size :]) if self._depends else self._log_std
        # From the rounded action, as the learner computes it.
        scaled = (self._taken[:rows] - self._means[:rows]) * np.exp(-log_std)
        np.multiply(scaled, scaled, out=scaled)
        exponent, scale = np.add.reduce(scaled, axis=1), np.add.reduce(log_std + _HALF_LOG_TWO_PI, axis=-2)
        log_probs: NDArray[np.float32] = exponent * np.float32(-0.5) - scale
        return log_probs

    def mode(self, illegal: NDArray[np.bool_] | None) -> NDArray[np.generic]:
        """Returns the most likely actions, as `small.actions.Head`."""
        del illegal
        return self._means[0, :, : self._count].T.copy()

    def _bounded(self, log_std: NDArray[np.float32]) -> NDArray[np.float32]:
        low, high = (np.float32(bound) for bound in self._range)
        bounded: NDArray[np.float32] = np.minimum(np.maximum(log_std, low), high) + self._log_temperature
        return bounded
