"""`make bench-loop`: environment steps per second and wall time to a return, compared with other libraries.

The systems train in turn in separate processes on the same cores. Each peer runs with the settings that were fastest on
this machine, Penstock with the shipped preset. Only ratios within one run are meaningful; see docs/BENCHMARKS.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import penstock_loop
from benchmarks.peers.environment import peer_python
from penstock.presets import preset

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "bench" / "loop.json"
CORES = 2
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Task:
    """A training task of all systems.

    Attributes:
        env_id: Gymnasium id of the environment.
        preset: Name of the Penstock preset.
        threshold: Return to reach.
        interval_steps: Environment steps between evaluations.
        penstock_steps: Environment steps of the runs that only measure the pace.
        peer_steps: Environment steps of the runs of each peer.
    """

    env_id: str
    preset: str
    threshold: float
    interval_steps: int
    penstock_steps: int
    peer_steps: dict[str, int]


TASKS = (
    Task(
        "CartPole-v1",
        "cartpole_no_replay",
        475.0,
        2_048,
        1_000_000,
        {"sample_factory": 400_000, "sample_factory_learning": 250_000, "sb3": 60_000, "rllib": 200_000},
    ),
    Task(
        "Pendulum-v1",
        "pendulum",
        -200.0,
        2_048,
        500_000,
        {"sample_factory": 250_000, "sample_factory_learning": 350_000, "sb3": 60_000, "rllib": 150_000},
    ),
)
PEERS = {
    "sample_factory": ("sample_factory", ("--epochs=1",)),
    "sample_factory_learning": ("sample_factory", ("--epochs=4",)),
    "sb3": ("sb3", ()),
    "rllib": ("rllib", ()),
}
"""Peers: the virtual environment of each, and further arguments of its script."""

PACES = {"sample_factory": 3.0, "sb3": 8.0, "rllib": 6.0}
"""Smallest ratio of Penstock's pace to the pace of each peer."""

MOST_TIME = 0.7
"""Largest ratio of Penstock's wall time to the threshold to that of SB3."""

LEAST_OF_FIFO = 0.9
"""Smallest ratio of Penstock's pace to that of the same processes over shared memory."""


@dataclass(frozen=True, slots=True)
class Case:
    """The medians over the rounds of one system on one task.

    Attributes:
        env_id, system: The task and the system.
        env_steps_per_s: Environment steps per second; None for a system that only measures learning.
        learn_wall_s_to_threshold: Seconds from the first environment step to the threshold; None if most rounds did not
            reach it.
        env_steps_to_threshold: Environment steps to the threshold; None if most rounds did not reach it.
        final_return: Return at the end, measured as `judged_by` states.
        judged_by: Episodes over which returns are averaged.
        settings: Settings of the run, as text.
        cpu_s_per_million: CPU seconds per million environment steps, by process; only for Penstock.
    """

    env_id: str
    system: str
    env_steps_per_s: float | None
    learn_wall_s_to_threshold: float | None
    env_steps_to_threshold: float | None
    final_return: float | None
    judged_by: str
    settings: str
    cpu_s_per_million: dict[str, float] | None = None


Run = dict[str, Any]


def peer(name: str, task: Task, seed: int) -> Run:
    """Runs a peer once. Raises `subprocess.CalledProcessError` if it fails."""
    environment, more = PEERS[name]
    options = [
        f"--env-id={task.env_id}",
        f"--threshold={task.threshold}",
        f"--total-steps={task.peer_steps[name]}",
        f"--interval-steps={task.interval_steps}",
        f"--seed={seed}",
        *more,
    ]
    return _run_json(peer_python(environment), f"benchmarks.peers.{environment}_loop", options)


def penstock(task: Task, seed: int) -> Run:
    """Runs Penstock once for the pace and once for the threshold."""
    pace = penstock_loop.throughput(task.preset, task.penstock_steps, seed)
    summary = penstock_loop.reach(task.preset, task.interval_steps, seed)
    config = preset(task.preset)
    evaluation = summary.evaluation
    return {
        "env_steps_per_s": pace.env_steps_per_s,
        "cpu_s_per_million": pace.cpu_s_per_million,
        "path_share": pace.path_share,
        "learn_wall_s_to_threshold": summary.learn_wall_s_to_threshold,
        "env_steps_to_threshold": summary.env_steps_to_threshold,
        "final_return": evaluation.return_mean if evaluation else None,
        "judged_by": f"{config.evaluation.episodes} deterministic episodes",
        "settings": f"{config.train.actors} x {config.actor.environments} environments, {config.actor.unroll_length}"
        f" steps each, batches of {config.sampling.batch_segments * config.actor.unroll_length:,},"
        f" {config.sampling.fresh_fraction:.0%} new, {config.ppo.epochs} epochs, {config.ppo.minibatches} minibatches",
    }


def fifo(task: Task, seed: int) -> Run:
    """Measures the pace of the same processes over shared memory."""
    options = [f"--preset={task.preset}", f"--total-steps={task.penstock_steps}", f"--seed={seed}"]
    return _run_json(Path(sys.executable), "benchmarks.fifo_loop", options)


def measure(name: str, task: Task, seed: int) -> Run:
    """Runs any system once."""
    if name == "penstock":
        return penstock(task, seed)
    return fifo(task, seed) if name == "fifo" else peer(name, task, seed)


