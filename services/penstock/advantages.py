"""Advantages of one's own (`ppo.advantage`): the steps that they are computed from, and V-trace as one of them.

    from torch import Tensor

    from penstock.advantages import Trajectories

    def one_step(steps: Trajectories) -> tuple[Tensor, Tensor]:
        target = steps.reward + steps.discount * steps.next_value
        return target - steps.value, target

`learning.step.own.advantage` calls such a function once per batch; docs/change-the-algorithm.md is its guide.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.algo.advantages import backward_sum, traced

__all__ = ["Advantage", "Trajectories", "backward_sum", "v_trace"]


@dataclass(frozen=True, slots=True)
class Trajectories:
    """All segments of a batch, before it is trained on: S segments of T steps, in the order of time.

    For example, advantages (`ppo.advantage`) of single steps, and their targets::

        def one_step(steps: penstock.Trajectories):
            target = steps.reward + steps.discount * steps.next_value
            return target - steps.value, target

    Every tensor is <float32>[S, T] on the learner's device unless noted, and 0 at steps that are not usable. None
    carries a gradient. A segment may have several episodes.

    Attributes:
        reward: Rewards in the units of the values.
        value: Values of the observations before the steps, under the policy before the batch.
        next_value: Values of the observations after the steps; 0 where the step terminated an episode.
        log_ratio: Log probabilities of the actions under the policy before the batch, minus those when they were taken;
            0 if `ppo.v_trace` is false.
        terminated: <bool>[S, T] steps that terminated an episode.
        truncated: <bool>[S, T] steps that truncated an episode.
        ended: <bool>[S, T] steps after which no step of their episode follows that is usable: it terminated or was
            truncated, the segment ends, or the next step is not usable. A sum over the following steps ends there.
        usable: <bool>[S, T] steps that count. The others are resets, or have numbers without meaning.
        discount: Discount per step (`ppo.discount`).
        trace_decay: Lambda (`ppo.trace_decay`).
        rho_clip, trace_clip: Bounds on the ratios of V-trace (`ppo.rho_clip` and `ppo.trace_clip`).
    """

    reward: Tensor
    value: Tensor
    next_value: Tensor
    log_ratio: Tensor
    terminated: Tensor
    truncated: Tensor
    ended: Tensor
    usable: Tensor
    discount: float
    trace_decay: float
    rho_clip: float
    trace_clip: float


Advantage = Callable[[Trajectories], tuple[Tensor, Tensor]]
"""Function that returns the advantages and the targets of the values, <float32>[S, T] each, finite where a step is
usable. A class is made without arguments, and its instance is the function."""


def v_trace(steps: Trajectories) -> tuple[Tensor, Tensor]:
    """Returns advantages and targets, <float32>[S, T] each, as they are without `ppo.advantage`.

    They are V-trace with lambda, and GAE if `ppo.v_trace` is false.
    """
    delta = torch.where(steps.usable, steps.reward + steps.discount * steps.next_value - steps.value, 0.0)
    decay = torch.where(steps.ended, 0.0, steps.discount * steps.trace_decay)
    advantage, correction = traced(delta, decay, steps.log_ratio, rho_clip=steps.rho_clip, trace_clip=steps.trace_clip)
    return advantage, steps.value + correction
