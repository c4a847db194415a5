"""Adam's step with a clipped gradient, for flat parameters on a CPU, in compiled loops."""

import math
from collections.abc import Mapping

import numba
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

BETA_1 = 0.9
BETA_2 = 0.999
EPSILON = 1e-5

# Sums in any order, which vector instructions need; NaN and infinity keep their meaning.
_VECTORISED = {"reassoc", "contract", "nsz"}


@numba.njit(nogil=True, error_model="numpy", fastmath=_VECTORISED)
def _squared_norm(gradient):  # type: ignore[no-untyped-def]
    total = 0.0
    for position in range(gradient.size):
        total += np.float64(gradient[position]) * np.float64(gradient[position])
    return total


@numba.njit(nogil=True, error_model="numpy", fastmath=_VECTORISED)
def _step(values, gradient, mean, square, scale, rate, root):  # type: ignore[no-untyped-def]
    """Takes the step of Adam on a gradient times `scale`, with a rate and a root that contain the bias corrections."""
    for position in range(values.size):
        slope = gradient[position] * scale
        mean[position] += np.float32(1.0 - BETA_1) * (slope - mean[position])
        square[position] = np.float32(BETA_2) * square[position] + np.float32(1.0 - BETA_2) * slope * slope
        values[position] -= rate * mean[position] / (np.sqrt(square[position]) * root + np.float32(EPSILON))


@numba.njit(
    "float64(UniTuple(float32[::1], 4), float32[::1], int64, float64, float64, float64)",
    nogil=True,
    cache=True,
    error_model="numpy",
)
def _clipped_step(tensors, count, border, most, largest, rate):  # type: ignore[no-untyped-def]
    """Returns the norm of the gradient, and takes the step if it is below `largest`.

    The `tensors` are the parameters, their gradient, and its two moments; `count` is the number of steps. The parts
    before and from `border` on are clipped apart.
    """
    values, gradient, mean, square = tensors
    squares = (_squared_norm(gradient[:border]), _squared_norm(gradient[border:]))
    norm = math.sqrt(squares[0] + squares[1])
    # `<` is false for NaN.
    if norm < largest:
        count[0] += np.float32(1.0)
        steps = np.float64(count[0])
        rate = np.float32(rate / (1.0 - BETA_1**steps))
        root = np.float32(1.0 / math.sqrt(1.0 - BETA_2**steps))
        for part in range(2):
            rows = slice(0, border) if part == 0 else slice(border, values.size)
            scale = np.float32(min(most / (math.sqrt(squares[part]) + 1e-6), 1.0))
            _step(values[rows], gradient[rows], mean[rows], square[rows], scale, rate, root)
    return norm


class ClippedSteps:
    """Steps of `learning.step.adam.Adam` that clip the gradient, as `parameters.clip_gradient` does."""

    def __init__(
        self,
        parameters: nn.Parameter,
        state: Mapping[str, Tensor],
        *,
        most: float,
        largest: float,
        border: int | None,
    ) -> None:
        """Makes arrays on the memory of the parameters, their gradient and the moments.

        Args:
            parameters: Flat parameters with their gradient.
            state: State of the optimizer (`Adam.state`).
            most: Largest norm of a part of the gradient.
            largest: Norm of the whole gradient from which a step is refused, as it is if the norm is NaN.
            border: Position at which the second part begins; None: the gradient is one part.
        """
        gradient = parameters.grad
        assert gradient is not None
        tensors = (parameters.detach(), gradient, state["exp_avg"], state["exp_avg_sq"])
        self._tensors = tuple(tensor.numpy() for tensor in tensors)
        self._border = parameters.numel() if border is None else border
        self._count: NDArray[np.float32] = state["step"].numpy().reshape(1)
        self._most, self._largest = most, largest

    def __call__(self, rate: float) -> tuple[float, bool]:
        """Takes a step at this learning rate.

        Returns the norm of the gradient, and whether the step was refused, so that nothing changed.
        """
        norm: float = _clipped_step(self._tensors, self._count, self._border, self._most, self._largest, rate)
        return norm, not norm < self._largest