def _run_json(python: Path, module: str, options: Sequence[str]) -> Run:
    # The other output of the systems would garble the display; it is shown if they fail.
    command: list[str | Path] = [python, "-m", module, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise subprocess.CalledProcessError(done.returncode, done.args)
    run: Run = json.loads(done.stdout)
    return run


def case(task: Task, system: str, runs: Sequence[Run]) -> Case:
    """Returns the medians over the runs of one system."""

    def median(name: str) -> float | None:
        values = [run.get(name) for run in runs]
        met = sorted(float("inf") if value is None else float(value) for value in values)
        middle = statistics.median_high(met)
        return None if middle == float("inf") else middle

    ended = [run["final_return"] for run in runs if run.get("final_return") is not None]
    processes = runs[0].get("cpu_s_per_million")
    return Case(
        task.env_id,
        system,
        median("env_steps_per_s"),
        median("learn_wall_s_to_threshold"),
        median("env_steps_to_threshold"),
        statistics.median(ended) if ended else None,
        runs[0].get("judged_by", ""),
        runs[0].get("settings", "as penstock's"),
        {name: statistics.median(run["cpu_s_per_million"][name] for run in runs) for name in processes}
        if processes
        else None,
    )


def ratios(task: Task, runs: dict[str, list[Run]]) -> dict[str, float | None]:
    """Returns the ratios with a bound for one task: medians over the rounds of the ratios within a round."""

    def paces(system: str) -> float:
        pairs = zip(runs["penstock"], runs[system], strict=True)
        return float(statistics.median(ours["env_steps_per_s"] / theirs["env_steps_per_s"] for ours, theirs in pairs))

    found: dict[str, float | None] = {f"pace over {system}": paces(system) for system in PACES if system in runs}
    if "sb3" in runs:
        ours, theirs = case(task, "", runs["penstock"]), case(task, "", runs["sb3"])
        reached = ours.learn_wall_s_to_threshold, theirs.learn_wall_s_to_threshold
        found["wall time to threshold over sb3"] = reached[0] / reached[1] if reached[0] and reached[1] else None
    if "fifo" in runs:
        found["pace over fifo"] = paces("fifo")
    found["cpu share of the path between"] = statistics.median(run["path_share"] for run in runs["penstock"])
    return {name: value if value is None else round(value, 3) for name, value in found.items()}


def meets_bound(name: str, ratio: float | None) -> bool:
    """Returns whether a ratio meets its bound."""
    if ratio is None:
        return False
    if name == "pace over fifo":
        return ratio >= LEAST_OF_FIFO
    if name.startswith("pace over "):
        return ratio >= PACES[name.removeprefix("pace over ")]
    return ratio <= (MOST_TIME if name.startswith("wall time") else 1.0 - LEAST_OF_FIFO)


def show(cases: Sequence[Case], found: dict[str, dict[str, float | None]], console: Console) -> None:
    """Prints the results as tables."""
    table = Table("task", "system", "steps/s", "to threshold", "final return")
    for each in cases:
        wall, steps = each.learn_wall_s_to_threshold, each.env_steps_to_threshold
        table.add_row(
            each.env_id,
            each.system,
            f"{each.env_steps_per_s:,.0f}" if each.env_steps_per_s else "",
            f"{wall:.1f} s, {steps:,.0f} steps" if wall and steps else "",
            f"{each.final_return:.0f}" if each.final_return is not None else "",
        )
    console.print(table)
    table = Table("task", "ratio", "measured", "bound met")
    for env_id, of_task in found.items():
        for name, ratio in of_task.items():
            table.add_row(
                env_id, name, "" if ratio is None else f"{ratio:.2f}", "yes" if meets_bound(name, ratio) else "no"
            )
    console.print(table)


def write(cases: Mapping[str, Sequence[Case]], found: Mapping[str, Mapping[str, float | None]]) -> None:
    """Writes build/bench/loop.json."""
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    measured = [asdict(each) for of_task in cases.values() for each in of_task]
    OUTPUT.write_text(json.dumps({"cases": measured, "ratios": found}, indent=2) + "\n")


def main() -> int:
    """Measures, prints and writes everything; returns 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tasks", nargs="+", choices=[task.preset for task in TASKS], default=[task.preset for task in TASKS]
    )
    parser.add_argument("--systems", nargs="+", choices=["fifo", *PEERS], default=["fifo", *PEERS])
    arguments = parser.parse_args()
    console = Console()
    for environment in dict.fromkeys(PEERS[name][0] for name in arguments.systems if name in PEERS):
        peer_python(environment)
    # Child processes inherit it.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    cases: dict[str, list[Case]] = {}
    found: dict[str, dict[str, float | None]] = {}
    for task in (task for task in TASKS if task.preset in arguments.tasks):
        runs: dict[str, list[Run]] = {name: [] for name in ("penstock", *arguments.systems)}
        for seed in range(arguments.rounds):
            for name, of_system in runs.items():
                with console.status(f"{task.env_id}, round {seed + 1} of {arguments.rounds}: {name}"):
                    of_system.append(measure(name, task, seed))
                pace = of_system[-1]["env_steps_per_s"]
                console.print(f"{task.env_id}, round {seed + 1}: {name}: {pace:,.0f} steps/s", highlight=False)
            # Written after every round, because runs take minutes and a later one may fail.
            cases[task.env_id] = [case(task, name, of_system) for name, of_system in runs.items()]
            found[task.env_id] = ratios(task, runs)
            write(cases, found)
    show([each for of_task in cases.values() for each in of_task], found, console)
    console.print(f"written to {OUTPUT}")
    return 0 if all(meets_bound(name, ratio) for of_task in found.values() for name, ratio in of_task.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
