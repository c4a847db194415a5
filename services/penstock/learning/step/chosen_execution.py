"""The choice of a learner's execution, from the settings, its device, its policy and its ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from penstock import config
from penstock.algo.advantages import Estimate
from penstock.algo.memory import lstm_by_sequences
from penstock.algo.policies import Policy
from penstock.config import PPOConfig, Precision
from penstock.errors import ConfigurationError
from penstock.learning.ranks.ranks import Ranks
from penstock.learning.step.devices import check_execution, use_precision
from penstock.learning.step.direct_execution import DirectExecution
from penstock.learning.step.execution import Execution, descent_by
from penstock.learning.step.gradient_steps import GradientStep
from penstock.learning.step.torch_execution import TorchExecution
from penstock.small.compiled.minibatch import MinibatchGradient, obstacle_of

_BY_TORCH = {"learner.loss", "learner.optimizer"}
"""Settings of functions of the user's own with which torch takes the gradient steps."""


@dataclass(frozen=True, slots=True)
class ChosenExecution:
    """How a learner computes, before it has a policy.

    Attributes:
        name: `learner.execution`, with the choice of `auto` on CUDA.
        device: Device of the policy.
        precision: Precision of the hidden layers.
        threads: Threads of direct steps.
        ranks: Ranks that train on the same batches together.
    """

    name: config.Execution
    device: torch.device
    precision: Precision
    threads: int
    ranks: Ranks

    @classmethod
    def of(
        cls,
        execution: config.Execution,
        device: torch.device,
        precision: Precision,
        threads: int,
        ranks: Ranks,
        *,
        own: Sequence[str] = (),
    ) -> "ChosenExecution":
        """Chooses the execution, and sets the precision of all learners of the process (`use_precision`).

        `own` are the settings that name functions of the user's own on which parameters depend. Raises
        `ConfigurationError` if the device or the ranks do not support this execution, precision or function.
        """
        if own and not ranks.alone:
            # A loss would see a part of a minibatch, and the other ranks import no code that rank 0 names.
            raise ConfigurationError(
                f"{own[0]} needs a learner of one rank; remove it, or start the learner without torchrun"
            )
        if execution == "auto" and device.type == "cuda" and ranks.alone:
            execution = "graphed"
        elif execution == "auto" and not _BY_TORCH.isdisjoint(own):
            execution = "eager"
        check_execution(device, execution, ranks)
        use_precision(device, precision)
        return cls(execution, device, precision, threads, ranks)

    def without_capture(self, execution: config.Execution) -> "ChosenExecution":
        """Returns the choice for steps that can't be captured, if `execution`, the setting, leaves it open."""
        return replace(self, name="eager") if self.name == "graphed" and execution == "auto" else self

    def prepare(self, policy: Policy) -> None:
        """Chooses how the policy computes, if it has a memory."""
        if policy.network.memory == "lstm" and self._is_fast_on_cpu:
            policy.unroll = lstm_by_sequences
        if policy.memory is not None and self.name == "compiled":
            policy.memory.leave_out_of_compilation()

    def learning_rate(self, rate: float) -> float | Tensor:
        """Returns the learning rate as the optimizer keeps it."""
        # A CUDA graph would capture a number as a constant.
        return torch.tensor(rate, device=self.device) if self.name == "graphed" else rate

    def begin(self, policy: Policy, step: GradientStep, ppo: PPOConfig, estimate: Estimate | None = None) -> Execution:
        """Returns the execution for a policy, whose gradient steps equal the steps of `step` up to rounding.

        The estimates have advantages of the user's own, if there are any.
        """
        whole, name = policy.memory_shape is None, "eager" if self.name == "auto" else self.name
        descent = descent_by(name, step, minibatches=ppo.minibatches, whole=whole, ranks=self.ranks)
        by_torch = TorchExecution(
            name, policy, step, descent, ppo=ppo, device=self.device, precision=self.precision, estimate=estimate
        )
        gradient = MinibatchGradient.of(policy, step.parameters, self.threads) if self._is_fast_on_cpu else None
        if gradient is None:
            return by_torch
        return DirectExecution(step, gradient, ppo, self.ranks, None if estimate is None else by_torch)

    @property
    def _is_fast_on_cpu(self) -> bool:
        """Whether the fastest computation on a CPU is chosen. It rounds differently from torch's operations."""
        return self.name == "auto" and self.device.type == "cpu" and self.precision == "float32"


def shown_execution(name: str, policy: Policy, setting: config.Execution) -> str:
    """Returns a short line with the execution of gradient steps, and which part of a policy keeps a CPU from `direct`.

    Args:
        name: Name of the execution (`Execution.name`).
        policy: The policy, on the learner's device.
        setting: `learner.execution`.
    """
    on_cpu = next(policy.parameters()).device.type == "cpu"
    cause = obstacle_of(policy) if on_cpu and setting == "auto" and name != "direct" else ""
    return f"gradient steps: {name}{cause and f', because {cause}'} (learner.execution)"
