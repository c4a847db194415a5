"""Trial of a user's loss (`learner.loss`) on a made-up minibatch, before anything is trained with it.

What would train wrongly is refused: no finite gradient, or one that depends on steps that do not count. What may be
meant is a warning.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from penstock.algo.losses import SCHEDULED, LossSettings
from penstock.algo.policies import Inputs, Policy
from penstock.errors import TrainingFailed
from penstock.learning.step.gradient_steps import Objective, Steps
from penstock.learning.step.own.code import before_training
from penstock.learning.step.own.loss import OwnLoss
from penstock.machine import foreign_errors

_ROWS, _PADDING, _STEPS = 32, 16, 6
"""Rows that count, further rows that do not, and steps of a segment."""

_REPEATED, _PADDED = 1e-3, 0.05
"""Largest changes of a gradient, as shares of its norm, when the loss is called again, and with further rows. Of these,
matrix products round in an order of their own, in bfloat16 to 8 bits."""

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of a trial.

    Attributes:
        warnings: Findings with which training may begin, one line each.
        waits: Whether the loss waits for a GPU, so that it can't be captured into a CUDA graph.
    """

    warnings: tuple[str, ...]
    waits: bool


def try_loss(
    loss: OwnLoss, objective: Objective, policy: Policy, parameters: nn.Parameter, settings: LossSettings, burn_in: int
) -> Trial:
    """Computes gradients of a loss on made-up minibatches. Leaves the policy and all random generators unchanged.

    Args:
        loss: The loss.
        objective: Its objective, for this policy.
        policy: The policy.
        parameters: Its flat parameters with their gradient, which is 0 afterwards.
        settings: Settings of the loss.
        burn_in: Steps of burn-in.

    Raises:
        ConfigurationError: No gradient step can be taken with this loss.
    """
    device = parameters.device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        steps = made_up_steps(policy, _ROWS + _PADDING, burn_in)
        try:
            with before_training():
                return _tried(loss, objective, policy, parameters, _as_trained(settings, device), steps)
        finally:
            assert parameters.grad is not None
            parameters.grad.zero_()


def _tried(
    loss: OwnLoss, objective: Objective, policy: Policy, parameters: nn.Parameter, settings: LossSettings, steps: Steps
) -> Trial:
    def gradient(steps: Steps, counted: Tensor | None) -> Tensor:
        assert parameters.grad is not None
        parameters.grad.zero_()
        _, losses = objective(steps, settings, counted)
        try:
            losses.total.backward()  # type: ignore[no-untyped-call]
        except foreign_errors.MISBEHAVIOUR as error:
            foreign_errors.let_ctrl_c_pass(error)
            raise loss.function.fault(f"has no gradient: {foreign_errors.explain(error)}", "correct it") from error
        if not bool(losses.total.isfinite()):
            raise loss.function.fault(
                f"returned {losses.total.item():g} for a made-up minibatch",
                "keep it finite, for example without logarithms of numbers that may be 0",
            )
        if not bool(parameters.grad.isfinite().all()):
            raise loss.function.fault(
                "has a gradient that is not finite for a made-up minibatch",
                "keep it finite, for example without roots of numbers that may be 0",
            )
        return parameters.grad.clone()

    whole, counted = steps.each(lambda column: column[:_ROWS]), torch.arange(_ROWS + _PADDING) < _ROWS
    counted = counted.to(parameters.device)
    first = gradient(whole, None)
    warnings = _untrained(loss, policy)
    if _change(first, gradient(whole, None)) > _REPEATED:
        warnings.append(
            loss.function.sentence("returns another gradient for the same minibatch", "runs with one seed will differ")
        )
    elif _change(first, gradient(steps, counted)) > _PADDED:
        raise loss.function.fault(
            "depends on steps that do not count (batch.counted)",
            "average with batch.mean(values) in place of values.mean(), and leave them out of other sums",
        )
    return Trial(tuple(warnings), _waits(objective, settings, steps, counted))


