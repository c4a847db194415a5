"""Curricula of one's own (`sampling.collection`): what they know of the variants of an environment.

    from penstock.curricula import Variant

    def weakest_first(variants: Sequence[Variant], progress: float) -> list[float]:
        means = [sum(each.returns) / max(1, len(each.returns)) for each in variants]
        return [max(means) - mean for mean in means]

`learning.run.own_curriculum` calls such a function during the run; docs/change-the-algorithm.md is its guide.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Curriculum", "Variant"]


@dataclass(frozen=True, slots=True)
class Variant:
    """What is known of one variant of the environment.

    Attributes:
        arguments: All arguments of its environments, as in `environment.kwargs` and `environment.variants`.
        returns: Returns of its newest training episodes, oldest first, at most 100; empty before the first.
        errors: Mean absolute errors of the values in its newest fresh segments, oldest first, at most 32
            (`algo.priorities.mean_errors`); empty with `environment.vary` episodes.
    """

    arguments: Mapping[str, object]
    returns: tuple[float, ...]
    errors: tuple[float, ...]


Curriculum = Callable[[Sequence[Variant], float], Sequence[float] | Sequence[Mapping[str, object]]]
"""Function from the V variants, in order, and the progress of the run, 0 to 1, to V weights of collection, 0 or above,
of which at least one is above 0. With `environment.vary` episodes it may return the tables of arguments of the variants
to play instead. A class is made without arguments, and its instance is the function."""
