"""The display of a run that Python code started: in a notebook, the panel of a terminal, redrawn in one output."""

import importlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import Progress

from penstock.cli.screen.display import Display, PanelDisplay, make_display
from penstock.cli.screen.lines import show
from penstock.types.status import RunStatus

_INTERVAL_S = 0.5
_COLUMNS = 100
_FORMAT = "<pre style=\"line-height: 1.2; font-family: Menlo, 'DejaVu Sans Mono', monospace\">{code}</pre>"


def display_for_python(shown: bool | None, *, verbose: bool) -> AbstractContextManager[Display]:
    """Returns the display of `penstock.train`. None: shown in a notebook and in a terminal, and nowhere else."""
    console = _Console(highlight=False)
    if shown is None:
        shown = in_notebook() or console.is_terminal
    if not shown:
        return nullcontext(lambda status, news: None)
    return NotebookDisplay(verbose=verbose) if in_notebook() else make_display(console, verbose=verbose)


@contextmanager
def step_bar(steps: int, shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Shows the progress of this number of steps in the context, whose function takes the steps done so far.

    None: shown in a terminal, and nowhere else.
    """
    console = _Console(stderr=True)
    with Progress(console=console, disable=not (console.is_terminal if shown is None else shown)) as bar:
        task = bar.add_task("steps", total=steps)
        yield lambda done: bar.update(task, completed=done)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Goes on without output, because the end of its reader must not end the training of a program."""
        self.quiet = True


def in_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookDisplay(AbstractContextManager["NotebookDisplay"]):
    """A display that redraws the panel of a terminal in one output of a notebook, below the news."""

    def __init__(self, *, verbose: bool = False) -> None:
        # A notebook has IPython, which Penstock does not require.
        self._ipython: Any = importlib.import_module("IPython.display")
        self._handle = self._ipython.display(self._ipython.HTML(""), display_id=True)
        self._panel = PanelDisplay(Console(file=io.StringIO()), verbose=verbose)
        self._news: list[str] = []
        self._status: RunStatus | None = None
        self._due = 0.0

    def __exit__(self, *exception: object) -> None:
        self._draw()

    def __call__(self, status: RunStatus, news: list[str]) -> None:
        """Draws the status and the news."""
        self._status, self._news = status, [*self._news, *news]
        if time.monotonic() >= self._due or news:
            self._due = time.monotonic() + _INTERVAL_S
            self._draw()

    def _draw(self) -> None:
        if self._status is None:
            return
        console = Console(file=io.StringIO(), record=True, width=_COLUMNS, force_terminal=True, highlight=False)
        show(console, *self._news, self._panel.panel(self._status, _COLUMNS))
        self._handle.update(self._ipython.HTML(console.export_html(code_format=_FORMAT, inline_styles=True)))
