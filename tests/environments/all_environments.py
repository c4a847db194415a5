"""`make all-environments`: trains on every registered environment with its id alone, for two windows.

The environments are those of Gymnasium, highway-env, dm_control, MiniGrid and ALE (`suites.py`). Each suite's packages
are installed once, from PyPI, into build/environments. The result is results/environments.json, from which
`make docs` writes the tables of docs/environments.md. The file is written after every run: an interrupted program
continues where it ended, also with --again. The whole output of runs that did not train is in
build/environments/output.

The exit code is 1 if an environment that Gymnasium can create did not train, apart from `REFUSED`.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.environments.results import OUTPUT, Record, described, read, record_of, short_commit, write
from tests.environments.runs import Outcome, train_two_windows
from tests.environments.suites import FOLDER, SUITES, Listed, Suite, ids_of, python_of

DEADLINE_S = 900.0
"""Seconds after which a run is interrupted. CarRacing takes about 0.2 s per step where other work uses the machine."""


REFUSED = ("intersection-multi-agent-v1", "intersection-multi-agent-v2")
"""Environments that return a reward for each of several agents, where Gymnasium's interface has one."""


class Campaign:
    """Runs of many environments, some at a time. The file of results is written after each."""

    def __init__(self, output: Path, deadline_s: float, registered: dict[str, dict[str, int]]) -> None:
        self._output, self._deadline_s, self._registered = output, deadline_s, registered
        self._records = read(output)
        self._lock = threading.Lock()

    def missing(self, listed: Sequence[Listed], commit: str | None = None) -> list[Listed]:
        """Returns those environments that have no result, or none of this commit; None: any commit."""
        found = {record.id for record in self._records.values() if commit in (None, record.commit)}
        return [each for each in listed if each.id not in found]

    def describe(self, listed: Sequence[Listed]) -> None:
        """Replaces what the records say about these environments apart from their runs."""
        with self._lock:
            for each in listed:
                if each.id in self._records:
                    self._records[each.id] = described(self._records[each.id], each)
            write(self._output, self._records.values(), self._registered)

    def run(self, listed: Sequence[Listed], jobs: int) -> None:
        """Trains on these environments, in this order."""
        started = time.monotonic()
        pool = ThreadPoolExecutor(jobs)
        try:
            runs = [pool.submit(self._train, each) for each in listed]
            for done, run in enumerate(as_completed(runs), start=1):
                left_s = (time.monotonic() - started) / done * (len(runs) - done)
                _print_line(run.result(), f"[{done} of {len(runs)}, {left_s / 60:.0f} min left]")
        finally:
            pool.shutdown(cancel_futures=True)

    def failures(self, listed: Sequence[Listed]) -> list[Record]:
        """Returns the results of those environments that Gymnasium can create and that did not train."""
        records = [self._records[each.id] for each in listed if each.id in self._records]
        return [each for each in records if each.outcome != Outcome.TRAINED and not each.creation_error]

    def _train(self, listed: Listed) -> Record:
        suite = next(suite for suite in SUITES if suite.name == listed.suite)
        python = str(python_of(suite))
        with tempfile.TemporaryDirectory() as folder:
            program = (python, "-m", "penstock")
            result = train_two_windows(
                listed.id, Path(folder), self._deadline_s, program=program, variables=dict(suite.variables)
            )
            record = record_of(listed, result, Path(folder))
        if result.outcome is not Outcome.TRAINED:
            path = FOLDER / "output" / f"{listed.id.replace('/', '_')}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(result.output + "\n")
        with self._lock:
            self._records[listed.id] = record
            write(self._output, self._records.values(), self._registered)
        return record


def in_turn(listed: Sequence[Listed]) -> list[Listed]:
    """Returns the environments with the first of each kind first, then the second of each, and so on.

    A fault that concerns a whole kind is so found early. The older forms of ALE's games are last.
    """
    turns: list[tuple[bool, int, Listed]] = []
    count: dict[tuple[str, str], int] = {}
    for each in listed:
        turn = count[each.suite, each.kind] = count.get((each.suite, each.kind), -1) + 1
        turns.append(("older" in each.kind and turn > 0, turn, each))
    return [each for _, _, each in sorted(turns, key=lambda turn: turn[:2])]


def chosen(suites: Sequence[Suite], ids: Sequence[str]) -> tuple[list[Listed], dict[str, dict[str, int]]]:
    """Returns the environments to run, all or those of some ids, and the number of each kind that a suite registers."""
    by_suite = {suite.name: ids_of(suite) for suite in suites}
    listed = [each for of_suite in by_suite.values() for each in of_suite if not ids or each.id in ids]
    unknown = set(ids) - {each.id for each in listed}
    if unknown:
        raise SystemExit(f"no suite registers {', '.join(sorted(unknown))}")
    counts = {suite.name: Counter(each.kind for each in by_suite[suite.name]) for suite in suites}
    registered = {suite.name: {kind: counts[suite.name][kind] for kind, _ in suite.kinds} for suite in suites}
    return in_turn(listed), registered


def main() -> int:
    """Trains, and returns the exit code."""
    names = [suite.name for suite in SUITES]
    parser = argparse.ArgumentParser(prog="make all-environments", description=__doc__)
    parser.add_argument("--suite", action="append", choices=names, help="suite to run (default: all)")
    parser.add_argument("--ids", default="", help="ids to run, separated by commas (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default: 2)")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help=f"seconds for a run ({DEADLINE_S:g})")
    parser.add_argument("--again", action="store_true", help="run environments with a result of another commit too")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file of results (default: in results/)")
    given = parser.parse_args()
    suites = [suite for suite in SUITES if not given.suite or suite.name in given.suite]
    listed, registered = chosen(suites, [each for each in given.ids.split(",") if each])
    campaign = Campaign(given.output, given.deadline, registered)
    campaign.describe(listed)
    campaign.run(campaign.missing(listed, short_commit() if given.again else None), given.jobs)
    failures = campaign.failures(listed)
    for record in failures:
        _print_line(record, "not trained:")
    print(f"{len(listed)} environments, {len(failures)} can be created and did not train", flush=True)
    return 1 if {record.id for record in failures}.difference(REFUSED) else 0


def _print_line(record: Record, place: str) -> None:
    message = f": {record.message}" if record.message else ""
    print(f"{place} {record.id}: {record.outcome}, {record.seconds:.0f} s{message}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
