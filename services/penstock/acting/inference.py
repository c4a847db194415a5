"""Policy inference for all environments in one call, on the CPU, without gradients."""

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.algo import weights as policy_weights
from penstock.types.run import Weights

_ROW_MULTIPLE = 16
"""Multiple to which rows are padded, so that an action does not depend on the number of environments.

The last bits of a CPU matrix product's row depend on the number of rows if there are few: below 4 with AVX2, below 16
with AVX-512."""


def use_one_thread() -> None:
    """Limits torch to one thread in the whole process.

    On a busy machine, threads wait for each other in every small layer: 20 episodes of CartPole took 13 s instead of 1.
    """
    torch.set_num_threads(1)


class PolicyRunner:
    """A policy that acts on batches of observations. Used by one thread.

    Attributes:
        policy: Torch module.
        version: Version of the loaded weights.
    """

    def __init__(self, weights: Weights, *, temperature: float = 1.0) -> None:
        """Loads the policy. `refresh` does not change the sampling temperature of `act`."""
        self.policy, self._temperature = policy_weights.load(weights), temperature
        self.version = weights.version

    @property
    def squashes(self) -> bool:
        """Whether the policy's continuous actions must pass through a tanh."""
        return self.policy.network.squash_actions

    def refresh(self, weights: Weights) -> None:
        """Loads weights of the same architecture, unless their version is already loaded."""
        if weights.version != self.version:
            policy_weights.load_into(self.policy, weights)
            self.version = weights.version

    @torch.inference_mode()
    def act(
        self, observation: NDArray[np.generic], noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        """Samples one action per row from the policy at this runner's temperature.

        Args:
            observation: [N, ...] raw observations.
            noise: <float32>[N, policy.noise.size] random numbers from `Streams.draw`.

        Returns:
            The actions, <int64>[N] or <float32>[N, A], and their log probabilities at that temperature, <float32>[N].
        """
        count = len(observation)
        distribution = self.policy.distribution(torch.from_numpy(_pad(observation))).tempered(self._temperature)
        action = distribution.sample(torch.from_numpy(_pad(noise)))
        log_prob = distribution.log_prob(action)
        return action.numpy()[:count], log_prob.numpy()[:count]

    @torch.inference_mode()
    def act_greedily(self, observation: NDArray[np.generic]) -> NDArray[np.generic]:
        """Returns the most likely action per row, <int64>[N] or <float32>[N, A], for [N, ...] raw observations."""
        distribution = self.policy.distribution(torch.from_numpy(_pad(observation)))
        mode: NDArray[np.generic] = distribution.mode().numpy()[: len(observation)]
        return mode


def _pad(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    missing = -len(rows) % _ROW_MULTIPLE
    if not missing:
        return np.ascontiguousarray(rows)
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
