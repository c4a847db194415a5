"""Ratios of the probabilities that two policies give to the same actions, and bounds on numbers that can't be true."""

from torch import Tensor

_MAX_LOG = 20.0

LARGEST_SPREAD = 1e6
"""A number so many times larger than its kind is no measurement but a fault: of an environment's reward, of a network
that has diverged, or of a client. Sparse rewards and rare events stay orders of magnitude below it."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), within exp(-20) and exp(20), so that sums and products of ratios stay finite; any shape."""
    return log_ratio.clamp(-_MAX_LOG, _MAX_LOG).exp()
