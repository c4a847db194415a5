"""Displays of an active run: a live panel in a terminal, a plain line every few seconds elsewhere."""

import itertools
import math
import os
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.screen.lines import Line, show
from penstock.cli.screen.run_facts import (
    clock,
    data_facts,
    duration,
    hints_now,
    is_start,
    is_under_way,
    learning_facts,
    phase,
    progress_parts,
    replay_facts,
    replay_lines,
    state,
    status_line,
    variant_lines,
    waits,
)
from penstock.types.evaluation import EvaluationSummary
from penstock.types.status import BETWEEN, RunStatus

_LINE_INTERVAL_S = 3.0
_CURVE_POINTS = 60
_SHOWN_HINTS = 2
_PANEL_FRAME, _TITLE_FRAME = 4, 6
"""Columns of a panel that its lines, and its title, can't have."""

_BARS = "▁▂▃▄▅▆▇█"


Display = Callable[[RunStatus, list[str]], None]
"""Function that shows the status of a run, and lines of news."""


def make_display(console: Console, *, verbose: bool = False) -> "PanelDisplay | LineDisplay":
    """Returns a panel for a terminal, and lines for any other output; `verbose` adds figures about replay."""
    return PanelDisplay(console, verbose=verbose) if console.is_terminal else LineDisplay(console, verbose=verbose)


class LineDisplay(AbstractContextManager["LineDisplay"]):
    """A display for logs and pipes: a line when the state changes, every few seconds at most once training began.

    It shows each hint once.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console, self._verbose = console, verbose
        self._due = 0.0
        self._shown: list[str] = []
        self._hinted: set[str] = set()

    def __exit__(self, *exception: object) -> None: ...

    def __call__(self, status: RunStatus, news: list[str]) -> None:
        """Prints news immediately, and the status when it has changed and is due."""
        show(self._console, *news)
        if time.monotonic() < self._due and not is_start(status):
            return
        lines = [status_line(status, verbose=self._verbose), *(replay_lines(status) if self._verbose else [])]
        new = [hint for hint in hints_now(status) if hint.observation not in self._hinted]
        if lines == self._shown and not new:
            return
        self._due, self._shown = time.monotonic() + _LINE_INTERVAL_S, lines
        self._hinted |= {hint.observation for hint in new}
        show(self._console, *lines, *(f"hint: {hint.text}" for hint in new))


class PanelDisplay(AbstractContextManager["PanelDisplay"]):
    """A display that redraws a panel in place."""

    def __init__(self, console: Console, *, verbose: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._live, self._verbose = Live(console=console, refresh_per_second=8, transient=False), verbose
        self._returns: deque[EvaluationSummary] = deque(maxlen=_CURVE_POINTS)
        self._evaluated_version = -1
        self._clock, self._began = clock, clock()
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
        show(self._live.console, *news)
        self._live.update(self.panel(status, self._live.console.width))

    def panel(self, status: RunStatus, width: int) -> RenderableType:
        """Returns the panel of a status in this number of columns, with the curve of the evaluations so far."""
        whole, reason = state(status), Line(Text(waits(status)))
        body: list[RenderableType]
        if not is_under_way(status):
            short = f"{phase(status)} · {duration(self._clock() - self._began)}"
            body = [_states(status, width - _PANEL_FRAME) if is_start(status) else reason]
        elif len(f"penstock {status.environment_id} · {whole}") <= width - _TITLE_FRAME:
            short, body = whole, self._body(status)
        else:
            short, body = phase(status), [reason, *self._body(status)]
        title = f"[bold]penstock[/bold] {escape(status.environment_id)} · {escape(short)}"
        return Panel(Group(*body), title=title, title_align="left")

    def _body(self, status: RunStatus) -> list[RenderableType]:
        if status.last_evaluation is not None and status.last_evaluation.version != self._evaluated_version:
            self._evaluated_version = status.last_evaluation.version
            self._returns.append(status.last_evaluation)
        bar = ProgressBar(total=1.0, completed=status.limit.share if status.limit else 0.0, width=None)
        steps = Table.grid(expand=True, padding=(0, 1))
        steps.add_column(ratio=1)
        steps.add_column(justify="right", no_wrap=True)
        steps.add_row(bar, " · ".join([*progress_parts(status.env_steps, status.limit), *clock(status)]))
        curve = Text(sparkline(self._returns), style="green")
        advice = [Line(Text(f"hint: {hint.text}", style="yellow"), 6) for hint in hints_now(status)[:_SHOWN_HINTS]]
        variants = [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in variant_lines(status)]
        return [steps, _numbers(status, verbose=self._verbose), *variants, curve, *advice]


def _states(status: RunStatus, width: int) -> Text:
    """Returns the states of the services, in one line if they fit, and each whole in any case."""
    lines: list[str] = []
    for state_of_one in status.waiting_for.split(BETWEEN):
        longer = f"{lines[-1]}{BETWEEN}{state_of_one}" if lines else state_of_one
        lines[-1:] = [longer] if len(longer) <= width else [*lines[-1:], state_of_one]
    return Text("\n".join(lines))


def _numbers(status: RunStatus, *, verbose: bool) -> Table:
    """Returns the facts about learning on the left, and about speed and data on the right."""
    table = Table.grid(expand=True, padding=(0, 2))
    # Fixed shares keep the columns in place when the numbers change.
    for _ in range(2):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True, ratio=1)
    data = [*data_facts(status), *(replay_facts(status) if verbose else [])]
    for left, right in itertools.zip_longest(learning_facts(status), data, fillvalue=("", "")):
        style = "[bold]" if left[0].startswith(("return", "evaluation")) else ""
        table.add_row(left[0], f"{style}{left[1]}", *right)
    return table


@contextmanager
def undisturbed_by_ctrl_c() -> Iterator[None]:
    """Keeps the terminal from echoing input, and from discarding output on Ctrl-C.

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


def sparkline(evaluations: Sequence[EvaluationSummary]) -> str:
    """Returns the mean returns as a row of bars, scaled between their minimum and maximum.

    The scale is at least as wide as the 95% interval of the last mean, so that bars of equal policies have about the
    same height.
    """
    if not evaluations:
        return ""
    means, last = [each.return_mean for each in evaluations], evaluations[-1]
    noise = 4.0 * last.return_std / math.sqrt(max(1, last.episodes))
    low, width = min(means), max(max(means) - min(means), noise)
    scale = (len(_BARS) - 1) / width if width > 0.0 else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)
