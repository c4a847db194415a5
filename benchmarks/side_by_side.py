"""Runs of Penstock and of a peer to the same score, one after the other on the same cores.

Used by benchmarks that compare learning: `benchmarks.masked_tasks`, `benchmarks.recurrent_tasks` and
`benchmarks.zoo_tasks`.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.table import Table

from benchmarks import penstock_loop
from benchmarks.peers.environment import peer_python
from penstock.presets import preset

ROOT = Path(__file__).parents[1]
LIMIT_S = 1800.0
CORES = 2


@dataclass(frozen=True, slots=True)
class Run:
    """A run of one system to a threshold, without the time of evaluations.

    Attributes:
        system: Name of the system.
        seed: Seed of the run.
        env_steps_to_threshold: Environment steps to the first evaluation that reached it; None if none did.
        learn_wall_s_to_threshold: Seconds from the first environment step to that evaluation.
        cpu_s_to_threshold: CPU seconds of all processes that act, store or train, from the same step on.
        curve: Environment steps and mean return, one pair per evaluation.
        settings: Settings of the run, as text.
    """

    system: str
    seed: int
    env_steps_to_threshold: int | None
    learn_wall_s_to_threshold: float | None
    cpu_s_to_threshold: float | None
    curve: tuple[tuple[int, float], ...]
    settings: str


@dataclass(frozen=True, slots=True)
class Course:
    """The task of both systems.

    Attributes:
        env_id: Gymnasium id of the environment, for the peer.
        preset: Penstock's preset.
        threshold: Mean return to reach.
        interval_steps: Environment steps between evaluations.
        total_steps: Environment steps of a run, over which schedules extend.
    """

    env_id: str
    preset: str
    threshold: float
    interval_steps: int
    total_steps: int


def prepare(environment: str) -> None:
    """Installs a peer's virtual environment, and gives later runs of all systems the same two cores and the examples.

    Raises as `peer_python`.
    """
    peer_python(environment)
    # Child processes inherit both.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    paths = [str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def penstock(course: Course, seed: int, changes: Mapping[str, object] = MappingProxyType({})) -> Run:
    """Runs `penstock train` with the preset to its end. Training waits for evaluations."""
    curve: list[tuple[int, float]] = []
    cpu: list[tuple[int, float]] = []

    def watch(run: "subprocess.Popen[bytes]", folder: Path) -> None:
        cpu.extend(penstock_loop.cpu_readings(run, folder / "metrics.jsonl"))
        if run.returncode:
            return
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        curve.extend((each["env_steps"], each["return_mean"]) for each in records if each["kind"] == "evaluation")

    summary = penstock_loop.train(
        {
            "preset": course.preset,
            "seed": seed,
            "total-steps": course.total_steps,
            "evaluation.threshold": course.threshold,
            "evaluation.mode": "synchronous",
            "evaluation.interval-steps": course.interval_steps,
            **changes,
        },
        watch,
    )
    config = preset(course.preset)
    reached = summary.env_steps_to_threshold
    return Run(
        "penstock",
        seed,
        reached,
        summary.learn_wall_s_to_threshold,
        None if reached is None else next((cpu_s for steps, cpu_s in cpu if steps >= reached), None),
        tuple(curve),
        f"{config.train.actors} x {config.actor.environments} environments, {config.actor.unroll_length} steps each,"
        f" batches of {config.sampling.batch_segments * config.actor.unroll_length:,},"
        f" {config.sampling.fresh_fraction:.0%} new, {config.ppo.epochs} epochs, {config.ppo.minibatches} minibatches",
    )


def peer(
    name: str,
    environment: str,
    module: str,
    course: Course,
    seed: int,
    further: Sequence[str] = (),
    *,
    limit_s: float = LIMIT_S,
) -> Run:
    """Runs a program of `benchmarks.peers` in its virtual environment.

    Raises:
        subprocess.CalledProcessError: The program failed; its last output is on stderr.
        subprocess.TimeoutExpired: It took longer than `limit_s`.
    """
    command: list[str | Path] = [
        peer_python(environment),
        "-m",
        f"benchmarks.peers.{module}",
        f"--env-id={course.env_id}",
        f"--threshold={course.threshold}",
        f"--total-steps={course.total_steps}",
        f"--interval-steps={course.interval_steps}",
        f"--seed={seed}",
        *further,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise subprocess.CalledProcessError(done.returncode, command)
    result = json.loads(done.stdout)
    return Run(
        name,
        seed,
        result["env_steps_to_threshold"],
        result["learn_wall_s_to_threshold"],
        result["cpu_s_to_threshold"],
        tuple((steps, value) for steps, value in result["curve"]),
        result["settings"],
    )


def in_turn(
    course: Course,
    rounds: int,
    peers: Mapping[str, Callable[[int], Run]],
    keep: Callable[[Run], None],
    console: Console,
) -> None:
    """Runs Penstock and then each peer, a function of the seed, with the seeds 0, 1, ... and keeps each run."""
    systems: dict[str, Callable[[int], Run]] = {"penstock": lambda seed: penstock(course, seed), **peers}
    for seed in range(rounds):
        for name, run in systems.items():
            with console.status(f"round {seed + 1} of {rounds}: {name}"):
                keep(run(seed))


def median(runs: Sequence[Run], name: str) -> float | None:
    """Returns the median of an attribute over runs; None if most runs did not reach the threshold."""
    values: list[float] = [float("inf") if getattr(run, name) is None else getattr(run, name) for run in runs]
    middle = statistics.median_high(values)
    return None if middle == float("inf") else middle


def ratio(ours: Sequence[Run], theirs: Sequence[Run], name: str) -> float | None:
    """Returns the ratio of medians of an attribute; None if Penstock did not reach the threshold.

    It is 0 if only the peer did not.
    """
    own, other = median(ours, name), median(theirs, name)
    if own is None:
        return None
    return 0.0 if other is None else own / other


def ratios_of(runs: Sequence[Run]) -> dict[str, float | None]:
    """Returns the ratios of Penstock's medians to those of each peer."""
    found: dict[str, float | None] = {}
    ours = [run for run in runs if run.system == "penstock"]
    for system in sorted({run.system for run in runs} - {"penstock"}):
        theirs = [run for run in runs if run.system == system]
        found[f"wall time over {system}"] = ratio(ours, theirs, "learn_wall_s_to_threshold")
        found[f"steps over {system}"] = ratio(ours, theirs, "env_steps_to_threshold")
    return found


def show(runs: Sequence[Run], console: Console) -> None:
    """Prints the runs as a table, and the ratios."""
    console.print(_table_of(runs))
    for name, value in ratios_of(runs).items():
        console.print(f"{name}: {'not reached' if value is None else f'{value:.2f}'}", highlight=False)


def _table_of(runs: Sequence[Run]) -> Table:
    table = Table("system", "seed", "steps", "wall s", "CPU s", "last return")
    for run in runs:
        steps, *seconds = run.env_steps_to_threshold, run.learn_wall_s_to_threshold, run.cpu_s_to_threshold
        shown = ["" if each is None else f"{each:,.1f}" for each in seconds]
        table.add_row(
            run.system, str(run.seed), "" if steps is None else f"{steps:,}", *shown, f"{run.curve[-1][1]:,.2f}"
        )
    return table
