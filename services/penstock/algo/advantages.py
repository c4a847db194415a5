"""Advantages and value targets by V-trace with lambda, which equals GAE on on-policy data."""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import torch
from torch import Tensor

LARGEST_LOG = 20.0
"""Bound on the magnitude of a log ratio."""

LARGEST_SPREAD = 1e6
"""Factor by which a plausible number may exceed others of its kind. A larger number is the fault of an environment's
reward, a diverged network, or a client. Sparse rewards and rare events are orders of magnitude below it."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """Returns exp(log_ratio), any shape, clamped to [exp(-20), exp(20)] to keep sums and products of ratios finite."""
    return log_ratio.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


@dataclass(frozen=True, slots=True)
class Estimates:
    """Estimates for B segments of T steps. Rows that are not sound hold finite values without meaning.

    Attributes:
        sound: <bool>[B, T] usable rows whose temporal difference is finite and not absurdly large.
        advantage: <float32>[B, T] advantages, delta_t + gamma lambda n_t D_{t+1}.
        target: <float32>[B, T] value targets, V_t + D_t.
        correction: <float32>[B, T] D_t, the sum of temporal differences along the trace.
    """

    sound: Tensor
    advantage: Tensor
    target: Tensor
    correction: Tensor


Estimate = Callable[..., Estimates]
"""`estimate`, or a function in its place that takes the same arguments."""


@torch.no_grad()
def estimate(
    *,
    value: Tensor,
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    usable: Tensor,
    log_ratio: Tensor,
    discount: float,
    trace_decay: float,
    rho_clip: float,
    trace_clip: float,
) -> Estimates:
    """Computes V-trace with lambda (Espeholt et al. 2018, eq. 1) in one backward pass, vectorised over segments.

        rho_t   = min(rho_clip, ratio_t)        c_t = min(trace_clip, ratio_t)
        delta_t = r_t + gamma (1 - terminated_t) V_{t+1} - V_t
        D_t     = rho_t delta_t + gamma lambda c_t n_t D_{t+1},     n_t = 0 where an episode ended, else 1

    The advantage has no leading rho_t because the loss carries that ratio. With ratios of 1, the advantage and D_t are
    both GAE (Schulman et al. 2016). Termination removes the bootstrap and truncation does not; both stop the recursion.
    Under NEXT_STEP autoreset, V_{t+1} is always the value of the observation that actually followed row t. The reset
    row after the end of an episode has D = 0.

    A bad number affects only the rows that need it. A row is left out if it is not usable, if delta_t is not finite, or
    if |delta_t| exceeds a million times the larger of 1 and the batch's median. Its D_t is then 0, and the previous row
    is treated as the last of its segment: its trace ends and it bootstraps from the row's value.

    Args:
        value: <float32>[B, T + 1] values of all observations, including the one after the last row.
        reward: <float32>[B, T] rewards in the units of `value`.
        terminated: <bool>[B, T] rows that terminate an episode.
        truncated: <bool>[B, T] rows that truncate an episode.
        usable: <bool>[B, T] rows to use. False for reset rows and for rows without a log ratio.
        log_ratio: <float32>[B, T] log of proximal over behaviour probability; finite.
        discount: Discount factor gamma.
        trace_decay: Trace decay lambda.
        rho_clip: Upper bound on rho.
        trace_clip: Upper bound on c.
    """
    shape = reward.shape
    assert value.shape == (shape[0], shape[1] + 1), (value.shape, shape)
    assert terminated.shape == truncated.shape == usable.shape == log_ratio.shape == shape, shape
    delta, sound = sound_differences(
        value=value, reward=reward, terminated=terminated, usable=usable, discount=discount
    )
    decay = torch.where(sound & ~(terminated | truncated), discount * trace_decay, 0.0)
    advantage, correction = traced(delta, decay, log_ratio, rho_clip=rho_clip, trace_clip=trace_clip)
    return Estimates(
        sound=sound,
        advantage=advantage,
        target=torch.where(sound, value[:, :-1] + correction, 0.0),
        correction=correction,
    )


def sound_differences(
    *, value: Tensor, reward: Tensor, terminated: Tensor, usable: Tensor, discount: float
) -> tuple[Tensor, Tensor]:
    """Returns the temporal differences delta_t, <float32>[B, T], 0 where not sound, and the sound rows, <bool>[B, T].

    Takes arguments of `estimate`.
    """
    # `where`, because multiplying by 0 would let NaN and infinity through.
    bootstrap = torch.where(terminated, 0.0, discount * value[:, 1:])
    delta = reward + bootstrap - value[:, :-1]
    sound = usable & _is_sound(delta, usable)
    return torch.where(sound, delta, 0.0), sound


def traced(
    delta: Tensor, decay: Tensor, log_ratio: Tensor, *, rho_clip: float, trace_clip: float
) -> tuple[Tensor, Tensor]:
    """Returns advantages and corrections D_t of V-trace (`estimate`), <float32>[B, T] each.

    `delta` are the temporal differences, and `decay` is gamma lambda n_t, both 0 at rows that are left out.
    """
    ratio = ratio_of(log_ratio)
    rho, trace = ratio.clamp(max=rho_clip), ratio.clamp(max=trace_clip)
    recursion = _by_loop if delta.device.type == "cpu" else _by_scan
    correction, decayed = recursion(rho * delta, decay * trace, decay)
    return delta + decayed, correction


def backward_sum(weighted: Tensor, gain: Tensor) -> Tensor:
    """Returns D with D_t = weighted_t + gain_t D_{t+1} and D_T = 0, <float32>[B, T], as are the arguments.

    It takes one compiled loop on a CPU, and log2 T operations on a GPU.
    """
    return _by_loop(weighted, gain, gain)[0] if weighted.device.type == "cpu" else scanned(weighted, gain)


def scanned(weighted: Tensor, gain: Tensor) -> Tensor:
    """Returns D with D_t = weighted_t + gain_t D_{t+1} and D_T = 0, <float>[B, T], as are the arguments.

    The scan of Hillis & Steele (1986) takes log2 T steps, each over all T rows, where a recursion over the rows takes T
    dependent steps: it combines the recursion over the next d rows with the recursion from d rows later on, for d = 1,
    2, 4 and so on. On a GPU each operation is a launch.

    It rounds differently from the recursion row by row, whose sums it forms in another order. The products of gains
    must be finite.
    """
    steps, distance = weighted.shape[1], 1
    while distance < steps:
        later = slice(distance, None)
        # Rows whose next `distance` rows reach the end have no more to add.
        reaching, beyond = slice(None, -distance), slice(-distance, None)
        weighted = torch.cat(
            [torch.addcmul(weighted[:, reaching], gain[:, reaching], weighted[:, later]), weighted[:, beyond]], dim=1
        )
        gain = torch.cat([gain[:, reaching] * gain[:, later], torch.zeros_like(gain[:, beyond])], dim=1)
        distance *= 2
    return weighted


def one_row_later(values: Tensor) -> Tensor:
    """Returns the values one row later, <float>[B, T], and 0 after the last row."""
    return torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)


def _is_sound(delta: Tensor, usable: Tensor) -> Tensor:
    """Returns <bool>[B, T]: whether each temporal difference, <float32>[B, T], is plausible beside the others."""
    size = delta.abs()
    # Over a dimension, because the median of all waits for a GPU.
    median = torch.where(usable & size.isfinite(), size, torch.nan).flatten().nanmedian(0).values
    # Without a median the scale is 1. NaN and infinity fail the comparison in any case.
    return size <= LARGEST_SPREAD * median.nan_to_num(nan=1.0).clamp(min=1.0)


def _by_loop(weighted: Tensor, gain: Tensor, fade: Tensor) -> tuple[Tensor, Tensor]:
    """Returns D_t = weighted_t + gain_t D_{t+1} and fade_t D_{t+1}, <float32>[B, T] each, as are the arguments."""
    correction, decayed = torch.empty_like(weighted), torch.empty_like(weighted)
    weighted, gain, fade = (values.to(weighted.dtype).contiguous() for values in (weighted, gain, fade))
    _recur(weighted.numpy(), gain.numpy(), fade.numpy(), correction.numpy(), decayed.numpy())
    return correction, decayed


@numba.njit(
    ["void(" + ", ".join(5 * [f"{kind}[:, ::1]"]) + ")" for kind in ("float32", "float64")], nogil=True, cache=True
)
def _recur(weighted, gain, fade, correction, decayed):  # type: ignore[no-untyped-def]
    segments, steps = weighted.shape
    for segment in range(segments):
        following = correction.dtype.type(0)
        for step in range(steps - 1, -1, -1):
            decayed[segment, step] = fade[segment, step] * following
            following = weighted[segment, step] + gain[segment, step] * following
            correction[segment, step] = following


def _by_scan(weighted: Tensor, gain: Tensor, fade: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the results of `_by_loop`, apart from rounding, in few operations."""
    correction = scanned(weighted, gain)
    return correction, fade * one_row_later(correction)
