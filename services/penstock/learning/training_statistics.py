"""Statistics of a trained batch, computed on the device with a single synchronisation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.algo.losses import Movement
from penstock.learning.batches import TrainingBatch
from penstock.learning.gradient_steps import Descended, Steps

_OF_MINIBATCHES = ("policy_loss", "value_loss", "entropy", "gradient_norm")
"""Statistics of each gradient step."""

_OF_EPOCHS = ("approximate_kl", "clipped_share")
"""Statistics of each epoch."""


@dataclass(frozen=True, slots=True)
class TrainingStatistics:
    """Statistics of training on one batch.

    They are means over its minibatches unless noted, without those whose gradient steps were refused. NaN: there was
    nothing to average.
    """

    policy_loss: float
    value_loss: float
    entropy: float
    approximate_kl: float
    clipped_share: float
    gradient_norm: float
    learning_rate: float
    effective_sample_share: float
    """Effective sample share of the behaviour weights, (sum w)^2 / (n sum w^2); 1 on on-policy data."""
    fresh_effective_share: float
    """The same for fresh segments alone, whose staleness follows from the off-policy degree; 1 if there are none."""
    explained_variance: float
    """Share of the targets' variance that the values explain, before training."""
    staleness_mean: float
    staleness_max: int
    fresh_lag_mean: float
    fresh_lag_max: int


@torch.no_grad()
def measure(
    batch: TrainingBatch,
    *,
    steps: Steps,
    behaviour_weight: Tensor,
    fresh_count: int,
    minibatches: Sequence[Descended],
    movements: Sequence[Movement],
    learning_rate: float,
) -> tuple[TrainingStatistics, int]:
    """Returns the statistics of a trained batch and the number of its refused gradient steps.

    Args:
        batch: Batch as received.
        steps: The N steps that were trained.
        behaviour_weight: <float32>[N] proximal over behaviour probability, clipped.
        fresh_count: Number of steps in fresh segments, which come first.
        minibatches: Results of all gradient steps.
        movements: Change of the policy in each epoch.
        learning_rate: Learning rate for the batch.
    """
    refused = _column(minibatches, "refused", steps)
    measured = {
        **{name: _mean(_column(minibatches, name, steps), refused == 0.0) for name in _OF_MINIBATCHES},
        **{name: _mean(_column(movements, name, steps)) for name in _OF_EPOCHS},
        "effective_sample_share": _effective_share(behaviour_weight),
        "fresh_effective_share": _effective_share(behaviour_weight[:fresh_count]),
        "explained_variance": _explained_variance(steps),
    }
    # The only synchronisation with the device.
    *values, refused_steps = torch.stack([*measured.values(), refused.sum()]).tolist()
    statistics = TrainingStatistics(
        **dict(zip(measured, values, strict=True)),
        learning_rate=learning_rate,
        staleness_mean=float(batch.staleness.mean()),
        staleness_max=int(batch.staleness.max()),
        fresh_lag_mean=float(batch.staleness[: batch.fresh_segments].mean()) if batch.fresh_segments else 0.0,
        fresh_lag_max=int(batch.staleness[: batch.fresh_segments].max(initial=0)),
    )
    return statistics, int(refused_steps)


def _column(rows: Sequence[object], name: str, like: Steps) -> Tensor:
    """Returns one attribute of N values, each a scalar on the device, as <float32>[N]."""
    return torch.stack([getattr(row, name) for row in rows]) if rows else like.advantage.new_empty(0)


def _mean(values: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Returns the mean of those chosen values, <float32>[N], that are finite; NaN if there are none."""
    finite = values.isfinite() if chosen is None else chosen & values.isfinite()
    return torch.where(finite, values, 0.0).sum() / finite.sum()


def _explained_variance(steps: Steps) -> Tensor:
    if not steps.target.shape[0]:
        return steps.target.new_full((), math.nan)
    unexplained = (steps.target - steps.proximal_value).var(unbiased=False)
    return 1.0 - unexplained / steps.target.var(unbiased=False).clamp(min=1e-8)


def _effective_share(weight: Tensor) -> Tensor:
    if not weight.shape[0]:
        return weight.new_ones(())
    return weight.sum().square() / (weight.square().sum() * weight.shape[0]).clamp(min=1e-8)
