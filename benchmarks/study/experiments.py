"""What is compared with what: experiments of settings, over tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.config import Config, build, merge, preset, preset_values

Changes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Task:
    """An environment with its preset.

    Attributes:
        preset: Its name.
        total_steps: Of a run.
        interval_steps: Between evaluations.
        random_return, reference_return: Where scores are 0 and 1: a random policy's mean return over 1,000 episodes,
            and what rl-zoo's PPO reaches.
    """

    preset: str
    total_steps: int
    interval_steps: int
    random_return: float
    reference_return: float

    @property
    def threshold(self) -> float:
        """Mean return that counts as solved; the preset's."""
        threshold = preset(self.preset).evaluation.threshold
        assert threshold is not None
        return threshold

    def score(self, value: float) -> float:
        """A return on the scale from random, 0, to rl-zoo's, 1."""
        return (value - self.random_return) / (self.reference_return - self.random_return)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table.

    Attributes:
        name: As it is shown.
        changes: Of the preset's configuration.
        lag: Forced, in versions.
        group: Those of one group are drawn together, beside those of none.
    """

    name: str
    changes: Changes = field(default_factory=dict, hash=False)
    lag: int = 0
    group: str = ""

    @property
    def label(self) -> str:
        """Group and name."""
        return f"{self.group}, {self.name}" if self.group else self.name


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table.

    Attributes:
        title: Its heading.
        says: What the settings are.
        settings: Its rows.
    """

    title: str
    says: str
    settings: tuple[Setting, ...]


TASKS = {
    "CartPole-v1": Task("cartpole", 100_000, 2_048, 22.2, 500.0),
    "Pendulum-v1": Task("pendulum", 100_000, 2_048, -1_231.0, -172.0),
    "Acrobot-v1": Task("acrobot", 200_000, 4_096, -499.1, -73.5),
    "MountainCarContinuous-v0": Task("mountain_car", 50_000, 2_048, -33.3, 94.5),
    "LunarLander-v3": Task("lunar_lander", 500_000, 16_384, -182.0, 242.0),
}

ENVIRONMENTS = 16


def configuration(task: Task, setting: Setting, seed: int) -> Config:
    """A run's configuration: the task's preset, with all its environments in one actor, and the setting's changes."""
    whole: dict[str, Any] = {
        "run": {"seed": seed, "total_steps": task.total_steps, "stop_at_return": None},
        "actor": {"environments": ENVIRONMENTS},
        "evaluation": {"interval_steps": task.interval_steps},
        "checkpoint": {"save_interval": task.total_steps, "max_checkpoints": 1},
        "sampling": {"off_policy_degree": max(1, setting.lag)},
    }
    changes: dict[str, object] = {section: dict(values) for section, values in setting.changes.items()}
    return build(merge(preset_values(task.preset), whole, changes))


# As many fresh segments in a batch as with replay.
_ALONE = {"fresh_fraction": 1.0, "batch_segments": ENVIRONMENTS}

REPLAY = Experiment(
    "Replay",
    "One version between acting and training at most. All rows train on 16 fresh segments a batch; those with replay"
    " add 16 replayed ones, and so have minibatches of twice the size at the same number of gradient steps.",
    (
        Setting("none, equal epochs", {"sampling": _ALONE}),
        Setting(
            "none, equal gradient steps of equal size", {"sampling": _ALONE, "ppo": {"epochs": 20, "minibatches": 2}}
        ),
        Setting("uniform", {"sampling": {"alpha": 0.0}}),
        Setting("prioritized"),
    ),
)

CORRECTIONS = {
    "none: plain PPO": {"v_trace": False, "clip_anchor": 1.0},
    "decoupled clip": {"v_trace": False, "clip_anchor": 0.0},
    "V-trace": {"v_trace": True, "clip_anchor": 1.0},
    "V-trace, decoupled clip": {"v_trace": True, "clip_anchor": 0.0},
    "V-trace, clip in between (default)": {},
}


def _lags(*lags: int) -> Experiment:
    behind = [
        Setting(name, {"sampling": _ALONE, "ppo": changes}, lag, f"{lag} behind")
        for lag in lags
        for name, changes in CORRECTIONS.items()
    ]
    return Experiment(
        "Forced lag",
        "No replay; actors act with exactly the version that many behind the one in training.",
        (Setting("no lag", {"sampling": _ALONE}), *behind),
    )


EXPERIMENTS = {"replay": REPLAY, "lag": _lags(8, 16), "small-lag": _lags(1, 2, 4)}
