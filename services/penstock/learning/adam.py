"""Adam (Kingma & Ba 2015) over one flat tensor, by torch's fused step.

`torch.optim.Adam` takes the same steps. Its constructor imports torch's compiler, which costs each learner more than a
second at its start, and memory.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

_BETA_1, _BETA_2 = 0.9, 0.999
_EPSILON = 1e-5


class Adam:
    """Takes steps down a gradient.

    Attributes:
        learning_rate: Of the next steps. A captured step reads it from a tensor, and takes a number for good.
        state: On the parameters' device: `step`, the number of steps, <float32>[]; `exp_avg` and `exp_avg_sq`, the
            running means of the gradient and of its square, <float32>[P].
    """

    def __init__(self, parameters: nn.Parameter, learning_rate: float | Tensor) -> None:
        """Args:
        parameters: <float32>[P], with their gradient.
        learning_rate: Of the first steps.
        """
        self._parameters, self.learning_rate = parameters, learning_rate
        self.state = {
            "step": torch.zeros((), device=parameters.device),
            "exp_avg": torch.zeros_like(parameters, requires_grad=False),
            "exp_avg_sq": torch.zeros_like(parameters, requires_grad=False),
        }

    def zero_gradient(self) -> None:
        """Makes the gradient zero, where it is."""
        gradient = self._parameters.grad
        assert gradient is not None
        gradient.zero_()

    @torch.no_grad()
    def step(self, refused: Tensor) -> None:
        """Takes a step; where `refused`, <float32>[] on the device, is 1, neither parameters nor state change."""
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
            # What torch.amp.GradScaler sets.
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
        """Makes this the learning rate of the next steps, captured ones included."""
        if isinstance(self.learning_rate, Tensor):
            self.learning_rate.fill_(rate)
        else:
            self.learning_rate = rate

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Goes on from this state; from none if it is empty.

        Raises:
            KeyError: A part is missing.
            RuntimeError: A part has another shape.
        """
        for name, held in self.state.items():
            if not state:
                held.zero_()
            elif state[name].shape != held.shape:
                raise RuntimeError(f"{name} has the shape {tuple(state[name].shape)}, not {tuple(held.shape)}")
            else:
                held.copy_(state[name])
