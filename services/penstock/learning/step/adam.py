"""Adam (Kingma & Ba 2015) over one flat tensor, with torch's fused step.

`torch.optim.Adam` takes the same steps. Its constructor imports torch's compiler, which takes each learner more than a
second and 70 MB at its start.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from penstock.errors import ConfigurationError
from penstock.small.compiled.adam import BETA_1, BETA_2, EPSILON


class Adam:
    """The optimizer of one flat tensor of parameters. Implements `gradient_steps.Optimizer`.

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
            beta1=BETA_1,
            beta2=BETA_2,
            lr=self.learning_rate,
            weight_decay=0.0,
            eps=EPSILON,
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

        Raises `KeyError` if a tensor is missing, `RuntimeError` if one has another shape, and `ConfigurationError` if
        it is the state of an optimizer of the user's own (`own.optimizer`).
        """
        if other := next((name.partition("/")[0] for name in state if "/" in name), ""):
            raise ConfigurationError(
                f"it has the state of {other}, which learner.optimizer made, and there is none now; resume with the"
                " optimizer it was trained with"
            )
        for name, held in self.state.items():
            if not state:
                held.zero_()
            elif state[name].shape != held.shape:
                raise RuntimeError(f"{name} has the shape {tuple(state[name].shape)}, not {tuple(held.shape)}")
            else:
                held.copy_(state[name])
