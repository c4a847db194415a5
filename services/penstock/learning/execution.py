"""How gradient steps are executed: operation by operation, compiled, or captured into a CUDA graph.

All take the same steps. Compiled and captured code wants inputs of one shape, and the valid steps of a batch are now
more, now fewer. So there a minibatch is always as large as it would be if every step of the largest batch were valid,
and the rows that are too many do not count (`ppo_loss`): exact, and one shape for a whole run.

A captured step is one launch where an eager one is some hundred. It reads its inputs where they were when it was
captured, so they are copied there first: the steps of a batch once, then of each minibatch which rows it has.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from penstock.algo.losses import SCHEDULED, LossSettings
from penstock.config import Execution
from penstock.errors import ConfigurationError
from penstock.learning.gradient_steps import Descended, GradientStep, Steps

_WARM_UPS = 3
"""Steps before the capture, as torch's documentation has it: what is set up at first use must not be captured."""

_NONE = -1
"""In place of a row: there is none."""

Take = Callable[[], Descended]
"""Takes a gradient step whose inputs are known."""


class Descent(Protocol):
    """Takes gradient steps. Used by one thread."""

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """Makes these the steps of the batch, of which no batch of the run has more than `most_steps`."""

    def descend(self, order: Tensor, minibatches: int) -> list[Descended]:
        """A gradient step for each part of <int64>[N] rows of the batch, split as equally as can be."""


class Eager:
    """Operation by operation."""

    def __init__(self, step: GradientStep) -> None:
        self._step = step

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """As `Descent`."""
        self._steps, self._settings = steps, settings

    def descend(self, order: Tensor, minibatches: int) -> list[Descended]:
        """As `Descent`."""
        return [self._step(minibatch, self._settings) for minibatch in self._steps.take(order).split(minibatches)]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """A gradient step's inputs, at one place and of one shape.

    Attributes:
        steps: Room for those of the largest batch.
        rows: <int64>[M] of the minibatch; `_NONE` where it is smaller.
        settings: Those that follow a schedule are tensors.
    """

    steps: Steps
    rows: Tensor
    settings: LossSettings

    @classmethod
    def like(cls, steps: Steps, settings: LossSettings, most_steps: int, most_rows: int) -> "_Inputs":
        room = Steps(*(column.new_zeros(most_steps, *column.shape[1:]) for column in steps.columns))
        scheduled: dict[str, Any] = {name: steps.advantage.new_empty(()) for name in SCHEDULED}
        rows = steps.action.new_empty(most_rows, dtype=torch.int64)
        return cls(room, rows, dataclasses.replace(settings, **scheduled))

    def load(self, steps: Steps, settings: LossSettings) -> None:
        for room, column in zip(self.steps.columns, steps.columns, strict=True):
            room[: column.shape[0]].copy_(column)
        for name in SCHEDULED:
            getattr(self.settings, name).fill_(getattr(settings, name))

    def choose(self, rows: Tensor) -> None:
        self.rows.fill_(_NONE)
        self.rows[: rows.shape[0]].copy_(rows)

    def descend(self, step: GradientStep) -> Descended:
        return step(self.steps.take(self.rows.clamp(min=0)), self.settings, self.rows != _NONE)


class FixedShapes:
    """Gives every gradient step inputs of one shape at one place, and leaves taking it to what `prepare` makes."""

    def __init__(self, step: GradientStep, *, minibatches: int, prepare: Callable[[Take], Take]) -> None:
        """Args:
        step: To take.
        minibatches: At least so many are made of a batch that has as many steps.
        prepare: Called with a step whose inputs stay where they are.
        """
        self._step, self._minibatches, self._prepare = step, minibatches, prepare
        self._most_steps = 0

    def begin(self, steps: Steps, settings: LossSettings, most_steps: int) -> None:
        """As `Descent`. Prepares anew if the most has grown."""
        if most_steps > self._most_steps:
            self._most_steps = most_steps
            self._inputs = _Inputs.like(steps, settings, most_steps, -(-most_steps // self._minibatches))
            self._take = self._prepare(functools.partial(self._inputs.descend, self._step))
        self._inputs.load(steps, settings)

    def descend(self, order: Tensor, minibatches: int) -> list[Descended]:
        """As `Descent`."""
        done = []
        for rows in torch.tensor_split(order, minibatches):
            self._inputs.choose(rows)
            descended = self._take()
            done.append(dataclasses.replace(descended, log_prob=descended.log_prob[: rows.shape[0]]))
        return done


class Captured:
    """A step that is captured into a CUDA graph once it is warm, and replayed from then on."""

    def __init__(self, take: Take) -> None:
        """The first calls take the step as it is, on the stream on which it is captured later."""
        self._take, self._warm_ups = take, 0
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Descended:
        """Takes the step.

        Raises:
            ConfigurationError: It can't be captured.
        """
        if self._warm_ups < _WARM_UPS:
            self._warm_ups += 1
            return self._take_beside()
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()
        # The next replay writes to the same places.
        return Descended(self._log_prob.clone(), *self._scalars.clone().unbind())

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
            # The thread that copies the next batch may allocate meanwhile, and "global" would forbid it.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                descended = self._take()
                self._log_prob = descended.log_prob
                # Side by side, so that one copy saves them all.
                self._scalars = torch.stack(descended.scalars)
        except RuntimeError as error:
            raise ConfigurationError(
                f"the gradient step can't be captured into a CUDA graph: {str(error).splitlines()[0]}; set"
                " learner.execution to eager"
            ) from error
        return graph


def descent_by(execution: Execution, step: GradientStep, *, minibatches: int) -> Descent:
    """What takes the step in a way that `check_execution` allows.

    Args:
        execution: How.
        step: To take.
        minibatches: At least so many are made of a batch that has as many steps.
    """
    if execution == "compiled":
        compiled = dataclasses.replace(step, objective=torch.compile(step.objective, fullgraph=True, dynamic=False))
        return FixedShapes(compiled, minibatches=minibatches, prepare=_explained)
    if execution == "graphed":
        return FixedShapes(step, minibatches=minibatches, prepare=Captured)
    return Eager(step)


def _explained(take: Take) -> Take:
    """A compiled step whose failure to compile says what to do; it is compiled when it is first taken."""
    # Imported here: a second that only who compiles should pay.
    from torch._dynamo.exc import TorchDynamoException

    def taken() -> Descended:
        try:
            return take()
        except TorchDynamoException as error:
            raise ConfigurationError(
                f"the loss can't be compiled: {str(error).splitlines()[0]}; install a C++ compiler (g++) if there is"
                " none, or set learner.execution to eager"
            ) from error

    return taken
