"""Ratios of two policies' probabilities of the same actions, and the bound beyond which a number is implausible."""

from torch import Tensor

LARGEST_LOG = 20.0
"""Bound on the magnitude of a log ratio."""

LARGEST_SPREAD = 1e6
"""Factor by which a plausible number may exceed others of its kind. A larger number is the fault of an environment's
reward, a diverged network, or a client. Sparse rewards and rare events are orders of magnitude below it."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Returns exp(log_ratio), any shape, clamped to [exp(-20), exp(20)] to keep sums and products of ratios finite."""
    return log_ratio.clamp(-LARGEST_LOG, LARGEST_LOG).exp()
