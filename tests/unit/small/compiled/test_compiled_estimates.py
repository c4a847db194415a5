"""Estimates in compiled loops are those of torch."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from penstock.algo.network import Network
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.gradient_steps import Estimated, Steps
from penstock.small.compiled.estimates import EstimateSettings
from tests.support.training.training import make_batch, make_learner

OPTIONS: dict[str, list[Any]] = {
    "discount": [0.9, 0.99, -0.9],
    "trace_decay": [0.5, 0.95],
    "rho_clip": [0.5, 1.0, 2.0],
    "trace_clip": [0.5, 1.0, 2.0],
    "v_trace": [False, True],
    "clip_anchor": [0.0, 0.3, 1.0],
    "behaviour_weight_clip": [1.1, 5.0],
}
"""Values of the settings in [ppo] on which estimates depend."""
ABSURD = (math.nan, math.inf, -math.inf, 1e30, 1e7, 3e38, -1e9, 1e12)


def with_absurd_values(column: Tensor, count: int, seed: int) -> Tensor:
    """Returns a copy in which `count` random rows, [B, T, ...], hold absurd values."""
    generator, column = torch.Generator().manual_seed(seed), column.clone()
    for number in range(count):
        segment, step = (int(torch.randint(size, (), generator=generator)) for size in column.shape[:2])
        column[segment, step] = ABSURD[number % len(ABSURD)]
    return column


def changed(batch: TrainingBatch, spread: float, absurd: int, seed: int) -> TrainingBatch:
    """Returns the batch with data of another policy, some of whose values are absurd, and with random flags.

    In a batch of our own actors, a row that is not valid follows the end of an episode.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = spread * torch.randn(batch.reward.shape, generator=generator)

    def flags(share: float) -> Tensor:
        return torch.rand(batch.reward.shape, generator=generator) < share

    return dataclasses.replace(
        batch,
        terminated=flags(0.1),
        truncated=flags(0.1),
        valid=flags(0.9),
        observation=tuple(with_absurd_values(leaf, absurd, seed) for leaf in batch.observation),
        reward=with_absurd_values(batch.reward + noise, absurd, seed + 1),
        behaviour_log_prob=with_absurd_values(batch.behaviour_log_prob + noise, absurd, seed + 2),
    )


def assert_same(ours: Estimated, expected: Estimated) -> None:
    assert ours.usable.equal(expected.usable)
    assert (ours.fresh_count, ours.counted) == (expected.fresh_count, expected.counted)
    for name in ("correction", "priority", "error", "behaviour_weight"):
        torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=2e-4, atol=2e-5)
    for name in Steps.__slots__[2:-1]:
        torch.testing.assert_close(getattr(ours.steps, name), getattr(expected.steps, name), rtol=2e-4, atol=2e-5)
    assert ours.steps.usable is expected.steps.usable is None
    for mine, other in zip(ours.steps.columns, expected.steps.columns, strict=True):
        assert mine.shape == other.shape and mine.dtype == other.dtype
    torch.testing.assert_close(ours.steps.inputs.observation, expected.steps.inputs.observation)
    torch.testing.assert_close(ours.steps.action, expected.steps.action)


def test_every_setting_of_the_estimates_is_drawn() -> None:
    assert OPTIONS.keys() == {*EstimateSettings._fields} - {"largest_log", "largest_spread"}


@given(
    st.sampled_from(["CartPole-v1", "Pendulum-v1"]),
    st.booleans(),
    st.fixed_dictionaries({name: st.sampled_from(values) for name, values in OPTIONS.items()}),
    st.sampled_from([0.3, 3.0]),
    st.integers(0, 8),
    st.integers(0, 99),
)
def test_the_estimates_are_those_of_torch(
    env_id: str, returns: bool, options: dict[str, Any], spread: float, absurd: int, seed: int
) -> None:
    network = Network(hidden_sizes=(16, 16), normalise_returns=returns)
    eager, direct = (
        make_learner(env_id, network=network, execution=execution, **options) for execution in ("eager", "auto")
    )
    assert direct.execution == "direct"
    batch = changed(make_batch(env_id, segments=7, unroll_length=12, fresh=4), spread, absurd, seed)
    assert_same(direct.estimate(batch, 0.1), eager.estimate(batch, 0.1))


@pytest.mark.parametrize("scale", [1.0, 1e5, 1e9])
def test_a_row_is_absurd_beside_the_median_of_the_others(scale: float) -> None:
    network = Network(hidden_sizes=(16, 16), normalise_returns=False)
    eager, direct = (make_learner(network=network, execution=execution) for execution in ("eager", "auto"))
    batch = make_batch(segments=4, unroll_length=10)
    reward = scale * (1.0 + torch.arange(40.0).view(4, 10))
    reward[1, 3] = 1e11
    batch = dataclasses.replace(batch, reward=reward)
    found = direct.estimate(batch, 0.1)
    assert bool(found.usable[1, 3]) == (scale > 1.0)
    assert_same(found, eager.estimate(batch, 0.1))


def test_columns_may_be_views_of_larger_ones() -> None:
    direct = make_learner(execution="auto")
    batch = make_batch(segments=4, unroll_length=10)

    def spaced(column: Tensor) -> Tensor:
        return torch.stack([column, column], -1)[..., 0]

    views = {
        name: spaced(getattr(batch, name))
        for name in ("reward", "terminated", "truncated", "valid", "behaviour_log_prob")
    }
    assert not views["reward"].is_contiguous()
    assert_same(direct.estimate(dataclasses.replace(batch, **views), 0.1), direct.estimate(batch, 0.1))  # type: ignore[arg-type]
