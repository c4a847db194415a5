"""`make stress-odd-environments`: trains with every kind of misbehaving environment, and checks the messages.

The environments are those of `tests/support/environments/odd.py`; `stress/tests` trains with some of them. The exit
code is 1 if a run ended without a message, printed a traceback, lacked a file or left a process behind. The result is
build/bench/odd_environments.json.
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stress import results
from stress.odd_runs import OddRun, faults_of, train_with
from tests.support.environments.odd import KINDS, env_id

ROOT = Path(__file__).parents[1]


def line_about(run: OddRun) -> str:
    """Returns the line with the most information about the environment."""
    name, says = env_id(run.kind), KINDS[run.kind].says
    lines = [*run.end.stderr.splitlines(), *run.end.stdout.splitlines()]
    # A failure ends with the environment's id in parentheses.
    return max(lines, key=lambda line: (f"({name})" in line, sum(part in line for part in says), name in line)).strip()


def main() -> int:
    """Trains, prints a table, and returns the exit code."""
    parser = results.options(__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds, separated by commas (default: all)")
    parser.add_argument("--at-once", type=int, default=2, help="number of parallel runs (default: 2)")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds before a run is interrupted")
    named = parser.parse_args()
    console, kinds = Console(highlight=False), named.kinds.split(",")
    table = Table("kind", "exit", "seconds", "faults", "message to the user", title="Odd environments")
    failures, kept = 0, []
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(named.at_once) as pool:
        for run in pool.map(lambda kind: train_with(kind, Path(root), named.patience), kinds):
            broken = faults_of(run)
            failures += bool(broken)
            table.add_row(run.kind, str(run.end.code), f"{run.seconds:.0f}", "; ".join(broken) or "-", line_about(run))
            kept.append(
                {
                    "kind": run.kind,
                    "exit_code": run.end.code,
                    "seconds": round(run.seconds, 1),
                    "broken_promises": broken,
                    "line": line_about(run).replace(root, "RUNS").replace(str(ROOT), "."),
                }
            )
            console.print(f"{run.kind}: exit code {run.end.code}, {'; '.join(broken) or 'ok'}", markup=False)
    console.print(table)
    results.write(named, {"kinds": kept})
    console.print(f"{len(kinds) - failures} of {len(kinds)} kinds ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
