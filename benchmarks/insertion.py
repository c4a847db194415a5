"""`make bench-insertion`: insertion by several writer processes over TCP, by windows of real actors, beside Reverb's.

Each writer is a process, as in a real deployment, and server and writers share this machine's cores. A Penstock actor
on another host sends by tcp, by tls with certificates, or by grpc if the stream port is closed; one on the same host
sends through shared memory (mapped). A Reverb writer sends single items, many at once. Each round measures all ways of
a case in turn, and the table has medians. For the latencies, each writer waits until an insertion is acknowledged.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import frames
from benchmarks.peers.environment import peer_python
from benchmarks.peers.place import Place
from benchmarks.peers.reverb_segments import segment_kind
from benchmarks.penstock_replay import SETTINGS, plan_of, service
from penstock.rpc.clients.batch_source import ReplayBatchSource
from penstock.rpc.loop import LoopThread
from penstock.security.certificate import Files
from penstock.security.credentials import Credentials
from penstock.security.roles import Role
from tests.support.results.provenance import of_this_run
from tests.support.services.certificates import certificates_of

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench" / "insertion.json"
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Case:
    """One case: kind of segment, number of writers, segments of a window, and ways in which they are sent."""

    segment: str
    writers: int
    window: int
    ways: tuple[str, ...]


CASES = (
    *(Case("vector", 4, window, ("tcp", "grpc", "mapped")) for window in (8, 16, 64, 128)),
    Case("vector", 4, 512, ("tcp",)),
    Case("vector", 1, 16, ("tcp",)),
    Case("vector", 16, 16, ("tcp",)),
    Case("frames_once", 4, 16, ("tcp", "grpc")),
    Case("frames_once", 4, 64, ("tcp", "tls")),
    Case("pixel", 4, 8, ("tcp", "tls", "grpc")),
    Case("vector", 4, 64, ("tls",)),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of one side.

    Attributes:
        per_s: Segments per second.
        service_us, writers_us: CPU microseconds per segment.
        median_ms, slow_ms: Median and 99th percentile of the milliseconds until an insertion is acknowledged.
    """

    per_s: float
    service_us: float
    writers_us: float
    median_ms: float
    slow_ms: float


def measure(servers_pid: int, writers: list["subprocess.Popen[str]"], seconds: float) -> Measured:
    """Has all writers insert at once for this number of seconds, and then wait for each insertion."""
    server = psutil.Process(servers_pid)
    before = server.cpu_times()
    inserted = np.array(asked(writers, f"insert {seconds}"))
    after = server.cpu_times()
    segments, service_s = inserted[:, 0].sum(), after.user + after.system - before.user - before.system
    waited = np.concatenate(asked(writers, f"wait {seconds / 3.0}"))
    return Measured(
        per_s=segments / inserted[:, 1].max(),
        service_us=1e6 * service_s / segments,
        writers_us=1e6 * inserted[:, 2].sum() / segments,
        median_ms=float(np.median(waited)),
        slow_ms=float(np.quantile(waited, 0.99)),
    )


def asked(writers: list["subprocess.Popen[str]"], line: str) -> list[list[float]]:
    """Gives all writers a line, and returns their answers."""
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(f"{line}\n")
        writer.stdin.flush()
    return [json.loads(answered(writer)) for writer in writers]


def answered(writer: "subprocess.Popen[str]") -> str:
    """Returns the next line of a writer. A process that has ended gives none."""
    assert writer.stdout is not None
    line = writer.stdout.readline()
    if not line:
        raise SystemExit(f"a writer ended with exit code {writer.wait(LIMIT_S)}; its message is above")
    return line


