"""Intrinsic rewards of one's own (`ppo.intrinsic_reward`): what a module that learns them gets.

    class Surprise(torch.nn.Module):
        def __init__(self, *shapes: tuple[int, ...]) -> None: ...

        def forward(self, steps: Experience) -> Tensor:
            return (self.predictor(steps.next_observation[0]) - self.target(steps.next_observation[0])).square().mean(1)

`learning.step.own.intrinsic` calls it for each batch; docs/change-the-algorithm.md is its guide.
"""

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Experience"]


@dataclass(frozen=True, slots=True)
class Experience:
    """N steps, on the learner's device.

    Attributes:
        observation: Observations before the steps, one tensor per part, ``[N, *shape]``, as networks get them:
            standardised numbers, images in [0, 1], one-hot codes, or integers for learned vectors (`policy.encoders`).
        next_observation: Observations after them. After the last step of an episode, with most environments this is
            the first observation of the next one.
        action: The actions: <int64>[N], <int64>[N, k] or <float32>[N, A], or a tuple with a tensor for each leaf of a
            nested action.
    """

    observation: tuple[Tensor, ...]
    next_observation: tuple[Tensor, ...]
    action: Tensor | tuple[Tensor, ...]
