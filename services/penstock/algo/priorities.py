"""Priorities of segments, and the weights that correct for drawing by them."""

import torch
from torch import Tensor

_MAX_IMPORTANCE_WEIGHT = 10.0


def segment_priorities(correction: Tensor, valid: Tensor, eta: float) -> Tensor:
    """The priority of each segment: eta max_t |D_t| + (1 - eta) mean_t |D_t| over valid steps.

    The mixture of R2D2 (Kapturowski et al. 2019, section 2.3).

    Args:
        correction: <float32>[B, T] D_t of `advantages.estimate`.
        valid: <bool>[B, T]; False where a row only reset.
        eta: Share of the maximum.

    Returns:
        <float32>[B]; 0 for a segment without valid steps.
    """
    error = correction.abs() * valid
    mean = error.sum(1) / valid.sum(1).clamp(min=1)
    return eta * error.amax(1) + (1.0 - eta) * mean


def importance_weights(priorities: Tensor, fresh_segments: int, *, alpha: float, beta: float, epsilon: float) -> Tensor:
    """omega_i = (priority_i + epsilon)^(-alpha beta), at mean 1 over the replayed segments and at most 10; 1 where
    fresh.

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
        raw = (priorities[fresh_segments:] + epsilon) ** (-alpha * beta)
        weights[fresh_segments:] = (raw / raw.mean()).clamp(max=_MAX_IMPORTANCE_WEIGHT)
    return weights.float()
