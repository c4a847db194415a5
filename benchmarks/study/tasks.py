"""The tasks of the study: environments with their settings and budgets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.returns import RANDOM_RETURNS, REPORTED_RETURNS
from penstock.config import build
from penstock.presets import preset_values

Changes = Mapping[str, Mapping[str, Any]]

MASKED_TASK = "Taxi-v4"
RECURRENT_TASK = "HiddenVelocityCartPole-v0"


@dataclass(frozen=True, slots=True)
class Budget:
    """Environment steps of a run, and between its evaluations."""

    total_steps: int
    interval_steps: int


@dataclass(frozen=True, slots=True)
class Task:
    """An environment with its settings.

    Attributes:
        preset: Name of the preset; None: the environment has none.
        budget, short_budget: Budgets of a run; the short one suffices if steps are used efficiently.
        random_return, reference_return: Returns with score 0 and 1: a random policy's mean return, and the return of
            rl-zoo's PPO or, without a preset, the highest possible mean.
        sparing: Changes to the settings for environments whose steps cost more than training.
        own: Settings of an environment without a preset.
    """

    preset: str | None
    budget: Budget
    short_budget: Budget
    random_return: float
    reference_return: float
    sparing: Changes
    own: Changes = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, object]:
        """Nested values of its configuration: its own, or those of the preset."""
        return tables(self.own) if self.preset is None else preset_values(self.preset)

    @property
    def by_id_alone(self) -> dict[str, object]:
        """Nested values without any setting that affects training: the environment and its evaluation."""
        config = build(self.settings)
        return {
            "environment": {"id": config.environment.id},
            "evaluation": {"threshold": config.evaluation.threshold, "episodes": config.evaluation.episodes},
        }

    @property
    def threshold(self) -> float:
        """Mean return at which the task is solved."""
        threshold = build(self.settings).evaluation.threshold
        assert threshold is not None
        return threshold

    def score(self, value: float) -> float:
        """Returns the score of a return: 0 for the random policy, 1 for the reference."""
        return (value - self.random_return) / (self.reference_return - self.random_return)


def tables(changes: Changes) -> dict[str, object]:
    """Returns changes as the nested values of a configuration."""
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
        RANDOM_RETURNS["CartPole-v1"],
        REPORTED_RETURNS["CartPole-v1"],
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
        RANDOM_RETURNS["Pendulum-v1"],
        REPORTED_RETURNS["Pendulum-v1"],
        _sparing(64, learning_rate=1e-3, epochs=10, minibatches=8),
    ),
    "Acrobot-v1": Task(
        "acrobot",
        Budget(300_000, 8_192),
        Budget(30_000, 1_024),
        RANDOM_RETURNS["Acrobot-v1"],
        REPORTED_RETURNS["Acrobot-v1"],
        _sparing(32, minibatches=8),
    ),
    "MountainCarContinuous-v0": Task(
        "mountain_car",
        Budget(50_000, 2_048),
        Budget(15_000, 512),
        RANDOM_RETURNS["MountainCarContinuous-v0"],
        REPORTED_RETURNS["MountainCarContinuous-v0"],
        _sparing(32, learning_rate=3e-4, learning_rate_schedule="constant", minibatches=8),
    ),
    "LunarLander-v3": Task(
        "lunar_lander",
        Budget(200_000, 8_192),
        Budget(200_000, 8_192),
        RANDOM_RETURNS["LunarLander-v3"],
        REPORTED_RETURNS["LunarLander-v3"],
        _sparing(128, minibatches=16),
    ),
    "HalfCheetah-v5": Task(
        "half_cheetah",
        Budget(1_000_000, 51_200),
        Budget(300_000, 20_480),
        RANDOM_RETURNS["HalfCheetah-v5"],
        REPORTED_RETURNS["HalfCheetah-v5"],
        _sparing(32, minibatches=4),
    ),
    MASKED_TASK: Task(
        None,
        Budget(50_000, 5_000),
        Budget(30_000, 3_000),
        RANDOM_RETURNS[MASKED_TASK],
        7.93,
        _sparing(
            32,
            learning_rate=5e-3,
            learning_rate_schedule="linear",
            trace_decay=0.95,
            entropy_coefficient=0.05,
            entropy_schedule="linear",
            epochs=2,
            minibatches=4,
        ),
        {
            "environment": {"id": MASKED_TASK},
            "train": {"actors": 1},
            # An episode that never ends has a return of -200, which alone lowers the mean of 20 episodes by 10.
            "evaluation": {"threshold": 5.0},
            "policy": {"encoders": {"observation": "one_hot"}},
        },
    ),
    RECURRENT_TASK: Task(
        None,
        Budget(60_000, 3_000),
        Budget(30_000, 2_048),
        RANDOM_RETURNS[RECURRENT_TASK],
        500.0,
        _sparing(
            32,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            trace_decay=0.95,
            epochs=2,
            minibatches=4,
        ),
        {
            "environment": {"id": f"examples.hidden_velocity:{RECURRENT_TASK}"},
            "train": {"actors": 1},
            "evaluation": {"threshold": 475.0},
            "policy": {"memory": "gru", "memory_size": 32, "activation": "relu"},
        },
    ),
}


def _without_preset(env_id: str, threshold: float, **sections: Mapping[str, Any]) -> Changes:
    return {
        "environment": {"id": env_id},
        "train": {"actors": 1},
        **sections,
        "evaluation": {"threshold": threshold, **sections.get("evaluation", {})},
    }


TASKS |= {
    "MountainCar-v0": Task(
        None,
        Budget(100_000, 2_048),
        Budget(30_000, 512),
        RANDOM_RETURNS["MountainCar-v0"],
        REPORTED_RETURNS["MountainCar-v0"],
        _sparing(32, learning_rate=1e-3, learning_rate_schedule="constant", trace_decay=0.98, minibatches=8),
        _without_preset("MountainCar-v0", -110.0),
    ),
    "FrozenLake8x8-v1": Task(
        None,
        Budget(200_000, 4_096),
        Budget(100_000, 2_048),
        RANDOM_RETURNS["FrozenLake8x8-v1"],
        # The best policy reaches the goal in about 9 of 10 episodes within their 200 steps.
        0.9,
        _sparing(
            32,
            learning_rate=2e-3,
            learning_rate_schedule="linear",
            entropy_coefficient=0.01,
            entropy_schedule="linear",
            epochs=2,
            minibatches=4,
        ),
        _without_preset("FrozenLake8x8-v1", 0.7, evaluation={"episodes": 100}),
    ),
    "MiniGrid-DoorKey-5x5-v0": Task(
        None,
        Budget(100_000, 2_048),
        Budget(60_000, 2_048),
        RANDOM_RETURNS["MiniGrid-DoorKey-5x5-v0"],
        REPORTED_RETURNS["MiniGrid-DoorKey-5x5-v0"],
        _sparing(
            32,
            learning_rate=1e-3,
            learning_rate_schedule="constant",
            entropy_coefficient=0.01,
            epochs=4,
            minibatches=4,
        ),
        # As in rl-zoo. The convolutions that Penstock would choose take ten times as long.
        _without_preset("minigrid:MiniGrid-DoorKey-5x5-v0", 0.9, policy={"encoders": {"image": "flat"}}),
    ),
    "LunarLanderContinuous-v3": Task(
        None,
        Budget(200_000, 8_192),
        Budget(100_000, 4_096),
        RANDOM_RETURNS["LunarLanderContinuous-v3"],
        REPORTED_RETURNS["LunarLanderContinuous-v3"],
        _sparing(
            128,
            learning_rate=1e-3,
            learning_rate_schedule="linear",
            discount=0.999,
            trace_decay=0.98,
            epochs=4,
            minibatches=16,
        ),
        _without_preset("LunarLanderContinuous-v3", 200.0),
    ),
    "Hopper-v5": Task(
        None,
        Budget(300_000, 8_192),
        Budget(150_000, 6_144),
        RANDOM_RETURNS["Hopper-v5"],
        REPORTED_RETURNS["Hopper-v5"],
        _sparing(64, learning_rate=1e-3, learning_rate_schedule="linear", epochs=4, minibatches=8),
        _without_preset("Hopper-v5", 2_000.0, policy={"activation": "relu"}),
    ),
}

WITH_PRESETS = tuple(name for name, task in TASKS.items() if task.preset is not None)
