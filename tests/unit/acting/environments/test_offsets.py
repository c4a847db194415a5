"""Numbers that float32 can't tell apart are seen as differences to offsets, wherever a policy acts."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import penstock
from penstock.acting.collector import Collector
from penstock.acting.environments.frames import with_frames
from penstock.acting.environments.offsets import find_offsets, offsets_of
from penstock.acting.environments.vectors import Environments
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.runners import runner_of
from penstock.acting.policies.trained import TrainedPolicy
from penstock.acting.values.spaces import segment_schema
from penstock.algo.network import Network
from penstock.config import Config, build
from penstock.errors import ConfigurationError
from penstock.local.environment_check import check_environment
from penstock.types.evaluation import EvaluationTask
from penstock.types.run import Weights
from tests.support.environments.made import checked, make_environments
from tests.support.environments.tiny import assignment
from tests.support.services.processes import WITH_HELPERS
from tests.support.training.policies import fresh_policy, weights_of
from tests.support.training.single_process import train

FAR = (4e6, -1.7e9, 0.0)
LENGTH = 8


class Far(gymnasium.Env[Any, Any]):
    """The action that a small difference beside large numbers asks for earns 1."""

    action_space = Discrete(2)

    def __init__(self, dtype: str = "float64", scale: float = 1.0, nested: bool = False) -> None:
        self._space = Box(-np.inf, np.inf, (3,), np.dtype(dtype).type)
        self.observation_space = Dict(a=Box(0, 255, (36, 36), np.uint8), b=self._space) if nested else self._space
        self._scale, self._nested, self._steps, self._right = scale, nested, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._steps = 0
        return self._observed(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = float(action == self._right)
        return self._observed(), reward, self._steps == LENGTH, False, {}

    def _observed(self) -> Any:
        self._right = int(self.np_random.integers(2))
        values = (self._scale * np.array(FAR) + 0.01 * self._right).astype(self._space.dtype)
        return {"a": np.zeros((36, 36), np.uint8), "b": values} if self._nested else values


gymnasium.register("Far-v0", f"{__name__}:Far", disable_env_checker=True)


def found(**kwargs: Any) -> tuple[float, ...]:
    """Returns the offsets that the check before a run finds."""
    return checked("Far-v0", [kwargs]).offsets


def made(frames: int = 1, **kwargs: Any) -> Environments:
    return with_frames(make_environments("Far-v0", 2, kwargs=kwargs), frames)


def weights_with(offsets: tuple[float, ...], environments: Environments) -> Weights:
    network = Network(hidden_sizes=(8,), observation_offsets=offsets)
    return weights_of(fresh_policy(environments.spec, network=network), 0)


def test_the_check_finds_large_numbers_that_hardly_change() -> None:
    assert found() == FAR == found(nested=True)


@pytest.mark.parametrize("kwargs", [{"dtype": "float32"}, {"scale": 0.0}, {"scale": 1e-6}])
def test_other_numbers_have_no_offsets(kwargs: dict[str, Any]) -> None:
    assert found(**kwargs) == ()


@pytest.mark.parametrize(
    ("values", "offsets"),
    [([5e4, 5e4 + 1.0], (5e4,)), ([5e3, 5e3], ()), ([1e6, 2e6], ()), ([1e6, -1e6], ()), ([1e12, 1e12 + 0.4], (1e12,))],
)
def test_an_offset_is_a_large_number_with_a_small_change(values: list[float], offsets: tuple[float, ...]) -> None:
    spec = made().spec
    rows = [(np.array([value, 0.0, 0.0]),) for value in values]
    assert find_offsets(spec, rows) == (offsets and (*offsets, 0.0, 0.0))


@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("nested", [False, True])
def test_segments_hold_the_differences(frames: int, nested: bool) -> None:
    environments = made(frames, nested=nested)
    weights = weights_with(FAR, environments)
    schema = segment_schema(environments.spec, 4)
    collector = Collector(environments, assignment(0, 1), schema=schema, discount=0.9)
    columns = collector.collect(runner_of(weights)).columns
    seen = columns.column("observation.b" if nested else "observation")
    assert set(np.unique(seen.round(6))) == {np.float32(0.0), np.float32(0.01)}
    assert collector.take_warning() == ""


@pytest.mark.parametrize("frames", [1, 3])
def test_a_trained_policy_and_an_evaluation_see_what_training_saw(frames: int) -> None:
    environments = made(frames)
    with_them, without = (weights_with(each, environments) for each in (FAR, ()))
    far = np.array([*FAR] * frames) + 0.01
    policy, plain = TrainedPolicy(with_them), TrainedPolicy(without)
    near = far - np.array([*FAR] * frames)
    assert policy.values(far) == plain.values(near.astype(np.float32))
    assert (policy.values(np.stack([far, far])) == plain.values(np.stack([near, near]))).all()
    assert abs(policy.values(far) - policy.values(far + 0.01)) > 0.0
    task = EvaluationTask(id=1, weights=with_them, episodes=2, deterministic=True, seed=1)
    result = evaluate(task, environments, lambda: False)
    assert result is not None and result.steps == (LENGTH, LENGTH)


@pytest.mark.parametrize("offsets", [(1.0,), (1.0,) * 4])
def test_offsets_for_another_number_of_numbers_are_refused(offsets: tuple[float, ...]) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^policy\.observation_offsets has \d numbers, and an observation of F"
    ):
        offsets_of(made().spec, offsets)


@pytest.mark.nightly
def test_a_configuration_gets_the_offsets_with_a_line_and_keeps_those_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", WITH_HELPERS["PYTHONPATH"])
    lines: list[str] = []
    config = build({"environment": {"id": f"{__file__}:Far"}})
    checked, _ = check_environment(config, lines.append)
    assert checked.policy.observation_offsets == FAR
    assert [
        line
        for line in lines
        if "2 of 3 numbers of an observation are stored as differences, the first to 4e+06" in line
    ]
    path = tmp_path / "config.toml"
    path.write_text(checked.to_toml())
    assert Config.load(path).policy.observation_offsets == FAR
    given = config.changed({"policy": {"observation_offsets": [0.0, 0.0, 1.0]}})
    assert check_environment(given, lines.append)[0].policy.observation_offsets == (0.0, 0.0, 1.0)


def test_small_differences_beside_large_numbers_are_learnt(tmp_path: Path) -> None:
    config = {
        "environment": {"id": "Far-v0"},
        "policy": {"observation_offsets": found()},
        "evaluation": {"episodes": 4, "interval_steps": 3000},
        "run": {"seed": 1, "total_steps": 3000},
    }
    assert train(build(config), folder=tmp_path / "run").curve[-1][1] == LENGTH
    policy = penstock.load_policy(tmp_path / "run")
    assert [int(policy.act(np.array(FAR) + 0.01 * right)) for right in (0, 1)] == [0, 1]
