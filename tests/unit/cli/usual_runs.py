"""Runs of usual tasks with the defaults, whose statistics test_hints.py judges: none of them needs a hint.

`python -m tests.unit.cli.usual_runs` trains them, some minutes on one core, and writes usual_runs.json.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.single_process import train
from penstock.config import Config, build
from penstock.learning.statistics import RunStatistics
from penstock.types.records import plain, record_of
from penstock.types.replay import Batch
from penstock.types.statistics import CoordinatorStatistics

_FILE = Path(__file__).with_suffix(".json")
_EVALUATIONS = 10

TASKS: dict[str, tuple[int, dict[str, object]]] = {
    "Acrobot-v1": (40_000, {}),
    "Blackjack-v1": (60_000, {}),
    "CartPole-v1": (40_000, {}),
    "CliffWalking-v1": (40_000, {"max_episode_steps": 200}),
    "FrozenLake-v1": (60_000, {}),
    "InvertedDoublePendulum-v5": (100_000, {}),
    "InvertedPendulum-v5": (60_000, {}),
    "LunarLander-v3": (200_000, {}),
    "MountainCarContinuous-v0": (60_000, {}),
    "Pendulum-v1": (100_000, {}),
    "Reacher-v5": (100_000, {}),
    "Taxi-v4": (200_000, {}),
}
"""Environment steps and arguments of each task."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Statistics of a run after a share of its steps."""

    share_done: float
    statistics: CoordinatorStatistics


def observed(config: Config, actors: int = 2) -> list[Moment]:
    """Trains in this process; returns the statistics at the first batch after each evaluation, and at the end."""
    runs: list[RunStatistics] = []
    moments: list[Moment] = []

    def look(batch: Batch | None = None) -> None:
        status = runs[0].status()
        assert status.coordinator is not None and status.limit is not None
        if batch is None or status.coordinator.evaluations > len(moments):
            moments.append(Moment(status.limit.share, status.coordinator))

    train(config, 1, watch=look, actors=actors, begun=runs.append)
    look()
    return moments


def short_run(environment: str, steps: int, kwargs: dict[str, object] | None = None, **more: Any) -> Config:
    """Returns the defaults for an environment, with as many evaluations as a long run has."""
    settings: dict[str, dict[str, object]] = {
        "environment": {"id": environment, "kwargs": kwargs or {}},
        "run": {"total_steps": steps, "seed": 1},
        "evaluation": {"interval_steps": steps // _EVALUATIONS},
    }
    for section, values in more.items():
        settings.setdefault(section, {}).update(values)
    return build(settings)


def recorded() -> Iterator[tuple[str, list[Moment]]]:
    """Yields the tasks, each with the moments of its run."""
    for task, moments in json.loads(_FILE.read_text()).items():
        yield task, [record_of(Moment, moment) for moment in moments]


def main(tasks: list[str]) -> None:
    """Trains these tasks, or all, and replaces their moments in the file."""
    found = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    for task in tasks or TASKS:
        steps, kwargs = TASKS[task]
        found[task] = [_rounded(plain(moment)) for moment in observed(short_run(task, steps, kwargs))]
        _FILE.write_text(json.dumps({name: found[name] for name in sorted(found)}, separators=(",", ":")) + "\n")
        print(task)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main(sys.argv[1:])
