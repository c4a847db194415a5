"""`penstock train`: parses options, runs and displays the training, and prints a summary."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console

from penstock.cli.named import with_known_environment
from penstock.cli.options import parse
from penstock.cli.screen.batch_line import batch_line, steps_line
from penstock.cli.screen.coordination import show_end
from penstock.cli.screen.display import make_display
from penstock.cli.screen.lines import show, show_command
from penstock.config import Config
from penstock.errors import INTERRUPTED
from penstock.local.first_checks import check_at_once, with_run_dir
from penstock.local.stopping import REPEAT_S, Interrupted
from penstock.machine.installation import command_to_resume, program
from penstock.machine.module_imports import loading
from penstock.process import output
from penstock.process.environment_process import arguments_for
from penstock.runs.folder import RunFolder


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    started = time.monotonic()
    options = parse(
        "penstock train", "Train an agent, with all services as processes on this machine.", arguments, trains=True
    )
    output.protect_command()
    config, note = options.config, ""
    if options.resume is None:
        # It imports Gymnasium.
        with loading():
            config, note = with_known_environment(config)
    config = with_run_dir(config)
    check_at_once(config, resume=options.resume is not None)
    # It imports gRPC, for which a refusal need not wait.
    with loading():
        from penstock.cli.report.page import write_at_end
        from penstock.local import launcher

    console = Console(highlight=False)
    if options.resume is None:
        show(console, _preset_line(options.preset, config))
    lines = [batch_line(config, resumed=options.resume is not None), steps_line(config), note]
    show(console, *filter(None, lines), *options.notes)
    raise_interrupts()
    try:
        with make_display(console, verbose=options.verbose) as display, arguments_for(config.environment.id):
            summary = launcher.train(config, resume=options.resume is not None, observer=display, started=started)
    except KeyboardInterrupt as end:
        described, resume = _describe_end(end, config)
        show(console, *filter(None, [write_at_end(RunFolder(Path(str(config.run.dir))))]), described)
        if resume:
            show_command(console, "  ", resume)
        return INTERRUPTED
    show(console, *filter(None, [write_at_end(RunFolder(Path(summary.run_dir)))]))
    show_end(console, summary, penstock=program(), verbose=options.verbose)
    return 0


def raise_interrupts() -> None:
    """Makes SIGTERM and SIGHUP raise `KeyboardInterrupt` as Ctrl-C does."""
    interrupt = _Interrupt()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def _preset_line(preset: str | None, config: Config) -> str:
    if preset:
        return f"preset {preset} for {config.environment.short_name}"
    steps = config.run.total_steps
    length = "" if steps is None else f", for {steps:,} steps (--total-steps)"
    return f"no preset for {config.environment.short_name}; using the defaults{length}"


class _Interrupt:
    """A signal handler that raises `KeyboardInterrupt`, once for signals that arrive together."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # The terminal is closed, and further output must not fail.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for descriptor in (1, 2):
                os.dup2(nowhere, descriptor)
        before, self._last = self._last, time.monotonic()
        if self._last - before > REPEAT_S:
            raise KeyboardInterrupt


def _describe_end(end: KeyboardInterrupt, config: Config) -> tuple[str, str]:
    """Describes saved and lost steps of an interrupted run, and how to resume it; empty if it can't be resumed."""
    run_dir = str(config.run.dir)
    resume = command_to_resume(run_dir, names_code=config.names_code)
    if not isinstance(end, Interrupted):
        if RunFolder(Path(run_dir)).config.exists():
            return "stopped; the run is at its last checkpoint. Resume with:", resume
        return "stopped before training began; there is nothing to resume, and no file of this start remains", ""
    saved = None if end.saved_steps is None else f"the checkpoint of step {end.saved_steps:,}"
    if end.finished and saved:
        return f"stopped; {saved} is saved. Resume with:", resume
    if saved:
        lost = f"training after it, up to step {end.trained_steps:,} or later, is lost. Resume with"
        return f"killed before it could save; {saved} is the newest, and {lost}:", resume
    lost = f"all {end.trained_steps:,} steps are lost. Start again with"
    return f"killed before the first checkpoint was saved; {lost}:", resume
