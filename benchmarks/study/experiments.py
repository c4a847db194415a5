"""The experiments of the study: comparisons of settings over tasks."""

import math
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from benchmarks.study.tasks import (
    MASKED_TASK,
    RECURRENT_TASK,
    TASKS,
    WITH_PRESETS,
    Budget,
    Changes,
    Task,
    tables,
)
from penstock.config import Config, build, merge


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of a table.

    Attributes:
        name: Displayed name.
        changes: Changes to the task's configuration.
        replay: False for no replay, with the same number of fresh segments in a batch.
        epochs_times, minibatches_times: Factors of the task's configured numbers.
        lag: Enforced lag, in versions; None: the largest that the degree of the run allows.
        actors: Actors, each with the configured environments; 0: one actor with all environments.
        group: Group of settings that are drawn in one panel, together with the settings without a group.
    """

    name: str
    changes: Changes = field(default_factory=dict, hash=False)
    replay: bool = True
    epochs_times: float = 1.0
    minibatches_times: float = 1.0
    lag: int | None = 0
    actors: int = 0
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
        base: The settings that each row changes: the tasks' presets as they ship, their sparing settings, or
            Penstock's defaults, with the id of the environment and the evaluation alone.
        short: Whether runs have the tasks' short budgets. Those of presets have the preset's.
        common_budget: Budget of all runs in place of the tasks'.
        tasks: Names of the tasks, unless others are chosen.
        compared: Pairs of labels; the steps of the first are compared with those of the second.
    """

    title: str
    description: str
    settings: tuple[Setting, ...]
    base: Literal["preset", "sparing", "defaults"] = "preset"
    short: bool = False
    common_budget: Budget | None = None
    tasks: tuple[str, ...] = WITH_PRESETS
    compared: tuple[tuple[str, str], ...] = ()

    def budget(self, task: Task) -> Budget:
        """Returns the budget of each run of a task."""
        if self.common_budget is not None:
            return self.common_budget
        if self.base != "preset":
            return task.short_budget if self.short else task.budget
        total_steps = build(task.settings).run.total_steps
        assert total_steps is not None
        return Budget(total_steps, task.budget.interval_steps)

    def part(self, labels: Set[str]) -> "Experiment":
        """Returns the part with these settings: published runs may lack one that was added later."""
        settings = tuple(setting for setting in self.settings if setting.label in labels)
        return replace(self, settings=settings, compared=tuple(pair for pair in self.compared if labels >= set(pair)))

    def configuration(self, task: Task, setting: Setting, seed: int) -> Config:
        """Returns the configuration of a run: the task's with the actors of the setting, and its changes."""
        values = task.by_id_alone if self.base == "defaults" else task.settings
        shipped, budget = build(values), self.budget(task)
        common: dict[str, Any] = {
            "run": {"seed": seed, "total_steps": budget.total_steps, "stop_at_return": None},
            "train": {"actors": setting.actors or 1},
            "evaluation": {"interval_steps": budget.interval_steps},
            "checkpoint": {"save_interval": budget.total_steps, "max_checkpoints": 1},
        }
        whole: dict[str, Any] = {
            "actor": {"environments": shipped.train.least_actors * shipped.actor.environments},
            "sampling": {"off_policy_degree": max(1, setting.lag or 0)},
        }
        changes = (task.sparing, setting.changes) if self.base == "sparing" else (setting.changes,)
        merged = merge(values, common, {} if setting.actors else whole, *map(tables, changes))
        config = build(merged)
        derived: dict[str, Any] = {
            "sampling": {},
            "ppo": {
                "epochs": round(config.ppo.epochs * setting.epochs_times),
                "minibatches": round(config.ppo.minibatches * setting.minibatches_times),
            },
        }
        if setting.actors:
            # A degree that changes with the time of waits would not repeat.
            derived["sampling"]["off_policy_degree"] = config.degree
        if not setting.replay:
            derived["sampling"] |= {"fresh_fraction": 1.0, "batch_segments": config.sampling.fresh_segments}
        return build(merge(merged, derived))


PRESETS = Experiment("Presets", "Every preset as it ships.", (Setting("as shipped"),))

EXECUTION = Experiment(
    "Execution",
    "The preset as it ships: direct gradient steps and estimates, and policies of actors in NumPy. With autograd:"
    " operation by operation in torch, in the learner and in the actors.",
    (
        Setting("direct"),
        Setting("autograd", {"learner": {"execution": "eager"}, "actor": {"inference": "torch"}}),
    ),
    # Its steps to the threshold vary most between seeds.
    tasks=("LunarLander-v3",),
    compared=(("direct", "autograd"),),
)

_LARGE: Changes = {"actor": {"environments": 16}, "sampling": {"batch_segments": 32, "fresh_fraction": 0.5}}

REPLAY = Experiment(
    "Replay",
    "One version between acting and training at most. Those with replay train on 4 fresh and 28 replayed segments per"
    " batch; those without on 4 or on 16 fresh ones, with as many gradient steps for each environment step.",
    (
        Setting("none, 16 fresh", _LARGE, replay=False, epochs_times=4.0),
        Setting("none, 4 fresh", replay=False, epochs_times=2.0, minibatches_times=0.5),
        Setting("uniform", {"sampling": {"alpha": 0.0, "half_life": math.inf}}),
        Setting("age without priority", {"sampling": {"alpha": 0.0}}),
        Setting("prioritized"),
    ),
    base="sparing",
    short=True,
    # A run of HalfCheetah takes a quarter of an hour.
    tasks=tuple(task for task in TASKS if task != "HalfCheetah-v5"),
    compared=(
        *(("prioritized", other) for other in ("none, 16 fresh", "none, 4 fresh", "uniform", "age without priority")),
        ("uniform", "none, 16 fresh"),
        ("age without priority", "none, 16 fresh"),
    ),
)

