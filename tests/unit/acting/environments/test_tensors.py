"""Vector environments of tensors have the rows of others: on the CPU here, and on a GPU where there is one."""

import gymnasium
import numpy as np
import pytest
import torch

from penstock.acting.collector import Collector
from penstock.acting.environments.vectors import Environments, SameStepEnvironments
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import segment_schema
from penstock.errors import ConfigurationError, EnvironmentFailed
from tests.support.environments import tensor_pendulum
from tests.support.environments.made import make_environments
from tests.support.environments.tensor_pendulum import STEPS
from tests.support.environments.tiny import assignment
from tests.support.training.policies import fresh_weights

PENDULUM = f"{tensor_pendulum.__name__}:TensorPendulum"
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


def made(count: int, **kwargs: object) -> Environments:
    return make_environments(PENDULUM, count, kwargs=kwargs, vectorization="native")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("nested", [False, True])
def test_rows_are_those_of_gymnasiums_pendulum(device: str, nested: bool) -> None:
    environments = made(5, device=device, nested=nested)
    assert isinstance(environments, SameStepEnvironments)
    environments.reset([7] * 5)
    single = gymnasium.make("Pendulum-v1").unwrapped
    single.reset()
    generator, row = np.random.default_rng(0), environments.observation[0][1]
    single.state = np.array([np.arctan2(row[1], row[0]), row[2]])  # type: ignore[attr-defined]
    for step in range(2, STEPS + 1):
        action = generator.uniform(-2.0, 2.0, (5, 1)).astype(np.float32)
        expected, reward, *_ = single.step(action[1])
        outcome = environments.step((action,))
        np.testing.assert_allclose(environments.observation[0][1], expected, atol=2e-3)
        assert outcome.reward[1] == pytest.approx(float(reward), abs=2e-3)
        assert outcome.truncated[1] == (step == STEPS)
    # The policy acts on the first observation of the next episode.
    assert not np.allclose(environments.acting_observation[0][1], environments.observation[0][1])
    assert type(environments.observation[0]) is np.ndarray


def test_equal_seeds_begin_equal_episodes() -> None:
    first = []
    for seed in (3, 3, 2**40):
        environments = made(4)
        environments.reset([seed] * 4)
        first.append(environments.observation[0])
    assert np.array_equal(first[0], first[1]) and not np.array_equal(first[0], first[2])


@pytest.mark.parametrize("device", DEVICES)
def test_thousands_of_environments_fill_a_window(device: str) -> None:
    count = 2048
    environments = made(count, device=device)
    collector = Collector(
        environments, assignment(*range(count)), schema=segment_schema(environments.spec, 16), discount=0.9
    )
    columns = collector.collect(runner_of(fresh_weights(environments.spec))).columns
    episodes, steps = collector.take_episodes()
    truncated = columns.column("truncated").astype(bool)
    # Each episode that is truncated loses its next step, which is hidden.
    assert len(episodes) == truncated.sum() > count * 16 // STEPS - count // 10
    assert steps == count * 16 - (~columns.column("valid").astype(bool)).sum()


def test_a_truncation_without_its_final_observation_is_a_failure() -> None:
    environments = made(2, final=False)
    environments.reset([1, 1])
    with pytest.raises(EnvironmentFailed, match=r"without its last observation in .* add it in a wrapper"):
        for _ in range(STEPS):
            environments.step((np.zeros((2, 1), np.float32),))


def test_a_class_of_vector_environments_is_made_by_default_and_has_no_single_form() -> None:
    assert isinstance(make_environments(PENDULUM, 2, kwargs={}, vectorization="auto"), SameStepEnvironments)
    with pytest.raises(ConfigurationError, match=r"set environment\.vectorization to auto, environment\.vary"):
        make_environments(PENDULUM, 2, kwargs={}, vectorization="sync")
