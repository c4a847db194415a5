"""`make e2e-week`: seven days of docker-compose.yml in 20 minutes, in which each period is 500 times shorter.

Needs what `make e2e` needs. CartPole trains with checkpoints, copies, snapshots and renewed certificates as often as in
a week, and with Prometheus' rules as they are. The report has the size of each volume and log by day, the alerts that
fired, the size of metrics.jsonl after a record per second of a week, and that of Prometheus' samples of a week.
Writes build/e2e/week.md and .json, and ends with 1 if a requirement was missed.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.learning.durable import journal
from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from tests.e2e.panels import Prometheus
from tests.e2e.progress import SERVICES
from tests.e2e.report import Report
from tests.e2e.stack import ROOT, Failure, Stack, command

FILES = ("docker-compose.yml", "compose.cpu.yaml", "tests/e2e/week.yaml")
REPORT = ROOT / "build" / "e2e" / "week.md"
PROJECT, TAG = "penstock-week", "week"
DAYS, DAY_S, WEEK_S = 7, 173.0, 7 * 86_400
GROWTH = 1.05
"""Largest ratio of a bounded size on the last day to that on the fourth, when stores and snapshots are full."""
LOG_BYTES = 3 * 10_000_000
RETENTION_BYTES = 5_000_000_000
MB = 1e6


class Week:
    """The stack and the sizes of its files, day by day."""

    def __init__(self, report: Report) -> None:
        self._stack = Stack(PROJECT, FILES, {"PENSTOCK_TAG": TAG})
        self._report = report
        self._volumes = ("replay", "runs", "compiled", "prometheus", "authority")
        self._sizes = dict[str, list[int]]()

    def run(self) -> None:
        """Trains for a week and reports it."""
        self._report.begin("seven days of 173 s")
        self._stack.compose("build")
        self._stack.compose("down", "--volumes")
        self._stack.compose("up", "--detach", "--no-build", *SERVICES, "renewal", "prometheus")
        for day in range(1, DAYS + 1):
            time.sleep(DAY_S)
            for name, size in self._measure():
                self._sizes.setdefault(name, []).append(size)
            print(f"         day {day}", flush=True)
        self._look()
        self._compare()
        self._records()
        self._samples()

    def down(self) -> None:
        """Ends the services and removes their volumes."""
        self._stack.compose("down", "--volumes")

    def _folder(self, volume: str) -> Path:
        return Path(command("docker", "volume", "inspect", "--format={{.Mountpoint}}", f"{PROJECT}_{volume}").strip())

    def _measure(self) -> Iterator[tuple[str, int]]:
        for volume in self._volumes:
            yield f"volume {volume}", _allocated(self._folder(volume), but="metrics.jsonl")
        yield "metrics.jsonl", self._journal().stat().st_size
        for service in (*SERVICES, "renewal", "prometheus"):
            log = Path(command("docker", "inspect", "--format={{.LogPath}}", self._id(service)).strip())
            yield f"log of {service}", sum(part.stat().st_size for part in log.parent.glob(f"{log.name}*"))

    def _id(self, service: str) -> str:
        return self._stack.compose("ps", "--all", "--quiet", service).split()[0]

    def _journal(self) -> Path:
        return self._folder("runs") / "cartpole" / "metrics.jsonl"

    def _look(self) -> None:
        """Reports what happened, and which alerts fired."""
        prometheus = Prometheus(self._stack.prometheus())
        steps = prometheus.value("max_over_time(penstock_learner_environment_steps[1h])")
        self._report.check("environment steps", steps > 0, f"{steps:,.0f}", "more than 0")
        snapshots = prometheus.value("penstock_replay_snapshots_total")
        self._report.check("snapshots, one an hour", snapshots >= 0.8 * DAYS * 24, f"{snapshots:.0f}", "8 in 10")
        for service in SERVICES:
            renewed = prometheus.value(
                f"changes(penstock_certificate_expiry_timestamp_seconds{{job='{service}',certificate='own'}}[1h])"
            )
            self._report.check(f"renewals that {service} took up", renewed >= DAYS - 1, f"{renewed:.0f}", "one a day")
        for what in (
            "copy_failures",
            "learner_snapshot_failures",
            "replay_snapshot_failures",
            "learner_write_failures",
        ):
            failed = prometheus.value(f"penstock_{what}_total")
            self._report.check(f"penstock_{what}_total", failed == 0, f"{failed:.0f}", "0")
        restarts = sum(
            int(command("docker", "inspect", "--format={{.RestartCount}}", self._id(service))) for service in SERVICES
        )
        self._report.check("processes that ended", restarts == 0, str(restarts), "0")
        fired = prometheus.alerts("firing")
        self._report.check("alerts that fired", not fired, ", ".join(fired) or "none", "none")

    def _compare(self) -> None:
        """Reports the sizes of files, of which all but logs, journal and samples keep theirs."""
        for name, sizes in self._sizes.items():
            measured = " ".join(f"{size / MB:.2f}" for size in sizes) + " MB"
            if name.startswith("log"):
                self._report.check(name, sizes[-1] <= LOG_BYTES, measured, f"{LOG_BYTES / MB:.0f} MB")
            elif name in ("metrics.jsonl", "volume prometheus"):
                self._report.note(f"{name}, in its real time", measured)
            else:
                met = sizes[-1] <= GROWTH * sizes[3] + 2**20
                self._report.check(name, met, measured, f"from the fourth day on, at most {GROWTH} times")

    def _records(self) -> None:
        """Repeats the records of the run until there is one per second of a week."""
        lines = [json.loads(line) for line in self._journal().read_text().splitlines()]
        pace = max(1, lines[-1]["env_steps"] // len(lines))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "metrics.jsonl"
            written = journal.Journal(path, writes=RetriedWrites(print), notice=print)
            largest = 0
            for second in range(WEEK_S):
                line = lines[second % len(lines)]
                values = {name: value for name, value in line.items() if name not in ("kind", "env_steps")}
                written.write(Record(line["kind"], second * pace, values))
                largest = max(largest, path.stat().st_size) if second % 100 == 0 else largest
        met = largest <= journal.MOST_BYTES
        what = f"largest metrics.jsonl of {WEEK_S:,} records"
        self._report.check(what, met, f"{largest / MB:.1f} MB", f"{journal.MOST_BYTES / MB:.1f} MB")

    def _samples(self) -> None:
        """Reports the bytes of a week of samples, from the blocks that Prometheus has written."""
        blocks = [json.loads(path.read_text()) for path in self._folder("prometheus").glob("*/meta.json")]
        samples = sum(block["stats"]["numSamples"] for block in blocks)
        size = sum(_allocated(path.parent) for path in self._folder("prometheus").glob("*/meta.json"))
        seconds = sum(block["maxTime"] - block["minTime"] for block in blocks) / 1e3
        week = size / seconds * WEEK_S
        measured = f"{samples / seconds:,.0f} samples per second of {size / samples:.1f} bytes: {week / MB:,.0f} MB"
        self._report.check("Prometheus' samples of a week", week <= RETENTION_BYTES, measured, "5,000 MB")


def _allocated(folder: Path, but: str = "") -> int:
    """Returns the bytes that the files of a folder take; shared ones count once."""
    sizes = dict[tuple[int, int], int]()
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if path.name != but:
                sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def main() -> int:
    report = Report()
    week = Week(report)
    try:
        week.run()
    finally:
        report.write(REPORT, "Seven days of docker-compose.yml in 20 minutes")
        report.save(REPORT)
        with contextlib.suppress(Failure):
            week.down()
    return 0 if report.met else 1


if __name__ == "__main__":
    sys.exit(main())
