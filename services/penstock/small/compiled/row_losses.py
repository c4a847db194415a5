"""The loss of rows, and its gradients by the outputs of policy and value, in compiled code.

`losses.ppo_loss` with `algo.distributions` defines the loss; tests compare the two. A row whose numbers are not finite
makes the gradient NaN, as there.

The functions share these arguments:

- `rows`: <ROW>[N] the numbers of all rows; a block begins at row `first`.
- `settings`: `MinibatchSettings`, the settings of the loss for the whole minibatch.
"""

import math
from typing import Any, NamedTuple

import numba
import numpy as np

# numba's functions of types have no annotations.
types: Any = numba.types

ROW = np.dtype(
    [
        (name, np.float32)
        for name in ("anchor_log_prob", "proximal_value", "advantage", "target", "importance", "policy_weight")
    ]
)
"""Numbers of a row that the loss reads; see `losses.ppo_loss`."""

_LOG_TWO_PI = np.log(2.0 * np.pi)


class MinibatchSettings(NamedTuple):
    """Settings of the loss for one minibatch.

    Attributes:
        clip_range: As `losses.LossSettings`; so are the next three.
        value_clip_range: Infinity: the loss of the value is not clipped.
        value_coefficient: As `losses.LossSettings`.
        entropy_coefficient: As `losses.LossSettings`.
        largest_log: Bound on log ratios.
        advantage_mean: Number to subtract from the advantages.
        advantage_factor: Factor by which they are then multiplied.
        rows: Number of rows of the minibatch.
    """

    clip_range: float
    value_clip_range: float
    value_coefficient: float
    entropy_coefficient: float
    largest_log: float
    advantage_mean: float
    advantage_factor: float
    rows: float


SETTINGS = types.UniTuple(types.float64, len(MinibatchSettings._fields))
"""Type of the settings, which Python passes as a plain tuple: numba takes longer to find the type of the record."""

ROWS = types.Array(numba.from_dtype(ROW), 1, "C")

_COMPILED: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_CACHED: dict[str, Any] = {**_COMPILED, "cache": True}


@numba.njit(**_COMPILED)
def _surrogate(log_prob, own, settings):  # type: ignore[no-untyped-def]
    """Returns w min(r A, clip(r) A) of a row, and its derivative by the log probability."""
    clip_range, largest_log = settings.clip_range, settings.largest_log
    advantage = (own.advantage - settings.advantage_mean) * settings.advantage_factor
    log_ratio, weight = log_prob - own.anchor_log_prob, own.policy_weight
    ratio = math.exp(min(max(log_ratio, -largest_log), largest_log)) if log_ratio == log_ratio else log_ratio
    plain = ratio * advantage
    clipped = min(max(ratio, 1.0 - clip_range), 1.0 + clip_range) * advantage
    # Every comparison with NaN is false, and then the result is NaN.
    if clipped < plain:
        return weight * clipped, 0.0
    if abs(log_ratio) > largest_log:
        return weight * plain, 0.0
    return weight * plain, weight * plain


@numba.njit(**_COMPILED)
def value_loss(values, first, rows, settings, gradients):  # type: ignore[no-untyped-def]
    """Returns the sum of the value losses of a block, and writes their gradients by its values."""
    clip_range, coefficient, count = settings.value_clip_range, settings.value_coefficient, settings.rows
    total = 0.0
    for row in range(values.shape[0]):
        own = rows[first + row]
        value, target, proximal = values[row, 0], own.target, own.proximal_value
        error, change = value - target, value - proximal
        squared, slope = error * error, error
        if abs(change) > clip_range:
            clipped = proximal + math.copysign(clip_range, change) - target
            if clipped * clipped > squared:
                squared, slope = clipped * clipped, 0.0
        total += own.importance * 0.5 * squared
        gradients[row, 0] = coefficient * own.importance * slope / count
    return total


