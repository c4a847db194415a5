"""PPO's objective with a clip that need not be centred on the behaviour policy.

This is the decoupled objective (Hilton, Cobbe & Schulman 2021, "Batch size-invariance for policy optimization"). Its
centre, the anchor, interpolates between the proximal policy and the behaviour policy. A-3PO (Li, Wu & Shen 2026, arXiv
2512.06547) uses the same interpolation to save a forward pass. Here it stabilises training on stale data
(docs/RESULTS.md).
"""

from dataclasses import dataclass, field, fields

import torch
from torch import Tensor

from penstock.algo.advantages import ratio_of


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Coefficients of the loss. Each field is a setting of [ppo], which documents it.

    For example, a loss (`learner.loss`) without an entropy bonus::

        from penstock.losses import ppo

        def without_bonus(policy, batch: penstock.Minibatch, settings: penstock.LossSettings):
            loss, statistics = ppo(policy, batch, settings)
            return loss + settings.entropy_coefficient * batch.mean(batch.entropy), statistics

    The metadata of a field that follows a schedule names the setting that selects the schedule. Such fields are scalar
    tensors in compiled and captured code, which would otherwise treat them as constants.
    """

    clip_range: float | Tensor = field(metadata={"schedule": "clip_range_schedule"})
    value_clip_range: float | None
    value_coefficient: float
    entropy_coefficient: float | Tensor = field(metadata={"schedule": "entropy_schedule"})
    normalise_advantages: bool
    clip_anchor: float
    behaviour_weight_clip: float


SCHEDULED = {each.name: each.metadata["schedule"] for each in fields(LossSettings) if "schedule" in each.metadata}
"""Settings of the loss that change over a run, each with the setting that names its schedule."""


@dataclass(frozen=True, slots=True)
class Losses:
    """Scalar losses of one minibatch. `total` carries the gradient; the others are for monitoring.

    Attributes:
        total: Loss to minimise.
        policy: Policy loss, -mean(omega w min(r A, clip(r) A)).
        value: Value loss, mean(omega (V - target)^2 / 2).
        entropy: Mean entropy in nats.
        own: Statistics of a loss of the user's own (`learner.loss`), in the order of their names.
    """

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    own: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Movement:
    """Change of the policy since the beginning of a batch, as scalars.

    Attributes:
        approximate_kl: Estimated KL divergence of the trained from the proximal policy, mean((r - 1) - log r) with r
            the ratio of the two (Schulman 2020).
        clipped_share: Share of steps whose ratio to the anchor is outside the clip range.
    """

    approximate_kl: Tensor
    clipped_share: Tensor


def anchor(settings: LossSettings, *, proximal_log_prob: Tensor, behaviour_log_prob: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the anchor's log probability and the weight that corrects for the behaviour policy, <float32>[N] each.

        anchor = pi_prox^(1 - a) mu^a       w = min(anchor / mu, C)

    Both are constant while a batch is trained.
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
    """Computes the loss of one minibatch of N valid steps, or of S segments of T steps, where [N] below is [S, T].

        policy = -mean(omega w min(r A, clip(r, 1 - eps, 1 + eps) A)),      r = pi / anchor

    The weight w corrects for the behaviour policy, the clip keeps the policy near the anchor, and omega corrects for
    prioritized sampling, also where advantages are normalised (`standardised`). With a = 0 in `anchor` this is the
    decoupled objective, with a = 1 plain PPO. On on-policy data the two are the same.

    Every tensor is <float32>[N] unless noted. Only the first three carry gradients.

    Args:
        settings: Coefficients of the loss.
        log_prob: Log probabilities of the actions under the policy being trained.
        value: Values V under the policy being trained.
        entropy: Entropies of the policy being trained.
        anchor_log_prob: Log probabilities of the actions under the anchor, from `anchor`.
        proximal_value: Values before the batch.
        advantage: Advantages A.
        target: Value targets.
        importance: Importance weights omega.
        policy_weight: Products omega w.
        counted: <bool>[N] steps that belong to the minibatch; the others only pad it. None: all steps.
    """
    # Tensors of other shapes, such as values [N, 1], would be broadcast.
    shape = log_prob.shape
    assert value.shape == entropy.shape == anchor_log_prob.shape == proximal_value.shape == shape, shape
    assert advantage.shape == target.shape == importance.shape == policy_weight.shape == shape, shape
    if settings.normalise_advantages:
        advantage = standardised(advantage, importance, counted)
    ratio = ratio_of(log_prob - anchor_log_prob)
    clipped_ratio = ratio.clamp(1.0 - settings.clip_range, 1.0 + settings.clip_range)  # type: ignore[arg-type]
    surrogate = torch.minimum(ratio * advantage, clipped_ratio * advantage)
    policy_loss = -counted_mean(policy_weight * surrogate, counted)

    squared_error = (value - target).square()
    if settings.value_clip_range is not None:
        change = (value - proximal_value).clamp(-settings.value_clip_range, settings.value_clip_range)
        squared_error = torch.maximum(squared_error, (proximal_value + change - target).square())
    value_loss = counted_mean(importance * 0.5 * squared_error, counted)

    mean_entropy = counted_mean(entropy, counted)
    total = policy_loss + settings.value_coefficient * value_loss - settings.entropy_coefficient * mean_entropy
    return Losses(total, policy_loss.detach(), value_loss.detach(), mean_entropy.detach())


@torch.no_grad()
def movement(
    settings: LossSettings,
    *,
    log_prob: Tensor,
    anchor_log_prob: Tensor,
    proximal_log_prob: Tensor,
    counted: Tensor | None = None,
) -> Movement:
    """Measures how far `log_prob` moved from the other two, <float32>[N] each. `counted` is as in `ppo_loss`."""
    moved = log_prob - proximal_log_prob
    ratio = ratio_of(log_prob - anchor_log_prob)
    return Movement(
        approximate_kl=counted_mean((ratio_of(moved) - 1.0) - moved, counted),
        clipped_share=counted_mean(((ratio - 1.0).abs() > settings.clip_range).float(), counted),
    )


def counted_mean(values: Tensor, counted: Tensor | None) -> Tensor:
    """Returns the mean of values, <float32>[N], over the steps that count, as in `ppo_loss`; 0 if there are none."""
    if counted is None:
        return values.mean()
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp(min=1)


def standardised(values: Tensor, importance: Tensor, counted: Tensor | None) -> Tensor:
    """Returns advantages, <float32>[N], with weighted mean 0 and deviation 1 over those that count, as in `ppo_loss`.

        mean = sum(omega A) / sum(omega)        variance = sum(omega (A - mean)^2) / sum(omega)

    These self-normalised estimates (Owen 2013, "Monte Carlo theory, methods and examples", section 9.2) estimate the
    moments under uniform draws. Prioritized draws prefer large |A| and would enlarge plain moments.
    """
    weight = importance if counted is None else torch.where(counted, importance, 0.0)
    total = weight.sum().clamp(min=1e-30)
    centred = values - (weight * values).sum() / total
    return centred / (((weight * centred.square()).sum() / total).sqrt() + 1e-8)
