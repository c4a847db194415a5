"""Runs with the defaults whose statistics test_hints.py judges: of usual tasks, and of tasks that need a hint.

`python -m tests.unit.cli.recorded_runs [NAME...]` trains them, one after another in this process, and writes
recorded_runs.json. It takes some minutes on one core.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.config import Config, build
from penstock.learning.report.statistics import RunStatistics
from penstock.types.records import plain, record_of
from penstock.types.replay import Batch
from penstock.types.statistics import CoordinatorStatistics
from tests.support.training.single_process import train
from tests.unit.cli.needy_environments import BLIND, CORRIDOR, DOSE, SEEN

_FILE = Path(__file__).with_suffix(".json")
_EVALUATIONS, _EPISODES = 10, 10


@dataclass(frozen=True, slots=True)
class Task:
    """A run: its environment and its environment steps, with arguments and settings that differ from the defaults."""

    environment: str
    steps: int
    kwargs: Mapping[str, object] = field(default_factory=dict)
    settings: dict[str, dict[str, object]] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The configuration of the run, with ten evaluations."""
        own: dict[str, dict[str, object]] = {
            "environment": {"id": self.environment, "kwargs": dict(self.kwargs)},
            "run": {"total_steps": self.steps, "seed": 1},
            "evaluation": {"interval_steps": self.steps // _EVALUATIONS, "episodes": _EPISODES},
        }
        return build({name: own.get(name, {}) | self.settings.get(name, {}) for name in {*own, *self.settings}})


USUAL = {
    name: Task(name, steps, kwargs)
    for name, steps, kwargs in (
        ("Acrobot-v1", 40_000, {}),
        ("Blackjack-v1", 60_000, {}),
        ("CartPole-v1", 40_000, {}),
        ("CliffWalking-v1", 40_000, {"max_episode_steps": 200}),
        ("FrozenLake-v1", 60_000, {}),
        ("InvertedDoublePendulum-v5", 60_000, {}),
        ("InvertedPendulum-v5", 30_000, {}),
        ("MountainCarContinuous-v0", 40_000, {}),
        ("Pendulum-v1", 40_000, {}),
        ("Taxi-v4", 40_000, {}),
    )
}
"""Tasks that the defaults learn."""

NEEDY: dict[str, tuple[str, Task]] = {
    "rewards of 0": ("no episode reaches a reward", Task(BLIND, 4_000)),
    "equal rewards": ("no episode reaches a reward", Task(BLIND, 4_000, {"rewards": "equal"})),
    "equal rewards of single steps": (
        "no episode reaches a reward",
        Task(BLIND, 4_000, {"rewards": "equal", "steps": 1}),
    ),
    "a goal 30 steps away": ("no episode reaches a reward", Task(BLIND, 6_000, {"rewards": "goal", "steps": 30})),
    "a policy that must be random": (
        "evaluations are worse than training",
        Task(CORRIDOR, 8_000, {"max_episode_steps": 50}),
    ),
    "a policy that must be random, without a limit": (
        "episodes of evaluations do not end",
        Task(CORRIDOR, 8_000),
    ),
    "a goal that evaluations never reach": (
        "the policy repeats itself",
        Task(BLIND, 6_000, {"rewards": "goal", "steps": 7}),
    ),
    "observations of 0": ("features are constant", Task(SEEN, 8_000, {"factor": 0.0, "max_episode_steps": 500})),
    "map coordinates": ("float32 is too coarse", Task(SEEN, 4_000, {"offset": 4e6, "max_episode_steps": 500})),
    "rewards of noise": ("returns do not rise", Task(BLIND, 8_000, {"rewards": "noise"})),
    "priorities of noise": (
        "priorities do not help",
        Task(BLIND, 12_000, {"rewards": "noise"}, {"sampling": {"alpha": 3.0}}),
    ),
    "a learning rate far too low": (
        "the policy hardly changes",
        Task("CartPole-v1", 12_000, settings={"ppo": {"learning_rate": 1e-7}}),
    ),
    "a best action near a bound": ("actions stay at a bound", Task(DOSE, 12_000)),
    "a short run": ("the run was too short", Task("CartPole-v1", 6_000)),
}
"""Runs that need a hint, with its observation."""


@dataclass(frozen=True, slots=True)
class Moment:
    """Statistics of a run after a share of its steps."""

    share_done: float
    statistics: CoordinatorStatistics


def observed(config: Config) -> list[Moment]:
    """Trains with two actors; returns the statistics at the first batch after each evaluation, and at the end."""
    runs: list[RunStatistics] = []
    moments: list[Moment] = []

    def look(batch: Batch | None = None) -> None:
        status = runs[0].status()
        assert status.coordinator is not None and status.limit is not None
        if batch is None or status.coordinator.evaluations > len(moments):
            # One process collects and trains in turn, so its waits are not those of services.
            moments.append(Moment(status.limit.share, dataclasses.replace(status.coordinator, waits=())))

    train(config, 1, watch=look, actors=2, begun=runs.append)
    look()
    return moments


def recorded(name: str) -> list[Moment]:
    """Returns the recorded moments of a run; the last one is its end."""
    return [record_of(Moment, moment) for moment in json.loads(_FILE.read_text())[name]]


def main(names: Sequence[str]) -> None:
    """Trains these runs, or all, and replaces them in the file."""
    tasks = USUAL | {name: task for name, (_, task) in NEEDY.items()}
    for name in names or tasks:
        # Three moments are enough to show a hint that would be false, or that comes too late.
        moments = observed(tasks[name].config)
        kept = [moments[len(moments) // 4], moments[len(moments) // 2], moments[-1]]
        found = json.loads(_FILE.read_text()) if _FILE.exists() else {}
        found[name] = [_rounded(plain(moment)) for moment in kept]
        _FILE.write_text(json.dumps(dict(sorted(found.items())), separators=(",", ":")) + "\n")
        print(name, flush=True)


def _rounded(value: Any) -> Any:
    """Returns a plain value without unknown values, and with six digits."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main(sys.argv[1:])
