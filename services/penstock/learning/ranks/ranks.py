"""The ranks of a learner: processes that train on the same batches together, each with its share of every minibatch.

Every rank has the whole batch and the same parameters and does the same, except for the two things that cost most. Of
the segments that are evaluated before training, and of the rows of a minibatch, each rank computes its own part, and a
sum over the ranks gives the whole to all of them. The number of ranks therefore changes results by rounding alone.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from penstock.algo.policies import Inputs

Evaluation = Callable[[Inputs, tuple[Tensor, ...]], tuple[Tensor, Tensor]]
"""Function from inputs and actions to log probabilities, <float32>[B, T], and values, <float32>[B, T + 1]."""


class Ranks(Protocol):
    """The ranks as one of them sees them. Used by the training thread."""

    @property
    def alone(self) -> bool:
        """Whether there is no other rank."""

    def own(self, count: int) -> slice:
        """Returns this rank's part of a number of rows: one run of them, empty if there are fewer rows than ranks."""

    def add(self, values: Tensor) -> None:
        """Replaces values by their sum over the ranks, which all call it with values of the same shape.

        Raises `RankLost` if another rank has ended or does not answer in time.
        """


class Alone:
    """The only rank of a learner, which has all rows; implements `Ranks`."""

    @property
    def alone(self) -> bool:
        """Implements `Ranks`."""
        return True

    def own(self, count: int) -> slice:
        """Implements `Ranks`."""
        return slice(0, count)

    def add(self, values: Tensor) -> None:
        """Implements `Ranks`."""


ALONE = Alone()


def part_of(count: int, rank: int, ranks: int) -> slice:
    """Returns the part of one of several ranks in a number of rows. The parts differ by one row at most."""
    return slice(count * rank // ranks, count * (rank + 1) // ranks)


def evaluated(ranks: Ranks, evaluate: Evaluation, inputs: Inputs, actions: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Returns the results of a function for whole segments. Each rank calls it for its own segments."""
    if ranks.alone:
        return evaluate(inputs, actions)
    segments, steps = actions[0].shape[:2]
    own = ranks.own(segments)
    # Zeros in place of the other ranks' results.
    whole = torch.zeros(segments * (2 * steps + 1), device=actions[0].device)
    log_prob = whole[: segments * steps].view(segments, steps)
    value = whole[segments * steps :].view(segments, steps + 1)
    if own.start < own.stop:
        log_prob[own], value[own] = evaluate(inputs.part(own), tuple(leaf[own] for leaf in actions))
    ranks.add(whole)
    return log_prob, value
