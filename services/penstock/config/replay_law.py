"""The law of replay: which exponents, ages and minibatches leave something to draw and to learn from.

Only `config` calls these functions, which return a reason with the names of the settings and a value that works. The
bounds keep the masses of `replay.masses` far from the limits of a double: the exponent and the constant of the priority
contribute at most 2^300, and the age of segments that were trained once at most 2^32.
"""

import math

LARGEST_ALPHA = 10.0
"""Upper bound on the exponent of the priority. Above, a few segments would have all of the mass."""

EPSILONS = (1e-9, 1e9)
"""Least and largest constant that is added to priorities. Outside, it or they would vanish in the other."""

LEAST_STEPS = 8
"""Fewest steps of a minibatch over which advantages are standardised. A single one minus its own mean is 0."""

_MOST_HALVINGS = 32
"""Times that age may halve the mass of a segment before it can be replayed for the first time."""


def first_replay_age(*, fresh: int, degree: int, publish_interval: int, prefetched: int) -> int:
    """Returns the largest age in versions at which segments become replayable.

    Args:
        fresh: Fresh segments per batch; with 0, segments are replayable as soon as they are stored.
        degree: Batches that collection may run ahead of training.
        publish_interval: Batches from one publication of the weights to the next.
        prefetched: Batches drawn while another one is trained.
    """
    if not fresh:
        return publish_interval
    # At degree 0, no batch can be drawn ahead, because its fresh segments are not collected yet.
    return degree + publish_interval + min(prefetched, degree)


def most_degree(*, max_staleness: int, half_life: float, publish_interval: int, prefetched: int) -> int:
    """Returns the largest degree above 0 for which neither of the two next functions returns a reason.

    The result is below 1 if there is none. Takes the arguments of these functions and of `first_replay_age`.
    """
    return int(min(max_staleness, half_life * _MOST_HALVINGS)) - publish_interval - prefetched


def staleness_conflict(max_staleness: int, age: int) -> str | None:
    """Returns the reason for which no segment may ever be replayed; None if some may. `age` is `first_replay_age`."""
    if max_staleness >= age:
        return None
    return (
        f"sampling.max_staleness {max_staleness} may leave nothing to replay: with this sampling.off_policy_degree,"
        f" sampling.publish_interval and learner.prefetch_batches, segments are up to {age} versions old when they can"
        f" first be replayed; set sampling.max_staleness to {age} or more"
    )


def decay_conflict(half_life: float, age: int) -> str | None:
    """Returns the reason for which age leaves no mass; None if it leaves some. `age` is `first_replay_age`."""
    if half_life * _MOST_HALVINGS >= age:
        return None
    # Rounded up, so that the value satisfies the condition.
    least = math.ceil(100 * age / _MOST_HALVINGS) / 100
    return (
        f"sampling.half_life {half_life:g} leaves no mass to segments, which are up to {age} versions old when they can"
        f" first be replayed; set sampling.half_life to {least:g} or more"
    )


def minibatch_conflict(
    *, minibatches: int, segments: int, unroll_length: int, recurrent: bool, normalise: bool
) -> str | None:
    """Returns the reason for which a batch can't be divided into minibatches; None if it can.

    With memory, minibatches consist of segments, else of steps. They need `LEAST_STEPS` to `normalise` advantages.
    """
    parts, least = _parts(segments, unroll_length, recurrent=recurrent, normalise=normalise)
    if minibatches * least <= parts:
        return None
    unit, size = ("segments" if recurrent else "steps"), f"actor.unroll_length {unroll_length}"
    reason = (
        f"ppo.minibatches {minibatches} divides the {parts} {unit} of a batch (sampling.batch_segments {segments},"
        f" {size}) into parts of fewer than {least}"
        + (f", and advantages are standardised over {LEAST_STEPS} steps or more" if normalise else "")
    )
    if parts < least:
        return f"{reason}; set sampling.batch_segments to {-(-LEAST_STEPS // unroll_length)} or more"
    return f"{reason}; set ppo.minibatches to auto, or to {parts // least} or less"


def most_minibatches(*, segments: int, unroll_length: int, recurrent: bool, normalise: bool) -> int:
    """Returns the largest number of minibatches into which a batch can be divided, at least 1."""
    parts, least = _parts(segments, unroll_length, recurrent=recurrent, normalise=normalise)
    return max(1, parts // least)


def _parts(segments: int, unroll_length: int, *, recurrent: bool, normalise: bool) -> tuple[int, int]:
    """Returns the parts of a batch that minibatches consist of, and the least number of them in each."""
    parts = segments if recurrent else segments * unroll_length
    return parts, max(1, -(-LEAST_STEPS * parts // (segments * unroll_length))) if normalise else 1
