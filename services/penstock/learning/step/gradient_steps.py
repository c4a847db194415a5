"""The gradient step on one minibatch. `execution` determines how a device executes it.

A step whose gradient has no finite norm is refused: it changes neither the parameters nor the optimizer's state.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from penstock.algo import losses
from penstock.algo.losses import Losses, LossSettings, Movement
from penstock.algo.parameters import clip_gradient
from penstock.algo.policies import Inputs, Policy
from penstock.config import Precision
from penstock.learning.step.devices import autocast

LARGEST_NORM = 1e18
"""Bound on the norm of a gradient. Adam stores its square, which is still finite in float32."""


@dataclass(frozen=True, slots=True)
class Steps:
    """All inputs of the loss.

    Without memory, a row is a valid step, and [N] below is one dimension. With memory, a row is a segment, [N] is
    [S, T], and `usable` marks the steps that count. So it does where the host does not know which steps are sound.

    Attributes:
        inputs: Inputs of the policy.
        action: Actions, one tensor per leaf.
        proximal_log_prob: <float32>[N], as are the following ones; see `ppo_loss`.
        usable: <bool>[N] steps that count; None: all of them.
    """

    inputs: Inputs
    action: tuple[Tensor, ...]
    proximal_log_prob: Tensor
    proximal_value: Tensor
    anchor_log_prob: Tensor
    advantage: Tensor
    target: Tensor
    importance: Tensor
    policy_weight: Tensor
    usable: Tensor | None

    @property
    def columns(self) -> tuple[Tensor, ...]:
        """All tensors, in order."""
        inputs, rest = self.inputs, (getattr(self, name) for name in self.__slots__[2:])
        return (*inputs.columns, *self.action, *(value for value in rest if value is not None))

    def each(self, function: Callable[[Tensor], Tensor]) -> "Steps":
        """Returns steps with a function's results in place of the tensors."""

        def of(value: Tensor | None) -> Tensor | None:
            return None if value is None else function(value)

        return Steps(
            self.inputs.each(function),
            tuple(map(function, self.action)),
            *(of(getattr(self, name)) for name in self.__slots__[2:]),  # type: ignore[arg-type]
        )

    def take(self, rows: Tensor) -> "Steps":
        """Returns the chosen rows in this order."""
        return self.each(lambda column: column[rows])

    def split(self, parts: int) -> list["Steps"]:
        """Splits the rows in order into parts of nearly equal size, without copies."""
        count, begin, minibatches = self.advantage.shape[0], 0, []
        for part in range(parts):
            rows = slice(begin, begin + count // parts + (part < count % parts))
            minibatches.append(self.each(operator.itemgetter(rows)))
            begin = rows.stop
        return minibatches


@dataclass(frozen=True, slots=True)
class Descended:
    """Results of one gradient step, or of the M steps of an epoch, on the device, where they may still be running.

    Attributes:
        log_prob: <float32>[N] log probabilities of the actions before their step, with the shape of `Steps`.
        policy_loss, value_loss, entropy: <float32>[] or <float32>[M] losses as in `Losses`.
        gradient_norm: <float32>[] or <float32>[M] norm of the gradient before clipping.
        refused: <float32>[] or <float32>[M], 1 if the step was refused, else 0.
        own: <float32>[] or <float32>[M] statistics of a loss of the user's own, as in `Losses`.
    """

    SCALARS: ClassVar = ("policy_loss", "value_loss", "entropy", "gradient_norm", "refused")

    log_prob: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    gradient_norm: Tensor
    refused: Tensor
    own: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, log_prob: Tensor, scalars: Sequence[Tensor]) -> "Descended":
        """Returns the results with these `scalars`."""
        named = dict(zip(cls.SCALARS, scalars, strict=False))
        return cls(log_prob=log_prob, own=tuple(scalars[len(named) :]), **named)

    @property
    def scalars(self) -> tuple[Tensor, ...]:
        """All results except the log probabilities: those of `SCALARS`, and then the user's own."""
        return (*(getattr(self, name) for name in self.SCALARS), *self.own)

    @staticmethod
    def joined(steps: Sequence["Descended"]) -> "Descended":
        """Returns the results of an epoch from the results of its single steps."""
        scalars = zip(*(step.scalars for step in steps), strict=True)
        return Descended.of(torch.cat([step.log_prob for step in steps]), [torch.stack(each) for each in scalars])


@dataclass(frozen=True, slots=True)
class Estimated:
    """Estimates for a batch before it is trained.

    Attributes:
        usable: <bool>[B, T] rows to train on: valid, with finite estimates.
        stored_count, fresh_count: Number of usable rows in segments of the store, and in fresh ones; with
            `TrainingBatch.rows`, of valid ones.
        steps: The usable rows or, with memory, the segments that have some; with `TrainingBatch.rows`, the valid ones.
        correction: <float32>[B, T] D_t (`advantages.estimate`).
        priority: <float32>[B] priorities of the segments.
        error: <float32>[B] mean errors of the segments (`priorities.mean_errors`).
        behaviour_weight: <float32>[rows] proximal over behaviour probability of the usable or valid rows, clipped; 0
            where not usable.
        counted: <bool>[rows] which of these rows are usable; None: all of them.
    """

    usable: Tensor
    stored_count: int
    fresh_count: int
    steps: Steps
    correction: Tensor
    priority: Tensor
    error: Tensor
    behaviour_weight: Tensor
    counted: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """Gradient steps of one pass over a batch, and the policy's change before each of them.

    Its scalars stay on the device, to avoid synchronising before the batch is done.
    """

    done: Descended
    movement: Movement


