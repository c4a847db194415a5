"""Spaces and extreme settings with which a run trains to its end, in one process, with finite results."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import penstock
from penstock.config import build, merge
from penstock.types.run import Weights
from tests.support.tiers import gate_of
from tests.support.training.single_process import train

SPACES: dict[str, Callable[[], gymnasium.Space[Any]]] = {
    "bools": lambda: Box(0, 1, (3,), np.bool_),
    "float16": lambda: Box(-6e4, 6e4, (2,), np.float16),
    "int16": lambda: Box(-9, 9, (2,), np.int16),
    "uint32": lambda: Box(0, 2**32 - 1, (2,), np.uint32),
    "int64": lambda: Box(-(10**9), 10**9, (2,), np.int64),
    "scalar": lambda: Box(-1.0, 1.0, (), np.float32),
    "one value": lambda: Box(2.0, 2.0, (2,), np.float32),
    "four dimensions": lambda: Box(-1.0, 1.0, (2, 1, 2, 2), np.float32),
    "one pixel": lambda: Box(0, 255, (1, 1, 3), np.uint8),
    "image of 12 channels": lambda: Box(0, 255, (36, 36, 12), np.uint8),
    "column of integers": lambda: Box(-5, 5, (6, 1), np.int32),
    "start below 0": lambda: Discrete(3, start=-5),
    "many": lambda: Discrete(10_000),
    "a million": lambda: Discrete(1_000_000),
    "choices with starts": lambda: MultiDiscrete([2, 3], start=[-4, 7]),
    "choices in two dimensions": lambda: MultiDiscrete(np.full((2, 2), 3), dtype=np.int16),
    "bits in two dimensions": lambda: MultiBinary((2, 3)),
    "names": lambda: Dict({"a.b": Discrete(2), "é ü": MultiBinary(2), "": Box(0, 1, (1,)), "reward": Discrete(2)}),
    "nested": lambda: Tuple(
        [Dict(a=Tuple([Discrete(2), Box(-1, 1, (6, 7), np.int8)])), Box(0, 255, (36, 40), np.uint8)]
    ),
}
ACTIONS: dict[str, Callable[[], gymnasium.Space[Any]]] = {
    "float64": lambda: Box(-3.0, 5.0, (2,), np.float64),
    "float16": lambda: Box(-1.0, 1.0, (2,), np.float16),
    "two sizes": lambda: Box(np.array([-1e-3, 0.0], np.float32), np.array([2e-3, 1e6], np.float32)),
    "one bound": lambda: Box(np.array([-np.inf, 7.0]), np.array([-7.0, np.inf]), dtype=np.float64),
    "scalar": lambda: Box(-1.0, 1.0, (), np.float32),
    "matrix": lambda: Box(-1.0, 1.0, (2, 3), np.float32),
    "tiny": lambda: Box(-1e-6, 1e-6, (1,), np.float32),
    "parts": lambda: Dict(a=MultiDiscrete([2, 3], dtype=np.uint8), b=Tuple([Box(-1, 1, (1,)), MultiBinary((2, 2))])),
    "choices": lambda: MultiDiscrete([2, 3]),
    "bits": lambda: MultiBinary(3),
    "nothing to choose": lambda: Discrete(1),
    "many": lambda: Discrete(100_000),
}
FEW_STEPS = {"policy": {"hidden_sizes": [2]}, "ppo": {"epochs": 1, "minibatches": 1}}
SETTINGS: dict[str, dict[str, Any]] = {
    "no discount": {"ppo": {"discount": 1.0, "trace_decay": 1.0}},
    "discount of 0": {"ppo": {"discount": 0.0, "trace_decay": 0.0}},
    "learning rate of 1": {"ppo": {"learning_rate": 1.0}},
    "large entropy bonus": {"ppo": {"entropy_coefficient": 1e6}},
    "no values": {"ppo": {"value_coefficient": 0.0}},
    "values alone": {"ppo": {"value_coefficient": 1e9}},
    "no clip": {"ppo": {"clip_range": 1e9}},
    "one environment": {"actor": {"environments": 1}},
    "segments of two steps": {"actor": {"unroll_length": 2}},
    "one step": {"run": {"total_steps": 1}},
    "largest seed": {"run": {"seed": 2**63 - 1}},
}


class Accepted(gymnasium.Env[Any, Any]):
    """Samples its observations, and asserts that its action is one of its space, which it may then change in place."""

    def __init__(self, seen: str = "scalar", acted: str = "matrix", spoils: bool = False) -> None:
        self._spoils = spoils
        self.observation_space, self.action_space, self._steps = SPACES[seen](), ACTIONS[acted](), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        # Without a seed the space would draw other numbers in each run.
        if seed is not None:
            self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        if self._spoils:
            action[...] = 0
        self._steps += 1
        return self.observation_space.sample(), 1.0, self._steps == 4, False, {}


gymnasium.register("Accepted-v0", f"{__name__}:Accepted", disable_env_checker=True)


def trains(folder: Path, settings: dict[str, Any], **kwargs: Any) -> list[Weights]:
    versions: list[Weights] = []
    base = {
        "environment": {"id": "Accepted-v0", "kwargs": kwargs},
        "policy": {"hidden_sizes": [8]},
        "actor": {"environments": 4, "unroll_length": 8},
        "sampling": {"batch_segments": 8, "fresh_fraction": 0.5},
        "evaluation": {"episodes": 2},
        "run": {"total_steps": 96},
    }
    outcome = train(build(merge(base, settings)), folder=folder / "run", watch_weights=versions.append)
    assert outcome.updates > 0 and outcome.curve and all(value == 4.0 for _, value in outcome.curve)
    env, policy = Accepted(**kwargs), penstock.load_policy(folder / "run")
    observation, _ = env.reset(seed=1)
    assert math.isfinite(policy.values(observation))
    for deterministic in (True, False):
        assert env.action_space.contains(policy.act(observation, deterministic=deterministic))
    return versions


@pytest.mark.parametrize(
    "space",
    gate_of(9, [*(space for space in SPACES if space != "a million"), "a million"]),
)
def test_observations_of_a_space_are_trained_on(space: str, tmp_path: Path) -> None:
    # The parameters of a million observations take most of the time of a gradient step.
    trains(tmp_path, FEW_STEPS if space == "a million" else {}, seen=space)


@pytest.mark.parametrize("space", gate_of(6, ACTIONS))
def test_actions_of_a_space_are_members_of_it(space: str, tmp_path: Path) -> None:
    trains(tmp_path, {}, acted=space)


@pytest.mark.parametrize("space", ["float64", "choices", "bits"])
def test_an_action_that_the_environment_changes_in_place_is_recorded_as_it_was(space: str, tmp_path: Path) -> None:
    spoilt, kept = (trains(tmp_path / str(spoils), {}, acted=space, spoils=spoils) for spoils in (True, False))
    assert [each.data for each in spoilt] == [each.data for each in kept]


@pytest.mark.parametrize("name", SETTINGS)
def test_extreme_settings_train_to_the_end(name: str, tmp_path: Path) -> None:
    trains(tmp_path, SETTINGS[name])
