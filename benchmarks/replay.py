"""`make bench-replay`: throughput of the replay service, compared with Reverb.

Both sides alternate on the same cores. Each side is a server process and a client process on loopback, or with
`--link-mbit` at the ends of a link of this rate, measured with the fastest of several configurations
(docs/BENCHMARKS.md). The report contains the median of the rounds.
"""

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.frames import record
from benchmarks.limited_link import CLIENT, limited_link
from benchmarks.peers.environment import peer_python
from benchmarks.peers.place import Place
from tests.support.results.provenance import of_this_run

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench" / "replay.json"
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison.

    Attributes:
        case: Penstock's case.
        peer_case: The peer's case.
        segment: Kind of segment: vector (3.6 kB), pixel (932 kB of random bytes), frames (932 kB of a game's frames) or
            frames_once (255 kB: each frame once instead of in four observations).
        goal: Smallest ratio of Penstock's rate to the peer's.
    """

    case: str
    peer_case: str
    segment: str
    goal: float

    @property
    def name(self) -> str:
        """Name in the tables."""
        return self.case.replace("_same_host", ", same host only")

    @property
    def survives(self) -> str:
        """Systems whose segments survive a kill of the service in this comparison."""
        # Without a folder, so that columns go over TCP, the store is in memory. The peer's always is.
        return "Penstock's" if self.case.endswith("same_host") else "neither"


COMPARISONS = (
    Comparison("sample", "sample", "frames", 2.0),
    Comparison("insert", "insert", "frames", 2.0),
    Comparison("sample", "sample", "frames_once", 2.0),
    Comparison("insert", "insert", "frames_once", 2.0),
    Comparison("sample", "sample", "vector", 10.0),
    Comparison("insert", "insert", "vector", 10.0),
    Comparison("sample", "sample", "pixel", 1.0),
    Comparison("insert", "insert", "pixel", 1.5),
    Comparison("priorities", "priorities", "vector", 1.0),
    Comparison("priorities", "priorities", "pixel", 1.0),
    Comparison("sample_same_host", "sample", "frames", 2.0),
    Comparison("insert_same_host", "insert", "frames", 1.5),
    Comparison("sample_same_host", "sample", "vector", 10.0),
    Comparison("insert_same_host", "insert", "vector", 10.0),
    Comparison("sample_same_host", "sample", "pixel", 2.0),
    Comparison("insert_same_host", "insert", "pixel", 1.5),
)
"""What is alike on both sides comes first: all columns over TCP."""

LINK_GOAL = 3.0
"""Smallest ratio for frames over a limited link."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The medians over the rounds of one side of a comparison."""

    per_s: float
    cpu_s_per_million: float
    wire_bytes: float
    configuration: str


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the result.

    Rates are per second, CPU is user and system seconds of server and client together, and bytes are those between both
    for each segment or priority.
    """

    case: str
    segment: str
    penstock_per_s: float
    peer_per_s: float
    ratio: float
    goal: float
    penstock_cpu_s_per_million: float
    peer_cpu_s_per_million: float
    penstock_wire_bytes: float
    peer_wire_bytes: float
    survives_a_kill: str
    penstock_configuration: str
    peer_configuration: str


def measure(python: Path, module: str, case: str, segment: str, seconds: float, place: Place) -> Measured:
    """Measures one round of one side, in a process in its own environment."""
    prefix = ["ip", "netns", "exec", CLIENT] if place.namespace else []
    command = [*prefix, str(python), "-m", module, "--case", case, "--segment", segment, "--seconds", str(seconds)]
    command += place.arguments
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise SystemExit(f"{module} --case {case} --segment {segment} failed:\n{done.stderr[-2000:]}")
    line = json.loads(done.stdout.strip().splitlines()[-1])
    return Measured(**{field.name: line[field.name] for field in fields(Measured)})


def median(rounds: list[Measured]) -> Measured:
    """Returns the round with the median rate."""
    return sorted(rounds, key=lambda measured: measured.per_s)[(len(rounds) - 1) // 2]


def compare(comparison: Comparison, reverb: Path, rounds: int, seconds: float, place: Place) -> Case:
    """Measures both sides in turn."""
    ours, theirs = [], []
    own, segment = Path(sys.executable), comparison.segment
    for _ in range(rounds):
        theirs.append(measure(reverb, "benchmarks.peers.reverb_replay", comparison.peer_case, segment, seconds, place))
        ours.append(measure(own, "benchmarks.penstock_replay", comparison.case, segment, seconds, place))
    penstock, peer = median(ours), median(theirs)
    return Case(
        case=comparison.name,
        segment=comparison.segment,
        penstock_per_s=penstock.per_s,
        peer_per_s=peer.per_s,
        ratio=statistics.median(ours[i].per_s / theirs[i].per_s for i in range(rounds)),
        goal=comparison.goal,
        penstock_cpu_s_per_million=penstock.cpu_s_per_million,
        peer_cpu_s_per_million=peer.cpu_s_per_million,
        penstock_wire_bytes=penstock.wire_bytes,
        peer_wire_bytes=peer.wire_bytes,
        survives_a_kill=comparison.survives,
        penstock_configuration=penstock.configuration,
        peer_configuration=peer.configuration,
    )


def show(cases: list[Case], console: Console) -> None:
    """Prints the results as a table."""
    table = Table(title="Replay: Penstock and Reverb 0.14, segments (or priorities) per second")
    words = ("case", "segment", "survives a kill")
    for name in (
        "case",
        "segment",
        "Penstock",
        "Reverb",
        "ratio",
        "goal",
        "CPU s/M",
        "Reverb's",
        "bytes on the wire",
        "Reverb's",
        "survives a kill",
    ):
        table.add_column(name, justify="left" if name in words else "right")
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
            f"{case.penstock_wire_bytes:,.0f}",
            f"{case.peer_wire_bytes:,.0f}",
            case.survives_a_kill,
        )
    console.print(table)


def main() -> None:
    """Runs all comparisons, or the selected ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds of measurement per side and round")
    parser.add_argument("--only", default="", help="run only cases whose name and segment contain this text")
    parser.add_argument("--link-mbit", type=float, help="run the frames over a link of this many Mbit/s (root)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="result file")
    arguments = parser.parse_args()
    # A file has room for all columns of the table.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    reverb = peer_python("reverb")
    record()
    chosen = [item for item in COMPARISONS if arguments.only in f"{item.name} {item.segment}"]
    link: AbstractContextManager[Place] = nullcontext(Place())
    if arguments.link_mbit:
        link = limited_link(arguments.link_mbit)
        chosen = [
            replace(item, goal=LINK_GOAL)
            for item in chosen
            if item.segment.startswith("frames") and not item.case.endswith("same_host")
        ]
    cases: list[Case] = []
    with link as place:
        for number, comparison in enumerate(chosen, start=1):
            name = f"{comparison.name} {comparison.segment}"
            with console.status(f"{number} of {len(chosen)}: {name}, {arguments.rounds} rounds"):
                cases.append(compare(comparison, reverb, arguments.rounds, arguments.seconds, place))
            if not console.is_terminal:
                console.print(f"{number} of {len(chosen)}: {name}: {cases[-1].ratio:.2f}x")
    show(cases, console)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    result = {
        **of_this_run(),
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "link_mbit_per_s": arguments.link_mbit,
        "cases": [asdict(case) for case in cases],
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
