"""A one-step task that a small network learns within some hundred batches, as batches for a learner.

Observations [x, y] are independent of the actions. Discrete actions are rewarded with 1 + |y| if they match the sign of
x. Continuous actions are rewarded with y minus the squared distance from x.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.algo.distributions import Joint
from penstock.algo.network import Network
from penstock.algo.policies import Inputs
from penstock.config import PPOConfig, SamplingConfig
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.learner import Learner
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree

SEGMENTS, STEPS, DISCOUNT = 8, 8, 0.5
_OBSERVATION = Tree.of(BoxSpace("float32", (2,), (-np.inf,) * 2, (np.inf,) * 2))
_ACTIONS = {
    "discrete": Tree.of(DiscreteSpace(2)),
    "continuous": Tree.of(BoxSpace("float32", (1,), (-np.inf,), (np.inf,))),
}


class Bandit:
    """The task and a learner."""

    def __init__(self, actions: str, network: Network, **ppo: object) -> None:
        """Creates the task and the learner.

        Args:
            actions: Kind of actions: discrete or continuous.
            network: Network of the learner's policy.
            ppo: Settings of [ppo].
        """
        settings: dict[str, Any] = {"epochs": 2, "minibatches": 2, "learning_rate": 3e-3, "discount": DISCOUNT, **ppo}
        self.learner = Learner(
            EnvironmentSpec("Bandit-v0", _OBSERVATION, _ACTIONS[actions]),
            network,
            ppo=PPOConfig(**settings),
            sampling=SamplingConfig(),
            device=torch.device("cpu"),
            seed=0,
        )
        self._discrete = actions == "discrete"
        self._generator = torch.Generator().manual_seed(1)
        self._running = torch.zeros(SEGMENTS)

    @torch.no_grad()
    def collect(self) -> TrainingBatch:
        """Returns a batch of the current policy; its second half counts as replayed."""
        observation = torch.randn(SEGMENTS, STEPS + 1, 2, generator=self._generator)
        distribution = self._distribution(observation[:, :-1])
        draw = torch.rand if self._discrete else torch.randn
        action = distribution.sample(draw(SEGMENTS, STEPS, 1, generator=self._generator))
        reward = self._reward(observation[:, :-1], action[0])
        returns = []
        for step in range(STEPS):
            self._running = DISCOUNT * self._running + reward[:, step]
            returns.append(self._running)
        nothing = torch.zeros(SEGMENTS, STEPS, dtype=torch.bool)
        return TrainingBatch(
            fresh_segments=SEGMENTS // 2,
            observation=(observation,),
            action=action,
            reward=reward,
            terminated=nothing,
            truncated=nothing,
            valid=~nothing,
            behaviour_log_prob=distribution.log_prob(action),
            discounted_return=torch.stack(returns, 1),
            action_mask=None,
            memory=None,
            begun=None,
            priorities=torch.ones(SEGMENTS, dtype=torch.float64),
            probabilities=torch.ones(SEGMENTS, dtype=torch.float64),
            staleness=np.zeros(SEGMENTS, np.int64),
        )

    @torch.no_grad()
    def score(self) -> float:
        """Returns the mean reward of the most likely actions on fixed observations."""
        observation = torch.randn(4096, 2, generator=torch.Generator().manual_seed(2))
        return self._reward(observation, self._distribution(observation).mode()[0]).mean().item()

    def _distribution(self, observation: Tensor) -> Joint:
        """Returns the distribution of the policy's actions at observations, [..., 2]."""
        return self.learner.policy.evaluate(Inputs((observation,), None, None, None))[0]

    def _reward(self, observation: Tensor, action: Tensor) -> Tensor:
        x, y = observation.unbind(-1)
        if self._discrete:
            return torch.where(action == (x > 0.0), 1.0 + y.abs(), 0.0)
        return y - (action.squeeze(-1) - x).square()
