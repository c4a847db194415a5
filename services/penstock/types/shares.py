"""Shares of collection, which the gate gives to its actors by stride scheduling, and which the shards follow."""

from collections.abc import Sequence


def relative_shares(weights: Sequence[float], least: float) -> list[float]:
    """Returns the share of each of N actors, relative to an equal share 1 / N. The mean is 1.

    Shares are proportional to the weights, except that those below `least` are raised to it at the expense of the
    others: share_i = max(least, c weight_i), with the c for which the mean is 1. If all weights are equal, all shares
    are exactly 1.

    Args:
        weights: Weights of at least one actor, not negative.
        least: Smallest share, above 0 and at most 1.
    """
    if min(weights) == max(weights):
        return [1.0] * len(weights)
    rest, factor = sum(weights), 0.0
    # If the k smallest shares are raised, the others sum to N - k least, which gives c. The number k is the smallest
    # for which none of the others is below `least`.
    for raised, weight in enumerate(sorted(weights)):
        if rest <= 0.0:
            break
        factor = (len(weights) - raised * least) / rest
        if factor * weight >= least:
            break
        rest -= weight
    return [max(least, factor * weight) for weight in weights]
