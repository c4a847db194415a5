"""A module's parameters side by side in one block of memory, so that an optimizer has one tensor to go over."""

import torch
from torch import Tensor, nn

_ALIGNMENT = 16
"""In elements: 64 bytes, where torch's own allocations begin; matrix products may round differently elsewhere."""


def flatten(module: nn.Module) -> nn.Parameter:
    """Moves a module's parameters into one tensor, <float32>[P], and their gradients into another; both stay in use.

    The module's parameters become views. A small network's gradient step costs as many calls as it has tensors; this
    leaves one.
    """
    parameters = list(module.parameters())
    sizes = [-(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT for parameter in parameters]
    values = torch.zeros(sum(sizes), device=parameters[0].device)
    gradients = torch.zeros_like(values)
    for parameter, value, gradient in zip(
        parameters, torch.split(values, sizes), torch.split(gradients, sizes), strict=True
    ):
        room = value[: parameter.numel()].view_as(parameter)
        room.copy_(parameter.detach())
        parameter.data, parameter.grad = room, gradient[: parameter.numel()].view_as(parameter)
    flat = nn.Parameter(values)
    flat.grad = gradients
    return flat


def clip_gradient(parameters: nn.Parameter, most: float) -> Tensor:
    """Scales a flat gradient down to a norm of at most `most`; the norm as it was, a scalar.

    Summed in double precision, so that the order of the parameters leaves no trace. A gradient without a finite norm
    is left without meaning: `GradientStep` refuses it.
    """
    gradient = parameters.grad
    assert gradient is not None
    norm: Tensor = torch.linalg.vector_norm(gradient, dtype=torch.float64).float()
    gradient.mul_((most / (norm + 1e-6)).clamp(max=1.0))
    return norm
