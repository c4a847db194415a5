"""Execution of gradient steps: eager, compiled, or captured into a CUDA graph. All modes take the same steps.

`auto` is eager here; the learner chooses `graphed` on CUDA, and its kernels.

Compiled and captured code needs inputs of a constant shape, but the number of valid steps varies between batches.
There, every minibatch has the size it would have if every step of the largest batch were valid, and the surplus rows do
not count (`ppo_loss`). This is exact and needs one shape for the whole run.

A captured step is a single launch instead of several hundred. It reads its inputs from the addresses at which they were
captured, so they are copied there first: the steps once per batch, and the row numbers once per minibatch.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock import config
from penstock.algo.losses import SCHEDULED, LossSettings, Movement
from penstock.algo.policies import Inputs
from penstock.errors import ConfigurationError
from penstock.learning.ranks.ranks import ALONE, Ranks
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.gradient_steps import Descended, Estimated, GradientStep, Steps
from penstock.learning.step.shared_steps import SharedStep
from penstock.machine import compiled_code

_WARM_UPS = 3
"""Steps before the capture, as torch's documentation recommends, because one-time setup must not be captured."""

_NONE = -1
"""Row number that marks padding."""

Take = Callable[[], Descended]
"""Function that takes a gradient step with bound inputs."""


class Descent(Protocol):
    """Executor of gradient steps. Used by one thread."""

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """Sets the steps of the batch. No batch of the run has more than `most_steps` rows."""

    def descend(self, order: Tensor, minibatches: int) -> Descended:
        """Splits row numbers, <int64>[N], into minibatches of nearly equal size and takes a gradient step on each."""


