"""Advantages and targets by a function of the user's own (`ppo.advantage`), in place of V-trace.

The function replaces only `algo.advantages.estimate`, so every execution takes the same gradient steps on its results;
on a CPU torch prepares them, in place of compiled loops. A step whose result is not finite is left out of training, as
are all steps with absurd numbers.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from penstock.advantages import Trajectories
from penstock.algo.advantages import Estimates, one_row_later, sound_differences
from penstock.learning.step.own.code import OwnFunction, before_training, shown

_SEGMENTS, _STEPS = 6, 12
_TOLERANCE = 1e-4


class OwnAdvantage:
    """A user's advantages, which were tried on made-up segments. Used by one thread.

    Attributes:
        notices: A line that this function replaces V-trace, and findings with which training may begin.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        """Imports the function of this name, and calls it for made-up segments on a device.

        Raises `ConfigurationError` if it can't be called, does not return two <float>[S, T], finite where steps count,
        or depends on the numbers of other steps.
        """
        self._function = OwnFunction(
            "ppo.advantage",
            name,
            examples="file.py:my_advantage or my_package.my_module:my_advantage",
            arguments=("steps",),
        )
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), before_training():
            warnings = self._try(device)
        self.notices = [f"ppo.advantage {name} replaces V-trace in the estimates of each batch", *warnings]

    @torch.no_grad()
    def estimate(
        self,
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
        """Takes the place of `algo.advantages.estimate`.

        Raises `TrainingFailed` if the function raises an exception, or returns no such tensors.
        """
        _, sound = sound_differences(
            value=value, reward=reward, terminated=terminated, usable=usable, discount=discount
        )
        before = torch.where(sound, value[:, :-1], 0.0)
        advantage, target = self._called(
            Trajectories(
                reward=torch.where(sound, reward, 0.0),
                # A copy, which the function may change.
                value=before.clone(),
                next_value=torch.where(sound & ~terminated, value[:, 1:], 0.0),
                log_ratio=torch.where(sound, log_ratio, 0.0),
                terminated=terminated & sound,
                truncated=truncated & sound,
                ended=terminated | truncated | ~one_row_later(sound),
                usable=sound.clone(),
                discount=discount,
                trace_decay=trace_decay,
                rho_clip=rho_clip,
                trace_clip=trace_clip,
            )
        )
        known = sound & advantage.isfinite() & target.isfinite()
        target = torch.where(known, target, 0.0)
        return Estimates(
            sound=known,
            advantage=torch.where(known, advantage, 0.0),
            target=target,
            correction=torch.where(known, target - before, 0.0),
        )

    def _called(self, steps: Trajectories) -> tuple[Tensor, Tensor]:
        result = self._function(steps)
        remedy, usable = "return advantages and targets, two tensors of floats", steps.usable
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._function.fault(f"returned {shown(result)}", f"{remedy} of shape {list(usable.shape)}")
        advantage, target = (self._function.numbers(part, usable.shape, usable.device, remedy) for part in result)
        return advantage, target

    @torch.no_grad()
    def _try(self, device: torch.device) -> list[str]:
        """Returns warnings. Raises `TrainingFailed` if nothing can be learnt from the function's results."""
        steps = _made_up(device, filling=0.0)
        first, again = self._called(steps), self._called(_made_up(device, filling=0.0))
        for values, what in zip(first, ("an advantage", "a target"), strict=True):
            if not bool(values[steps.usable].isfinite().all()):
                raise self._function.fault(
                    f"returned {what} that is not finite for made-up steps",
                    "keep it finite, for example without quotients by numbers that may be 0",
                )
        if _differ(first, again, steps.usable):
            return [
                self._function.sentence("returns other numbers for the same steps", "runs with one seed will differ")
            ]
        if _differ(first, self._called(_made_up(device, filling=3.0)), steps.usable):
            raise self._function.fault(
                "depends on steps that do not count (steps.usable)",
                "end sums over the following steps at steps.ended, and leave these steps out of other sums",
            )
        return []


def _differ(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], usable: Tensor) -> bool:
    pairs = zip(one, other, strict=True)
    return any(not torch.allclose(a[usable], b[usable], rtol=_TOLERANCE, atol=_TOLERANCE) for a, b in pairs)


def _made_up(device: torch.device, *, filling: float) -> Trajectories:
    """Returns random segments with all kinds of ends, and with this number at steps that are not usable."""
    draw = torch.Generator().manual_seed(0)
    shape = (_SEGMENTS, _STEPS)
    usable = torch.rand(shape, generator=draw) < 0.85
    kind = torch.rand(shape, generator=draw)
    terminated, truncated = usable & (kind < 0.1), usable & (kind > 0.9)

    def normal(scale: float, known: Tensor = usable, other: float = filling) -> Tensor:
        return torch.where(known, scale * torch.randn(shape, generator=draw), other)

    next_value = normal(1.0)
    steps = Trajectories(
        reward=normal(1.0),
        value=normal(1.0),
        next_value=torch.where(terminated, 0.0, next_value),
        log_ratio=normal(0.2),
        terminated=terminated,
        truncated=truncated,
        ended=terminated | truncated | ~one_row_later(usable),
        usable=usable,
        discount=0.99,
        trace_decay=0.95,
        rho_clip=1.0,
        trace_clip=1.0,
    )
    named = {each.name: getattr(steps, each.name) for each in dataclasses.fields(steps)}
    moved: dict[str, Any] = {
        name: each.to(device) if isinstance(each, Tensor) else each for name, each in named.items()
    }
    return Trajectories(**moved)
