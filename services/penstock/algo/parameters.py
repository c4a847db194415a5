"""A module's parameters in one block of memory, so that an optimizer updates a single tensor."""

import torch
from torch import Tensor, nn

_ALIGNMENT = 16
"""Alignment of each parameter in elements: 64 bytes, as in torch's own allocations. At other alignments, matrix
products may round differently."""


def flatten(module: nn.Module) -> nn.Parameter:
    """Moves a module's parameters into one tensor, <float32>[P], and their gradients into another.

    The module's parameters and their gradients become views of these tensors. A small network's gradient step costs one
    call per tensor, and flattening leaves one tensor.
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


def beginning_of(module: nn.Module) -> int:
    """Returns the position of a module's first parameter in the flat tensor."""
    return int(next(module.parameters()).data.storage_offset())


def parts_of(flat: Tensor, border: int | None) -> tuple[Tensor, ...]:
    """Returns views of a flat tensor before and from the border; one view of all if there is none."""
    return (flat,) if border is None else (flat[:border], flat[border:])


def clip_gradient(parameters: nn.Parameter, most: float, border: int | None = None) -> Tensor:
    """Scales the parts of a flat gradient down to norms of at most `most`, and returns the whole norm before, a scalar.

    A norm is summed in double precision, so that the order of the parameters does not affect it. If it is not finite,
    the gradient has no meaning afterwards, and `GradientStep` refuses it.

    Args:
        parameters: Flat parameters with their gradient.
        most: Largest norm of a part.
        border: Position at which the second part begins; None: the gradient is one part.
    """
    gradient = parameters.grad
    assert gradient is not None
    parts = parts_of(gradient, border)
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
    for part, norm in zip(parts, norms, strict=True):
        part.mul_((most / (norm.float() + 1e-6)).clamp(max=1.0))
    whole: Tensor = norms[0] if border is None else torch.linalg.vector_norm(torch.stack(norms))
    return whole.float()