Objective = Callable[[Steps, LossSettings, Tensor | None], tuple[Tensor, Losses]]
"""Function from steps, settings and the rows that count to log probabilities and losses, with gradients."""


def objective_of(policy: Policy, precision: Precision, device: torch.device, burn_in: int = 0) -> Objective:
    """Returns PPO's objective for a policy, with the hidden layers in this precision and steps of burn-in."""

    def objective(steps: Steps, settings: LossSettings, counted: Tensor | None) -> tuple[Tensor, Losses]:
        with autocast(device, precision):
            distribution, value = policy.evaluate(steps.inputs, burn_in=burn_in)
        log_prob = distribution.log_prob(steps.action)
        loss = losses.ppo_loss(
            settings,
            log_prob=log_prob,
            value=value,
            entropy=distribution.entropy(),
            anchor_log_prob=steps.anchor_log_prob,
            proximal_value=steps.proximal_value,
            advantage=steps.advantage,
            target=steps.target,
            importance=steps.importance,
            policy_weight=steps.policy_weight,
            counted=counted_steps(steps.usable, counted),
        )
        return log_prob, loss

    return objective


def counted_steps(usable: Tensor | None, rows: Tensor | None) -> Tensor | None:
    """Returns the steps that count, <bool>[N] or <bool>[S, T]: `usable` ones of those rows; None: all of them."""
    if usable is None or rows is None:
        return rows if usable is None else usable
    return usable & rows.view(-1, *[1] * (usable.dim() - 1))


class Optimizer(Protocol):
    """The optimizer of a policy's parameters, whose gradient is written before each step: `Adam`, or the user's own."""

    @property
    def learning_rate(self) -> float | Tensor:
        """Learning rate of the next steps."""

    @property
    def state(self) -> Mapping[str, Tensor]:
        """Tensors on the parameters' device that a checkpoint has."""

    def step(self, refused: Tensor) -> None:
        """Takes a step, which changes nothing if `refused`, <float32>[] on the device, is 1."""

    def set_learning_rate(self, rate: float) -> None:
        """Sets the learning rate of the next steps."""

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Copies a saved state; an empty one resets the state.

        Raises `ConfigurationError` if it is the state of another optimizer.
        """


@dataclass(frozen=True, slots=True)
class GradientStep:
    """One step of an optimizer on the gradient of flat parameters. With Adam, it never synchronises with the device.

    A step is refused if the gradient's norm is not finite, or so large that Adam could not store its square. Parameters
    therefore stay finite: Adam moves none by more than 10 times the learning rate per step (Cauchy-Schwarz on its two
    moments gives 7.3), and the configuration bounds the learning rate. Larger gradients are scaled down to
    `max_gradient_norm`, and the value's own parameters, which begin at `border`, apart from the policy's. The views of
    the gradient in `hidden` are set to 0.
    """

    objective: Objective
    parameters: nn.Parameter
    optimizer: Optimizer
    max_gradient_norm: float
    border: int | None = None
    hidden: tuple[Tensor, ...] = ()

    @property
    def gradient(self) -> Tensor:
        """Gradient of the flat parameters, <float32>[P]."""
        assert self.parameters.grad is not None
        return self.parameters.grad

    def __call__(self, steps: Steps, settings: LossSettings, counted: Tensor | None = None) -> Descended:
        """Takes the step. `counted` is as in `ppo_loss`."""
        log_prob, loss = self.write_gradient(steps, settings, counted)
        return self.descend(
            log_prob.detach(), loss, None if steps.usable is None else counted_steps(steps.usable, counted)
        )

    def descend(self, log_prob: Tensor, loss: Losses, counts: Tensor | None) -> Descended:
        """Takes the step on the gradient that is written, with results of the objective to return.

        Without a step that `counts`, <bool>[...], there is no gradient, and the momentum alone must not move the
        parameters; None: some do.
        """
        norm = clip_gradient(self.parameters, self.max_gradient_norm, self.border)
        # `<` is false for NaN.
        refused = (norm < LARGEST_NORM).logical_not().float()
        stands = refused if counts is None else torch.maximum(refused, counts.any().logical_not().float())
        self.optimizer.step(stands)
        return Descended(log_prob, loss.policy, loss.value, loss.entropy, norm, refused, loss.own)

    def gradients(self, steps: Steps, settings: LossSettings) -> Callable[[slice], None]:
        """Implements `execution.Execution`."""

        def write(rows: slice) -> None:
            self.write_gradient(steps.each(operator.itemgetter(rows)), settings)

        return write

    def write_gradient(
        self, steps: Steps, settings: LossSettings, counted: Tensor | None = None
    ) -> tuple[Tensor, Losses]:
        """Writes the gradient of the loss into the parameters' gradient. Returns the results of the objective."""
        log_prob, loss = self.objective(steps, settings, counted)
        self.gradient.zero_()
        loss.total.backward()  # type: ignore[no-untyped-call]
        for each in self.hidden:
            each.zero_()
        return log_prob, loss
