"""`penstock replay restore NAME --run-dir RUN --into NEW`: creates a run from a snapshot."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from penstock.cli.commands.snapshots import progress_bars, wide_console
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.options import parse, settings_of
from penstock.errors import ConfigurationError
from penstock.machine import installation
from penstock.machine.installation import command_to_resume
from penstock.runs.restoring import RestoredRun, restore_run

_PROG = "penstock replay restore"
_USAGE = f"{_PROG} NAME --run-dir RUN --into NEW"
_DESCRIPTION = (
    "Create a run from the snapshot NAME of the run in --run-dir: its policy, its whole store and the run's settings,"
    " in the new folder --into. The new run continues at the snapshot's version; the old one is not changed. Settings"
    " given here apply to the new run. With --store FOLDER the store is created there, for individually started"
    " services."
)


def command(arguments: Sequence[str]) -> int:
    """Runs the command, whose first argument is `restore`; returns its exit code."""
    own = OneLineParser(prog=_PROG, add_help=False, allow_abbrev=False)
    own.add_argument("--into", type=Path)
    own.add_argument("--store", type=Path)
    places, others = own.parse_known_args(arguments[1:])
    options = parse(_PROG, _DESCRIPTION, others, trains=False, operand="NAME")
    run = options.config.run.dir
    if not options.operand or run is None or places.into is None:
        missing = "the snapshot's name" if not options.operand else "--run-dir" if run is None else "--into"
        raise ConfigurationError(
            f"{missing} is missing; usage: {_USAGE}; `penstock replay snapshots` lists the snapshots"
        )
    # Settings given here override the settings of the old run.
    of_run = parse(_PROG, _DESCRIPTION, others, trains=False, operand="NAME", recorded=settings_of(Path(run)))
    config, console = of_run.config, wide_console()
    for note in of_run.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    with progress_bars(console) as show:
        restored = restore_run(
            config,
            options.operand,
            into=places.into,
            stores=places.store,
            show=lambda service, progress: show(f"store of {service}", progress),
        )
    text = _describe(options.operand, restored, into=places.into, store=places.store)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0


def _describe(name: str, restored: RestoredRun, *, into: Path, store: Path | None) -> str:
    damaged = sum(each.damaged for each in restored.stores)
    dropped = sum(each.dropped for each in restored.stores)
    parts = [
        f"version {restored.version:,}",
        f"{restored.env_steps:,} steps",
        f"{sum(each.segments for each in restored.stores):,} segments",
        *([f"{damaged:,} left out as damaged"] if damaged else []),
        *([f"the oldest {dropped:,} left out because replay.capacity_bytes is smaller"] if dropped else []),
        *([f"from {len(restored.stores)} services"] if len(restored.stores) > 1 else []),
    ]
    how = command_to_resume(str(into))
    if store is not None and installation.kind() != "compose":
        how = f"start the services with run.dir {shlex.quote(str(into))} and replay.folder {shlex.quote(str(store))}"
    return "\n".join(
        [f"restored snapshot {name} into {into}: {', '.join(parts)}", *restored.notes, f"resume it:  {how}"]
    )
