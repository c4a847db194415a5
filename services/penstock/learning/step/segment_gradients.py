"""Gradients of the loss for single segments, from which `second_moments` computes the gain of priorities."""

import dataclasses

import torch
from torch import Tensor, nn

from penstock.algo.losses import LossSettings, standardised
from penstock.algo.parameters import parts_of
from penstock.learning.step.execution import Execution
from penstock.learning.step.gradient_steps import Estimated, Steps


def squared_gradients(
    execution: Execution, parameters: nn.Parameter, estimated: Estimated, settings: LossSettings, border: int | None
) -> Tensor:
    """Returns the squared norm of each segment's gradient, <float64>[B, parts], before any is clipped.

    A segment's loss is the mean over its T rows, of which those that are not usable count as 0, without importance
    weights. Takes one backward pass for each segment, and leaves the parameters unchanged.

    Args:
        execution: Execution that computes the gradients.
        parameters: Flat parameters with their gradient, which is 0 afterwards.
        estimated: Estimates for the segments.
        settings: Settings of the loss.
        border: Position from which the parameters are the value's own. Its gradient, whose size depends on the size of
            the returns, is the second part. None: policy and value share a trunk, and there is one part.
    """
    steps = alike(estimated, settings)
    settings = dataclasses.replace(settings, normalise_advantages=False)
    usable = estimated.usable
    rows = usable.sum(1) if steps.usable is None else usable.any(1)
    gradient = parameters.grad
    assert gradient is not None
    write_gradient, begin = execution.gradients(steps, settings), 0
    parts = parts_of(gradient, border)
    norms = torch.zeros(len(rows), len(parts), dtype=torch.float64, device=gradient.device)
    for segment, count in enumerate(rows.tolist()):
        if count:
            write_gradient(slice(begin, begin + count))
            begin += count
            for part, values in enumerate(parts):
                norms[segment, part] = torch.linalg.vector_norm(values, dtype=torch.float64)
    gradient.zero_()
    return (norms * usable.float().mean(1)[:, None]).square()


def alike(estimated: Estimated, settings: LossSettings) -> Steps:
    """Returns the steps without importance weights, and with advantages standardised over all of them if configured."""
    steps = estimated.steps
    advantage = steps.advantage
    if settings.normalise_advantages and advantage.numel():
        advantage = standardised(advantage, steps.importance, steps.usable)
    return dataclasses.replace(
        steps,
        advantage=advantage,
        importance=torch.ones_like(steps.importance),
        policy_weight=steps.policy_weight / steps.importance,
    )
