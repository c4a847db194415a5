"""`make bench-episode-ends`: values that Penstock and other libraries learn where episodes end, beside exact ones.

Each system trains on the chain of examples/episode_ends.py: once with random truncations, which shows how it treats
ends, and once without any, in segments of three steps, which shows whether it trains the last step of a segment. The
results replace those of the same systems in results/episode_ends.json, and the table and the plot of
docs/episode-ends.md are written again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks.ends_report import PAGE, PLOT, Measured, draw, read, with_table
from benchmarks.peers.cleanrl_source import REPOSITORY, programs
from benchmarks.peers.ends_run import Task
from benchmarks.peers.environment import peer_python
from benchmarks.peers.pufferlib_environment import pufferlib_python
from tests.support.environments.chain_values import UNROLL_LENGTH, learn

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "episode_ends.json"
LIMIT_S = 900.0

TRUNCATED = Task(truncation=0.25, segment_steps=64, updates=60, learning_rate=3e-3, seed=0)
WHOLE = Task(truncation=0.0, segment_steps=3, updates=60, learning_rate=3e-3, seed=0)
"""Without truncations. Three steps divide the six rows of an episode whose reset takes a row, so that segments always
end at the same two states."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """The learnt value of each state, and the versions of the packages that learnt them."""

    values: tuple[float, ...]
    versions: dict[str, str]


def penstock(task: Task, *, same_step: bool) -> Learnt:
    """Trains through all services of Penstock."""
    with tempfile.TemporaryDirectory(prefix="penstock-ends-") as parent:
        report = learn(
            Path(parent) / "run",
            task.seed,
            same_step=same_step,
            truncation=task.truncation,
            unroll_length=min(task.segment_steps, UNROLL_LENGTH),
        )
    return Learnt(report.values, {name: version(name) for name in ("penstock", "gymnasium")})


def peer(python: Path, module: str, task: Task, *arguments: str) -> Learnt:
    """Trains with a peer. Raises `subprocess.CalledProcessError` if it fails."""
    command = [str(python), "-m", f"benchmarks.peers.{module}", *arguments, *task.options()]
    # Some peers write into the working directory.
    with tempfile.TemporaryDirectory(prefix="penstock-ends-") as folder:
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    return parse(done.stdout)


def parse(output: str) -> Learnt:
    """Returns what a peer has printed."""
    found = json.loads(output)
    return Learnt(tuple(found["values"]), found["versions"])


def systems(cleanrl: str) -> dict[str, Callable[[Task], Learnt]]:
    """Returns the systems, each as a function that trains it. `cleanrl` is the URL or path of CleanRL's repository."""

    def of_cleanrl(environment: str) -> Callable[[Task], Learnt]:
        return lambda task: peer(peer_python(environment), "cleanrl_ends", task, str(programs(cleanrl) / "ppo.py"))

    return {
        "Penstock, `NEXT_STEP`": lambda task: penstock(task, same_step=False),
        "Penstock, `SAME_STEP`": lambda task: penstock(task, same_step=True),
        "Stable-Baselines3, PPO": lambda task: peer(peer_python("sb3"), "sb3_ends", task),
        "CleanRL, `ppo.py`": of_cleanrl("cleanrl"),
        "CleanRL, `ppo.py`, Gymnasium 1": of_cleanrl("cleanrl_gymnasium_1"),
        "PufferLib, `PuffeRL`": lambda task: peer(pufferlib_python(), "pufferlib_ends", task),
    }


def measure(system: str, train: Callable[[Task], Learnt], seeds: int, console: Console) -> Measured:
    """Trains a system on both tasks with each seed."""
    runs: list[list[Learnt]] = []
    for task in (TRUNCATED, WHOLE):
        runs.append([])
        for seed in range(seeds):
            with console.status(f"{system}, truncation {task.truncation:g}, seed {seed}"):
                seeded = Task(**{**asdict(task), "seed": seed})
                runs[-1].append(train(seeded))
            console.print(system, seeded.truncation, seed, *(f"{value:.3f}" for value in runs[-1][-1].values))
    truncated, whole = ([list(run.values) for run in of_task] for of_task in runs)
    return Measured(system, date.today().isoformat(), runs[0][0].versions, truncated, whole)


def replaced(measured: Sequence[Measured], new: Measured, order: Sequence[str]) -> list[Measured]:
    """Returns the results with those of one system replaced or added, in this order of systems; others follow."""
    kept = [each for each in measured if each.system != new.system] + [new]
    return sorted(kept, key=lambda each: order.index(each.system) if each.system in order else len(order))


def main() -> int:
    """Measures the systems, and writes the results, the plot and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", metavar="WORD", help="words in the names of the systems; default: all")
    parser.add_argument("--cleanrl-repository", default=REPOSITORY, help="URL or path of CleanRL's repository")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    found = systems(arguments.cleanrl_repository)
    for system, train in found.items():
        if arguments.systems is None or any(word.lower() in system.lower() for word in arguments.systems):
            known = replaced(read(RESULTS), measure(system, train, arguments.seeds, console), list(found))
            # Written after every system, because a later one may fail.
            RESULTS.write_text(json.dumps([asdict(each) for each in known], indent=1) + "\n")
    known = read(RESULTS)
    draw(known, PLOT)
    PAGE.write_text(with_table(PAGE.read_text(), known))
    return 0


if __name__ == "__main__":
    sys.exit(main())
