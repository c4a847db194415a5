"""`penstock track`: sends the records of a run to a tracker of experiments, also while it trains."""

import signal
import sys
import threading
from collections.abc import Sequence
from functools import partial
from types import FrameType

from penstock.cli.named import chosen_run
from penstock.cli.one_line_parser import OneLineParser
from penstock.cli.options import settings_of
from penstock.config import build, read_settings
from penstock.config.code_names import TRACKERS
from penstock.errors import INTERRUPTED
from penstock.local.tracking import LINE
from penstock.machine import background
from penstock.machine.installation import program
from penstock.runs.folder import RunFolder
from penstock.tracking.following import Tracker, follow, only_sender
from penstock.tracking.trackers import TrackedRun, open_tracker

"""Training comes first on a machine without an idle core."""


def command(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    parser = OneLineParser(
        prog="penstock track", description="Send the records of a run to a tracker, until the run has ended."
    )
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="run, by its folder or its name in runs/ (default: newest)"
    )
    parser.add_argument("--to", required=True, metavar="TRACKER", help=f"{', '.join(TRACKERS)}, or file.py:MyTracker")
    parser.add_argument(
        "--project", metavar="NAME", help="project of the tracker (default: tracking.project of the run)"
    )
    named = parser.parse_args(list(arguments))
    folder = RunFolder(chosen_run(named.run, lambda each: each.config.exists(), "settings"))
    recorded = read_settings(settings_of(folder.root), "tracking.project").tracking.project
    given = {"tracker": named.to, "project": named.project or recorded}
    tracking = build({"tracking": given}).tracking
    project, to = tracking.project, str(tracking.tracker)
    background.lower_priority()
    stopping, pressed = threading.Event(), list[int]()

    def stop(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        stopping.set()
        # A second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    # The launcher sends no signal before this line.
    _tell(f"each record is sent to {named.to} once a checkpoint contains its steps")
    with only_sender(folder.root, to, notice=_tell, stopping=stopping):
        sent = follow(folder.root, partial(_opened, to, folder, project), notice=_tell, stopping=stopping)
    _tell(f"{sent:,} records sent")
    if signal.SIGINT in pressed:
        print(f"stopped; `{program()} track {folder.root} --to {named.to}` sends the rest", file=sys.stderr)
        return INTERRUPTED
    return 0


def _opened(name: str, folder: RunFolder, project: str) -> Tracker:
    return open_tracker(name, TrackedRun.of(folder, project))


def _tell(line: str) -> None:
    print(f"{LINE}{line}", flush=True)
