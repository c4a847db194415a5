"""A whole policy of one's own (`policy.module`): the class that it derives from.

    class MyPolicy(PolicyModule):
        def __init__(self, spaces: PolicySpaces) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(*spaces.observation[0], 64), nn.Tanh())
            self.actor, self.critic = nn.Linear(64, spaces.outputs), nn.Linear(64, 1)

        def encode(self, observation: tuple[Tensor, ...], state: Tensor | None) -> tuple[Tensor, Tensor | None]:
            return self.body(observation[0]), state

        def outputs(self, features: Tensor) -> Tensor:
            return self.actor(features)

        def value(self, features: Tensor) -> Tensor:
            return self.critic(features).squeeze(-1)

`algo.own_policies` calls it; docs/change-the-algorithm.md is its guide.
"""

from penstock.algo.distributions import Categorical, DiagonalGaussian, Joint, MultiCategorical, Part, SquashedGaussian
from penstock.algo.network import Noise, NoiseKind
from penstock.algo.policy_modules import PolicyModule, PolicySpaces

__all__ = [
    "Categorical",
    "DiagonalGaussian",
    "Joint",
    "MultiCategorical",
    "Noise",
    "NoiseKind",
    "Part",
    "PolicyModule",
    "PolicySpaces",
    "SquashedGaussian",
]
