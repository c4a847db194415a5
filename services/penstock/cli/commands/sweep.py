"""`penstock sweep`: trains the combinations of a grid of settings with the same seeds, and keeps the best as a file."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from penstock.cli.named import settings_named
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.screen.lines import aligned, show, show_command
from penstock.cli.setting_options import shown
from penstock.cli.shown_runs import (
    add_options,
    chosen_folder,
    chosen_processes,
    chosen_seeds,
    interval,
    print_commands,
    runs_of,
    steps,
    train_shown,
)
from penstock.comparing.folders import begin
from penstock.comparing.grid import Cell, best, cells, with_cell
from penstock.comparing.outcomes import Means, Outcome, means, read_outcome
from penstock.errors import ConfigurationError
from penstock.machine.files import write_atomically, write_json
from penstock.machine.installation import command_of


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(prog="penstock sweep", description="Train a grid of settings, and write the best to a file.")
    parser.add_argument("base", metavar="BASE", help="settings: a TOML file or a preset")
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="SETTING=VALUES",
        help="a setting with its values, such as 'ppo.learning_rate=1e-4,3e-4'; repeat it for each setting",
    )
    add_options(parser, seeds=3, names="default: from BASE; below sweep/")
    named = parser.parse_args(list(arguments))
    if not named.grid:
        raise ConfigurationError("--grid is missing; write for example --grid 'ppo.learning_rate=1e-4,3e-4'")
    seeds, grid = chosen_seeds(named.first_seed, named.seeds, 1), cells(named.grid)
    base = settings_named(named.base).repeatable()
    settings = {f"cell-{number}": with_cell(base, cell) for number, cell in enumerate(grid)}
    processes = chosen_processes(named.processes, list(settings.values()))
    folder = chosen_folder("sweep", named.name, Path(named.base).stem)
    design: dict[str, object] = {"seeds": list(seeds), "cells": [dict(cell) for cell in grid]}
    begin(folder, "sweep", design, settings)
    runs = runs_of(folder, settings, seeds)
    if named.print:
        print_commands(runs)
        return 0
    console, threshold = Console(highlight=False), base.evaluation.threshold is not None
    show(console, f"{len(grid)} settings, {len(seeds)} seeds of each, {processes} runs at the same time, in {folder}")
    train_shown(console, runs, processes, goes_on=lambda: True, arguments=["sweep", *arguments])
    outcomes = [[_outcome(folder / label / f"seed-{seed}") for seed in seeds] for label in settings]
    found = [means(each) for each in outcomes]
    chosen = best(found, threshold=threshold)
    rows = zip(grid, found, outcomes, strict=True)
    table = [{"settings": cell, "means": asdict(each), "runs": [run.record() for run in of]} for cell, each, of in rows]
    write_json(folder / "sweep.json", {"design": design, "cells": table, "best": grid[chosen]})
    file = folder / "best.toml"
    write_atomically(file, settings[f"cell-{chosen}"].to_toml().encode())
    show(console, "", *_table(grid, found, threshold=threshold), "", f"best: {_name(grid[chosen])}, in {file}")
    # The best of several means is too good, which other seeds show.
    again = ["compare", named.base, str(file), "--first-seed", str(seeds.stop)]
    show_command(console, "confirm it with other seeds: ", command_of(*again))
    return 0


def _outcome(run: Path) -> Outcome:
    found = read_outcome(run)
    assert found is not None
    return found


def _table(grid: Sequence[Cell], found: Sequence[Means], *, threshold: bool) -> list[str]:
    rows = [["settings", "final return, interquartile mean", *(["steps to threshold"] if threshold else [])]]
    for cell, each in zip(grid, found, strict=True):
        rows.append([_name(cell), interval(each.final_return), *([steps(each)] if threshold else [])])
    return aligned(rows)


def _name(cell: Cell) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in cell.items())
