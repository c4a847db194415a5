"""Priorities of segments by a function of the user's own (`sampling.priority`).

The function replaces only the number that is returned to the replay service. Masses, draws and importance weights
follow from it there, so every execution of gradient steps stays as it is. Of several ranks, rank 0 alone calls it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.devices import send
from penstock.learning.step.gradient_steps import Estimated
from penstock.learning.step.own.code import OwnFunction, before_training
from penstock.priorities import Segments

_SEGMENTS, _STEPS = 6, 8


class OwnPriority:
    """A user's priority, which was tried on a made-up batch. Used by one thread.

    Attributes:
        notices: A line that this function gives the priorities.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        """Imports the function of this name, and calls it for a made-up batch on a device.

        Raises `ConfigurationError` if it can't be called, or does not return <float>[S], finite and not negative.
        """
        self._function = OwnFunction(
            "sampling.priority",
            name,
            examples="file.py:my_priority or my_package.my_module:my_priority",
            arguments=("segments",),
        )
        self.notices = [f"sampling.priority {name} gives the priorities of segments"]
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), before_training():
            self._try(device)

    @torch.no_grad()
    def of(
        self, batch: TrainingBatch, estimated: Estimated, importance: Tensor, entropy: Callable[[], Tensor]
    ) -> Tensor:
        """Returns the priorities of a batch's segments, <float32>[S], of which some may be NaN, infinite or negative.

        Raises `TrainingFailed` if the function raises an exception, or returns no such tensor.

        Args:
            batch: The batch.
            estimated: Its estimates.
            importance: <float32>[S] importance weights.
            entropy: Function that returns the entropies of the policy, <float>[S, T].
        """
        return self._called(_segments_of(batch, estimated, importance, entropy))

    def _called(self, segments: Segments) -> Tensor:
        return self._function.numbers(
            self._function(segments),
            segments.age.shape,
            segments.advantage.device,
            "return one priority per segment, such as segments.advantage.abs().mean(1), in a tensor of floats",
        )

    def _try(self, device: torch.device) -> None:
        """Raises `TrainingFailed` if the function returns useless priorities for random segments."""
        with torch.no_grad():
            found = self._called(_made_up(device))
        for fault, remedy, bad in (
            (
                "returned a priority that is not finite",
                "a segment may have no usable step: divide by segments.usable.sum(1).clamp(min=1)",
                ~found.isfinite(),
            ),
            ("returned a negative priority", "return an absolute value, or .clamp(min=0)", found < 0.0),
        ):
            if bool(bad.any()):
                raise self._function.fault(f"{fault} ({float(found[bad][0]):g}) for a made-up batch", remedy)


def _segments_of(
    batch: TrainingBatch, estimated: Estimated, importance: Tensor, entropy: Callable[[], Tensor]
) -> Segments:
    usable, steps = estimated.usable, estimated.steps
    index: Tensor | tuple[Tensor, Tensor]
    if batch.memory is not None:
        index = usable.any(1) if batch.rows is None else batch.rows.segments
    else:
        index = usable if batch.rows is None else batch.rows.steps

    def whole(values: Tensor) -> Tensor:
        """Returns a column of the steps, [S, T], with 0 at all other rows."""
        found = values.new_zeros(usable.shape)
        found[index] = values
        return torch.where(usable, found, 0.0)

    # Demonstrations have no priority.
    stored = slice(None, batch.stored_segments)
    used = usable[stored]
    fresh = torch.arange(len(used), device=used.device) < batch.fresh_segments
    log_prob = whole(steps.proximal_log_prob)[stored]
    return Segments(
        advantage=whole(steps.advantage)[stored],
        value_error=torch.where(used, estimated.correction[stored], 0.0),
        value=whole(steps.proximal_value)[stored],
        target=whole(steps.target)[stored],
        log_ratio=torch.where(used, log_prob - batch.behaviour_log_prob[stored], 0.0),
        reward=torch.where(used, batch.reward[stored], 0.0),
        terminated=batch.terminated[stored] & used,
        truncated=batch.truncated[stored] & used,
        # Copies, which the function may change.
        usable=used.clone(),
        age=send(torch.from_numpy(batch.staleness.copy()), used.device),
        fresh=fresh,
        importance=importance[stored],
        priority=torch.where(fresh, 0.0, batch.priorities.float()),
        entropy=lambda: torch.where(used, entropy().float()[stored], 0.0),
    )


def _made_up(device: torch.device) -> Segments:
    """Returns random segments, of which one has no usable step."""
    draw = torch.Generator().manual_seed(0)
    shape = (_SEGMENTS, _STEPS)
    usable = torch.rand(shape, generator=draw) < 0.8
    usable[-1] = False

    def normal(scale: float = 1.0) -> Tensor:
        return torch.where(usable, scale * torch.randn(shape, generator=draw), 0.0).to(device)

    def flags(share: float) -> Tensor:
        return (usable & (torch.rand(shape, generator=draw) < share)).to(device)

    value, error, entropy = normal(), normal(), normal().abs()
    fresh = torch.arange(_SEGMENTS) < _SEGMENTS // 2
    return Segments(
        advantage=error + normal(0.1),
        value_error=error,
        value=value,
        target=value + error,
        log_ratio=normal(0.2),
        reward=normal(),
        terminated=flags(0.1),
        truncated=flags(0.05),
        usable=usable.to(device),
        age=torch.arange(_SEGMENTS, device=device),
        fresh=fresh.to(device),
        importance=torch.where(fresh, 1.0, 0.5 + torch.rand(_SEGMENTS, generator=draw)).to(device),
        priority=torch.where(fresh, 0.0, torch.rand(_SEGMENTS, generator=draw)).to(device),
        entropy=lambda: entropy,
    )