@numba.njit(**_COMPILED, inline="always")
def _normaliser(logits, legal, row, first, begin, end, probabilities):  # type: ignore[no-untyped-def]
    """Returns the log of the sum of exponentials of the legal logits of one choice of a row.

    Writes the probabilities of the choice, whose first is at `begin`. The mask of row 0 is in row `first` of `legal`.
    """
    largest, total = np.float32(-np.inf), 0.0
    for column in range(begin, end):
        if legal.shape[0] == 0 or legal[first + row, column]:
            largest = max(largest, logits[row, column])
    for column in range(begin, end):
        possible = legal.shape[0] == 0 or legal[first + row, column]
        # In float32, because the exponential in float64 takes twice the time.
        probabilities[column] = math.exp(logits[row, column] - largest) if possible else np.float32(0.0)
        total += probabilities[column]
    for column in range(begin, end):
        probabilities[column] /= total
    return largest + math.log(total)


@numba.njit(**_COMPILED)
def choice_loss(logits, first, chosen_in, rows, settings, gradients, log_probs):  # type: ignore[no-untyped-def]
    """Returns the sums of the policy losses and of the entropies of a block, for actions that are choices.

    `gradients` receive the gradients by the block's logits, and `log_probs`, <float32>[N], the log probabilities of its
    actions. `chosen_in` are the legal alternatives of all rows, <bool>[N, logits], or [0, 0] if all are, the ends of
    the choices, and the actions, <int64>[N, choices]: choice c is among the logits from end c - 1 to end c.
    """
    legal, choices, actions = chosen_in
    entropy_coefficient, count = settings.entropy_coefficient, settings.rows
    loss, entropies = 0.0, 0.0
    normalisers = np.empty(choices.size)
    for row in range(logits.shape[0]):
        own, log_prob, begin = gradients[row], 0.0, 0
        for choice in range(choices.size):
            end = choices[choice]
            # The probabilities take the place of the gradients until the latter are known.
            normalisers[choice] = _normaliser(logits, legal, row, first, begin, end, own)
            chosen = begin + actions[first + row, choice]
            possible = legal.shape[0] == 0 or legal[first + row, chosen]
            log_prob += logits[row, chosen] - normalisers[choice] if possible else -math.inf
            begin = end
        term, slope = _surrogate(log_prob, rows[first + row], settings)
        loss -= term
        log_probs[first + row] = log_prob
        slope, begin = -slope / count, 0
        for choice in range(choices.size):
            end, entropy = choices[choice], 0.0
            for column in range(begin, end):
                if legal.shape[0] == 0 or legal[first + row, column]:
                    entropy -= own[column] * (logits[row, column] - normalisers[choice])
            entropies += entropy
            for column in range(begin, end):
                if legal.shape[0] == 0 or legal[first + row, column]:
                    spread = logits[row, column] - normalisers[choice] + entropy
                    own[column] *= entropy_coefficient / count * spread - slope
            own[begin + actions[first + row, choice]] += slope
            begin = end
    return loss, entropies


@numba.njit(**_COMPILED, inline="always")
def _log_std(outputs, log_std, bounds, row, element, elements):  # type: ignore[no-untyped-def]
    """Returns a log standard deviation before and after its bounds (`action_heads.bound`)."""
    lowest, highest = bounds
    raw = log_std[element] if log_std.size else outputs[row, elements + element]
    return raw, min(max(raw, lowest), highest) if raw == raw else raw


@numba.njit(**_COMPILED, inline="always")
def _outwards(raw, gradient, bounds):  # type: ignore[no-untyped-def]
    """Returns whether a step against this gradient would move a value beyond its bounds farther out."""
    lowest, highest = bounds
    return (raw > highest and gradient < 0.0) or (raw < lowest and gradient > 0.0)


