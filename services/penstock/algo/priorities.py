"""Priorities of segments, and the weights that correct for drawing by them."""

import torch
from torch import Tensor

_MAX_IMPORTANCE_WEIGHT = 10.0


def segment_priorities(correction: Tensor, valid: Tensor, eta: float) -> Tensor:
    """The priority of each segment: eta max_t |D_t| + (1 - eta) mean_t |D_t| over valid steps.

    The mixture of R2D2 (Kapturowski et al. 2019, section 2.3).

    Args:
        correction: <float32>[B, T] D_t of `advantages.estimate`.
        valid: <bool>[B, T]; False where a row does not count.
        eta: Share of the maximum.

    Returns:
        <float32>[B]; 0 for a segment without valid steps.
    """
    error = torch.where(valid, correction.abs(), 0.0)
    mean = error.sum(1) / valid.sum(1).clamp(min=1)
    return eta * error.amax(1) + (1.0 - eta) * mean


def importance_weights(priorities: Tensor, fresh_segments: int, *, alpha: float, beta: float, epsilon: float) -> Tensor:
    """omega_i = c (priority_i + epsilon)^(-alpha beta), at most 10, with c such that their mean over the replayed
    segments is 1; 1 where fresh.

    Priority is a bias to be corrected; age is a distribution we chose, so it stays out (docs/ARCHITECTURE.md).

    Args:
        priorities: <float64>[B] raw, at the draw; the first `fresh_segments` are ignored.
        fresh_segments: How many segments were not drawn.
        alpha: Exponent with which masses were made.
        beta: How much of the bias to correct, 0 to 1.
        epsilon: Added to every priority, as in the masses.

    Returns:
        <float32>[B].
    """
    weights = torch.ones_like(priorities)
    if fresh_segments < priorities.shape[0]:
        logarithm = -alpha * beta * torch.log(priorities[fresh_segments:] + epsilon)
        # Relative to the largest, which no exponent makes underflow.
        weights[fresh_segments:] = _with_mean_one(torch.exp(logarithm - logarithm.amax()))
    return weights.float()


def _with_mean_one(weights: Tensor) -> Tensor:
    """min(10, c w), <float64>[N], with the c for which their mean is 1.

    If the k largest are cut to 10, the others sum to N - 10 k, which gives c; k is the smallest number for which none
    of these others exceeds 10.
    """
    count = weights.shape[0]
    largest_first = weights.sort(descending=True).values
    others = largest_first.flip(0).cumsum(0).flip(0)
    cut = torch.arange(count, dtype=weights.dtype, device=weights.device)
    factors = (count - _MAX_IMPORTANCE_WEIGHT * cut) / others.clamp(min=torch.finfo(weights.dtype).tiny)
    fits = factors * largest_first <= _MAX_IMPORTANCE_WEIGHT
    return (weights * factors[fits.int().argmax()]).clamp(max=_MAX_IMPORTANCE_WEIGHT)
