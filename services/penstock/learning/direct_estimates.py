"""Estimates of a batch on a CPU, in two compiled loops over its rows.

They are those of `Learner.estimate`, up to rounding, for policies without memory. Their operations on tensors of a few
thousand numbers cost several times what the arithmetic costs.
"""

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.algo.losses import LossSettings
from penstock.algo.policies import Inputs
from penstock.algo.ratios import LARGEST_LOG, LARGEST_SPREAD
from penstock.config import PPOConfig
from penstock.learning.batches import TrainingBatch
from penstock.learning.gradient_steps import Estimated, Steps

_NUMBERS = ("proximal_log_prob", "proximal_value", "anchor_log_prob", "advantage", "target", "importance")
"""Fields of `Steps` that `_gather` writes, in the order of its columns. Two further columns follow them."""


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
    "void(UniTuple(float32[:, ::1], 4), UniTuple(boolean[:, ::1], 3), UniTuple(float64, 7), boolean[:, ::1],"
    " UniTuple(float32[:, ::1], 2), float32[:, ::1])",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _trace(numbers, flags, settings, usable, results, by_segment):  # type: ignore[no-untyped-def]
    """Computes V-trace with lambda, as `advantages.estimate`, with the ratios of `numbers`.

    Args:
        numbers: Values, [B, T + 1], log probabilities under the proximal and the behaviour policy, and scaled rewards.
        flags: Terminated, truncated and valid rows.
        settings: Discount, trace decay, bounds on rho and on the trace, 1 with V-trace and else 0, `LARGEST_LOG`, and
            `LARGEST_SPREAD`.
        usable: Receives the sound rows.
        results: Receives advantages and corrections.
        by_segment: <float32>[2, B] receives the priorities (`segment_priorities`) and errors (`mean_errors`).
    """
    value, log_prob, behaviour, reward = numbers
    terminated, truncated, valid = flags
    discount, trace_decay, rho_clip, trace_clip, v_trace, largest_log, spread = settings
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
            usable[segment, step] = valid[segment, step] and abs(log_ratio) <= spread
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
            ratio = _ratio(log_ratio, largest_log) if v_trace != 0.0 else 1.0
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
    "int64(UniTuple(float32[:, ::1], 5), float32[::1], boolean[:, ::1], UniTuple(float64, 3), float32[:, ::1],"
    " int64[:, ::1])",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _gather(numbers, importance, usable, settings, rows, index):  # type: ignore[no-untyped-def]
    """Writes the numbers of the usable rows, one row after the other, and returns their count.

    Args:
        numbers: Values, [B, T + 1], log probabilities under the proximal and the behaviour policy, advantages, and
            corrections.
        importance: <float32>[B] importance weights.
        usable: The usable rows.
        settings: Share of the behaviour policy in the anchor, bound on its weight, and `LARGEST_LOG`.
        rows: <float32>[B T, 8] receives the columns `_NUMBERS`, the weights of the policy loss, and the weights of the
            behaviour policy.
        index: <int64>[2, B T] receives the numbers of the rows in [B T] and in [B (T + 1)].
    """
    value, log_prob, behaviour, advantage, correction = numbers
    share, weight_clip, largest_log = settings
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
            own = rows[count]
            own[0] = proximal
            own[1] = value[segment, step]
            own[2] = anchor
            own[3] = advantage[segment, step]
            own[4] = value[segment, step] + correction[segment, step]
            own[5] = importance[segment]
            own[6] = importance[segment] * weight
            own[7] = min(_ratio(proximal - taken, largest_log), weight_clip)
            index[0, count] = segment * steps + step
            index[1, count] = segment * (steps + 1) + step
            count += 1
    return count


def estimated(
    batch: TrainingBatch,
    *,
    log_prob: NDArray[np.float32],
    value: NDArray[np.float32],
    reward: Tensor,
    importance: Tensor,
    ppo: PPOConfig,
    settings: LossSettings,
) -> Estimated:
    """Returns the estimates for a batch on a CPU, whose policy has no memory.

    Args:
        batch: The batch.
        log_prob: <float32>[B, T] log probabilities of the actions under the proximal policy.
        value: <float32>[B, T + 1] values of all observations.
        reward: <float32>[B, T] scaled rewards.
        importance: <float32>[B] importance weights.
        ppo: Settings of V-trace.
        settings: Settings of the loss.
    """
    segments, steps = reward.shape
    behaviour, weights = batch.behaviour_log_prob.contiguous().numpy(), importance.numpy()
    usable = np.empty((segments, steps), np.bool_)
    advantage, correction = np.empty((2, segments, steps), np.float32)
    by_segment = np.empty((2, segments), np.float32)
    bounds = (ppo.discount, ppo.trace_decay, ppo.rho_clip, ppo.trace_clip, float(ppo.v_trace))
    flags = tuple(each.contiguous().numpy() for each in (batch.terminated, batch.truncated, batch.valid))
    _trace(
        (value, log_prob, behaviour, reward.contiguous().numpy()),
        flags,
        (*bounds, LARGEST_LOG, LARGEST_SPREAD),
        usable,
        (advantage, correction),
        by_segment,
    )
    rows, index = np.empty((segments * steps, len(_NUMBERS) + 2), np.float32), np.empty((2, segments * steps), np.int64)
    count = _gather(
        (value, log_prob, behaviour, advantage, correction),
        weights,
        usable,
        (settings.clip_anchor, settings.behaviour_weight_clip, LARGEST_LOG),
        rows,
        index,
    )
    *numbers, policy_weight, behaviour_weight = torch.from_numpy(rows[:count]).unbind(1)
    of_rows, of_observations = torch.from_numpy(index[:, :count])

    def of(value: Tensor, chosen: Tensor = of_rows) -> Tensor:
        return value.flatten(0, 1).index_select(0, chosen)

    return Estimated(
        usable=torch.from_numpy(usable),
        fresh_count=int(np.count_nonzero(usable[: batch.fresh_segments])),
        steps=Steps(
            inputs=Inputs(
                observation=tuple(of(leaf, of_observations) for leaf in batch.observation),
                mask=None if batch.action_mask is None else of(batch.action_mask),
            ),
            action=tuple(map(of, batch.action)),
            **dict(zip(_NUMBERS, numbers, strict=True)),
            policy_weight=policy_weight,
            usable=None,
        ),
        correction=torch.from_numpy(correction),
        priority=torch.from_numpy(by_segment[0]),
        error=torch.from_numpy(by_segment[1]),
        behaviour_weight=behaviour_weight,
    )
