"""`penstock runs`: lists the runs of a folder, the newest first, and removes runs."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.screen.run_space import Space, in_units, is_active, remove
from penstock.config import read_settings
from penstock.errors import ConfigurationError
from penstock.machine import installation
from penstock.machine.installation import program
from penstock.machine.spelling import question, similar
from penstock.runs.folder import RunFolder
from penstock.runs.known import RUNS, known_runs
from penstock.runs.metrics import load_metrics, return_text
from penstock.runs.summary import Summary

_LEAST_COLUMNS = 150
_LIST, _REMOVE = "list", "remove"
_USAGE = (
    "penstock runs [list [FOLDER] | remove NAME ...] [--folder FOLDER] [--stores FOLDER] [--sort COLUMN] [--json]"
    " [--yes]"
)
_DESCENDING = ("started", "steps", "best", "minutes", "size")
_SORTS = ("name", "environment", "state", *_DESCENDING)
"""Columns by which runs are sorted; numbers and times the largest first."""
_PARTS = ("folder", "store", "snapshots")


@dataclass(frozen=True, slots=True)
class ListedRun:
    """Shown values of a run; None where not known.

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
    named = _parser().parse_args(list(arguments))
    action, *others = named.words or [_LIST]
    if action == _REMOVE:
        root = named.folder or RUNS
        if not others:
            raise ConfigurationError(f"name the runs to remove: {program()} runs remove NAME")
        return remove([_space_of(root, named.stores, name) for name in others], confirmed=named.yes)
    # Before `list` and `remove`, the folder was the only argument.
    folders = others if action == _LIST else named.words
    if len(folders) > 1:
        raise ConfigurationError(f"unknown argument {folders[1]!r}; usage: {_USAGE}")
    root = Path(folders[0]) if folders else named.folder or RUNS
    runs = known_runs(root)
    spaces = [Space.of(folder, named.stores) for folder in runs]
    # Stores of runs whose folder was removed.
    alone = [_space_of(root, named.stores, name) for name in _stores_in(named.stores) - {run.root.name for run in runs}]
    rows = [(listed(folder), space) for folder, space in zip(runs, spaces, strict=True)]
    # Equal ones stay in the order of their starts.
    rows.sort(key=lambda row: _sort_key(named.sort, *row), reverse=named.sort in _DESCENDING)
    if named.json:
        print(json.dumps([_as_json(root, *row) for row in rows]))
        return 0
    if not runs and not alone:
        print(f"there is no run in {root}; start one with {installation.how_to_start(f'{program()} train')}")
        return 0
    # A narrow terminal folds lines, which is better than leaving out values.
    console = Console(highlight=False, width=max(Console().width, _LEAST_COLUMNS))
    console.print(_table(rows, sorted(alone, key=lambda space: space.name)))
    return 0


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog="penstock runs",
        usage=_USAGE,
        description="List the runs of a folder, the newest first, with the space that each takes on the disk, or remove"
        " runs with their stores and snapshots.",
    )
    parser.add_argument("words", nargs="*", metavar="list [FOLDER] | remove NAME", help="what to do; default: list")
    parser.add_argument("--folder", type=Path, help="folder of the runs (default: runs)")
    parser.add_argument(
        "--stores", type=Path, help="folder of the stores of individually started services, by the names of their runs"
    )
    parser.add_argument("--sort", choices=_SORTS, default="started", metavar="COLUMN", help=", ".join(_SORTS))
    parser.add_argument("--json", action="store_true", help="print the runs as a JSON list of objects")
    parser.add_argument("--yes", action="store_true", help="remove without a question")
    return parser


def _sort_key(column: str, run: ListedRun, space: Space) -> Any:
    if column == "size":
        return sum(space.sizes())
    value = getattr(run, {"steps": "env_steps"}.get(column, column))
    # Unknown numbers come last.
    return -math.inf if value is None else value


def _as_json(root: Path, run: ListedRun, space: Space) -> dict[str, object]:
    sizes = {f"{part}_bytes": size for part, size in zip(_PARTS, space.sizes(), strict=True)}
    return {
        "run": str(root / run.name),
        **dataclasses.asdict(run),
        "started": run.started.astimezone().isoformat(timespec="seconds"),
        **sizes,
    }


def listed(folder: RunFolder) -> ListedRun:
    """Returns the shown values of a run."""
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


def _table(runs: Sequence[tuple[ListedRun, Space]], alone: Sequence[Space]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    texts = ("run", "environment", "state", "started")
    for heading in ("run", "environment", "state", "steps", "best", "minutes", "started", *_PARTS):
        table.add_column(heading, justify="left" if heading in texts else "right", no_wrap=True)
    for run, space in runs:
        table.add_row(
            run.name,
            run.environment,
            run.state,
            "-" if run.env_steps is None else f"{run.env_steps:,}",
            "-" if run.best is None else return_text(run.best),
            "-" if run.minutes is None else f"{run.minutes:.1f}",
            f"{run.started:%Y-%m-%d %H:%M}",
            *map(in_units, space.sizes()),
        )
    for space in alone:
        table.add_row(space.name, "-", "no folder", *"----", *map(in_units, space.sizes()))
    return table


def _stores_in(stores: Path | None) -> set[str]:
    return (
        {path.name for path in stores.iterdir() if path.is_dir()} if stores is not None and stores.is_dir() else set()
    )


def _space_of(root: Path, stores: Path | None, name: str) -> Space:
    """Returns the space of the run with this name, or of a store without a run. Raises `ConfigurationError`."""
    known = {run.root.name for run in known_runs(root)} | _stores_in(stores)
    # A path too, as a shell completes it.
    own = Path(name).name if Path(name).parent == root else name
    if own not in known:
        meant = question(similar(own, known))
        raise ConfigurationError(f"there is no run {name!r} in {root}" + (f"; {meant}" if meant else ""))
    return Space.of(RunFolder(root / own), stores)
