"""One policy call for all environments, on the CPU, without gradients."""

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.algo import weights as policy_weights
from penstock.algo.policies import Policy
from penstock.types import Weights

_ROW_MULTIPLE = 16
"""A CPU matrix product of few rows differs in its last bits from the same rows in a larger one: below 4 rows with AVX2,
below 16 with AVX-512. Padding makes an environment's actions independent of how many share its actor."""


def use_one_thread() -> None:
    """Has torch compute in one thread, for the whole process: beside busy neighbours, threads that wait for one another
    in every small layer have made 20 episodes of CartPole take 13 s, not 1.
    """
    torch.set_num_threads(1)


class PolicyRunner:
    """A policy that acts on batches of observations. Used by one thread."""

    def __init__(self, weights: Weights, *, temperature: float = 1.0) -> None:
        """Args:
        weights: To begin with.
        temperature: At which `act` samples; it stays when newer weights come.
        """
        self._policy, self._temperature = policy_weights.load(weights), temperature
        self.version = weights.version

    @property
    def policy(self) -> Policy:
        """The policy inside."""
        return self._policy

    @property
    def squashes(self) -> bool:
        """Whether its continuous actions are to go through a tanh."""
        return self._policy.network.squash_actions

    def update(self, weights: Weights) -> None:
        """Takes newer weights of the same architecture."""
        policy_weights.load_into(self._policy, weights)
        self.version = weights.version

    @torch.inference_mode()
    def act(
        self, observation: NDArray[np.generic], noise: NDArray[np.float32]
    ) -> tuple[NDArray[np.generic], NDArray[np.float32]]:
        """Samples an action a row, from the policy at this runner's temperature.

        Args:
            observation: [N, D] raw.
            noise: <float32>[N, noise_size].

        Returns:
            The actions, <int64>[N] or <float32>[N, A], and their log probabilities as they were sampled, <float32>[N].
        """
        count = len(observation)
        distribution = self._policy.distribution(torch.from_numpy(_pad(observation))).tempered(self._temperature)
        action = distribution.sample(torch.from_numpy(_pad(noise)))
        log_prob = distribution.log_prob(action)
        return action.numpy()[:count], log_prob.numpy()[:count]

    @torch.inference_mode()
    def act_greedily(self, observation: NDArray[np.generic]) -> NDArray[np.generic]:
        """The most likely action a row, <int64>[N] or <float32>[N, A], for [N, D] raw observations."""
        distribution = self._policy.distribution(torch.from_numpy(_pad(observation)))
        mode: NDArray[np.generic] = distribution.mode().numpy()[: len(observation)]
        return mode


def _pad(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    missing = -len(rows) % _ROW_MULTIPLE
    if not missing:
        return np.ascontiguousarray(rows)
    return np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), rows.dtype)])
