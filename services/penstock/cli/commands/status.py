"""`penstock status`: shows the status of an active run, or the result of an ended one."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from penstock.cli.named import chosen_run, note_removed_settings
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.operator import asking, operator_of
from penstock.cli.screen.coordination import sections, summary_lines
from penstock.cli.screen.lines import Line, named, show
from penstock.cli.screen.run_facts import duration, fact_lines, variant_lines
from penstock.config import read_settings
from penstock.config.foreign_code import CODE, FileNames
from penstock.config.recorded import LIMITS
from penstock.errors import ConfigurationError, Unavailable
from penstock.machine.installation import command_to_resume
from penstock.rpc.clients.operator import StatusClient
from penstock.rpc.health import storage_fails
from penstock.runs.folder import LEARNER, RunFolder
from penstock.runs.remote_copies import shown
from penstock.runs.summary import Summary, nothing_left, raised_limits
from penstock.types.location import Place
from penstock.types.records import plain
from penstock.types.status import RunStatus

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

_TIMEOUT_S = 5.0
_STUCK_S = 5.0
"""Seconds without a step after which an actor is shown as stuck; less may be a slow environment."""

_INTERVAL_S = 2.0
"""Seconds between the updates of --watch."""


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(prog="penstock status", description="Show the status of a run.")
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="run, by its folder, its name in runs/, or address (host:port) of its learner (default: the newest run)",
    )
    parser.add_argument("--watch", action="store_true", help="update the status every 2 s until the run ends")
    parser.add_argument("--json", action="store_true", help="print the status as one JSON object")
    options = parser.parse_args(list(arguments))
    run = str(chosen_run(options.run)) if options.run is None or ":" not in options.run else options.run
    folder, console = RunFolder(Path(run)), Console(highlight=False)
    if not is_ended(folder):
        credentials = operator_of(folder)
        with asking(_places(run)[LEARNER], credentials) as client:
            if not options.watch:
                _show(run, client.get(_TIMEOUT_S), console, credentials, as_json=options.json)
                return 0
            _watch(run, client, console, credentials)
    if options.json:
        print(json.dumps(_ended_as_json(folder)))
    elif folder.config.exists():
        _show_ended(folder, console)
    return 0


def is_ended(folder: RunFolder) -> bool:
    """Returns whether a path is the folder of a run that is not active."""
    return folder.config.exists() and not folder.services.exists()


def _watch(run: str, client: StatusClient, console: Console, credentials: "Credentials | None") -> None:
    """Shows the status until the run ends or its learner no longer responds."""
    with Live(console=console, auto_refresh=False) as live:
        while not is_ended(RunFolder(Path(run))):
            try:
                status = client.get(_TIMEOUT_S)
            except Unavailable:
                if ":" in run:
                    return
                status = RunStatus(waiting_for="the learner")
            live.update(view(run, status, credentials), refresh=True)
            time.sleep(_INTERVAL_S)


def _show(run: str, status: RunStatus, console: Console, credentials: "Credentials | None", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"run": run, "state": "active", **plain(status)}))
    else:
        show(console, view(run, status, credentials))


def view(run: str, status: RunStatus, credentials: "Credentials | None" = None) -> RenderableType:
    """Returns everything that is known about an active run, whose services are asked with these credentials."""
    facts = [named("run", f"{run}, {status.environment_id}" if status.environment_id else run)]
    facts += [named(name, line) for name, line in [*fact_lines(status), *node_lines(status)]]
    lines = [*variant_lines(status), *missing_lines(status), *actor_lines(status), *disk_lines(run, credentials)]
    lines += copy_lines(RunFolder(Path(run)))
    share_done = status.limit.share if status.limit else 0.0
    details = [sections(status.coordinator, share_done)] if status.coordinator is not None else []
    return Group(*facts, *(Line(Text(line)) for line in lines), *details)


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


def missing_lines(status: RunStatus) -> list[str]:
    """Returns a line with the command that shows the reason, if actors are missing."""
    missing = status.missing_actors
    if missing is None or status.phase in ("finished", "stopping"):
        return []
    number = missing.expected - status.actors
    if number <= 0:
        # The last of them has just joined.
        return []
    why = f"; `{missing.command}` shows why" if missing.command else ""
    are = "is" if number == 1 else "are"
    return [f"{number} of {missing.expected} expected actors {are} missing, for {duration(missing.seconds)} now{why}"]


def node_lines(status: RunStatus) -> list[tuple[str, str]]:
    """Returns a labelled line for each node on which actors are connected, with their number and their pace."""
    lines: list[tuple[str, str]] = []
    for node in status.nodes:
        each = f"{node.least_steps_per_s:,.0f} to {node.most_steps_per_s:,.0f} each" if node.actors > 1 else ""
        parts = [
            f"{node.actors} {'actor' if node.actors == 1 else 'actors'}",
            f"{node.steps_per_s:,.0f} steps/s{f' ({each})' if each else ''}",
        ]
        if node.waiting_share is not None:
            parts.append(f"waiting {node.waiting_share:.0%} of the time")
        if node.stuck:
            parts.append(f"stuck: {node.stuck}")
        lines.append(("nodes" if not lines else "", f"{node.name or 'unknown node'}: {', '.join(parts)}"))
    return lines


def disk_lines(run: str, credentials: "Credentials | None" = None) -> list[str]:
    """Returns a line for each known service whose disk can't be written."""
    return [
        f"the {name} service can't write to its disk; the run continues, and the service's log contains the reason"
        for name, place in _places(run).items()
        if storage_fails(place.addresses, _TIMEOUT_S, credentials, LEARNER if name == LEARNER else "replay")
    ]


