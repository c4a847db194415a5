"""`penstock status`: shows the status of an active run, or the result of an ended one."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from penstock.cli.coordination import sections, summary_lines
from penstock.cli.display import replay_lines, status_line, variant_lines
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.program import how_to_resume
from penstock.config import build, load_toml
from penstock.errors import ConfigurationError
from penstock.rpc.clients.status import StatusClient
from penstock.rpc.health import storage_fails
from penstock.rpc.loop import LoopThread
from penstock.run_folder import RunFolder
from penstock.summary import Summary, nothing_left
from penstock.types.status import RunStatus

_TIMEOUT_S = 5.0
_STUCK_S = 5.0
"""Seconds without a step after which an actor is shown as stuck; less may be a slow environment."""


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(prog="penstock status", description="Show the status of a run.")
    parser.add_argument("run", help="run folder on this machine, or host:port of the learner")
    named = parser.parse_args(list(arguments))
    console = Console(highlight=False)
    folder = RunFolder(Path(named.run))
    if folder.config.exists() and not folder.services.exists():
        _show_ended(folder, console)
        return 0
    with closing(LoopThread()) as thread, closing(StatusClient(thread, _addresses(named.run)["learner"])) as client:
        status = client.get(_TIMEOUT_S)
    lines = [status_line(status), *replay_lines(status), *variant_lines(status), *actor_lines(status)]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    for line in disk_lines(named.run):
        console.print(line, markup=False, soft_wrap=True)
    if status.coordinator is not None:
        console.print(sections(status.coordinator), soft_wrap=True)
    return 0


def actor_lines(status: RunStatus) -> list[str]:
    """Returns a line for each actor that is stuck, whose environments fail, or that has dropped windows."""
    lines = []
    for actor in status.actor_states:
        troubles = []
        if actor.stuck_s > _STUCK_S:
            troubles.append(f"{actor.doing or 'it'} has not returned for {actor.stuck_s:.0f} s")
        if actor.failures:
            troubles.append(f"consecutive failures: {actor.failures}")
        if actor.dropped_windows:
            troubles.append(f"windows dropped: {actor.dropped_windows}")
        if troubles:
            lines.append(f"{actor.name} (slot {actor.slot}): {', '.join(troubles)}")
    return lines


def disk_lines(run: str) -> list[str]:
    """Returns a line for each known service whose disk can't be written."""
    return [
        f"the {name} service can't write to its disk; the run continues, and the service's log contains the reason"
        for name, address in _addresses(run).items()
        if storage_fails(address, _TIMEOUT_S)
    ]


def _addresses(run: str) -> dict[str, str]:
    """Returns host:port of services by name: all that the run's folder lists, or the learner at address `run`."""
    folder = RunFolder(Path(run))
    if folder.services.exists():
        return folder.addresses()
    if ":" not in run:
        raise ConfigurationError(f"{run} is neither a run folder nor host:port of a learner")
    return {"learner": run}


def _show_ended(folder: RunFolder, console: Console) -> None:
    """Prints the summary of a run that is not active, or its newest checkpoint, and the command to resume it."""
    if folder.summary.exists():
        for line in summary_lines(Summary.read(folder.summary)):
            console.print(line, soft_wrap=True)
    else:
        saved = folder.numbered_checkpoints()
        newest = f"its newest checkpoint is at step {int(saved[-1].stem):,}" if saved else "it has no checkpoint"
        console.print(f"the run in {folder.root} is not active; {newest}", markup=False, soft_wrap=True)
    finished = nothing_left(folder.summary, build(load_toml(folder.config)).run)
    console.print(
        f"{finished or 'resume it'}:  {how_to_resume(str(folder.root))}", style="dim", markup=False, soft_wrap=True
    )
