"""`make bench-replay`: throughput of the replay service, compared with Reverb.

Both sides alternate on the same cores. Each side is a server process and a client process on loopback, measured with
the fastest of several configurations (docs/BENCHMARKS.md). The report contains the median of the rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.peers.environment import peer_python

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench" / "replay.json"
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison.

    Attributes:
        case: Penstock's case.
        peer_case: The peer's case.
        segment: Kind of segment: vector (3.6 kB) or pixel (932 kB).
        goal: Smallest ratio of Penstock's rate to the peer's.
    """

    case: str
    peer_case: str
    segment: str
    goal: float


COMPARISONS = (
    Comparison("sample", "sample", "vector", 10.0),
    Comparison("sample_grpc", "sample", "vector", 10.0),
    Comparison("insert", "insert", "vector", 10.0),
    Comparison("insert_grpc", "insert", "vector", 10.0),
    Comparison("priorities", "priorities", "vector", 1.0),
    Comparison("sample", "sample", "pixel", 2.0),
    Comparison("sample_grpc", "sample", "pixel", 1.0),
    Comparison("insert", "insert", "pixel", 1.5),
    Comparison("insert_grpc", "insert", "pixel", 1.5),
    Comparison("priorities", "priorities", "pixel", 1.0),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The medians over the rounds of one side of a comparison."""

    per_s: float
    cpu_s_per_million: float
    configuration: str


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the result: rates per second, and CPU as user and system seconds of server and client together."""

    case: str
    segment: str
    penstock_per_s: float
    peer_per_s: float
    ratio: float
    goal: float
    penstock_cpu_s_per_million: float
    peer_cpu_s_per_million: float
    penstock_configuration: str
    peer_configuration: str


def measure(python: Path, module: str, case: str, segment: str, seconds: float) -> Measured:
    """Measures one round of one side, in a process in its own environment."""
    command = [str(python), "-m", module, "--case", case, "--segment", segment, "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{module} --case {case} --segment {segment} failed:\n{done.stderr[-2000:]}")
    line = json.loads(done.stdout.strip().splitlines()[-1])
    return Measured(line["per_s"], line["cpu_s_per_million"], line["configuration"])


def median(rounds: list[Measured]) -> Measured:
    """Returns the round with the median rate."""
    return sorted(rounds, key=lambda measured: measured.per_s)[(len(rounds) - 1) // 2]


def compare(comparison: Comparison, reverb: Path, rounds: int, seconds: float) -> Case:
    """Measures both sides in turn."""
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(
            measure(reverb, "benchmarks.peers.reverb_replay", comparison.peer_case, comparison.segment, seconds)
        )
        ours.append(
            measure(Path(sys.executable), "benchmarks.penstock_replay", comparison.case, comparison.segment, seconds)
        )
    penstock, peer = median(ours), median(theirs)
    return Case(
        case=comparison.case,
        segment=comparison.segment,
        penstock_per_s=penstock.per_s,
        peer_per_s=peer.per_s,
        ratio=statistics.median(ours[i].per_s / theirs[i].per_s for i in range(rounds)),
        goal=comparison.goal,
        penstock_cpu_s_per_million=penstock.cpu_s_per_million,
        peer_cpu_s_per_million=peer.cpu_s_per_million,
        penstock_configuration=penstock.configuration,
        peer_configuration=peer.configuration,
    )


def show(cases: list[Case], console: Console) -> None:
    """Prints the results as a table."""
    table = Table(title="Replay: Penstock and Reverb 0.14, segments (or priorities) per second")
    for name in ("case", "segment", "Penstock", "Reverb", "ratio", "goal", "CPU s/M", "Reverb's"):
        table.add_column(name, justify="left" if name in ("case", "segment") else "right")
    for case in cases:
        table.add_row(
            case.case,
            case.segment,
            f"{case.penstock_per_s:,.0f}",
            f"{case.peer_per_s:,.0f}",
            f"[{'green' if case.ratio >= case.goal else 'red'}]{case.ratio:.1f}x[/]",
            f"{case.goal:g}x",
            f"{case.penstock_cpu_s_per_million:,.1f}",
            f"{case.peer_cpu_s_per_million:,.1f}",
        )
    console.print(table)


def main() -> None:
    """Runs all comparisons, or the selected ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of measurement per side and round")
    parser.add_argument("--only", default="", help="run only cases whose name or segment contains this text")
    arguments = parser.parse_args()
    console, reverb = Console(), peer_python("reverb")
    chosen = [item for item in COMPARISONS if arguments.only in f"{item.case} {item.segment}"]
    cases: list[Case] = []
    for number, comparison in enumerate(chosen, start=1):
        name = f"{comparison.case} {comparison.segment}"
        with console.status(f"{number} of {len(chosen)}: {name}, {arguments.rounds} rounds"):
            cases.append(compare(comparison, reverb, arguments.rounds, arguments.seconds))
        if not console.is_terminal:
            console.print(f"{number} of {len(chosen)}: {name}: {cases[-1].ratio:.2f}x")
    show(cases, console)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps({"cases": [asdict(case) for case in cases]}, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
