"""Priorities of segments, and the importance weights that correct for prioritized sampling."""

import math

import torch
from torch import Tensor

_MAX_IMPORTANCE_WEIGHT = 10.0


def segment_priorities(advantage: Tensor, valid: Tensor) -> Tensor:
    """Returns the priority of each segment, <float32>[B]: the sum of |A_t| over its valid steps, divided by T.

    This is the signal of PufferLib 3 (Suarez 2025), whose segments come from one batch. A step's share of the gradients
    of policy and value grows with its advantage, and a segment with fewer valid steps adds fewer of them.

    Args:
        advantage: <float32>[B, T] A_t from `advantages.estimate`.
        valid: <bool>[B, T] rows that count.
    """
    return torch.where(valid, advantage.abs(), 0.0).mean(1)


def mean_errors(correction: Tensor, valid: Tensor) -> Tensor:
    """Returns mean_t |D_t| over the valid steps of each segment, <float32>[B]; 0 without valid steps.

    Args:
        correction: <float32>[B, T] D_t from `advantages.estimate`.
        valid: <bool>[B, T] rows that count.
    """
    return torch.where(valid, correction.abs(), 0.0).sum(1) / valid.sum(1).clamp(min=1)


def preferences(probabilities: Tensor, ages: Tensor, half_life: float) -> Tensor:
    """Returns log s_i, <float64>[N]: the factor of priority in the probabilities with which segments were drawn.

    A probability is proportional to s_i 2^(-age_i / half_life), with s_i = (priority_i + epsilon)^alpha of that draw.
    """
    # A probability may be rounded to 0.
    return torch.log(probabilities.clamp(min=1e-300)) + ages.double() * (math.log(2.0) / half_life)


def importance_weights(preference: Tensor, fresh_segments: int, beta: float) -> Tensor:
    """Returns the importance weights omega_i = min(10, c s_i^(-beta)), <float32>[B].

    The factor c makes their mean over the replayed segments 1. Fresh segments have weight 1. The weights correct the
    bias of sampling by priority. They do not correct for age, whose distribution is intended (docs/design-learner.md).

    Args:
        preference: <float64>[B] log s_i (`preferences`); the first `fresh_segments` are ignored.
        fresh_segments: Number of fresh segments.
        beta: Share of the bias to correct, 0 to 1.
    """
    weights = torch.ones_like(preference)
    if fresh_segments < preference.shape[0]:
        logarithm = -beta * preference[fresh_segments:]
        # Relative to the largest weight, so that not all of them can underflow.
        weights[fresh_segments:] = _with_mean_one(torch.exp(logarithm - logarithm.amax()))
    return weights.float()


def _with_mean_one(weights: Tensor) -> Tensor:
    """Returns min(10, c w), <float64>[N], with the c for which the mean is 1.

    If the k largest are cut to 10, the others sum to N - 10 k, which gives c. The number k is the smallest for which
    none of the others exceeds 10.
    """
    count = weights.shape[0]
    largest_first = weights.sort(descending=True).values
    others = largest_first.flip(0).cumsum(0).flip(0)
    cut = torch.arange(count, dtype=weights.dtype, device=weights.device)
    factors = (count - _MAX_IMPORTANCE_WEIGHT * cut) / others.clamp(min=torch.finfo(weights.dtype).tiny)
    fits = factors * largest_first <= _MAX_IMPORTANCE_WEIGHT
    return (weights * factors[fits.int().argmax()[None]]).clamp(max=_MAX_IMPORTANCE_WEIGHT)
