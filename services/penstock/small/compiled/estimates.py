"""Estimates of a batch on a CPU, in two compiled loops over its rows.

They equal the results of `algo.advantages`, `algo.priorities` and `losses.anchor` up to rounding. Operations on tensors
of a few thousand numbers cost several times as much as the arithmetic.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]

ESTIMATE = np.dtype(
    [
        *((name, np.float32) for name in ("proximal_log_prob", "proximal_value", "anchor_log_prob", "advantage")),
        *((name, np.float32) for name in ("target", "importance", "policy_weight", "behaviour_weight")),
    ]
)
"""Estimates of a row: the arguments of `losses.ppo_loss`, and the clipped weight of the behaviour policy."""


class SegmentRows(NamedTuple):
    """Rows of B segments of T steps.

    Attributes:
        value: <float32>[B, T + 1] values under the proximal policy.
        log_prob: <float32>[B, T] log probabilities of the actions under the proximal policy.
        behaviour: <float32>[B, T] log probabilities of the actions when they were taken.
        reward: <float32>[B, T] scaled rewards.
        terminated, truncated: <bool>[B, T] rows that terminate or truncate an episode.
        valid: <bool>[B, T] False for reset rows.
    """

    value: Floats
    log_prob: Floats
    behaviour: Floats
    reward: Floats
    terminated: Flags
    truncated: Flags
    valid: Flags


class EstimateSettings(NamedTuple):
    """Settings of the estimates.

    Attributes:
        discount: Discount factor.
        trace_decay: Trace decay lambda.
        rho_clip: Upper bound on rho.
        trace_clip: Upper bound on c.
        v_trace: 1 with V-trace, else 0: all ratios are 1.
        clip_anchor: Share of the behaviour policy in the anchor (`losses.anchor`).
        behaviour_weight_clip: Bound on its weight.
        largest_log: `advantages.LARGEST_LOG`.
        largest_spread: `advantages.LARGEST_SPREAD`.
    """

    discount: float
    trace_decay: float
    rho_clip: float
    trace_clip: float
    v_trace: float
    clip_anchor: float
    behaviour_weight_clip: float
    largest_log: float
    largest_spread: float


@dataclass(frozen=True, slots=True)
class Estimates:
    """Estimates for a batch, of which N rows are usable.

    Attributes:
        usable: <bool>[B, T] usable rows.
        correction: <float32>[B, T] D_t (`advantages.estimate`).
        priority: <float32>[B] priorities of the segments (`priorities.segment_priorities`).
        error: <float32>[B] mean errors of the segments (`priorities.mean_errors`).
        rows: <ESTIMATE>[N] the usable rows.
        index: <int64>[2, N] their positions in [B T] and in [B (T + 1)].
    """

    usable: Flags
    correction: Floats
    priority: Floats
    error: Floats
    rows: NDArray[np.void]
    index: NDArray[np.int64]


# numba's functions of types have no annotations.
types: Any = numba.types

_MATRIX = types.float32[:, ::1]
_FLAGS = types.boolean[:, ::1]
_ESTIMATES = types.Array(numba.from_dtype(ESTIMATE), 1, "C")
_ROWS = types.NamedTuple((_MATRIX,) * 4 + (_FLAGS,) * 3, SegmentRows)
_SETTINGS = types.NamedUniTuple(types.float64, len(EstimateSettings._fields), EstimateSettings)


@numba.njit(nogil=True, error_model="numpy", inline="always")
def _ratio(log_ratio, largest_log):  # type: ignore[no-untyped-def]
    return np.exp(min(max(log_ratio, -largest_log), largest_log))


@numba.njit(nogil=True, error_model="numpy")
def _largest_sound(delta, known, spread):  # type: ignore[no-untyped-def]
    """Returns the largest plausible |delta| (`advantages.estimate`)."""
    largest, count = np.float32(0.0), 0
    for segment in range(delta.shape[0]):
        for step in range(delta.shape[1]):
            size = abs(delta[segment, step])
            if known[segment, step] and size < np.inf:
                largest, count = max(largest, size), count + 1
    # The scale is at least 1, so the median matters only beside numbers this large.
    if largest <= spread:
        return spread
    sizes = np.empty(count, np.float32)
    count = 0
    for segment in range(delta.shape[0]):
        for step in range(delta.shape[1]):
            size = abs(delta[segment, step])
            if known[segment, step] and size < np.inf:
                sizes[count] = size
                count += 1
    return spread * max(1.0, np.sort(sizes)[(count - 1) // 2])


@numba.njit(
    types.void(_ROWS, _SETTINGS, _FLAGS, types.UniTuple(_MATRIX, 2), _MATRIX),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _trace(rows, settings, usable, results, by_segment):  # type: ignore[no-untyped-def]
    """Computes V-trace with lambda, as `advantages.estimate`, with the ratios of the rows.

    `usable` receives the sound rows, `results` advantages and corrections, and `by_segment`, <float32>[2, B], the
    priorities and errors of the segments.
    """
    value, log_prob, behaviour, reward = rows.value, rows.log_prob, rows.behaviour, rows.reward
    terminated, truncated = rows.terminated, rows.truncated
    discount, trace_decay, largest_log = settings.discount, settings.trace_decay, settings.largest_log
    rho_clip, trace_clip, spread = settings.rho_clip, settings.trace_clip, settings.largest_spread
    advantage, correction = results
    segments, steps = reward.shape
    # The advantages' memory holds the temporal differences until they are used.
    delta = advantage
    for segment in range(segments):
        for step in range(steps):
            bootstrap = 0.0 if terminated[segment, step] else discount * value[segment, step + 1]
            delta[segment, step] = reward[segment, step] + bootstrap - value[segment, step]
            # No policy chose the action of a reset row. `<=` is false for NaN.
            log_ratio = log_prob[segment, step] - behaviour[segment, step]
            usable[segment, step] = rows.valid[segment, step] and abs(log_ratio) <= spread
    largest = _largest_sound(delta, usable, spread)
    for segment in range(segments):
        following, count, priority, error = 0.0, 0, 0.0, 0.0
        for step in range(steps - 1, -1, -1):
            difference = delta[segment, step]
            if not (usable[segment, step] and abs(difference) <= largest):
                usable[segment, step] = False
                advantage[segment, step] = correction[segment, step] = following = 0.0
                continue
            log_ratio = log_prob[segment, step] - behaviour[segment, step]
            ratio = _ratio(log_ratio, largest_log) if settings.v_trace != 0.0 else 1.0
            ended = terminated[segment, step] or truncated[segment, step]
            decayed = 0.0 if ended else discount * trace_decay * following
            following = min(rho_clip, ratio) * difference + min(trace_clip, ratio) * decayed
            advantage[segment, step] = difference + decayed
            correction[segment, step] = following
            count += 1
            priority += abs(advantage[segment, step])
            error += abs(following)
        by_segment[0, segment] = priority / steps
        by_segment[1, segment] = error / max(count, 1)


@numba.njit(
    types.int64(
        _ROWS, _SETTINGS, types.float32[::1], _FLAGS, types.UniTuple(_MATRIX, 2), _ESTIMATES, types.int64[:, ::1]
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _gather(rows, settings, importance, usable, results, estimates, index):  # type: ignore[no-untyped-def]
    """Writes the numbers of the usable rows, one row after the other, and returns their count.

    `importance`, <float32>[B], are the weights of the segments, and `results` come from `_trace`. `estimates` receive
    `Estimates.rows`, and `index` receives `Estimates.index`.
    """
    value, log_prob, behaviour = rows.value, rows.log_prob, rows.behaviour
    advantage, correction = results
    share, weight_clip, largest_log = settings.clip_anchor, settings.behaviour_weight_clip, settings.largest_log
    count, steps = 0, usable.shape[1]
    for segment in range(usable.shape[0]):
        for step in range(steps):
            if not usable[segment, step]:
                continue
            proximal, taken = log_prob[segment, step], behaviour[segment, step]
            # As torch.lerp, which returns each end exactly.
            anchor = (
                proximal + share * (taken - proximal) if share < 0.5 else taken - (1.0 - share) * (taken - proximal)
            )
            weight = min(_ratio(np.float32(anchor) - taken, largest_log), weight_clip)
            own = estimates[count]
            own.proximal_log_prob = proximal
            own.proximal_value = value[segment, step]
            own.anchor_log_prob = anchor
            own.advantage = advantage[segment, step]
            own.target = value[segment, step] + correction[segment, step]
            own.importance = importance[segment]
            own.policy_weight = importance[segment] * weight
            own.behaviour_weight = min(_ratio(proximal - taken, largest_log), weight_clip)
            index[0, count] = segment * steps + step
            index[1, count] = segment * (steps + 1) + step
            count += 1
    return count


def estimates_of(rows: SegmentRows, importance: Floats, settings: EstimateSettings) -> Estimates:
    """Returns the estimates for the rows of a batch whose segments have these importance weights, <float32>[B]."""
    segments, steps = rows.reward.shape
    usable = np.empty((segments, steps), np.bool_)
    advantage, correction = np.empty((2, segments, steps), np.float32)
    priority, error = by_segment = np.empty((2, segments), np.float32)
    _trace(rows, settings, usable, (advantage, correction), by_segment)
    estimates, index = np.empty(segments * steps, ESTIMATE), np.empty((2, segments * steps), np.int64)
    count = _gather(rows, settings, importance, usable, (advantage, correction), estimates, index)
    return Estimates(usable, correction, priority, error, estimates[:count], index[:, :count])
