"""Displays of an active run: a live panel in a terminal, a plain line every few seconds elsewhere."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.replay_figures import replay_figures
from penstock.types.evaluation import EvaluationSummary, VariantReturns
from penstock.types.extents import RunLimit
from penstock.types.status import RunStatus, VariantStatus

_LINE_INTERVAL_S = 3.0
_CURVE_POINTS = 60
_BARS = "▁▂▃▄▅▆▇█"
_VALUE_WIDTHS = (10, 17, 15)
"""Widths of the panel's values, with the gaps after them, in 80 columns. Fixed shares keep the columns in place."""


Display = Callable[[RunStatus, list[str]], None]
"""Function that shows the status of a run, and lines of news."""


def make_display(console: Console) -> "PanelDisplay | LineDisplay":
    """Returns a panel for a terminal, and lines for any other output."""
    return PanelDisplay(console) if console.is_terminal else LineDisplay(console)


class LineDisplay(AbstractContextManager["LineDisplay"]):
    """A display of one line every few seconds, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._due = 0.0

    def __exit__(self, *exception: object) -> None: ...

    def __call__(self, status: RunStatus, news: list[str]) -> None:
        """Prints news immediately, and the status when it is due."""
        for line in news:
            self._console.print(line, markup=False, soft_wrap=True)
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _LINE_INTERVAL_S
            for line in (status_line(status), *replay_lines(status)):
                self._console.print(line, markup=False, soft_wrap=True)


def status_line(status: RunStatus) -> str:
    """Returns the status in one line."""
    if not status.env_steps or status.phase == "stopping":
        return _state(status)
    parts = [
        *progress_parts(status.env_steps, status.limit),
        f"{status.env_steps_per_s:,.0f} steps/s",
        f"return {_number(status.return_mean)}",
        f"evaluation {_evaluation(status.last_evaluation)}",
        f"lag {status.lag_mean:.1f}",
        f"staleness {status.staleness_mean:.1f}",
        f"buffer {_share(status):.0%}",
        f"{status.updates_per_s:,.0f} updates/s",
        f"ETA {_duration(status.remaining_s)}",
    ]
    if (state := _state(status)) != "training":
        parts.append(state)
    return " | ".join(parts)


def replay_lines(status: RunStatus) -> list[str]:
    """Returns one line about replay; none if the run has replayed nothing yet, or is stopping."""
    figures = replay_figures(status.samples_per_insert, status.coordinator)
    return [f"replay: {figures.line}"] if figures and status.phase != "stopping" else []


def progress_parts(env_steps: int, limit: RunLimit | None) -> list[str]:
    """Returns the environment steps trained, and the progress towards the limit of the run that is in force."""
    if limit is None:
        return [f"{env_steps:,} steps"]
    progress = limit_text(limit)
    return [progress] if limit.unit == "steps" else [f"{env_steps:,} steps", progress]


def limit_text(limit: RunLimit) -> str:
    """Returns the progress towards a limit, with its unit."""
    digits = 0 if limit.unit != "minutes" else 1 if limit.total >= 10.0 else 2
    return f"{limit.done:,.{digits}f}/{limit.total:,.{digits}f} {limit.unit}"


def _state(status: RunStatus) -> str:
    """Returns the phase, and the reason for waiting if there is one."""
    if not status.waiting_for:
        return status.phase
    waiting = f"waiting for {status.waiting_for}"
    return waiting if status.phase in ("waiting", "training") else f"{status.phase}, {waiting}"


def variant_lines(status: RunStatus) -> list[str]:
    """Returns one line for each of the run's environment variants."""
    evaluated = dict(enumerate(status.last_evaluation.variants if status.last_evaluation else ()))
    return [
        f"variant {number} ({variant.arguments}): return {_number(variant.return_mean)}"
        f" | evaluation {_evaluation(evaluated.get(number))} | {variant.episodes:,} episodes{_shares(variant)}"
        for number, variant in enumerate(status.variants)
    ]


