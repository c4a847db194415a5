"""Displays of an active run: a live panel in a terminal, a plain line every few seconds elsewhere."""

import itertools
import os
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.run_facts import (
    clock,
    data_facts,
    duration,
    hints_now,
    learning_facts,
    progress_parts,
    replay_lines,
    state,
    status_line,
    variant_lines,
)
from penstock.types.status import RunStatus

_LINE_INTERVAL_S = 3.0
_CURVE_POINTS = 60
_SHOWN_HINTS = 2
_BARS = "▁▂▃▄▅▆▇█"


Display = Callable[[RunStatus, list[str]], None]
"""Function that shows the status of a run, and lines of news."""


def make_display(console: Console) -> "PanelDisplay | LineDisplay":
    """Returns a panel for a terminal, and lines for any other output."""
    return PanelDisplay(console) if console.is_terminal else LineDisplay(console)


class LineDisplay(AbstractContextManager["LineDisplay"]):
    """A display of one line every few seconds, for logs and pipes, and of each hint once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._due = 0.0
        self._hinted: set[str] = set()

    def __exit__(self, *exception: object) -> None: ...

    def __call__(self, status: RunStatus, news: list[str]) -> None:
        """Prints news immediately, and the status when it is due."""
        for line in news:
            self._console.print(line, markup=False, soft_wrap=True)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _LINE_INTERVAL_S
            new = [hint for hint in hints_now(status) if hint.observation not in self._hinted]
            self._hinted |= {hint.observation for hint in new}
            for line in (status_line(status), *replay_lines(status), *(f"hint: {hint.text}" for hint in new)):
                self._console.print(line, markup=False, soft_wrap=True)


class PanelDisplay(AbstractContextManager["PanelDisplay"]):
    """A display that redraws a panel in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._returns: deque[float] = deque(maxlen=_CURVE_POINTS)
        self._evaluated_version = -1
        self._began = time.monotonic()
        self._undo = ExitStack()

    def __enter__(self) -> "PanelDisplay":
        self._undo.enter_context(undisturbed_by_ctrl_c())
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
        self._undo.close()

    def __call__(self, status: RunStatus, news: list[str]) -> None:
        """Draws the status; news lines stay above the panel."""
        for line in news:
            self._live.console.print(line, markup=False)
        self._live.update(self.panel(status))

    def panel(self, status: RunStatus) -> RenderableType:
        """Returns the panel of a status, with the curve of the evaluations so far."""
        title = f"[bold]penstock[/bold] {escape(status.environment_id)} · {escape(state(status))}"
        if not status.env_steps:
            # Nothing is known yet but the time.
            waited = Text(f"{duration(time.monotonic() - self._began)} since the start", style="dim")
            return Panel(waited, title=title, title_align="left")
        if status.last_evaluation is not None and status.last_evaluation.version != self._evaluated_version:
            self._evaluated_version = status.last_evaluation.version
            self._returns.append(status.last_evaluation.return_mean)
        bar = ProgressBar(total=1.0, completed=status.limit.share if status.limit else 0.0, width=None)
        steps = Table.grid(expand=True, padding=(0, 1))
        steps.add_column(ratio=1)
        steps.add_column(justify="right", no_wrap=True)
        steps.add_row(bar, " · ".join([*progress_parts(status.env_steps, status.limit), *clock(status)]))
        curve = Text(sparkline(list(self._returns)), style="green")
        advice = [Text(f"hint: {hint.text}", style="yellow") for hint in hints_now(status)[:_SHOWN_HINTS]]
        variants = [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in variant_lines(status)]
        return Panel(Group(steps, _numbers(status), *variants, curve, *advice), title=title, title_align="left")


def _numbers(status: RunStatus) -> Table:
    """Returns what is known about learning on the left, and about speed and data on the right."""
    table = Table.grid(expand=True, padding=(0, 2))
    # Fixed shares keep the columns in place when the numbers change.
    for _ in range(2):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True, ratio=1)
    for left, right in itertools.zip_longest(learning_facts(status), data_facts(status), fillvalue=("", "")):
        style = "[bold]" if left[0].startswith(("return", "evaluation")) else ""
        table.add_row(left[0], f"{style}{left[1]}", *right)
    return table


@contextmanager
def undisturbed_by_ctrl_c() -> Iterator[None]:
    """Keeps the terminal from writing what is typed, and from discarding output on Ctrl-C.

    Either would leave the cursor in another line than the one from which the panel is redrawn.
    """
    try:
        # A process in the background would be stopped for changing the terminal.
        foreground = sys.stdin.isatty() and os.tcgetpgrp(0) == os.getpgrp()
        before = termios.tcgetattr(0) if foreground else None
    except (OSError, ValueError, termios.error):
        before = None
    if before is None:
        yield
        return
    # The fourth element holds the local modes.
    termios.tcsetattr(0, termios.TCSANOW, [*before[:3], before[3] & ~termios.ECHO | termios.NOFLSH, *before[4:]])
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSANOW, before)


def sparkline(values: list[float]) -> str:
    """Returns the values as a row of bars, scaled between their minimum and maximum."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)
