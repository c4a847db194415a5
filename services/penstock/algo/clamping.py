"""Clamping whose gradient lets values outside the bounds return."""

from typing import Any

import torch
from torch import Tensor


def bound(values: Tensor, low: float, high: float) -> Tensor:
    """Clamps values of any shape with a gradient that lets values outside the bounds return.

    A plain clamp passes no gradient outside its bounds, so a parameter that momentum carries past a bound stays there.
    Here only gradients that would move a value farther out are dropped.
    """
    if not torch.is_grad_enabled():
        return values.clamp(low, high)
    bounded: Tensor = _Bound.apply(values, low, high)  # type: ignore[no-untyped-call]
    return bounded


class _Bound(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(values)
        ctx.low, ctx.high = low, high
        return values.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (values,), (gradient,) = ctx.saved_tensors, gradients
        # Descent moves against the gradient.
        outwards = ((values > ctx.high) & (gradient < 0.0)) | ((values < ctx.low) & (gradient > 0.0))
        return torch.where(outwards, 0.0, gradient), None, None
