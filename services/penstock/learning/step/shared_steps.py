"""The gradient step on a minibatch of which several ranks compute the gradient.

It is the step of `GradientStep` on the whole minibatch, up to rounding. A Gaussian's deviation beyond its limits is the
exception: its gradient is stopped by its sign, which each rank sees of its own rows.
"""

import dataclasses
import operator

import torch
from torch import Tensor

from penstock.algo.losses import Losses, LossSettings, standardised
from penstock.learning.ranks.ranks import Ranks
from penstock.learning.step.gradient_steps import Descended, GradientStep, Steps, counted_steps


@dataclasses.dataclass(frozen=True, slots=True)
class SharedStep:
    """Gradient step that all ranks call with the same minibatch; implements `execution.Step`.

    One sum over the ranks has the gradient, the losses and the log probabilities of the actions.
    """

    step: GradientStep
    ranks: Ranks

    def __call__(self, steps: Steps, settings: LossSettings, counted: Tensor | None = None) -> Descended:
        """Takes the step. `counted` is as in `ppo_loss`."""
        counts, shape = counted_steps(steps.usable, counted), steps.advantage.shape
        if settings.normalise_advantages:
            # Over the whole minibatch, which each rank has.
            steps = dataclasses.replace(steps, advantage=standardised(steps.advantage, steps.importance, counts))
            settings = dataclasses.replace(settings, normalise_advantages=False)
        gradient = self.step.gradient
        whole = gradient.new_zeros(gradient.numel() + 3 + shape.numel())
        summed, numbers, log_probs = torch.split(whole, [gradient.numel(), 3, shape.numel()])
        own = self.ranks.own(shape[0])
        if own.start < own.stop:
            part = steps.each(operator.itemgetter(own))
            log_prob, loss = self.step.write_gradient(part, settings, None if counted is None else counted[own])
            # Of a mean over the own rows, its share in the mean over all.
            share = _share(counts, own, shape[0])
            torch.mul(gradient, share, out=summed)
            torch.mul(torch.stack([loss.policy, loss.value, loss.entropy]), share, out=numbers)
            log_probs.view(shape)[own] = log_prob.detach()
        self.ranks.add(whole)
        gradient.copy_(summed)
        return self.step.descend(log_probs.view(shape), Losses(numbers.new_zeros(()), *numbers), counts)


def _share(counts: Tensor | None, own: slice, rows: int) -> Tensor:
    if counts is None:
        return torch.tensor((own.stop - own.start) / rows)
    return torch.div(counts[own].sum(), counts.sum().clamp(min=1))