CORRECTIONS = {
    "none: plain PPO": {"v_trace": False, "clip_anchor": 1.0},
    "decoupled clip": {"v_trace": False, "clip_anchor": 0.0},
    "V-trace": {"v_trace": True, "clip_anchor": 1.0},
    "V-trace, decoupled clip": {"v_trace": True, "clip_anchor": 0.0},
    "V-trace, clip in between (default)": {},
}


def lags(*versions: int) -> Experiment:
    """Returns the study of corrections at each of these lags."""
    behind = [
        Setting(
            name,
            {**_LARGE, "ppo": changes},
            replay=False,
            minibatches_times=0.5,
            lag=lag,
            group=f"{lag} behind",
        )
        for lag in versions
        for name, changes in CORRECTIONS.items()
    ]
    return Experiment(
        "Forced lag",
        "No replay, 16 segments per batch; actors act with exactly the version that many behind the one in training.",
        (Setting("no lag", _LARGE, replay=False, minibatches_times=0.5), *behind),
        base="sparing",
    )


_KEPT = {"no lag", "none: plain PPO", "V-trace, clip in between (default)"}
"""Settings that are repeated for the masked and the recurrent task."""

_FEWER_LAG = replace(
    lags(8),
    # Half as many gradient steps for each environment step as with replay.
    settings=tuple(replace(setting, epochs_times=4.0) for setting in lags(8).settings if setting.name in _KEPT),
)

MASKED_LAG = replace(_FEWER_LAG, title="Forced lag with masks", tasks=(MASKED_TASK,))
RECURRENT_LAG = replace(_FEWER_LAG, title="Forced lag with memory", tasks=(RECURRENT_TASK,))

FURTHER_LAG = replace(
    lags(8, 16),
    title="Forced lag on other tasks",
    settings=tuple(
        replace(setting, epochs_times=4.0)
        for setting in lags(8, 16).settings
        if setting.name in _KEPT - {"none: plain PPO"}
    ),
    short=True,
    tasks=(
        "MountainCar-v0",
        "FrozenLake8x8-v1",
        "MiniGrid-DoorKey-5x5-v0",
        "LunarLanderContinuous-v3",
        "Hopper-v5",
    ),
)

BURN_IN = Experiment(
    "Burn-in",
    "No replay, 16 segments per batch; actors act with exactly the version that many behind the one in training.",
    (
        *(
            Setting(
                f"burn-in {rows}",
                {**_LARGE, "ppo": {"burn_in_steps": rows}},
                replay=False,
                epochs_times=4.0,
                minibatches_times=0.5,
                lag=lag,
                group=f"{lag} behind",
            )
            for lag in (1, 8)
            for rows in (0, 8)
        ),
    ),
    base="sparing",
    tasks=(RECURRENT_TASK,),
)

_FORMER_RATE: Changes = {"ppo": {"learning_rate": 3e-4, "learning_rate_schedule": "constant"}}
_HALF_FRESH: Changes = {"sampling": {"fresh_fraction": 0.5}}

_OTHER_DEFAULTS: dict[str, Changes] = {
    "former rate": _FORMER_RATE,
    "half of each batch fresh": _HALF_FRESH,
    "no bound on the KL": {"ppo": {"target_kl": None}},
    "age without priority": {"sampling": {"alpha": 0.0}},
    "raw observations": {"policy": {"normalise_observations": False}},
    "raw returns": {"policy": {"normalise_returns": False}},
}

DEFAULTS = Experiment(
    "Defaults",
    "Environments without a preset, with one default changed in each other column. The former rate is a constant 3e-4.",
    (Setting("defaults"), *(Setting(name, changes) for name, changes in _OTHER_DEFAULTS.items())),
    base="defaults",
    short=True,
    # A run of each other task takes minutes.
    tasks=(
        "CartPole-v1",
        "Pendulum-v1",
        "Acrobot-v1",
        "MountainCarContinuous-v0",
        "MountainCar-v0",
        MASKED_TASK,
        "LunarLanderContinuous-v3",
    ),
    compared=tuple(("defaults", name) for name in _OTHER_DEFAULTS),
)

_ACTORS = (4, 16, 64)
_SIZES: dict[str, tuple[Changes, int | None]] = {
    "derived, new data": ({}, 1),
    "derived, old data": ({}, None),
    "a window of each": ({"sampling": {"off_policy_degree": 1}}, 1),
}

SCALE = Experiment(
    "Actors",
    "Environments without a preset, with 8 environments per actor. Derived batches, with data that is one version old,"
    " as where training is slower than collection, or as old as the largest degree allows, as where it is faster; and"
    " batches with a window of each actor, as up to release 0.2.0.",
    (
        Setting("1 actor", actors=1, lag=1),
        Setting("2 actors", actors=2, lag=1),
        *(
            Setting(f"{count} actors", changes, actors=count, lag=lag, group=group)
            for group, (changes, lag) in _SIZES.items()
            for count in _ACTORS
        ),
    ),
    base="defaults",
    common_budget=Budget(60_000, 1_024),
    tasks=("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0"),
    compared=(
        ("1 actor", "2 actors"),
        *((f"{group}, {count} actors", "2 actors") for group in _SIZES for count in _ACTORS[1:]),
    ),
)

EXPERIMENTS = {
    "defaults": DEFAULTS,
    "execution": EXECUTION,
    "presets": PRESETS,
    "replay": REPLAY,
    "scale": SCALE,
    "lag": lags(8, 16),
    "small-lag": lags(1, 2, 4),
    "masked-lag": MASKED_LAG,
    "recurrent-lag": RECURRENT_LAG,
    "further-lag": FURTHER_LAG,
    "burn-in": BURN_IN,
}
