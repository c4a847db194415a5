"""Settings that follow from others unless they are given. Only `config` calls these functions.

`gate_law` states what batches must satisfy. These functions choose values that do, for any numbers of actors,
environments and services.
"""

from penstock.gate_law import least_part

_LEAST_BATCH = 32
"""Segments in the smallest batch: fewer make gradients noisy and batches short."""

_MINIBATCH_STEPS = 256
"""Steps in a minibatch."""

_MINIBATCH_SEGMENTS = 4
"""Segments in the smallest minibatch with memory, where a gradient step on fewer costs almost as much."""


def batch_segments(*, actors: int, window: int, fresh_fraction: float, degree: int, shards: int) -> int:
    """Returns the segments in a batch, whose fresh ones are whole windows, at least one of every actor.

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
    least = max(actors * window, round(_LEAST_BATCH * fresh_fraction), shards * least_part(degree, window))
    fresh = -(-least // unit) * unit
    return round(fresh / fresh_fraction)


def minibatches(*, batch_segments: int, unroll_length: int, recurrent: bool) -> int:
    """Returns the gradient steps per pass over a batch, so that each has about the same number of steps."""
    most = batch_segments // _MINIBATCH_SEGMENTS if recurrent else batch_segments * unroll_length
    return max(1, min(round(batch_segments * unroll_length / _MINIBATCH_STEPS), most))
