"""Advantages and value targets: V-trace with lambda, which is GAE where the data is on policy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.algo.ratios import ratio_of


@dataclass(frozen=True, slots=True)
class Estimates:
    """What one pass over a batch of B segments of T steps yields; rows that only reset hold values of no meaning.

    Attributes:
        advantage: <float32>[B, T] delta_t + gamma lambda n_t D_{t+1}.
        target: <float32>[B, T] V_t + D_t.
        correction: <float32>[B, T] D_t, the temporal difference over the trace.
    """

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

    Args:
        value: <float32>[B, T + 1] of every observation, the one after the last row included.
        reward: <float32>[B, T] in the units of `value`.
        terminated: <bool>[B, T].
        truncated: <bool>[B, T].
        log_ratio: <float32>[B, T] log of proximal over behaviour probability.
        discount: Gamma.
        trace_decay: Lambda.
        rho_clip: Bar on rho.
        trace_clip: Bar on c.
    """
    steps = reward.shape[1]
    assert value.shape == (reward.shape[0], steps + 1), (value.shape, reward.shape)
    ratio = ratio_of(log_ratio)
    rho, trace = ratio.clamp(max=rho_clip), ratio.clamp(max=trace_clip)
    goes_on = (~(terminated | truncated)).float()
    delta = reward + discount * (~terminated).float() * value[:, 1:] - value[:, :-1]
    decay = discount * trace_decay * goes_on
    following = torch.zeros_like(delta[:, 0])
    corrections, decayed = [], []
    # Time first, so that each of the many small sums goes over memory as it lies.
    for weighted, gain, fade in zip(*(_backwards(each) for each in (rho * delta, decay * trace, decay)), strict=True):
        decayed.append(fade * following)
        following = weighted + gain * following
        corrections.append(following)
    correction = torch.stack(corrections[::-1], dim=1)
    return Estimates(
        advantage=delta + torch.stack(decayed[::-1], dim=1), target=value[:, :-1] + correction, correction=correction
    )


def _backwards(values: Tensor) -> list[Tensor]:
    """The columns of <float32>[B, T], the last first."""
    return list(values.t().contiguous().unbind())[::-1]
