"""`penstock train`: options in, a run watched, a summary out."""

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from penstock.cli import launcher
from penstock.cli.coordination import advice, in_short, named
from penstock.cli.display import make_display
from penstock.cli.exit_codes import INTERRUPTED
from penstock.cli.options import parse
from penstock.run_folder import RunFolder
from penstock.summary import Summary


def command(arguments: Sequence[str]) -> int:
    """Runs the command; its exit code."""
    started = time.monotonic()
    options = parse(
        "penstock train", "Train an agent: all services as processes of this machine.", arguments, trains=True
    )
    console = Console(highlight=False)
    if options.preset:
        console.print(f"preset [bold]{options.preset}[/bold] for {options.config.environment.id}")
    # A `kill` of the launcher is a Ctrl-C from afar.
    signal.signal(signal.SIGTERM, _interrupt)
    config = launcher.with_run_dir(options.config)
    try:
        with make_display(console) as display:
            summary = launcher.train(config, resume=options.resume is not None, observer=display, started=started)
    except KeyboardInterrupt:
        _say_how_to_resume(console, str(config.run.dir))
        return INTERRUPTED
    _print_summary(console, summary)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _program() -> str:
    """How the user would call us from where they are: `make` needs no virtual environment on the path."""
    if shutil.which("penstock"):
        return "penstock"
    given = sys.argv[0]
    return min(given, os.path.relpath(given), key=len) if Path(given).name == "penstock" else "python -m penstock"


def _say_how_to_resume(console: Console, run_dir: str) -> None:
    if RunFolder(Path(run_dir)).numbered_checkpoints():
        # To be copied, so neither folded nor read as markup.
        text = f"stopped; a checkpoint is saved. Go on with:\n  {_program()} train --resume {shlex.quote(run_dir)}"
        console.print(text, markup=False, soft_wrap=True)
    else:
        console.print("stopped before anything was learnt; there is nothing to resume")


def _print_summary(console: Console, summary: Summary) -> None:
    evaluation, statistics = summary.evaluation, summary.statistics
    lines = []
    if evaluation:
        mean = (f"{evaluation.return_mean:.1f}", "bold")
        over = f" ± {evaluation.return_std:.1f} over {evaluation.episodes} episodes"
        lines.append(named("return", Text.assemble(mean, over)))
    for number, variant in enumerate(summary.variants):
        outcome = variant.evaluation
        shown = (
            f"{outcome.return_mean:.1f} ± {outcome.return_std:.1f} over {outcome.episodes} episodes" if outcome else "-"
        )
        lines.append(named(f"variant {number}", f"{shown}, {variant.arguments}"))
    lines.append(named("environment", f"{summary.env_id}, seed {summary.seed}"))
    speed = f"({summary.env_steps_per_s:,.0f}/s)"
    lines.append(named("steps", f"{summary.env_steps:,} {speed}, ended by {summary.stopped}"))
    if summary.env_steps_to_threshold is not None and summary.learn_wall_s_to_threshold is not None:
        reached = f"after {summary.env_steps_to_threshold:,} steps, {summary.learn_wall_s_to_threshold:.1f} s"
        lines.append(named("threshold", reached))
    if statistics is not None:
        lines += in_short(statistics)
        # A run that reached its threshold did learn.
        lines += advice(statistics) if summary.env_steps_to_threshold is None else []
    lines += [named("wall time", f"{summary.wall_s:.1f} s"), named("run", summary.run_dir)]
    for line in lines:
        console.print(line, soft_wrap=True)
    command = f"watch it:  {_program()} evaluate {shlex.quote(summary.run_dir)} --record-video"
    console.print(command, style="dim", markup=False, soft_wrap=True)
