"""How far an actor is, for the threads that tell others while its main thread is inside of an environment."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.types import ActorProgress


@dataclass(slots=True)
class Progress:
    """Written by the thread that steps environments, read by others: each field by itself is good, at any moment.

    Attributes:
        steps: Calls of environments that have returned, and began: it changes with every step.
        doing: make, reset or step; empty while no environment is waited for.
        environment: Index of the environment that is called; None where several are called at once.
        numbers: Run-wide numbers of the environments.
        window_step: Steps that the window in progress has.
        window_steps: Steps that it is to have.
    """

    steps: int = 0
    doing: str = ""
    environment: int | None = None
    numbers: Sequence[int] = ()
    window_step: int = 0
    window_steps: int = 0

    def now(self) -> ActorProgress:
        """The progress at this moment, with the environment's run-wide number."""
        index, numbers = self.environment, self.numbers
        number = numbers[index] if index is not None and index < len(numbers) else None
        return ActorProgress(self.steps, self.doing, number, self.window_step, self.window_steps)
