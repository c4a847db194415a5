"""Adam (Kingma & Ba 2015) over one flat tensor, with torch's fused step.

`torch.optim.Adam` takes the same steps. Its constructor imports torch's compiler, which takes each learner more than a
second and 70 MB at its start.
"""

import functools
import math
from collections.abc import Mapping

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam

_BETA_1, _BETA_2 = 0.9, 0.999
_EPSILON = 1e-5


@numba.njit(
    "UniTuple(float64, 2)(float32[::1], float32[::1], float32[::1], float32[::1], int64, float64, float64, float64,"
    " float64)",
    nogil=True,
    cache=True,
)
def _clipped_step(values, gradient, mean, square, border, most, largest, rate, steps):  # type: ignore[no-untyped-def]
    """Returns the norm of the gradient, and 1 if the step was refused. See `Adam.clipped_step`."""
    norms = [0.0, 0.0]
    for part in range(2):
        for position in range(0 if part == 0 else border, border if part == 0 else gradient.size):
            norms[part] += np.float64(gradient[position]) * np.float64(gradient[position])
    norm = math.sqrt(norms[0] + norms[1])
    if not norm < largest:
        return norm, 1.0
    rate /= 1.0 - _BETA_1**steps
    root = np.float32(1.0 / math.sqrt(1.0 - _BETA_2**steps))
    step = np.float32(rate)
    for part in range(2):
        scale = np.float32(min(most / (math.sqrt(norms[part]) + 1e-6), 1.0))
        for position in range(0 if part == 0 else border, border if part == 0 else gradient.size):
            slope = gradient[position] * scale
            mean[position] += np.float32(1.0 - _BETA_1) * (slope - mean[position])
            square[position] = np.float32(_BETA_2) * square[position] + np.float32(1.0 - _BETA_2) * slope * slope
            values[position] -= (
                step * mean[position] / (np.sqrt(square[position]) * root + np.float32(_EPSILON))
            )
    return norm, 0.0


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

    def clipped_step(self, most: float, largest: float, border: int | None) -> tuple[float, bool]:
        """Clips the gradient as `parameters.clip_gradient` does, and takes a step, on a CPU in one compiled loop.

        Returns the norm of the gradient before, and whether the step was refused, so that it changed nothing.

        Args:
            most: Largest norm of a part of the gradient.
            largest: Norm of the whole gradient from which the step is refused, as it is if the norm is NaN.
            border: Position at which the second part begins; None: the gradient is one part.
        """
        assert isinstance(self.learning_rate, float)
        values, gradient, mean, square = self._arrays
        steps = float(self.state["step"]) + 1.0
        norm, refused = _clipped_step(
            values,
            gradient,
            mean,
            square,
            gradient.size if border is None else border,
            most,
            largest,
            self.learning_rate,
            steps,
        )
        if not refused:
            self.state["step"].fill_(steps)
        return norm, bool(refused)

    @functools.cached_property
    def _arrays(self) -> tuple[NDArray[np.float32], ...]:
        """Parameters, gradient and both moments as arrays that share their memory."""
        gradient = self._parameters.grad
        assert gradient is not None
        tensors = (self._parameters.detach(), gradient, self.state["exp_avg"], self.state["exp_avg_sq"])
        return tuple(tensor.numpy() for tensor in tensors)

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
