"""Advantages and value targets: V-trace with lambda, which is GAE where the data is on policy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.algo.ratios import LARGEST_SPREAD, ratio_of


@dataclass(frozen=True, slots=True)
class Estimates:
    """What one pass over a batch of B segments of T steps yields; rows that are not sound hold values of no meaning,
    which are finite.

    Attributes:
        sound: <bool>[B, T] the usable rows whose temporal difference is finite and not absurdly large.
        advantage: <float32>[B, T] delta_t + gamma lambda n_t D_{t+1}.
        target: <float32>[B, T] V_t + D_t.
        correction: <float32>[B, T] D_t, the temporal difference over the trace.
    """

    sound: Tensor
    advantage: Tensor
    target: Tensor
    correction: Tensor


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
    """V-trace with lambda (Espeholt et al. 2018, eq. 1), by one backward pass vectorised over segments.

        rho_t   = min(rho_clip, ratio_t)        c_t = min(trace_clip, ratio_t)
        delta_t = r_t + gamma (1 - terminated_t) V_{t+1} - V_t
        D_t     = rho_t delta_t + gamma lambda c_t n_t D_{t+1},     n_t = 0 where an episode ended, else 1

    The advantage has no leading rho_t: the loss carries that ratio. With ratios of 1 both are GAE (Schulman et al.
    2016). Termination removes the bootstrap, truncation does not; both stop the recursion. Under NEXT_STEP autoreset
    V_{t+1} is always the value of what really followed row t, and the reset row that comes next starts from nothing.

    One bad number costs the rows that need it and no others. A row is left out if it is not usable, if delta_t is not
    finite, or if it is a million times the batch's median; then D_t is 0 there, and the row before is treated as the
    last of a window: its trace ends, and it bootstraps from V_{t+1}.

    Args:
        value: <float32>[B, T + 1] of every observation, the one after the last row included.
        reward: <float32>[B, T] in the units of `value`.
        terminated: <bool>[B, T].
        truncated: <bool>[B, T].
        usable: <bool>[B, T] False for rows to leave out: those that only reset, and those without a log ratio.
        log_ratio: <float32>[B, T] log of proximal over behaviour probability; finite.
        discount: Gamma.
        trace_decay: Lambda.
        rho_clip: Bar on rho.
        trace_clip: Bar on c.
    """
    steps = reward.shape[1]
    assert value.shape == (reward.shape[0], steps + 1), (value.shape, reward.shape)
    ratio = ratio_of(log_ratio)
    rho, trace = ratio.clamp(max=rho_clip), ratio.clamp(max=trace_clip)
    # Chosen, not multiplied by 0, which would let NaN and infinity through.
    bootstrap = torch.where(terminated, 0.0, discount * value[:, 1:])
    delta = reward + bootstrap - value[:, :-1]
    sound = usable & _is_sound(delta, usable)
    delta = torch.where(sound, delta, 0.0)
    decay = torch.where(sound & ~(terminated | truncated), discount * trace_decay, 0.0)
    following = torch.zeros_like(delta[:, 0])
    corrections, decayed = [], []
    # Time first, so that each of the many small sums goes over memory as it lies.
    for weighted, gain, fade in zip(*(_backwards(each) for each in (rho * delta, decay * trace, decay)), strict=True):
        decayed.append(fade * following)
        following = weighted + gain * following
        corrections.append(following)
    correction = torch.stack(corrections[::-1], dim=1)
    return Estimates(
        sound=sound,
        advantage=delta + torch.stack(decayed[::-1], dim=1),
        target=torch.where(sound, value[:, :-1] + correction, 0.0),
        correction=correction,
    )


def _is_sound(delta: Tensor, usable: Tensor) -> Tensor:
    """<bool>[B, T] whether each temporal difference is plausible beside the others, <float32>[B, T]."""
    size = delta.abs()
    median = torch.where(usable & size.isfinite(), size, torch.nan).nanmedian()
    # Without a median all are compared with 1, and NaN and infinity stay out.
    return size <= LARGEST_SPREAD * median.nan_to_num(nan=1.0).clamp(min=1.0)


def _backwards(values: Tensor) -> list[Tensor]:
    """The columns of <float32>[B, T], the last first."""
    return list(values.t().contiguous().unbind())[::-1]
