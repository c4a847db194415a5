"""Output of the commands that take, list and restore snapshots: a console for long lines, and progress bars."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TimeRemainingColumn, TransferSpeedColumn

from penstock.types.snapshots import SnapshotProgress

_PIPE_WIDTH = 160


def wide_console() -> Console:
    """Returns a console that does not cut names in a pipe, which has no width."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


@contextlib.contextmanager
def progress_bars(console: Console) -> Iterator[Callable[[str, SnapshotProgress], None]]:
    """Yields a function that shows the progress of a copy, given a label, in one bar per label."""
    columns = "{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as display:

        def show(label: str, progress: SnapshotProgress) -> None:
            if label not in tasks:
                tasks[label] = display.add_task(label, total=None)
            display.update(tasks[label], completed=progress.bytes, total=progress.total_bytes or None)

        yield show
