"""Activation functions of hidden layers: one table of all implementations. Its import does not import torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock.types.spaces import ActivationName

if TYPE_CHECKING:
    from torch import nn

_ZERO = np.zeros((), np.float32)


@dataclass(frozen=True, slots=True)
class Implementations:
    """Implementations of one activation function, of which torch's is the definition.

    Attributes:
        module: Function that makes torch's module.
        in_place: NumPy's function, which replaces <float32>[...] by its results.
        number: Number of the function in `small.compiled.passes`, which has a branch for it.
    """

    module: Callable[[], "nn.Module"]
    in_place: Callable[[NDArray[np.float32]], None]
    number: int


def implementations_of(name: ActivationName) -> Implementations:
    """Returns the implementations of the activation of this name."""
    match name:
        case "tanh":
            return Implementations(module=_tanh_module, in_place=_tanh, number=0)
        case "relu":
            return Implementations(module=_relu_module, in_place=_relu, number=1)
        case _:
            assert_never(name)


def _tanh_module() -> "nn.Module":
    from torch import nn

    return nn.Tanh()


def _tanh(values: NDArray[np.float32]) -> None:
    np.tanh(values, out=values)


def _relu_module() -> "nn.Module":
    from torch import nn

    # In place, because small networks are bound by memory, not by arithmetic.
    return nn.ReLU(inplace=True)


def _relu(values: NDArray[np.float32]) -> None:
    np.maximum(values, _ZERO, out=values)