@numba.njit(**_COMPILED)
def gaussian_loss(outputs, first, drawn_from, rows, settings, gradients, log_probs):  # type: ignore[no-untyped-def]
    """Returns the sums of the policy losses and of the entropies of a block, for actions of a Gaussian.

    `gradients` receive the gradients by the block's outputs, and `log_probs`, <float32>[N], the log probabilities of
    its actions. `drawn_from` are the actions of all rows, <float32>[N, elements], the bounds of log standard
    deviations, these parameters, and their gradient, to which is added. Both are empty if the log standard deviations
    are outputs, after the means.
    """
    actions, bounds, log_std, log_std_gradient = drawn_from
    entropy_coefficient, count = settings.entropy_coefficient, settings.rows
    elements, loss, entropies = actions.shape[1], 0.0, 0.0
    for row in range(outputs.shape[0]):
        own_actions, log_prob = actions[first + row], 0.0
        for element in range(elements):
            _, bounded = _log_std(outputs, log_std, bounds, row, element, elements)
            scaled = (own_actions[element] - outputs[row, element]) * math.exp(-bounded)
            log_prob += -0.5 * (scaled * scaled + _LOG_TWO_PI) - bounded
            entropies += bounded + 0.5 * (1.0 + _LOG_TWO_PI)
        term, slope = _surrogate(log_prob, rows[first + row], settings)
        loss -= term
        log_probs[first + row] = log_prob
        slope = -slope / count
        for element in range(elements):
            raw, bounded = _log_std(outputs, log_std, bounds, row, element, elements)
            inverse = math.exp(-bounded)
            scaled = (own_actions[element] - outputs[row, element]) * inverse
            gradients[row, element] = slope * scaled * inverse
            of_log_std = slope * (scaled * scaled - 1.0) - entropy_coefficient / count
            if log_std.size:
                log_std_gradient[element] += of_log_std
            else:
                kept = not _outwards(raw, of_log_std, bounds)
                gradients[row, elements + element] = of_log_std if kept else 0.0
    return loss, entropies


@numba.njit("void(float32[::1], float32[::1], UniTuple(int64, 2), UniTuple(float64, 2))", **_CACHED)
def stop_outwards(flat, gradient, log_std, bounds):  # type: ignore[no-untyped-def]
    """Drops the gradients that would move log standard deviations beyond their bounds farther out."""
    for position in range(log_std[0], log_std[1]):
        if _outwards(flat[position], gradient[position], bounds):
            gradient[position] = np.float32(0.0)


@numba.njit("void(float32[:, ::1], boolean[:, ::1], int64[::1], int64[:, ::1], float32[::1])", **_CACHED)
def choice_log_probs(logits, legal, choices, actions, log_probs):  # type: ignore[no-untyped-def]
    """Writes the log probabilities of choices. Takes the arguments of `choice_loss`."""
    probabilities = np.empty(logits.shape[1], np.float32)
    for row in range(actions.shape[0]):
        log_prob, begin = 0.0, 0
        for choice in range(choices.size):
            chosen = begin + actions[row, choice]
            possible = legal.shape[0] == 0 or legal[row, chosen]
            normaliser = _normaliser(logits, legal, row, 0, begin, choices[choice], probabilities)
            log_prob += logits[row, chosen] - normaliser if possible else -math.inf
            begin = choices[choice]
        log_probs[row] = log_prob


@numba.njit("void(float32[:, ::1], float32[::1], float32[:, ::1], UniTuple(float64, 2), float32[::1])", **_CACHED)
def gaussian_log_probs(outputs, log_std, actions, bounds, log_probs):  # type: ignore[no-untyped-def]
    """Writes the log probabilities under a Gaussian. Takes the arguments of `gaussian_loss`."""
    elements = actions.shape[1]
    for row in range(actions.shape[0]):
        log_prob = 0.0
        for element in range(elements):
            _, bounded = _log_std(outputs, log_std, bounds, row, element, elements)
            scaled = (actions[row, element] - outputs[row, element]) * math.exp(-bounded)
            log_prob += -0.5 * (scaled * scaled + _LOG_TWO_PI) - bounded
        log_probs[row] = log_prob


@numba.njit(types.UniTuple(types.float64, 2)(ROWS), **_CACHED)
def scale_of(rows):  # type: ignore[no-untyped-def]
    """Returns the mean to subtract from the advantages, and the factor to multiply them by (`losses.standardised`)."""
    weight, mean, square = 0.0, 0.0, 0.0
    for row in range(rows.shape[0]):
        weight += rows[row].importance
        mean += rows[row].importance * rows[row].advantage
    # Weights may round to 0, all of a small minibatch too.
    weight = max(weight, 1e-30)
    mean /= weight
    for row in range(rows.shape[0]):
        square += rows[row].importance * (rows[row].advantage - mean) ** 2
    return np.float32(mean), np.float32(1.0 / (math.sqrt(square / weight) + 1e-8))
