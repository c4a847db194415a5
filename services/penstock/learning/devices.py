"""Torch devices: by name, how tensors get there, and in which precision and way they are worked with."""

import contextlib

import torch
from torch import Tensor

from penstock.config import Execution, Precision
from penstock.errors import ConfigurationError


def torch_device(name: str) -> torch.device:
    """The device of this name, with its index if it is CUDA's; it is made the current one.

    auto: cuda where there is one. Raises `ConfigurationError` if it does not exist.
    """
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        device = torch.device(chosen)
        if device.type == "cuda":
            device = _cuda_device(device)
            # Streams and graphs are made on the current one.
            torch.cuda.set_device(device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ConfigurationError(
            f"learner.device {name!r} can't be used: {str(error).splitlines()[0]}; use auto, cpu, or cuda:N with the"
            " number of a GPU that nvidia-smi shows"
        ) from None
    return device


def _cuda_device(device: torch.device) -> torch.device:
    """With an index, which `torch.cuda.set_device` needs. Raises `ValueError` if there is no such device."""
    if not torch.cuda.is_available():
        raise ValueError("torch finds no CUDA device")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= (count := torch.cuda.device_count()):
        raise ValueError(f"there is no device {index}, torch finds {count}, counted from 0")
    return torch.device("cuda", index)


def check_execution(device: torch.device, execution: Execution) -> None:
    """Raises `ConfigurationError` for gradient steps that a device can't execute so."""
    if execution == "graphed" and device.type != "cuda":
        raise ConfigurationError(
            f"learner.execution 'graphed' needs CUDA, and learner.device is {str(device)!r}; use eager"
        )


def autocast(device: torch.device, precision: Precision) -> contextlib.AbstractContextManager[None]:
    """Where networks compute in this precision."""
    if precision == "float32":
        return contextlib.nullcontext()
    # A cache of cast weights has no use where each is used once, and no place in a CUDA graph.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU's on a device. On CUDA nobody waits for the copy: it is from pinned memory."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