@contextmanager
def started(commands: list[list[str]]) -> Iterator[list["subprocess.Popen[str]"]]:
    """Starts writers and waits until all have filled the store."""
    pipe, quiet = subprocess.PIPE, {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    writers = [subprocess.Popen(each, cwd=ROOT, env=quiet, stdin=pipe, stdout=pipe, text=True) for each in commands]
    try:
        for writer in writers:
            answered(writer)
        yield writers
    finally:
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.close()
        for writer in writers:
            writer.wait(LIMIT_S)


def of_penstock(case: Case, way: str, seconds: float) -> Measured:
    """Measures one way of a case."""
    setting = SETTINGS[case.segment]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        files: dict[Role, Files] = certificates_of(folder / "certificates") if way == "tls" else {}
        options = [
            word
            for name in ("certificate", "key", "authority")
            for word in ((f"--security.{name}", str(getattr(files["replay"], name))) if files else ())
        ]
        options += ["--replay.stream-port", "0"] if way == "grpc" else []
        store = folder / "store" if way == "mapped" else None
        address, pid = stack.enter_context(service(setting.capacity_bytes, store, Place(), options))
        thread = LoopThread(Credentials(files["learner"], "learner") if files else None)
        stack.callback(thread.close)
        source = ReplayBatchSource(thread, address, setting.schema, prefetch_batches=1)
        stack.callback(source.close)
        source.open(plan_of(2))
        share = int(1.1 * setting.capacity_bytes / setting.schema.segment_bytes / case.writers) + 1
        command = [sys.executable, "-m", "benchmarks.penstock_writer", "--address", address, "--segment", case.segment]
        command += ["--window", str(case.window), "--segments", str(share)]
        command += [] if way == "mapped" else ["--distant"]
        command += ["--certificates", str(files["actor"].certificate.parent)] if files else []
        writers = stack.enter_context(started([[*command, "--slot", str(slot)] for slot in range(case.writers)]))
        return measure(pid, writers, seconds)


def of_reverb(python: Path, case: Case, seconds: float) -> Measured:
    """Measures Reverb with as many writers."""
    stored = segment_kind(case.segment).stored
    server = [str(python), "-m", "benchmarks.peers.reverb_server", "--table", "replay", "--max-size", str(stored)]
    with subprocess.Popen(server, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        command = [str(python), "-m", "benchmarks.peers.reverb_writer", "--table", "replay"]
        command += ["--address", f"127.0.0.1:{int(answered(process))}", "--segment", case.segment]
        command += ["--segments", str(int(1.1 * stored / case.writers) + 1)]
        with started([command] * case.writers) as writers:
            measured = measure(process.pid, writers, seconds)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(LIMIT_S)
    return measured


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the result: medians of the rounds, and the median ratio of the rates within a round."""

    segment: str
    writers: int
    window: int
    way: str
    ratio: float
    cpu_ratio: float
    penstock: Measured
    reverb: Measured


def median_of(rounds: list[Measured]) -> Measured:
    """Returns the medians of each number."""
    return Measured(**{name: statistics.median(asdict(each)[name] for each in rounds) for name in asdict(rounds[0])})


def compare(case: Case, reverb: Path, rounds: int, seconds: float) -> list[Row]:
    """Measures all ways of a case and Reverb in turn."""
    measured: dict[str, list[Measured]] = {way: [] for way in (*case.ways, "reverb")}
    for _ in range(rounds):
        for way, results in measured.items():
            results.append(of_reverb(reverb, case, seconds) if way == "reverb" else of_penstock(case, way, seconds))
    peers = measured["reverb"]
    rows = []
    for way in case.ways:
        pairs = list(zip(measured[way], peers, strict=True))
        rows.append(
            Row(
                case.segment,
                case.writers,
                case.window,
                way,
                statistics.median(ours.per_s / theirs.per_s for ours, theirs in pairs),
                statistics.median(
                    (theirs.service_us + theirs.writers_us) / (ours.service_us + ours.writers_us)
                    for ours, theirs in pairs
                ),
                median_of(measured[way]),
                median_of(peers),
            )
        )
    return rows


def show(rows: list[Row], console: Console) -> None:
    """Prints the rows as a table."""
    table = Table(title="Insertion: Penstock and Reverb 0.14, segments per second")
    for name in ("segment", "writers", "window", "way"):
        table.add_column(name)
    for name in ("Penstock", "Reverb", "ratio", "per CPU second", "CPU us", "Reverb's", "ms, p99", "Reverb's"):
        table.add_column(name, justify="right")
    for row in rows:
        ours, theirs = row.penstock, row.reverb
        table.add_row(
            row.segment,
            str(row.writers),
            str(row.window),
            row.way,
            f"{ours.per_s:,.0f}",
            f"{theirs.per_s:,.0f}",
            f"{row.ratio:.2f}x",
            f"{row.cpu_ratio:.2f}x",
            f"{ours.service_us:.1f} + {ours.writers_us:.1f}",
            f"{theirs.service_us:.1f} + {theirs.writers_us:.1f}",
            f"{ours.median_ms:.1f}, {ours.slow_ms:.1f}",
            f"{theirs.median_ms:.1f}, {theirs.slow_ms:.1f}",
        )
    console.print(table)


def main() -> None:
    """Runs the cases, or the selected ones, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of insertion per side and round")
    parser.add_argument("--only", default="", help="run only cases whose segment, writers and window contain this text")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="result file")
    arguments = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    reverb = peer_python("reverb")
    frames.record()
    rows: list[Row] = []
    for case in CASES:
        name = f"{case.segment} {case.writers} {case.window}"
        if arguments.only in name:
            rows += compare(case, reverb, arguments.rounds, arguments.seconds)
            console.print(f"{name}: " + ", ".join(f"{row.way} {row.ratio:.2f}x" for row in rows[-len(case.ways) :]))
    show(rows, console)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    result = {
        **of_this_run(),
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "rows": [asdict(row) for row in rows],
    }
    arguments.output.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
