"""The progress of an actor, shared with the threads that report it while the main thread is in an environment."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.types.run import ActorProgress


@dataclass(slots=True)
class Progress:
    """Progress of an actor, written by the thread that steps environments and read by others.

    Each field is valid by itself at any moment. The fields are not updated together.

    Attributes:
        steps: Environment calls that have returned; it increases with every step.
        doing: Environment call in progress: make, reset or step; empty if there is none.
        environment: Index of the environment that is being called; None if several are called at once.
        numbers: Run-wide numbers of the environments.
        window_step: Steps already taken in the window in collection.
        window_steps: Steps of a complete window.
        converted: Descriptions of rewards and ends of episodes that had another shape than expected, each once.
        notices: Lines for the user about the infos, each once.
        window_s: Seconds that the collection of the latest window took; infinity before the first.
    """

    steps: int = 0
    doing: str = ""
    environment: int | None = None
    numbers: Sequence[int] = ()
    window_step: int = 0
    window_steps: int = 0
    converted: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    window_s: float = math.inf

    def note(self, converted: str) -> None:
        """Adds to `converted`."""
        if converted not in self.converted:
            self.converted.append(converted)

    def notice(self, line: str) -> None:
        """Adds to `notices`."""
        if line not in self.notices:
            self.notices.append(line)

    def now(self) -> ActorProgress:
        """Returns the current progress, with the environment's run-wide number."""
        index, numbers = self.environment, self.numbers
        number = numbers[index] if index is not None and index < len(numbers) else None
        return ActorProgress(self.steps, self.doing, number, self.window_step, self.window_steps)
