"""`make stress-grid`: trains batches with a grid of environments, actors, shards and degrees, in powers of 2.

Each combination is a real `penstock train` with derived batches, which must train a few batches, replay segments, and
end with exit code 0 and without a remaining process. `stress/tests` trains with some of them. The exit code is 1 if one
did not. The result is build/bench/grid.json.
"""

import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from penstock.config import Config, build
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from stress import results
from tests.support.machine.timing import DRILL_PATIENCE_S
from tests.support.services.processes import Ended, run

BATCHES = 6
"""Batches of each run: those after the second or third have replayed segments."""


@dataclass(frozen=True, slots=True)
class Combination:
    """One point of the grid; there are at least as many actors as shards."""

    environments: int
    actors: int
    shards: int
    degree: int

    def config(self, folder: Path) -> Config:
        """Returns a short run on CartPole with these numbers; everything that follows from them is derived."""
        values: dict[str, dict[str, object]] = {
            "run": {"dir": str(folder)},
            "train": {"actors": self.actors, "replay_shards": self.shards},
            "actor": {"environments": self.environments, "unroll_length": 4},
            "sampling": {"off_policy_degree": self.degree, "min_replay_segments": 1},
            "policy": {"hidden_sizes": (8,)},
            "ppo": {"epochs": 1},
            "evaluation": {"episodes": 1, "interval_steps": 10**9},
        }
        config = build({**values})
        steps = BATCHES * config.sampling.fresh_segments * config.actor.unroll_length
        return config.changed({"run": {"total_steps": steps}})


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one combination.

    Attributes:
        combination: Point of the grid.
        batch_segments, fresh_segments, minibatches: Derived sizes.
        batches: Batches trained.
        samples_per_insert: Uses of segments per collected segment; above 1 if segments were replayed.
        seconds: Duration of the command.
        faults: What was wrong; empty if nothing was.
    """

    combination: Combination
    batch_segments: int
    fresh_segments: int
    minibatches: int
    batches: int
    samples_per_insert: float
    seconds: float
    faults: list[str]


def combinations(
    environments: Sequence[int], actors: Sequence[int], shards: Sequence[int], degrees: Sequence[int]
) -> list[Combination]:
    """Returns all combinations with at least as many actors as shards."""
    grid = itertools.starmap(Combination, itertools.product(environments, actors, shards, degrees))
    return [each for each in grid if each.shards <= each.actors]


def train_with(combination: Combination, root: Path, patience_s: float = DRILL_PATIENCE_S) -> Result:
    """Trains with a combination in a new folder below `root`."""
    folder = root / "-".join(str(number) for number in asdict(combination).values())
    config, file = combination.config(folder), root / f"{folder.name}.toml"
    # Batches are not among the given values, so that the command derives them.
    given = config.to_toml().replace(f"batch_segments = {config.sampling.batch_segments}\n", "batch_segments = 0\n")
    file.write_text(given.replace(f"minibatches = {config.ppo.minibatches}\n", "minibatches = 0\n"))
    began = time.monotonic()
    ended = run("train", f"--config={file}", "--preset=none", timeout_s=patience_s)
    seconds = time.monotonic() - began
    summary = Summary.read(RunFolder(folder).summary) if ended.code == 0 else None
    batches = summary.statistics.batches_trained if summary is not None and summary.statistics is not None else 0
    used = summary.samples_per_insert if summary is not None else 0.0
    return Result(
        combination,
        config.sampling.batch_segments,
        config.sampling.fresh_segments,
        config.ppo.minibatches,
        batches,
        round(used, 2),
        round(seconds, 1),
        _faults(config, ended, batches=batches, used=used),
    )


def _faults(config: Config, ended: Ended, *, batches: int, used: float) -> list[str]:
    if ended.code:
        return [f"exit code {ended.code}: {ended.stderr.strip()}"]
    sizes = f"batch of {config.sampling.batch_segments} segments ({config.sampling.fresh_segments} fresh)"
    faults = [] if sizes in ended.stdout else [f"did not print {sizes!r}"]
    if batches < BATCHES:
        faults.append(f"{batches} batches were trained, not {BATCHES}")
    if used <= 1.0:
        faults.append("nothing was replayed")
    return faults + [f"left {command}" for command in ended.left_behind]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> int:
    """Trains with all combinations, prints a table, and returns the exit code."""
    parser = results.options(__doc__)
    parser.add_argument("--environments", type=_numbers, default=[1, 64], help="default: 1,64")
    parser.add_argument("--actors", type=_numbers, default=[1, 8], help="default: 1,8")
    parser.add_argument("--shards", type=_numbers, default=[1, 4], help="default: 1,4")
    parser.add_argument("--degrees", type=_numbers, default=[0, 1, 8], help="default: 0,1,8")
    parser.add_argument("--patience", type=float, default=DRILL_PATIENCE_S, help="seconds that a run may take")
    named = parser.parse_args()
    console, trained = Console(highlight=False), []
    table = Table("environments", "actors", "shards", "degree", "batch", "fresh", "batches", "seconds", "faults")
    with tempfile.TemporaryDirectory(prefix="penstock-grid-") as root:
        for each in combinations(named.environments, named.actors, named.shards, named.degrees):
            result = train_with(each, Path(root), named.patience)
            trained.append(result)
            sizes = (result.batch_segments, result.fresh_segments, result.batches, result.seconds)
            table.add_row(*map(str, (*asdict(each).values(), *sizes)), "; ".join(result.faults) or "-")
            console.print(f"{each}: {'; '.join(result.faults) or 'ok'}", markup=False)
    console.print(table)
    failures = sum(bool(result.faults) for result in trained)
    records = [{**asdict(result.combination), **asdict(result)} for result in trained]
    for record in records:
        del record["combination"]
    results.write(named, {"combinations": records})
    console.print(f"{len(trained) - failures} of {len(trained)} combinations ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