class PanelDisplay(AbstractContextManager["PanelDisplay"]):
    """A display that redraws a panel in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=False)
        self._returns: deque[float] = deque(maxlen=_CURVE_POINTS)
        self._evaluated_version = -1

    def __enter__(self) -> "PanelDisplay":
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def __call__(self, status: RunStatus, news: list[str]) -> None:
        """Draws the status; news lines stay above the panel."""
        for line in news:
            self._live.console.print(line, markup=False)
        self._live.update(self.panel(status))

    def panel(self, status: RunStatus) -> RenderableType:
        """Returns the panel of a status, with the curve of the evaluations so far."""
        if status.last_evaluation is not None and status.last_evaluation.version != self._evaluated_version:
            self._evaluated_version = status.last_evaluation.version
            self._returns.append(status.last_evaluation.return_mean)
        title = f"[bold]penstock[/bold] {status.environment_id} · {escape(_state(status))}"
        bar = ProgressBar(total=1.0, completed=status.limit.share if status.limit else 0.0, width=None)
        steps = Table.grid(expand=True, padding=(0, 1))
        steps.add_column(ratio=1)
        steps.add_column(justify="right", no_wrap=True)
        parts = [*progress_parts(status.env_steps, status.limit), f"ETA {_duration(status.remaining_s)}"]
        steps.add_row(bar, " · ".join(parts))
        numbers = Table.grid(expand=True, padding=(0, 2))
        for width in _VALUE_WIDTHS:
            numbers.add_column(style="dim", no_wrap=True)
            numbers.add_column(justify="right", no_wrap=True, ratio=width)
        numbers.add_row(
            "steps/s", f"{status.env_steps_per_s:,.0f}",
            "return", f"[bold]{_number(status.return_mean)}[/bold]",
            "lag", f"{status.lag_mean:.1f} batches",
        )  # fmt: skip
        numbers.add_row(
            "updates/s", f"{status.updates_per_s:,.0f}",
            "evaluation", f"[bold green]{_evaluation(status.last_evaluation)}[/bold green]",
            "staleness", f"{status.staleness_mean:.1f} versions",
        )  # fmt: skip
        numbers.add_row(
            "actors", f"{status.actors}",
            "best", _evaluation(status.best_evaluation),
            "buffer", f"{_share(status):.0%} of {status.replay_capacity:,}",
        )  # fmt: skip
        numbers.add_row(
            "version", f"{status.version:,}", "episodes", f"{status.episodes:,}", "elapsed", _duration(status.elapsed_s)
        )
        if figures := replay_figures(status.samples_per_insert, status.coordinator):
            numbers.add_row(
                "uses", f"{figures.uses} each",
                "replay age", figures.age,
                "priority", figures.priority,
            )  # fmt: skip
            numbers.add_row(
                "effective", figures.effective,
                "90% within", figures.age_90,
                "gain", figures.gain,
            )  # fmt: skip
        curve = Text(sparkline(list(self._returns)), style="green")
        variants = [Text(line, style="dim", overflow="ellipsis", no_wrap=True) for line in variant_lines(status)]
        return Panel(Group(steps, numbers, *variants, curve), title=title, title_align="left")


def sparkline(values: list[float]) -> str:
    """Returns the values as a row of bars, scaled between their minimum and maximum."""
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)


def _share(status: RunStatus) -> float:
    return status.replay_stored / status.replay_capacity if status.replay_capacity else 0.0


def _shares(variant: VariantStatus) -> str:
    if variant.planned_share is None or variant.fresh_share is None:
        return ""
    return f" | {variant.fresh_share:.0%} of collection, {variant.planned_share:.0%} by plan"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _evaluation(evaluation: EvaluationSummary | VariantReturns | None) -> str:
    return "-" if evaluation is None else f"{evaluation.return_mean:.1f} ± {evaluation.return_std:.1f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
