"""Adam (Kingma & Ba 2015) over one flat tensor, with torch's fused step.

`torch.optim.Adam` takes the same steps. Its constructor imports torch's compiler, which takes each learner more than a
second and 70 MB at its start.
"""

import math
from collections.abc import Mapping

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam

_BETA_1 = 0.9
_BETA_2 = 0.999
_EPSILON = 1e-5


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
        mean[position] += np.float32(1.0 - _BETA_1) * (slope - mean[position])
        square[position] = np.float32(_BETA_2) * square[position] + np.float32(1.0 - _BETA_2) * slope * slope
        values[position] -= rate * mean[position] / (np.sqrt(square[position]) * root + np.float32(_EPSILON))


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
        rate = np.float32(rate / (1.0 - _BETA_1**steps))
        root = np.float32(1.0 / math.sqrt(1.0 - _BETA_2**steps))
        for part in range(2):
            rows = slice(0, border) if part == 0 else slice(border, values.size)
            scale = np.float32(min(most / (math.sqrt(squares[part]) + 1e-6), 1.0))
            _step(values[rows], gradient[rows], mean[rows], square[rows], scale, rate, root)
    return norm


class Adam:
    """The optimizer of one flat tensor of parameters.

    Attributes:
        learning_rate: Learning rate of the next steps. A captured step needs a tensor: it treats a number as constant.
        state: Tensors on the parameters' device: `step`, <float32>[], counts the steps; `exp_avg` and `exp_avg_sq`,
            <float32>[P], are the running means of the gradient and of its square.
    """

    def __init__(self, parameters: nn.Parameter, learning_rate: float | Tensor) -> None:
        """Begins with zero moments. The parameters, <float32>[P], have their gradient."""
        self._parameters, self.learning_rate = parameters, learning_rate
        self.state = {
            "step": torch.zeros((), device=parameters.device),
            "exp_avg": torch.zeros_like(parameters, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameters, requires_grad=False),
        }

    def zero_gradient(self) -> None:
        """Sets the gradient to zero in place."""
        gradient = self._parameters.grad
        assert gradient is not None
        gradient.zero_()

    @torch.no_grad()
    def step(self, refused: Tensor) -> None:
        """Takes a step, which changes nothing if `refused`, <float32>[] on the device, is 1."""
        gradient = self._parameters.grad
        assert gradient is not None
        adam(
            [self._parameters],
            [gradient],
            [self.state["exp_avg"]],
            [self.state["exp_avg_sq"]],
            [],
            [self.state["step"]],
            fused=True,
            # As torch.amp.GradScaler sets it.
            found_inf=refused,
            amsgrad=False,
            beta1=_BETA_1,
            beta2=_BETA_2,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=_EPSILON,
            maximize=False,
        )

    def set_learning_rate(self, rate: float) -> None:
        """Sets the learning rate of the next steps, captured ones included."""
        if isinstance(self.learning_rate, Tensor):
            self.learning_rate.fill_(rate)
        else:
            self.learning_rate = rate

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copies a saved state; an empty one resets the state.

        Raises `KeyError` if a tensor is missing, `RuntimeError` if one has another shape.
        """
        for name, held in self.state.items():
            if not state:
                held.zero_()
            elif state[name].shape != held.shape:
                raise RuntimeError(f"{name} has the shape {tuple(state[name].shape)}, not {tuple(held.shape)}")
            else:
                held.copy_(state[name])


class ClippedSteps:
    """Steps of an optimizer on a CPU that clip the gradient, as `parameters.clip_gradient` does, in compiled loops."""

    def __init__(self, optimizer: Adam, parameters: nn.Parameter, *, most: float, largest: float, border: int | None):
        """Makes arrays on the memory of the parameters, their gradient and the moments.

        Args:
            optimizer: Adam of these parameters. Its learning rate is a number.
            parameters: Flat parameters with their gradient.
            most: Largest norm of a part of the gradient.
            largest: Norm of the whole gradient from which a step is refused, as it is if the norm is NaN.
            border: Position at which the second part begins; None: the gradient is one part.
        """
        gradient = parameters.grad
        assert gradient is not None
        state = optimizer.state
        tensors = (parameters.detach(), gradient, state["exp_avg"], state["exp_avg_sq"])
        self._tensors = tuple(tensor.numpy() for tensor in tensors)
        self._border = parameters.numel() if border is None else border
        self._count: NDArray[np.float32] = state["step"].numpy().reshape(1)
        self._optimizer, self._most, self._largest = optimizer, most, largest

    def __call__(self) -> tuple[float, bool]:
        """Takes a step. Returns the norm of the gradient, and whether the step was refused, so that nothing changed."""
        rate = self._optimizer.learning_rate
        assert isinstance(rate, float)
        norm: float = _clipped_step(self._tensors, self._count, self._border, self._most, self._largest, rate)
        return norm, not norm < self._largest
