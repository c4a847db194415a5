"""Torch devices by name."""

import torch

from penstock.errors import ConfigurationError


def torch_device(name: str) -> torch.device:
    """The device of this name; auto: cuda where there is one. Raises `ConfigurationError` if it does not exist."""
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
    try:
        device = torch.device(chosen)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigurationError(f"learner.device {name!r} can't be used: {str(error).splitlines()[0]}") from None
    return device
