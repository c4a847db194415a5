"""Statistics of a trained batch, computed on the device with a single synchronisation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo.losses import Movement
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.gradient_steps import Descended, Epoch, Estimated, Steps
from penstock.types.records import plain
from penstock.types.statistics import LearningNumbers, declared

_OF_ROWS = ("effective_sample_share", "fresh_effective_share", "explained_variance", "actions_at_bound")
"""Statistics of the rows of a batch."""

_OF_MINIBATCHES = Descended.SCALARS
"""Statistics of each gradient step, which `Descended.scalars` begins with."""

_OF_EPOCHS = Movement.__slots__
"""Statistics of each epoch."""


@dataclass(frozen=True, slots=True)
class TrainingStatistics:
    """Statistics of training on one batch.

    Attributes:
        learning: Statistics that the status of the run contains.
        learning_rate: Learning rate for the batch.
        staleness_mean: Mean staleness of the segments, in versions.
        staleness_max: Largest staleness of the segments, in versions.
        fresh_lag_mean: Mean staleness of the fresh segments, in versions; 0 if there are none.
        fresh_lag_max: Largest staleness of the fresh segments, in versions; 0 if there are none.
        own: Statistics of a loss of the user's own (`learner.loss`), by their names; None where not finite.
    """

    learning: LearningNumbers
    learning_rate: float
    staleness_mean: float
    staleness_max: int
    fresh_lag_mean: float
    fresh_lag_max: int
    own: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def scalars(self) -> dict[str, float | None]:
        """Statistics that `penstock_learner_statistic` exports, by name."""
        return {**plain(self.learning), "learning_rate": self.learning_rate}


@torch.no_grad()
def measure(
    batch: TrainingBatch,
    estimated: Estimated,
    epochs: Sequence[Epoch],
    *,
    learning_rate: float,
    priority_gain: float | None,
    limits: Sequence[Tensor | None],
    further: Sequence[Tensor] = (),
    own: Sequence[str] = (),
) -> tuple[TrainingStatistics, int, tuple[Tensor, ...]]:
    """Returns the statistics of a trained batch, the number of its refused gradient steps, and `further` tensors.

    `further`, <float64>[...] on the device, come to the host in the same transfer. `limits` are the ends of the ranges
    of actions (`Policy.action_limits`), and `own` the names of the loss's own statistics (`Losses.own`).
    """
    steps, weight, counted = estimated.steps, estimated.behaviour_weight, estimated.counted
    fresh, stored = slice(None, estimated.fresh_count), slice(None, estimated.stored_count)
    found = torch.stack(
        [
            effective_share(weight[stored], None if counted is None else counted[stored]),
            effective_share(weight[fresh], None if counted is None else counted[fresh]),
            _explained_variance(steps),
            _at_bound(steps, limits),
        ]
    )
    scalars = [scalar for epoch in epochs for scalar in (*epoch.done.scalars, *_scalars(epoch.movement))]
    # The only synchronisation with the device.
    parts = [found, *(each.reshape(-1) for each in scalars), *further]
    sent = torch.cat([each.double() for each in parts]).cpu()
    found, *rest = torch.split(sent, [len(each) for each in parts])
    others = tuple(rest[len(scalars) :])
    values = dict(zip(_OF_ROWS, found.tolist(), strict=True))
    columns = _joined([each.numpy() for each in rest[: len(scalars)]], own)
    refused = columns.pop("refused")
    means = values | {
        name: _finite_mean(column if name in _OF_EPOCHS else column[refused == 0.0]) for name, column in columns.items()
    }
    learning = {name: means.pop(name) for name in declared(LearningNumbers) if name in means}
    of_loss = {name: means.pop(name) for name in own}
    statistics = TrainingStatistics(
        learning=LearningNumbers(**_known(learning), priority_gain=priority_gain),
        own=_known(of_loss),
        **means,
        learning_rate=learning_rate,
        staleness_mean=float(batch.staleness.mean()),
        staleness_max=int(batch.staleness.max()),
        fresh_lag_mean=float(batch.staleness[: batch.fresh_segments].mean()) if batch.fresh_segments else 0.0,
        fresh_lag_max=int(batch.staleness[: batch.fresh_segments].max(initial=0)),
    )
    return statistics, int(refused.sum()), others


def _scalars(movement: Movement) -> tuple[Tensor, ...]:
    return tuple(getattr(movement, name) for name in _OF_EPOCHS)


def _known(means: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in means.items()}


def _joined(scalars: Sequence[NDArray[np.float64]], own: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Returns the statistics of all epochs by name, <float64>[M] or <float64>[epochs], from the statistics of each
    epoch in turn.
    """
    names = (*_OF_MINIBATCHES, *own, *_OF_EPOCHS)
    return {
        name: np.concatenate([np.empty(0), *scalars[position :: len(names)]]) for position, name in enumerate(names)
    }


def _finite_mean(values: NDArray[np.float64]) -> float:
    """Returns the mean of those values that are finite; NaN if there are none."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def _explained_variance(steps: Steps) -> Tensor:
    target, value = steps.target, steps.proximal_value
    if not target.shape[0]:
        return target.new_full((), math.nan)
    if steps.usable is not None:
        return 1.0 - _variance(target - value, steps.usable) / _variance(target, steps.usable).clamp(min=1e-8)
    return 1.0 - (target - value).var(unbiased=False) / target.var(unbiased=False).clamp(min=1e-8)


def _at_bound(steps: Steps, limits: Sequence[Tensor | None]) -> Tensor:
    """Returns the share of the actions at one bound, of the element with the most; NaN without continuous actions."""
    shares = []
    for action, bounds in zip(steps.action, limits, strict=True):
        if bounds is not None:
            beyond = torch.stack([action <= bounds[0], action >= bounds[1]]).flatten(1, -2)
            counted = beyond.new_ones(beyond.shape[1]) if steps.usable is None else steps.usable.flatten()
            shares.append(((beyond & counted[:, None]).sum(1) / counted.sum()).flatten())
    return torch.cat(shares).amax() if shares else steps.advantage.new_full((), math.nan)


def _variance(values: Tensor, counted: Tensor) -> Tensor:
    """Returns the variance of the values that count; NaN if there are none."""
    count = counted.sum()
    mean = torch.where(counted, values, 0.0).sum() / count
    return torch.where(counted, values - mean, 0.0).square().sum() / count


def effective_share(weight: Tensor, counted: Tensor | None = None) -> Tensor:
    """Returns (sum w)^2 / (N sum w^2) of N weights, <float32>[N]: their effective sample size (Kish) as a share of N.

    It is 1 without weights. Weights that do not count, `counted` <bool>[N], are 0.
    """
    if not weight.shape[0]:
        return weight.new_ones(())
    if counted is not None:
        share = weight.sum().square() / (weight.square().sum() * counted.sum()).clamp(min=1e-8)
        return torch.where(counted.any(), share, 1.0)
    return weight.sum().square() / (weight.square().sum() * weight.shape[0]).clamp(min=1e-8)