def copy_lines(folder: RunFolder) -> list[str]:
    """Returns a line if the latest copies of a run failed (`checkpoint.copy_to`)."""
    try:
        record = json.loads(folder.copies.read_text())
        failures, target, error = record["failures"], shown(record["target"]), record["error"]
    except (OSError, ValueError, KeyError):
        return []
    return [f"copies to {target} fail ({failures} times in a row): {error}"] if failures else []


def _places(run: str) -> dict[str, Place]:
    """Returns where services are by name: all that the run's folder lists, or the learner at addresses `run`."""
    folder = RunFolder(Path(run))
    if folder.services.exists():
        return folder.places()
    if ":" not in run:
        raise ConfigurationError(f"{run} is neither a run folder nor host:port of a learner")
    return {LEARNER: Place(tuple(run.split(",")))}


def _ended_as_json(folder: RunFolder) -> dict[str, Any]:
    if folder.summary.exists():
        return {"run": str(folder.root), "state": "ended", **plain(Summary.read(folder.summary))}
    return {"run": str(folder.root), "state": "ended", "checkpoint_env_steps": folder.newest_checkpoint_steps()}


def _show_ended(folder: RunFolder, console: Console) -> None:
    """Prints the summary of a run that is not active, or its newest checkpoint, and the command to resume it."""
    note_removed_settings(folder)
    if folder.summary.exists():
        show(console, *summary_lines(Summary.read(folder.summary)))
    else:
        steps = folder.newest_checkpoint_steps()
        newest = "it has no checkpoint" if steps is None else f"its newest checkpoint is at step {steps:,}"
        show(console, f"the run in {folder.root} is not active; {newest}")
    recorded = read_settings(folder.config, *LIMITS, *CODE)
    names_code = bool(FileNames.all_in(folder.config, recorded).names)
    reason = nothing_left(folder.summary, recorded.run) or "resume it"
    trust = ", if you trust the code that it names" if names_code else ""
    command = command_to_resume(
        str(folder.root), names_code=names_code, settings=raised_limits(folder.summary, recorded.run)
    )
    console.print(f"{reason}{trust}:  {command}", style="dim", markup=False, soft_wrap=True)
