"""Ratios of the probabilities that two policies give to the same actions."""

from torch import Tensor

_MAX_LOG = 20.0


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), within exp(-20) and exp(20), so that sums and products of ratios stay finite; any shape."""
    return log_ratio.clamp(-_MAX_LOG, _MAX_LOG).exp()
