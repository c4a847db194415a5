"""Seconds from the command to a threshold, with each system's own settings: the table "as people run them".

Imports, processes and evaluations count. Every system is judged in the same way, by 20 deterministic episodes at equal
intervals of environment steps. The threshold is reached at the first evaluation that meets it if the next one does too.
Called by `loop`.
"""

import itertools
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.like_for_like import temporary, variables
from benchmarks.observed import Point, observe
from benchmarks.peers.judge import Goal
from benchmarks.peers.peer_programs import PEERS

MOST_TIME = 0.7
"""Largest ratio of Penstock's seconds to those of the fastest peer."""
PATIENCE = 10.0
"""Seconds for which a peer is observed, as a multiple of those that Penstock took with the same seed."""
LEAST_PATIENCE_S = 15.0


@dataclass(frozen=True, slots=True)
class Task:
    """A task of all systems.

    Attributes:
        env_id: Gymnasium id of the environment.
        preset: Penstock's preset.
        threshold: Mean return to reach, the one of the preset.
        interval_steps: Environment steps between evaluations.
        limit_s: Largest number of seconds for which a run is observed.
    """

    env_id: str
    preset: str
    threshold: float
    interval_steps: int
    limit_s: float


TASKS = {
    task.env_id: task
    for task in (
        Task("CartPole-v1", "cartpole", 475.0, 2_048, 90.0),
        Task("Pendulum-v1", "pendulum", -200.0, 4_096, 90.0),
        Task("Acrobot-v1", "acrobot", -100.0, 8_192, 120.0),
        Task("LunarLander-v3", "lunar_lander", 200.0, 16_384, 240.0),
    )
}
"""Tasks by environment id."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The result of one run.

    Attributes:
        wall_s: Seconds from the command to the threshold; None if it was not reached.
        cpu_s: CPU seconds of all processes until then; None if it was not reached.
        env_steps: Environment steps until then; None if it was not reached.
        observed_s: Seconds for which the run was observed.
        best_return: Largest mean return of an evaluation; None if there was none.
    """

    wall_s: float | None
    cpu_s: float | None
    env_steps: int | None
    observed_s: float
    best_return: float | None


def patience(ours: Reached | None) -> float | None:
    """Returns the seconds for which peers are observed, by Penstock's run with the same seed; None: as long as it."""
    if ours is None or ours.wall_s is None:
        return None
    return max(LEAST_PATIENCE_S, PATIENCE * ours.wall_s)


def run(system: str, env_id: str, seed: int, limit_s: float | None = None) -> Reached:
    """Trains a system until the threshold is reached and kept, or until its steps or `limit_s` seconds are over.

    Raises:
        RunFailed: The program failed.
        subprocess.CalledProcessError: The peer could not be installed.
    """
    task = TASKS[env_id]
    with tempfile.TemporaryDirectory(prefix="bench-") as parent:
        folder = Path(parent) / "run"
        peer = PEERS.get(system)
        if peer is None:
            command, journal = penstock_command(task, seed, folder), folder / "metrics.jsonl"
        else:
            folder.mkdir()
            journal = folder / "journal.jsonl"
            options = Goal(env_id, task.interval_steps, seed, journal).options()
            command = [peer.python(), "-m", f"benchmarks.peers.{peer.goal}", *peer.arguments(), *options]
        seen = observe(
            command,
            journal,
            enough=lambda points: reached(points, task.threshold) is not None,
            limit_s=min(task.limit_s, limit_s or task.limit_s),
            variables={**variables(), **temporary(Path(parent))},
            folder=Path(parent),
        )
    evaluations = [point.return_mean for point in seen.points if point.return_mean is not None]
    met = reached(seen.points, task.threshold)
    best = max(evaluations, default=None)
    if met is None:
        return Reached(None, None, None, seen.seconds, best)
    return Reached(met.seconds, met.cpu_s, met.env_steps, seen.seconds, best)


def reached(points: Sequence[Point], threshold: float) -> Point | None:
    """Returns the first evaluation that met the threshold if the next one met it too; None if there is none."""
    evaluations = [point for point in points if point.return_mean is not None]
    for point, after in itertools.pairwise(evaluations):
        assert point.return_mean is not None
        assert after.return_mean is not None
        if min(point.return_mean, after.return_mean) >= threshold:
            return point
    return None


def penstock_command(task: Task, seed: int, folder: Path) -> list[str | Path]:
    """Returns the command of Penstock with its preset."""
    options: dict[str, object] = {
        "preset": task.preset,
        "seed": seed,
        "run-dir": folder,
        "evaluation.threshold": task.threshold,
        "evaluation.interval-steps": task.interval_steps,
    }
    return [sys.executable, "-m", "penstock", "train", *(f"--{name}={value}" for name, value in options.items())]
