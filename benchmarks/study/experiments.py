"""The experiments of the study: comparisons of settings over tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.config import Config, build, merge
from penstock.presets import preset, preset_values

Changes = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Budget:
    """Environment steps of a run, and between its evaluations."""

    total_steps: int
    interval_steps: int


@dataclass(frozen=True, slots=True)
class Task:
    """An environment with its preset.

    Attributes:
        preset: Name of the preset.
        budget, short_budget: Budgets of a run; the short one suffices if steps are used efficiently.
        random_return, reference_return: Returns with score 0 and 1: a random policy's mean return over 200 episodes or
            more, and the return of rl-zoo's PPO.
        sparing: Changes to the preset for environments whose steps cost more than training.
    """

    preset: str
    budget: Budget
    short_budget: Budget
    random_return: float
    reference_return: float
    sparing: Changes

    @property
    def threshold(self) -> float:
        """Mean return at which the task is solved, from the preset."""
        threshold = preset(self.preset).evaluation.threshold
        assert threshold is not None
        return threshold

    def score(self, value: float) -> float:
        """Returns the score of a return: 0 for the random policy, 1 for rl-zoo's."""
        return (value - self.random_return) / (self.reference_return - self.random_return)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table.

    Attributes:
        name: Displayed name.
        changes: Changes to the task's configuration.
        replay: False for no replay, with the same number of fresh segments in a batch.
        epochs_times, minibatches_times: Factors of the task's configured numbers.
        lag: Enforced lag, in versions.
        group: Group of settings that are drawn in one panel, together with the settings without a group.
    """

    name: str
    changes: Changes = field(default_factory=dict, hash=False)
    replay: bool = True
    epochs_times: float = 1.0
    minibatches_times: float = 1.0
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
        title: Heading of the table.
        description: Description of the settings.
        settings: Rows of the table.
        sparing: Whether settings change the tasks' sparing settings instead of the presets.
        short: Whether runs have the tasks' short budgets.
    """

    title: str
    description: str
    settings: tuple[Setting, ...]
    sparing: bool = False
    short: bool = False

    def budget(self, task: Task) -> Budget:
        """Returns the budget of each run of a task."""
        return task.short_budget if self.short else task.budget

    def configuration(self, task: Task, setting: Setting, seed: int) -> Config:
        """Returns the configuration of a run: the task's, with all environments in one actor, and these changes."""
        values = preset_values(task.preset)
        shipped, budget = build(values), self.budget(task)
        whole: dict[str, Any] = {
            "run": {"seed": seed, "total_steps": budget.total_steps, "stop_at_return": None},
            "train": {"actors": 1},
            "actor": {"environments": shipped.train.least_actors * shipped.actor.environments},
            "evaluation": {"interval_steps": budget.interval_steps},
            "checkpoint": {"save_interval": budget.total_steps, "max_checkpoints": 1},
            "sampling": {"off_policy_degree": max(1, setting.lag)},
        }
        changes = (task.sparing, setting.changes) if self.sparing else (setting.changes,)
        merged = merge(values, whole, *map(_tables, changes))
        config = build(merged)
        derived: dict[str, Any] = {
            "ppo": {
                "epochs": round(config.ppo.epochs * setting.epochs_times),
                "minibatches": round(config.ppo.minibatches * setting.minibatches_times),
            }
        }
        if not setting.replay:
            derived["sampling"] = {"fresh_fraction": 1.0, "batch_segments": config.sampling.fresh_segments}
        return build(merge(merged, derived))


def _tables(changes: Changes) -> dict[str, object]:
    return {section: dict(values) for section, values in changes.items()}


def _sparing(unroll_length: int, **ppo: object) -> Changes:
    return {
        "actor": {"environments": 4, "unroll_length": unroll_length},
        "sampling": {"batch_segments": 32, "fresh_fraction": 0.125},
        "ppo": ppo,
    }


TASKS = {
    "CartPole-v1": Task(
        "cartpole",
        Budget(100_000, 2_048),
        Budget(30_000, 1_024),
        22.2,
        500.0,
        {
            "environment": {"vectorization": "sync"},
            "policy": {"activation": "relu"},
            **_sparing(
                32,
                learning_rate=1e-3,
                learning_rate_schedule="constant",
                trace_decay=0.95,
                epochs=10,
                minibatches=8,
            ),
        },
    ),
    "Pendulum-v1": Task(
        "pendulum",
        Budget(100_000, 2_048),
        Budget(30_000, 1_024),
        -1_231.0,
        -172.0,
        _sparing(64, learning_rate=1e-3, epochs=10, minibatches=8),
    ),
    "Acrobot-v1": Task(
        "acrobot", Budget(300_000, 8_192), Budget(30_000, 1_024), -499.1, -73.5, _sparing(32, minibatches=8)
    ),
    "MountainCarContinuous-v0": Task(
        "mountain_car", Budget(50_000, 2_048), Budget(15_000, 512), -33.3, 94.5, _sparing(32, minibatches=8)
    ),
    "LunarLander-v3": Task(
        "lunar_lander", Budget(200_000, 8_192), Budget(200_000, 8_192), -182.0, 242.0, _sparing(128, minibatches=16)
    ),
    "HalfCheetah-v5": Task(
        "half_cheetah",
        Budget(1_000_000, 51_200),
        Budget(300_000, 20_480),
        -280.6,
        5_819.0,
        _sparing(32, minibatches=4),
    ),
}


PRESETS = Experiment("Presets", "Every preset as it ships.", (Setting("as shipped"),))

_LARGE: Changes = {"actor": {"environments": 16}, "sampling": {"batch_segments": 32, "fresh_fraction": 0.5}}

REPLAY = Experiment(
    "Replay",
    "One version between acting and training at most. Those with replay train on 4 fresh and 28 replayed segments per"
    " batch; those without on 4 or on 16 fresh ones, with as many epochs, or with as many gradient steps for each"
    " environment step.",
    (
        Setting("none, 16 fresh, equal epochs", _LARGE, replay=False, minibatches_times=0.5),
        Setting("none, 4 fresh, equal epochs", replay=False, minibatches_times=0.25),
        Setting("none, 16 fresh, equal gradient steps", _LARGE, replay=False, epochs_times=4.0),
        Setting("none, 4 fresh, equal gradient steps", replay=False, epochs_times=2.0, minibatches_times=0.5),
        Setting("uniform", {"sampling": {"alpha": 0.0}}),
        Setting("uniform, 16 versions", {"sampling": {"alpha": 0.0, "max_staleness": 16}}),
        Setting("prioritized"),
    ),
    sparing=True,
    short=True,
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
        Setting(
            name,
            {**_LARGE, "ppo": changes},
            replay=False,
            minibatches_times=0.5,
            lag=lag,
            group=f"{lag} behind",
        )
        for lag in lags
        for name, changes in CORRECTIONS.items()
    ]
    return Experiment(
        "Forced lag",
        "No replay, 16 segments per batch; actors act with exactly the version that many behind the one in training.",
        (Setting("no lag", _LARGE, replay=False, minibatches_times=0.5), *behind),
        sparing=True,
    )


EXPERIMENTS = {"presets": PRESETS, "replay": REPLAY, "lag": _lags(8, 16), "small-lag": _lags(1, 2, 4)}
