"""A writer in place of TensorBoard's, by which CleanRL's programs tell the end of each batch."""

import sys
from collections.abc import Callable
from typing import Any

import torch.utils.tensorboard

AtEnd = Callable[[int, dict[str, Any]], None]
"""Called at the end of a batch with the environment steps and the global names of the program."""

_LAST_OF_BATCH = "charts/SPS"
"""What the programs write at the end of each batch."""


class Writer:
    """The part of `SummaryWriter` that the programs use. It writes no files."""

    def __init__(self, at_end: AtEnd) -> None:
        self._at_end = at_end

    def add_text(self, *words: object) -> None:
        """Ignores the settings."""

    def close(self) -> None:
        """Has nothing to close."""

    def add_scalar(self, name: str, value: float, env_steps: int) -> None:
        """Calls `at_end` at the end of a batch."""
        if name == _LAST_OF_BATCH:
            self._at_end(env_steps, sys._getframe(1).f_globals)


def write_to(at_end: AtEnd) -> None:
    """Gives programs that are run from now on this writer."""
    writer = Writer(at_end)
    torch.utils.tensorboard.SummaryWriter = lambda *arguments: writer  # type: ignore[assignment,misc]