class Execution(Descent, Protocol):
    """How a learner computes. Used by one thread.

    Attributes:
        name: Name in logs and metrics: that in `learner.execution`, or "direct".
    """

    name: str

    def evaluate(self, inputs: Inputs, actions: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Returns log probabilities, <float32>[B, T], and values, <float32>[B, T + 1], of whole segments."""

    def estimate(
        self,
        batch: TrainingBatch,
        settings: LossSettings,
        *,
        log_prob: Tensor,
        value: Tensor,
        reward: Tensor,
        importance: Tensor,
    ) -> Estimated:
        """Returns advantages, targets and weights.

        Args:
            batch: The batch.
            settings: Settings of the loss.
            log_prob: <float32>[B, T] log probabilities of the actions under the proximal policy.
            value: <float32>[B, T + 1] values of all observations under the proximal policy.
            reward: <float32>[B, T] scaled rewards.
            importance: <float32>[B] importance weights.
        """

    def movement(self, order: Tensor, log_prob: Tensor) -> Movement:
        """Returns the change of the policy (`losses.movement`).

        `log_prob`, <float32>[N], are the log probabilities of an epoch over the steps of `begin` in this order.
        """

    def gradients(self, steps: Steps, settings: LossSettings) -> Callable[[slice], None]:
        """Returns a function that writes the gradient of the loss of some rows into the parameters' gradient."""


class Step(Protocol):
    """Gradient step on one minibatch: `GradientStep`, or one that several ranks share (`SharedStep`)."""

    def __call__(self, steps: Steps, settings: LossSettings, counted: Tensor | None = None) -> Descended:
        """Takes the step. `counted` is as in `ppo_loss`."""


class Eager:
    """Eager execution, operation by operation."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """Implements `Descent`."""
        self._steps, self._settings = steps, settings

    def descend(self, order: Tensor, minibatches: int) -> Descended:
        """Implements `Descent`."""
        parts = self._steps.take(order).split(minibatches)
        return Descended.joined([self._step(minibatch, self._settings) for minibatch in parts])


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of a gradient step, at constant addresses and with constant shapes.

    `rows`, <int64>[M], are the row numbers of the minibatch, padded with `_NONE`. `settings` has tensors for those that
    follow a schedule.
    """

    steps: Steps
    rows: Tensor
    settings: LossSettings

    @classmethod
    def like(cls, steps: Steps, settings: LossSettings, most_steps: int, most_rows: int) -> "_Inputs":
        room = steps.each(lambda column: column.new_zeros(most_steps, *column.shape[1:]))
        scheduled: dict[str, Any] = {name: steps.advantage.new_empty(()) for name in SCHEDULED}
        rows = steps.advantage.new_empty(most_rows, dtype=torch.int64)
        return cls(room, rows, dataclasses.replace(settings, **scheduled))

    def load(self, steps: Steps, settings: LossSettings) -> None:
        for room, column in zip(self.steps.columns, steps.columns, strict=True):
            room[: column.shape[0]].copy_(column)
        for name in SCHEDULED:
            getattr(self.settings, name).fill_(getattr(settings, name))

    def choose(self, rows: Tensor) -> None:
        self.rows.fill_(_NONE)
        self.rows[: rows.shape[0]].copy_(rows)

    def descend(self, step: Step) -> Descended:
        return step(self.steps.take(self.rows.clamp(min=0)), self.settings, self.rows != _NONE)


class FixedShapes:
    """Execution with inputs of constant shapes at constant addresses, by the function that `prepare` returns."""

    def __init__(self, step: Step, *, minibatches: int, prepare: Callable[[Take], Take]) -> None:
        """Creates an executor without buffers, which `begin` allocates.

        A batch with enough steps has at least this number of `minibatches`. `prepare` converts a step whose inputs keep
        their addresses into the function that executes it.
        """
        self._step, self._minibatches, self._prepare = step, minibatches, prepare
        self._most_steps = 0

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """Implements `Descent`. Prepares the step again if `most_steps` has grown."""
        if most_steps > self._most_steps:
            self._most_steps = most_steps
            self._inputs = _Inputs.like(steps, settings, most_steps, -(-most_steps // self._minibatches))
            self._take = self._prepare(functools.partial(self._inputs.descend, self._step))
        self._inputs.load(steps, settings)

    def descend(self, order: Tensor, minibatches: int) -> Descended:
        """Implements `Descent`."""
        done = []
        for rows in torch.tensor_split(order, minibatches):
            self._inputs.choose(rows)
            descended = self._take()
            done.append(dataclasses.replace(descended, log_prob=descended.log_prob[: rows.shape[0]]))
        return Descended.joined(done)


class Captured:
    """Gradient step that is captured into a CUDA graph after its warm-up and replayed from then on."""

    def __init__(self, take: Take) -> None:
        """Creates the stream on which the step is taken eagerly during the warm-up and then captured."""
        self._take, self._warm_ups = take, 0
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Descended:
        """Takes the step. Raises `ConfigurationError` if the step can't be captured."""
        if self._warm_ups < _WARM_UPS:
            self._warm_ups += 1
            return self._take_beside()
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()
        # Cloned, because the next replay overwrites them.
        return Descended.of(self._log_prob.clone(), self._scalars.clone().unbind())

    def _take_beside(self) -> Descended:
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            descended = self._take()
        current.wait_stream(self._stream)
        return descended

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        try:
            # The thread that copies the next batch may allocate during the capture, which "global" would forbid.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                descended = self._take()
                self._log_prob = descended.log_prob
                # Stacked, so that one copy saves them all.
                self._scalars = torch.stack(descended.scalars)
        except RuntimeError as error:
            raise ConfigurationError(
                f"the gradient step can't be captured into a CUDA graph: {str(error).splitlines()[0]}; set"
                " learner.execution to eager"
            ) from error
        return graph


def descent_by(
    execution: config.Execution, step: GradientStep, *, minibatches: int, whole: bool = True, ranks: Ranks = ALONE
) -> Descent:
    """Returns the executor of a gradient step.

    Args:
        execution: How the device executes the step.
        step: The gradient step.
        minibatches: As in `FixedShapes`.
        whole: Whether the whole objective can be compiled, so that a part that can't be is an error.
        ranks: Ranks that share each minibatch, unless it is captured (`devices.check_execution`).
    """

    def shared(step: GradientStep) -> Step:
        return step if ranks.alone else SharedStep(step, ranks)

    if execution == "compiled":
        compiled_code.keep_private()
        objective = torch.compile(step.objective, fullgraph=whole, dynamic=False)
        step = dataclasses.replace(step, objective=objective)
        return FixedShapes(shared(step), minibatches=minibatches, prepare=_explained)
    if execution == "graphed":
        return FixedShapes(step, minibatches=minibatches, prepare=Captured)
    return Eager(shared(step))


def _remedy() -> str:
    """Returns the remedy for a failed compilation."""
    # torch passes its own folder to the compiler without quotes.
    folder = torch.__path__[0]
    if " " in folder:
        return f"install torch into a folder without a space, unlike {folder}"
    return "install a C++ compiler (g++) if there is none (in Docker Compose, PENSTOCK_COMPILER=g++ and a build)"


def _explained(take: Take) -> Take:
    """Wraps a compiled step so that a failed compilation, which happens at the first call, raises with a remedy."""
    # Imported here, because the import takes a second and only compiled execution needs it.
    from torch._dynamo.exc import TorchDynamoException

    def taken() -> Descended:
        try:
            return take()
        except TorchDynamoException as error:
            raise ConfigurationError(
                f"the loss can't be compiled: {str(error).splitlines()[0]}; {_remedy()}, or set learner.execution to"
                " eager"
            ) from error

    return taken
