"""A window whose actions come from one call of a runner per step, with their log probabilities."""

import numpy as np
from numpy.typing import NDArray

from penstock.acting.protocols import Runner
from penstock.types.spaces import Leaves


class StepwiseWindow:
    """A runner that acts on the rows of one window (`acting.protocols.WindowPolicy`). Used by one thread."""

    def __init__(self, runner: Runner, noise: NDArray[np.float32]) -> None:
        """Begins a window with noise as for `Runner.begin`."""
        self._runner, self._noise, self._step = runner, noise, 0
        self._log_probs = np.zeros(noise.shape[:2], np.float32)

    def act(
        self, observation: Leaves, *, mask: NDArray[np.bool_] | None = None, begun: NDArray[np.bool_] | None = None
    ) -> Leaves:
        """Samples one action per row, as `acting.protocols.WindowPolicy`."""
        action, log_prob = self._runner.act(observation, self._noise[:, self._step], mask=mask, begun=begun)
        self._log_probs[:, self._step] = log_prob
        self._step += 1
        return action

    def log_probs(self) -> NDArray[np.float32]:
        """Returns the log probabilities of the sampled actions, as `acting.protocols.WindowPolicy`."""
        return self._log_probs
