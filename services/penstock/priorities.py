"""Priorities of one's own (`sampling.priority`): the segments that they are computed from, and Penstock's own priority.

    from torch import Tensor

    from penstock.priorities import Segments

    def my_priority(segments: Segments) -> Tensor:
        return segments.value_error.abs().amax(1)

`learning.step.own.priority` calls such a function once per batch; docs/change-the-algorithm.md is its guide.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from penstock.algo.priorities import segment_priorities

__all__ = ["Priority", "Segments", "mean_advantage"]


@dataclass(frozen=True, slots=True)
class Segments:
    """All segments of a batch, before it is trained on: S segments of T steps, those with new steps first.

    For example, a priority (`sampling.priority`) of segments with rewards::

        def rewarded(segments: penstock.Segments):
            return segments.value_error.abs().mean(1) + segments.reward.abs().amax(1)

    Every tensor is <float32>[S, T] on the learner's device unless noted, and 0 at steps that are not usable. None
    carries a gradient.

    Attributes:
        advantage: Advantages of the actions, not standardised.
        value_error: Targets of the values minus the values.
        value: Values of the policy before the batch, in the units of `target`.
        target: Targets of the values.
        log_ratio: Log probabilities of the actions under the policy before the batch, minus those when they were taken.
        reward: Rewards as the environment returned them.
        terminated: <bool>[S, T] steps that terminated an episode.
        truncated: <bool>[S, T] steps that truncated an episode.
        usable: <bool>[S, T] steps that are trained on. A segment may have none.
        age: <int64>[S] ages in versions: the batch's number minus the version that acted.
        fresh: <bool>[S] segments that are trained for the first time.
        importance: <float32>[S] weights in the loss that correct for the draw; 1 for fresh segments.
        priority: <float32>[S] priorities at the draw, from the last use; 0 for fresh segments.
        entropy: Function without arguments that returns the entropies of the policy in nats, <float32>[S, T]. Each call
            evaluates the policy for the batch, which takes about a third of a pass over it.
    """

    advantage: Tensor
    value_error: Tensor
    value: Tensor
    target: Tensor
    log_ratio: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    usable: Tensor
    age: Tensor
    fresh: Tensor
    importance: Tensor
    priority: Tensor
    entropy: Callable[[], Tensor]


Priority = Callable[[Segments], Tensor]
"""Function that returns the priorities of segments, <float32>[S], finite and not negative. A class is made without
arguments, and its instance is the function."""


def mean_advantage(segments: Segments) -> Tensor:
    """Returns the priorities, <float32>[S], as they are without `sampling.priority`: the mean absolute advantage.

    The mean is over all T steps, of which those that are not usable count as 0.
    """
    return segment_priorities(segments.advantage, segments.usable)
