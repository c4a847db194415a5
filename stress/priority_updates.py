"""`make stress-priority-updates`: ten million priorities for batches in flight while the ring turns over.

Four batches are in flight, and half of the ring is overwritten between a draw and its commit. A plain dict holds the
expected priority of every segment. No priority may reach a segment that has replaced the drawn one, and the count of
overwritten segments must be exact. Nine tenths of the updates run in this process, one tenth through the real service.
The exit code is 1 if a priority was wrong. The result is build/bench/priority_updates.json.
"""

import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stress import results
from stress.ring_turnover import IN_FLIGHT, Outcome, PriorityUpdates
from stress.ring_turnover_over_grpc import play_over_grpc

ROWS, BATCH, WINDOW = 65_536, 4_096, 512


def show(outcomes: dict[str, Outcome], seconds: dict[str, float], console: Console) -> None:
    """Prints the table."""
    table = Table("", *outcomes, title=f"{IN_FLIGHT} batches of {BATCH} in flight while a ring of {ROWS} turns over")
    for name in ("updates", "applied", "ignored", "inserted", "wrong", "miscounted"):
        table.add_row(name, *(f"{getattr(outcome, name):,}" for outcome in outcomes.values()))
    table.add_row("error of the root", *(f"{outcome.root_error:.1e}" for outcome in outcomes.values()))
    table.add_row("seconds", *(f"{seconds[name]:.1f}" for name in outcomes))
    console.print(table)


def main() -> None:
    """Runs both forms, and prints and writes the results."""
    parser = results.options(__doc__)
    parser.add_argument("--updates", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    console, outcomes, seconds = Console(), {}, {}

    started = time.monotonic()
    with console.status("in this process") as status:
        buffer = PriorityUpdates(rows=ROWS, batch=BATCH, window=WINDOW, seed=arguments.seed)
        outcomes["the buffer"] = buffer.play(
            arguments.updates, lambda done: status.update(f"{done:,} priorities committed in this process")
        )
    seconds["the buffer"] = time.monotonic() - started

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-priorities-") as folder, console.status("over gRPC"):
        outcomes["the service"] = play_over_grpc(
            Path(folder), rows=ROWS, batch=BATCH, window=WINDOW, updates=arguments.updates // 10, seed=arguments.seed
        )
    seconds["the service"] = time.monotonic() - started

    show(outcomes, seconds, console)
    results.write(arguments, {"outcomes": {name: asdict(outcome) for name, outcome in outcomes.items()}})
    sys.exit(any(outcome.wrong or outcome.miscounted for outcome in outcomes.values()))


if __name__ == "__main__":
    main()
