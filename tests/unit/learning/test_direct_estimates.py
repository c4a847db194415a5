"""Estimates in compiled loops are those of `Learner.estimate` in torch."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from helpers.training import make_batch, make_learner
from penstock.algo.network import Network
from penstock.learning.batches import TrainingBatch
from penstock.learning.gradient_steps import Estimated, Steps

ABSURD = (math.nan, math.inf, -math.inf, 1e30, 1e7, 3e38, -1e9, 1e12)


def with_absurd_values(column: Tensor, count: int, seed: int) -> Tensor:
    """Returns a copy in which `count` random rows, [B, T, ...], hold absurd values."""
    generator, column = torch.Generator().manual_seed(seed), column.clone()
    for number in range(count):
        segment, step = (int(torch.randint(size, (), generator=generator)) for size in column.shape[:2])
        column[segment, step] = ABSURD[number % len(ABSURD)]
    return column


def changed(batch: TrainingBatch, absurd: int, seed: int) -> TrainingBatch:
    """Returns the batch with data of another policy, some of whose values are absurd."""
    noise = 0.3 * torch.randn(batch.reward.shape, generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(
        batch,
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


@given(
    st.sampled_from(["CartPole-v1", "Pendulum-v1"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 8),
    st.integers(0, 99),
)
def test_the_estimates_are_those_of_torch(
    env_id: str, returns: bool, v_trace: bool, anchor: float, absurd: int, seed: int
) -> None:
    network = Network(hidden_sizes=(16, 16), normalise_returns=returns)
    eager, direct = (
        make_learner(env_id, network=network, execution=execution, v_trace=v_trace, clip_anchor=anchor)
        for execution in ("eager", "auto")
    )
    assert direct.execution == "direct"
    batch = changed(make_batch(env_id, segments=7, unroll_length=12, fresh=4), absurd, seed)
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
