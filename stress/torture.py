"""`make stress-torture`: kills the replay service, learners and actors under load, and checks every guarantee.

`stress/tests` runs the same for some seconds; `--seconds 60` is a short form. The exit code is 1 if a guarantee was
violated. The result is build/bench/torture.json.
"""

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stress import results
from stress.torture_run import Options, Report, Torture


def show(report: Report, console: Console) -> None:
    """Prints the table."""
    table = Table(title="Torture of the replay service", show_header=False)
    median, slow, longest = report.quantiles()
    last = report.found[-1]
    ratios = [takeover.mass_ratio for takeover in report.takeovers if takeover.mass_ratio is not None]
    largest_jump = max((takeover.jump for takeover in report.takeovers), default=0)
    late = [takeover.late for takeover in report.takeovers if takeover.late is not None]
    lines = {
        "kills": ", ".join(f"{count} {kind}" for kind, count in report.kills.items()),
        "restart to ready": f"median {median:.2f} s, 95 % {slow:.2f} s, longest {longest:.2f} s",
        "store at the last check": f"{last.segments} segments; filled in {report.filled_s:.1f} s",
        "checks of the store": str(len(report.found)),
        "torn rows found": str(sum(found.torn for found in report.found)),
        "error of the sum tree's root": f"{max(found.root_error for found in report.found):.1e} at most",
        "learners replaced": f"{len(report.takeovers)}, at versions up to {largest_jump} higher",
        "mass after / before a replacement": f"{min(ratios, default=1.0):.6f} at least, in {len(ratios)} replacements",
        "made late by a replacement": f"{sum(late)} segments, in {len(late)} replacements",
        "late": f"{last.late}, of which {last.late_surplus} counted twice or never acknowledged",
        "insertions not counted": str(last.inserted_missing),
        "draws": f"{report.batches_drawn} batches, {report.batches_redrawn} drawn again in part, each count within"
        f" {report.largest_deviation:.2f} of its expectation; p = {report.p_value:.3f} over {report.draws_kept}",
    }
    for name, value in {**lines, **{name: str(count) for name, count in report.events.items()}}.items():
        table.add_row(name, value)
    console.print(table)
    for violation in report.violations:
        console.print(f"[red]{violation}[/]", highlight=False)
    console.print("[red]guarantees violated[/]" if report.violations else "[green]no violation[/]")


def main() -> None:
    """Runs the test; prints and writes the report."""
    parser = results.options(__doc__)
    parser.add_argument("--seconds", type=float, default=1000.0, help="seconds of kills after the store is full")
    parser.add_argument("--capacity-bytes", type=int, default=2**30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--distant", action="store_true", help="connect as from another host, by TCP, and cut connections too"
    )
    parser.add_argument(
        "--folder", type=Path, help="parent folder for the store (default: the system's temporary folder)"
    )
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix="penstock-torture-") as folder:
        options = Options(arguments.seconds, arguments.capacity_bytes, arguments.seed, distant=arguments.distant)
        report = Torture(Path(folder), options, lambda line: console.print(line, highlight=False)).play()
    # asdict turns a Counter into pairs.
    report.kills, report.events = dict(report.kills), dict(report.events)
    show(report, console)
    results.write(arguments, asdict(report))
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