def _untrained(loss: OwnLoss, policy: Policy) -> list[str]:
    """Returns a warning about the parameters that have no gradient, if there are any."""
    named = list(policy.named_parameters())
    names = [name for name, each in named if each.grad is None or not bool(each.grad.any())]
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [
        loss.function.sentence(
            f"does not depend on {', '.join(names[:_SHOWN])}{more} of the policy's {len(named)} parameters",
            "they will not be trained",
        )
    ]


def _change(gradient: Tensor, other: Tensor) -> float:
    return float((gradient - other).norm() / gradient.norm().clamp(min=1e-12))


def _waits(objective: Objective, settings: LossSettings, steps: Steps, counted: Tensor) -> bool:
    """Returns whether a gradient step waits for the GPU, such as with .item() or a mask as an index."""
    if not counted.is_cuda:
        return False
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        _, losses = objective(steps, settings, counted)
        losses.total.backward()  # type: ignore[no-untyped-call]
    except (TrainingFailed, RuntimeError):
        # The same call succeeded above, so the wait is the reason.
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def _as_trained(settings: LossSettings, device: torch.device) -> LossSettings:
    """Returns settings with tensors for those that follow a schedule, as captured steps have them, on CUDA."""
    if device.type != "cuda":
        return settings
    scheduled: dict[str, Any] = {
        name: torch.as_tensor(getattr(settings, name), dtype=torch.float32, device=device) for name in SCHEDULED
    }
    return LossSettings(**{name: scheduled.get(name, getattr(settings, name)) for name in LossSettings.__slots__})


@torch.no_grad()
def made_up_steps(policy: Policy, rows: int, burn_in: int) -> Steps:
    """Returns rows or, with memory, segments of random numbers that a policy accepts, with all actions legal."""
    draw = torch.Generator().manual_seed(0)
    device, spec = next(policy.parameters()).device, policy.spec
    recurrent = policy.memory_shape is not None
    shape = (rows, _STEPS) if recurrent else (rows,)
    seen = (rows, burn_in + _STEPS) if recurrent else (rows,)

    def observed(kind: str, size: tuple[int, ...]) -> Tensor:
        dtype: torch.dtype = getattr(torch, kind)
        if dtype.is_floating_point:
            return torch.randn(*seen, *size, generator=draw).to(device, dtype)
        # Integers above the last alternative are the last one (`encoders.Preparation`).
        most = 2 if dtype == torch.bool else 256 if dtype == torch.uint8 else 128
        return torch.randint(0, most, (*seen, *size), generator=draw).to(device, dtype)

    def normal(scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=draw).to(device)

    packed = -(-spec.mask_bits // 8)
    inputs = Inputs(
        observation=tuple(observed(*space.observation_array) for space in spec.observation.spaces),
        mask=torch.full((*shape, packed), 255, dtype=torch.uint8, device=device) if packed else None,
        state=torch.zeros(rows, *policy.memory_shape, device=device) if policy.memory_shape is not None else None,
        begun=torch.zeros(seen, dtype=torch.bool, device=device) if recurrent else None,
    )
    if policy.auxiliary_networks:
        following = tuple(leaf[:, burn_in:] if recurrent else leaf for leaf in inputs.observation)
        goes_on = torch.ones(shape, dtype=torch.bool, device=device)
        inputs = dataclasses.replace(inputs, following=tuple(leaf.flip(0) for leaf in following), goes_on=goes_on)
    distribution, value = policy.evaluate(inputs, burn_in=burn_in)
    noise = torch.rand(*shape, sum(part.size for part in distribution.noise), generator=draw).to(device)
    action = distribution.sample(noise)
    log_prob = distribution.log_prob(action)
    importance = 0.5 + torch.rand(shape, generator=draw).to(device)
    return Steps(
        inputs=inputs,
        action=action,
        proximal_log_prob=log_prob + normal(0.1),
        proximal_value=value + normal(0.1),
        anchor_log_prob=log_prob + normal(0.1),
        advantage=normal(),
        target=normal(),
        importance=importance,
        policy_weight=importance,
        usable=torch.ones(shape, dtype=torch.bool, device=device) if recurrent else None,
    )
