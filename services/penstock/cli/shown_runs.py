"""What `penstock compare` and `penstock sweep` share: their options, and the display of their runs."""

import math
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from penstock.cli.commands.train import raise_interrupts
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.screen.lines import show, show_command
from penstock.cli.screen.run_facts import duration
from penstock.comparing.folders import planned
from penstock.comparing.many_runs import PlannedRun, Progress, parallel_runs, train_all
from penstock.comparing.outcomes import Means
from penstock.comparing.statistics import Estimate
from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.machine.installation import command_of
from penstock.runs.metrics import return_text

_LINE_INTERVAL_S = 30.0


def add_options(parser: OneLineParser, *, seeds: int, names: str) -> None:
    """Adds the options that both commands have. `names` describes the default of --name."""
    parser.add_argument("--seeds", type=int, default=seeds, metavar="N", help=f"runs of each settings [{seeds}]")
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="SEED", help="seed of the first run; each further one adds 1 [0]"
    )
    parser.add_argument(
        "--processes", type=int, metavar="N", help="runs at the same time (default: cores / train.actors)"
    )
    parser.add_argument("--name", metavar="NAME", help=f"name of the folder ({names})")
    parser.add_argument(
        "--print",
        action="store_true",
        help="print the commands of the runs that have not ended, for a cluster's queue, and start nothing",
    )


def chosen_processes(given: int | None, configs: Sequence[Config], option: str = "--processes") -> int:
    """Returns the number of runs at the same time. Raises `ConfigurationError` if the given one is not positive."""
    if given is not None and given < 1:
        raise ConfigurationError(f"{option} must be a number from 1; got {given}")
    return given or min(map(parallel_runs, configs))


def chosen_seeds(first: int, count: int, least: int) -> range:
    """Returns the seeds of the runs. Raises `ConfigurationError` if there are fewer than `least`."""
    if count < least:
        raise ConfigurationError(f"--seeds must be a number from {least}; got {count}")
    return range(first, first + count)


def chosen_folder(root: str, given: str | None, default: str) -> Path:
    """Returns the folder of a command. Raises `ConfigurationError` if the given name is not one of a folder."""
    if given is not None and (given in ("", ".", "..") or Path(given).name != given):
        raise ConfigurationError(f"--name must be a name without slashes; got {given!r}")
    return Path(root) / (given or default)


def runs_of(folder: Path, settings: dict[str, Config], seeds: Sequence[int]) -> list[PlannedRun]:
    """Returns the runs of settings by label, those of each seed together."""
    by_label = [planned(folder, label, seeds, trusted=config.names_code) for label, config in settings.items()]
    return [run for of_seed in zip(*by_label, strict=True) for run in of_seed]


def print_commands(runs: Sequence[PlannedRun]) -> None:
    """Prints a line for each run that has not ended: the command that starts or resumes it."""
    for run in runs:
        if run.summary() is None:
            print(shlex.join(run.command()))


def train_shown(
    console: Console,
    runs: Sequence[PlannedRun],
    processes: int,
    *,
    goes_on: Callable[[], bool],
    arguments: Sequence[str],
) -> None:
    """Trains the runs and shows the progress. `goes_on` is asked at the start and after each end of a run.

    Raises as `train_all`, and `KeyboardInterrupt` after it has said how to continue: with the same arguments.
    """
    raise_interrupts()
    done, last, shown_at = -1, "", 0.0

    def observe(progress: Progress) -> bool:
        nonlocal done, last, shown_at
        line, ended = _line(progress), progress.done != done
        if console.is_terminal:
            status.update(line)
        elif line != last and (ended or time.monotonic() - shown_at > _LINE_INTERVAL_S):
            show(console, line)
            last, shown_at = line, time.monotonic()
        done = progress.done
        return goes_on() if ended else True

    try:
        with console.status("starting") as status:
            train_all(runs, processes, observe)
    except KeyboardInterrupt:
        show(console, "stopped; runs that have ended are kept, and the others are at their checkpoints. Continue with:")
        show_command(console, "  ", command_of(*arguments))
        raise


def interval(estimate: Estimate) -> str:
    """Returns a return with its interval, as text."""
    return f"{return_text(estimate.mean)} [{return_text(estimate.low)}, {return_text(estimate.high)}]"


def steps(means: Means) -> str:
    """Returns the steps to the threshold with their interval, as text; a lower bound if a run did not reach it."""
    found = means.steps_to_threshold
    least = "" if means.reached == means.runs else "at least "
    ends = f" [{found.low:,.0f}, {found.high:,.0f}]" if math.isfinite(found.high) else ""
    return f"{least}{found.mean:,.0f}{ends}, {means.reached} of {means.runs} runs"


def _line(progress: Progress) -> str:
    left = f", {duration(progress.left_s)} left" if progress.left_s is not None and progress.active else ""
    return f"{progress.done} of {progress.total} runs done, {progress.active} active{left}"
