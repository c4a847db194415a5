"""Settings that follow from others unless they are given. Only `config` calls these functions.

`gate_law` states the conditions that batches must satisfy. These functions choose values that do, for any numbers of
actors, environments and services.
"""

import math

from penstock.gate_law import least_part

_LEAST_BATCH = 32
"""Segments in the smallest batch: fewer make gradients noisy and batches short."""

_MINIBATCH_STEPS = 256
"""Steps in a minibatch."""

_MINIBATCH_SEGMENTS = 4
"""Segments in the smallest minibatch with memory, where a gradient step on fewer costs almost as much."""


def batch_segments(*, actors: int, window: int, fresh_fraction: float, degree: int, shards: int) -> int:
    """Returns the segments in a batch, whose fresh ones are whole windows, at least one of every actor.

    Without replay and with degree 0, it is exactly one window of every actor, as a rollout of synchronous PPO.

    Args:
        actors: Actors, at least as many as shards.
        window: Segments in an actor's window, one per environment.
        fresh_fraction: Share of fresh segments.
        degree: Batches that collection may run ahead of training.
        shards: Number of replay services.
    """
    if fresh_fraction == 0.0:
        return max(_LEAST_BATCH, 2 * actors * window)
    # With degree 0, every shard provides the same number of whole windows.
    unit = shards * window if degree == 0 else window
    rollout = degree == 0 and fresh_fraction == 1.0
    usual = 0 if rollout else round(_LEAST_BATCH * fresh_fraction)
    least = max(actors * window, usual, shards * least_part(degree, window))
    fresh = -(-least // unit) * unit
    # The bound on the result, which is far beyond the largest batch, keeps it finite for the smallest fractions.
    return round(min(fresh / fresh_fraction, 2.0**62))


def remedy_of_size(batch: int, most: int, *, actors: int, window: int, shards: int, fresh_fraction: float) -> str:
    """Returns the change that makes batches of at most `most` segments possible.

    `batch` is the result of `batch_segments` for the other arguments.
    """
    if batch <= most:
        return "set it to auto"
    fresh = actors * window
    if fresh_fraction and fresh <= most:
        # Rounded up, so that the value suffices.
        return f"set sampling.fresh_fraction to {math.ceil(1e6 * fresh / most) / 1e6:g} or more"
    # With degree 0, windows of fewer than `shards` further actors complete a batch.
    windows = int(most * (fresh_fraction or 0.5)) // (actors + shards)
    return f"set actor.environments to {max(1, windows)} or less"


def minibatches(*, batch_segments: int, unroll_length: int, recurrent: bool) -> int:
    """Returns the gradient steps per pass over a batch, so that each has about the same number of steps."""
    most = batch_segments // _MINIBATCH_SEGMENTS if recurrent else batch_segments * unroll_length
    return max(1, min(round(batch_segments * unroll_length / _MINIBATCH_STEPS), most))
