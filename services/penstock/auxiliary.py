"""Auxiliary losses of a network of one's own (`policy.module`): what they get.

    class MyNet(torch.nn.Module):
        ...
        def auxiliary_loss(self, steps: Transitions) -> Tensor:
            return (self.next(steps.features) - steps.next_features.detach()).square().mean(1)

`learning.step.own.auxiliary` calls such a method once for each gradient step; docs/change-the-algorithm.md is its
guide.
"""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Transitions"]


@dataclass(frozen=True, slots=True)
class Transitions:
    """N steps of one minibatch, each with the observation after it. All tensors are on the learner's device.

    The network has an instance for the policy and one for the value, unless `policy.trunk` is shared or there is
    memory; each gets its own features.

    Attributes:
        features: <float>[N, F] outputs of the network for the observations before the steps, with gradients.
        next_features: <float>[N, F] its outputs for the observations after them, with gradients.
        action: The actions of the steps: <int64>[N], <int64>[N, k] or <float32>[N, A] as in `losses.Minibatch`, or a
            tuple with a tensor for each leaf of a nested action.
        counted: <bool>[N] steps that count. The others fill the minibatch up, or end an episode, and have
            features of no meaning; their losses are not used.
    """

    features: Tensor
    next_features: Tensor
    action: Tensor | tuple[Tensor, ...]
    counted: Tensor
