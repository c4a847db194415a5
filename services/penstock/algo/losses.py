"""PPO's objective with the clip's centre apart from the policy that acted.

The decoupled objective (Hilton, Cobbe & Schulman 2021, "Batch size-invariance for policy optimization"), whose centre
may lie between the proximal policy and the one that acted. A-3PO (Li, Wu & Shen 2026, arXiv 2512.06547) interpolates
alike, to save a forward pass; here it is for steadiness where data is stale (docs/RESULTS.md).
"""

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from penstock.algo.ratios import ratio_of


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Coefficients of the loss; the fields are settings of [ppo], which explains each.

    Those that follow a schedule name the setting that chooses it. They are scalar tensors where a number would be fixed
    for good: in compiled and captured code.
    """

    clip_range: float | Tensor = field(metadata={"schedule": "clip_range_schedule"})
    value_clip_range: float | None
    value_coefficient: float
    entropy_coefficient: float | Tensor = field(metadata={"schedule": "entropy_schedule"})
    normalise_advantages: bool
    clip_anchor: float
    behaviour_weight_clip: float


SCHEDULED = {each.name: each.metadata["schedule"] for each in fields(LossSettings) if "schedule" in each.metadata}
"""Settings of the loss that change over a run, with the setting that names their schedule."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Scalars of one minibatch; `total` carries the gradient, the rest are for people to look at.

    Attributes:
        total: What is minimised.
        policy: -mean(omega w min(r A, clip(r) A)).
        value: mean(omega (V - target)^2 / 2).
        entropy: In nats.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor


@dataclass(frozen=True, slots=True)
class Movement:
    """How far the policy went from where a batch began; scalars.

    Attributes:
        approximate_kl: Of target from proximal policy, mean((r - 1) - log r) (Schulman 2020).
        clipped_share: Share of steps whose ratio to the anchor left the clip range.
    """

    approximate_kl: Tensor
    clipped_share: Tensor


def anchor(settings: LossSettings, *, proximal_log_prob: Tensor, behaviour_log_prob: Tensor) -> tuple[Tensor, Tensor]:
    """The log probability that the clip is around, and the weight that corrects for who acted, <float32>[N] each.

        anchor = pi_prox^(1 - a) mu^a       w = min(anchor / mu, C)

    Both stay what they are while a batch is trained.
    """
    anchor_log_prob = torch.lerp(proximal_log_prob, behaviour_log_prob, settings.clip_anchor)
    weight = ratio_of(anchor_log_prob - behaviour_log_prob).clamp(max=settings.behaviour_weight_clip)
    return anchor_log_prob, weight


def ppo_loss(
    settings: LossSettings,
    *,
    log_prob: Tensor,
    value: Tensor,
    entropy: Tensor,
    anchor_log_prob: Tensor,
    proximal_value: Tensor,
    advantage: Tensor,
    target: Tensor,
    importance: Tensor,
    policy_weight: Tensor,
    counted: Tensor | None = None,
) -> Losses:
    """The loss of one minibatch of N valid steps; every tensor is <float32>[N], and only the first three carry
    gradients.

        policy = -mean(omega w min(r A, clip(r, 1 - eps, 1 + eps) A)),      r = pi / anchor

    The ratio w corrects for who acted, the clip stays near the anchor, omega corrects for how the step was drawn. With
    a = 0 in `anchor` this is the decoupled objective, with a = 1 plain PPO; where the data is on policy all are the
    same.

    Args:
        settings: Coefficients.
        log_prob: Of the actions, under the policy that is trained.
        value: V, of the policy that is trained.
        entropy: Of the policy that is trained.
        anchor_log_prob: As `anchor` has it.
        proximal_value: V before the batch.
        advantage: A.
        target: Of V.
        importance: omega.
        policy_weight: omega w.
        counted: <bool>[N] which rows are of the minibatch; the others only fill a fixed shape. None: all are.
    """
    if settings.normalise_advantages:
        advantage = _standardised(advantage, counted)
    ratio = ratio_of(log_prob - anchor_log_prob)
    clipped_ratio = ratio.clamp(1.0 - settings.clip_range, 1.0 + settings.clip_range)  # type: ignore[arg-type]
    surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    policy_loss = -_mean(policy_weight * surrogate, counted)

    squared_error = (value - target).square()
    if settings.value_clip_range is not None:
        change = (value - proximal_value).clamp(-settings.value_clip_range, settings.value_clip_range)
        squared_error = torch.maximum(squared_error, (proximal_value + change - target).square())
    value_loss = _mean(importance * 0.5 * squared_error, counted)

    mean_entropy = _mean(entropy, counted)
    total = policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * mean_entropy
    return Losses(total, policy_loss.detach(), value_loss.detach(), mean_entropy.detach())


@torch.no_grad()
def movement(
    settings: LossSettings, *, log_prob: Tensor, anchor_log_prob: Tensor, proximal_log_prob: Tensor
) -> Movement:
    """How far `log_prob` went from the other two, <float32>[N] each."""
    moved = log_prob - proximal_log_prob
    ratio = ratio_of(log_prob - anchor_log_prob)
    return Movement(
        approximate_kl=((ratio_of(moved) - 1.0) - moved).mean(),
        clipped_share=((ratio - 1.0).abs() > settings.clip_range).float().mean(),
    )


def _mean(values: Tensor, counted: Tensor | None) -> Tensor:
    if counted is None:
        return values.mean()
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp(min=1)


def _standardised(values: Tensor, counted: Tensor | None) -> Tensor:
    if counted is None:
        return (values - values.mean()) / (values.std(unbiased=False) + 1e-8)
    centred = values - _mean(values, counted)
    return centred / (_mean(centred.square(), counted).sqrt() + 1e-8)
