"""Settings that follow from others unless they are given. Only `config` calls these functions.

`gate_law` states the conditions that batches must satisfy. These functions choose values that do, for any numbers of
actors, environments and services.
"""

import math
from dataclasses import dataclass

from penstock.gate_law import least_part

_LEAST_BATCH = 32
"""Segments in the smallest batch: fewer make gradients noisy and batches short."""

_NEW_STEPS = 512
"""Fresh steps that suffice for a batch. More give fewer versions of the policy in a run of as many steps, so that it
needs more steps (docs/results-scale.md)."""

_WINDOWS = 2
"""Windows that a batch may always have, whatever their steps."""

_MOST_AHEAD = 32
"""Largest degree that is derived. With older data, larger batches need fewer steps (docs/results-scale.md)."""

_MINIBATCH_STEPS = 256
"""Steps in a minibatch."""

_MINIBATCH_SEGMENTS = 4
"""Segments in the smallest minibatch with memory, where a gradient step on fewer costs almost as much."""


@dataclass(frozen=True, slots=True)
class Collection:
    """What determines the fresh segments of a batch.

    Attributes:
        actors: Actors, at least as many as shards.
        window: Segments in an actor's window, one per environment.
        unroll_length: Steps of a segment.
        fresh_fraction: Share of fresh segments in a batch.
        degree: Batches that collection may run ahead of training; None: it follows from the batch.
        oldest: Largest degree for which replay has something to draw.
        shards: Number of replay services.
    """

    actors: int
    window: int
    unroll_length: int
    fresh_fraction: float
    degree: int | None
    oldest: int
    shards: int

    @property
    def most_ahead(self) -> int:
        """The largest degree."""
        return max(1, min(_MOST_AHEAD, self.oldest)) if self.degree is None else self.degree


def batch_segments(of: Collection) -> int:
    """Returns the segments in a batch, whose fresh ones are whole windows.

    It has a window of every actor, but no more than two windows or 512 steps, unless the degree then keeps actors from
    collecting. Without replay and with degree 0, it is exactly one window of every actor, as a rollout of synchronous
    PPO.
    """
    if of.fresh_fraction == 0.0:
        return max(_LEAST_BATCH, 2 * of.actors * of.window)
    # The bound on the result, which is far beyond the largest batch, keeps it finite for the smallest fractions.
    return round(min(_fresh(of) / of.fresh_fraction, 2.0**62))


def _fresh(of: Collection) -> int:
    every, most = of.actors * of.window, of.most_ahead
    # With degree 0, every shard provides the same number of whole windows.
    unit = of.shards * of.window if most == 0 else of.window
    rollout = most == 0 and of.fresh_fraction == 1.0
    usual = 0 if rollout else round(_LEAST_BATCH * of.fresh_fraction)
    enough = max(_WINDOWS * of.window, -(-_NEW_STEPS // of.unroll_length))
    collected = every if most == 0 else max(min(every, enough), -(-every // most))
    least = max(collected, usual, of.shards * least_part(most, of.window))
    return -(-least // unit) * unit


def degree(of: Collection, fresh: int) -> int:
    """Returns the batches of `fresh` fresh segments that collection may run ahead of training, unless it is given.

    They have room for a window of every actor, but are at most 32, unless a single window needs more.
    """
    if of.degree is not None:
        return of.degree
    return max(least_degree(of, fresh), min(of.most_ahead, -(-of.actors * of.window // fresh))) if fresh else 1


def least_degree(of: Collection, fresh: int) -> int:
    """Returns the lowest degree above 0 at which a window can be granted, or the given one."""
    if of.degree is not None:
        return of.degree
    return max(1, -(-of.window // max(1, fresh // of.shards))) if fresh else 1


def remedy_of_size(batch: int, most: int, of: Collection) -> str:
    """Returns the change that makes batches of at most `most` segments possible.

    `batch` is the result of `batch_segments` for the same collection.
    """
    if batch <= most:
        return "set it to auto"
    fresh = _fresh(of)
    if of.fresh_fraction and fresh <= most:
        # Rounded up, so that the value suffices.
        return f"set sampling.fresh_fraction to {math.ceil(1e6 * fresh / most) / 1e6:g} or more"
    # With degree 0, windows of fewer than `shards` further actors complete a batch.
    windows = int(most * (of.fresh_fraction or 0.5)) // (of.actors + of.shards)
    return f"set actor.environments to {max(1, windows)} or less"


def minibatches(*, batch_segments: int, unroll_length: int, recurrent: bool) -> int:
    """Returns the gradient steps per pass over a batch, so that each has about the same number of steps."""
    most = batch_segments // _MINIBATCH_SEGMENTS if recurrent else batch_segments * unroll_length
    return max(1, min(round(batch_segments * unroll_length / _MINIBATCH_STEPS), most))
