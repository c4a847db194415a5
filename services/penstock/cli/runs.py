"""`penstock runs`: lists the runs of a folder, the newest first."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.operator import operator_of
from penstock.cli.program import program
from penstock.config import read_settings
from penstock.errors import ConfigurationError
from penstock.known_runs import RUNS, known_runs
from penstock.rpc.health import is_serving
from penstock.run_folder import LEARNER, RunFolder
from penstock.run_metrics import load_metrics
from penstock.summary import Summary

_TIMEOUT_S = 1.0
_LEAST_COLUMNS = 120


@dataclass(frozen=True, slots=True)
class ListedRun:
    """What is shown of a run; None where it is not known.

    Attributes:
        name: Folder of the run.
        environment: Id of its environment; "-" if its settings can't be read.
        state: "active", "interrupted", or the reason for its end; "unreadable" if its settings can't be read.
        env_steps: Environment steps trained.
        best: Mean return of its best evaluation.
        minutes: Minutes of training.
        started: When it was started or resumed last.
    """

    name: str
    environment: str
    state: str
    env_steps: int | None
    best: float | None
    minutes: float | None
    started: datetime


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(prog="penstock runs", description="List runs, the newest first.")
    parser.add_argument("folder", nargs="?", type=Path, default=RUNS, help="folder of the runs (default: runs)")
    named = parser.parse_args(list(arguments))
    runs = known_runs(named.folder)
    if not runs:
        print(f"there is no run in {named.folder}; start one with {program()} train")
        return 0
    # A narrow terminal folds lines, which is better than leaving out what they show.
    console = Console(highlight=False, width=max(Console().width, _LEAST_COLUMNS))
    console.print(_table([listed(folder) for folder in runs]))
    return 0


def listed(folder: RunFolder) -> ListedRun:
    """Returns what is shown of a run."""
    environment, readable = "-", False
    # One damaged file must not hide the other runs.
    with contextlib.suppress(ConfigurationError):
        environment, readable = read_settings(folder.config, "environment.id").environment.short_name, True
    started = datetime.fromtimestamp(folder.config.stat().st_mtime)
    state, env_steps, best, minutes = "interrupted", None, None, None
    with contextlib.suppress(ConfigurationError):
        summary = Summary.read(folder.summary)
        state, env_steps, minutes = summary.stopped, summary.env_steps, summary.minutes
        best = summary.best_evaluation.return_mean if summary.best_evaluation else None
    if is_active(folder):
        state = "active"
    if state == "active" or env_steps is None:
        with contextlib.suppress(ConfigurationError):
            env_steps, best, minutes = _measured(folder)
    if not readable:
        state = "unreadable"
    return ListedRun(folder.root.name, environment, state, env_steps, best, minutes, started)


def is_active(folder: RunFolder) -> bool:
    """Returns whether the learner of a run responds."""
    if not folder.services.exists():
        return False
    with contextlib.suppress(OSError, ValueError, ConfigurationError):
        return is_serving(folder.places()[LEARNER].addresses, _TIMEOUT_S, operator_of(folder))
    return False


def _measured(folder: RunFolder) -> tuple[int | None, float | None, float | None]:
    """Returns environment steps, the best evaluation and minutes, from the metrics of a run without a summary."""
    metrics = load_metrics(folder.root)
    if not metrics.training:
        return None, None, None
    returns = metrics.evaluation.get("return_mean")
    best = float(returns.max()) if returns is not None and returns.size else math.nan
    return (
        int(metrics.training["env_steps"][-1]),
        None if math.isnan(best) else best,
        float(metrics.training["training_s"][-1]) / 60.0,
    )


def _table(runs: Sequence[ListedRun]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("run", "environment", "state", "steps", "best", "minutes", "started"):
        table.add_column(heading, justify="right" if heading in ("steps", "best", "minutes") else "left", no_wrap=True)
    for run in runs:
        table.add_row(
            run.name,
            run.environment,
            run.state,
            *("-" if value is None else f"{value:{form}}" for value, form in (
                (run.env_steps, ","), (run.best, ".1f"), (run.minutes, ".1f")
            )),
            f"{run.started:%Y-%m-%d %H:%M}",
        )  # fmt: skip
    return table
