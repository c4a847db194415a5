import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.algo.advantages import Estimates, estimate
from penstock.algo.network import Network
from penstock.algo.normalisation import RunningMoments
from penstock.types.statistics import Features
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy
from tests.support.training.policy_outputs import learn_moments


@given(seed=st.integers(0, 10_000), sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_moments_are_those_of_all_values(seed: int, sizes: list[int]) -> None:
    generator = np.random.default_rng(seed)
    parts = [generator.normal(generator.normal(0.0, 5.0), 2.0, (size, 3)) for size in sizes]
    moments = RunningMoments((3,))
    for part in parts:
        moments.update(torch.from_numpy(part))
    together = np.concatenate(parts)
    assert moments.count.item() == len(together)
    if len(together):
        np.testing.assert_allclose(moments.mean, together.mean(0), atol=1e-9)
        np.testing.assert_allclose(moments.variance, together.var(0), atol=1e-9)


def test_moments_of_scalars_are_those_of_all_values() -> None:
    moments = RunningMoments(())
    for part in ([1.0, 2.0], [3.0, 10.0, 4.0]):
        moments.update(torch.tensor(part))
    assert moments.mean.item() == pytest.approx(4.0)
    assert moments.variance.item() == pytest.approx(np.var([1.0, 2.0, 3.0, 10.0, 4.0]))


def test_small_deviations_around_a_large_mean_are_precise() -> None:
    values = 1e6 + np.random.default_rng(0).normal(size=(4096, 1))
    moments = RunningMoments((1,))
    for part in np.split(values, 64):
        moments.update(torch.from_numpy(part))
    np.testing.assert_allclose(moments.variance, values.var(0), rtol=1e-6)


def test_values_are_unchanged_before_the_first_update() -> None:
    moments, values = RunningMoments((3,)), torch.tensor([[-9.5, 0.0, 1.25]])
    assert torch.equal(moments.standardise(values), values)
    assert moments.scale().tolist() == [1.0, 1.0, 1.0]


def test_standardised_values_have_mean_zero_and_deviation_one() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal([5.0, -3.0], [0.1, 20.0], (10_000, 2)))
    moments = RunningMoments((2,))
    moments.update(values)
    standardised = moments.standardise(values.float())
    assert standardised.dtype == torch.float32
    torch.testing.assert_close(standardised.mean(0), torch.zeros(2), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(standardised.std(0), torch.ones(2), atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("unit", [1e-25, 1e-9, 1e-6, 1.0, 1e9])
@pytest.mark.parametrize("offset", [0.0, -3.0, 1e4])
def test_numbers_of_any_unit_are_standardised(unit: float, offset: float) -> None:
    values = (unit * np.random.default_rng(0).normal(offset, 1.0, (10_000, 2))).astype(np.float32)
    moments = RunningMoments((2,))
    for part in np.split(values, 10):
        moments.update(torch.from_numpy(part))
    deviation = moments.standardise(torch.from_numpy(values)).std(0)
    torch.testing.assert_close(deviation, torch.ones(2), atol=2e-3, rtol=0.0)


@pytest.mark.parametrize("constant", [0.0, 1e-30, 0.1, -7.3e5, 1e9, 1e14])
def test_constants_are_0_and_their_rounding_is_not_enlarged(constant: float) -> None:
    values = torch.full((1000, 1), constant)
    moments = RunningMoments((1,))
    for part in torch.split(values, 77):
        moments.update(part)
    assert (moments.standardise(values) == 0.0).all()
    assert moments.scale().isfinite().all()
    if constant:
        rounded = torch.nextafter(values, values.new_tensor(2e20))
        assert moments.standardise(rounded).abs().max() <= 1.3


def test_the_moments_of_earlier_releases_hide_small_variances() -> None:
    values = 1e-9 * torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    moments = RunningMoments((1,), Network().variance_epsilon)
    moments.update(values)
    assert moments.scale().item() == pytest.approx(1e4, rel=1e-3)


def test_small_rewards_are_scaled_as_large_ones() -> None:
    rewards = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    found = []
    for unit in (1e-12, 1e-9, 1.0, 1e12):
        network = Network(hidden_sizes=(4,), variance_epsilon=0.0)
        policy = fresh_policy(spec_of("Counting-v0"), network=network)
        learn_moments(policy, (torch.zeros(1000, 2),), unit * rewards)
        found.append(policy.scale_rewards(unit * rewards, torch.ones(1000, dtype=torch.bool), 0.99))
        torch.testing.assert_close(policy.unscale_values(found[-1]), unit * rewards, rtol=1e-4, atol=1e-4 * unit)
    for each in found:
        torch.testing.assert_close(each, found[2], rtol=1e-4, atol=1e-5)


def test_outliers_are_clipped_at_ten_deviations() -> None:
    moments = RunningMoments((1,))
    moments.update(torch.tensor([[-1.0], [1.0]]))
    assert moments.standardise(torch.tensor([[1e6], [-1e6]])).tolist() == [[10.0], [-10.0]]


@pytest.mark.parametrize("on", [True, False])
def test_a_policy_learns_the_moments_it_uses(on: bool) -> None:
    network = Network(hidden_sizes=(4,), normalise_observations=on, normalise_returns=on)
    policy = fresh_policy(spec_of("Counting-v0"), network=network)
    learn_moments(policy, (torch.tensor([[1.0, 2.0], [3.0, 4.0]]),), torch.tensor([10.0, 30.0]))
    count = 2.0 if on else 0.0
    assert policy.observation_moments.count.item() == count
    assert policy.return_moments.count.item() == count
    # The deviation of 10 and 30 is 10.
    scaled = policy.scale_rewards(torch.tensor([25.0, 1.0]), torch.tensor([True, False]), 0.9)
    assert scaled.tolist() == pytest.approx([2.5, 0.1] if on else [25.0, 1.0])
    assert policy.unscale_values(torch.tensor([0.5])).item() == pytest.approx(5.0 if on else 0.5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_values_are_relative_to_the_mean_of_the_first_returns_if_it_is_large(sign: float) -> None:
    policy = fresh_policy(spec_of("Counting-v0"))
    policy.begin_returns(sign * torch.tensor([1190.0, 1210.0]))
    policy.begin_returns(sign * torch.tensor([0.0, 20.0]))
    assert policy.return_offset.item() == sign * 1200.0
    deviation = 1.0 / policy.return_moments.scale()
    # The last reward of an episode is relative to the offset, and another one to what discounting takes from it.
    scaled = policy.scale_rewards(sign * torch.tensor([1225.0, 121.0]), torch.tensor([True, False]), 0.9)
    torch.testing.assert_close(scaled, sign * torch.tensor([25.0, 1.0]) / deviation)
    torch.testing.assert_close(policy.unscale_values(scaled), sign * torch.tensor([1225.0, 1201.0]))


def test_values_are_not_relative_to_a_mean_that_is_not_an_offset() -> None:
    policy = fresh_policy(spec_of("Counting-v0"))
    policy.begin_returns(torch.zeros(0))
    policy.begin_returns(torch.tensor([90.0, 110.0]) - 1.0)
    policy.begin_returns(torch.tensor([1e6, 1e6]))
    assert policy.return_offset.item() == 0.0


def test_moments_are_not_trained_by_gradients() -> None:
    policy = fresh_policy(spec_of("Counting-v0"))
    assert not any("moments" in name for name, _ in policy.named_parameters())


ABSURD = [3e38, -3e38, 1e30, 1e20, float("nan"), float("inf")]


@pytest.mark.parametrize("value", ABSURD)
@pytest.mark.parametrize("known", [True, False])
def test_an_absurd_value_does_not_change_the_scale_and_is_counted(value: float, known: bool) -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal([5.0, -3.0], [0.1, 20.0], (1000, 2)))
    disturbed, alone = RunningMoments((2,)), RunningMoments((2,))
    for part in [values[:500], values[500:]] if known else [values]:
        alone.update(part)
    parts = [values[:500], values[500:].clone()] if known else [values.clone()]
    parts[-1][3, 1] = value
    assert [disturbed.update(part).left_out for part in parts] == ([0, 1] if known else [1])
    torch.testing.assert_close(disturbed.scale(), alone.scale(), rtol=0.01, atol=0.0)
    torch.testing.assert_close(disturbed.mean, alone.mean, rtol=0.05, atol=0.0)


def test_a_change_of_all_values_and_a_rare_large_value_are_learnt_at_once() -> None:
    moments = RunningMoments(())
    moments.update(torch.randn(100, generator=torch.Generator().manual_seed(0)))
    assert moments.update(torch.full((60,), 1e9)).left_out == 0
    assert moments.scale() < 1e-7
    sparse = RunningMoments(())
    sparse.update(torch.zeros(100))
    first = torch.zeros(100)
    first[7] = 1e5
    update = sparse.update(first)
    assert (update.left_out, update.scale_change) == (0, 1.0)
    assert sparse.scale().item() == pytest.approx(1.0 / np.std([*[0.0] * 199, 1e5]), rel=1e-4)


@pytest.mark.parametrize(("value", "left_out"), [(0.99e6, 0), (-0.99e6, 0), (1.01e6, 1), (-1.01e6, 1)])
def test_a_rare_value_is_learnt_up_to_a_million_deviations(value: float, left_out: int) -> None:
    moments, values = RunningMoments(()), torch.zeros(100)
    values[7] = value
    # Before the first update the deviation counts as 1.
    assert moments.update(values).left_out == left_out


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_no_value_beyond_1e15_is_learnt(sign: float) -> None:
    moments = RunningMoments(())
    moments.update(torch.linspace(-1e14, 1e14, 100, dtype=torch.float64))
    values = torch.zeros(100, dtype=torch.float64)
    values[3], values[7] = sign * 0.99e15, sign * 1.01e15
    assert moments.update(values).left_out == 1


def test_a_batch_without_a_usable_value_does_not_change_the_mean() -> None:
    moments = RunningMoments(())
    moments.update(torch.tensor([4.0, 6.0]))
    assert moments.update(torch.full((10,), torch.inf)).left_out == 10
    assert moments.mean.item() == 5.0


def test_an_element_that_held_the_largest_float_is_learnt_once_it_holds_other_values() -> None:
    moments = RunningMoments((1,))
    assert moments.update(torch.full((10, 1), torch.finfo(torch.float32).max)).left_out == 10
    moments.update(torch.linspace(1.0, 3.0, 90)[:, None])
    assert 0.1 < moments.scale().item() < 10.0


def test_a_large_change_of_scale_is_returned() -> None:
    moments = RunningMoments((2,))
    generator = torch.Generator().manual_seed(0)
    assert moments.update(torch.randn(100, 2, generator=generator)).scale_change == 1.0
    change = moments.update(torch.randn(100, 2, generator=generator) * torch.tensor([1.0, 1000.0])).scale_change
    assert 500.0 < change < 1000.0


def test_the_scale_of_a_huge_variance_is_positive() -> None:
    moments = RunningMoments(())
    moments.variance.fill_(1e74)
    assert moments.scale().item() == pytest.approx(1e-37, rel=1e-3)


@pytest.mark.parametrize("offset", [0.0, 1e2, -1e4, 1e6])
def test_scaled_rewards_do_not_depend_on_an_offset(offset: float) -> None:
    policy, ended = fresh_policy(spec_of("CartPole-v1")), torch.ones(4, dtype=torch.bool)
    rewards = torch.tensor([-1.0, 1.0, -1.0, 1.0])
    policy.begin_returns(rewards + offset)
    torch.testing.assert_close(policy.scale_rewards(rewards + offset, ended, 0.99), rewards)


@pytest.mark.parametrize("reward", [1e3, -1e3])
def test_a_rare_reward_keeps_its_size(reward: float) -> None:
    policy, rewards = fresh_policy(spec_of("CartPole-v1")), torch.zeros(1000)
    rewards[7] = reward
    policy.begin_returns(rewards)
    scaled = policy.scale_rewards(rewards, torch.ones(1000, dtype=torch.bool), 0.99)
    torch.testing.assert_close(scaled, rewards / rewards.std(unbiased=False))
    assert scaled.abs().max() == pytest.approx(math.sqrt(1000.0), rel=1e-3)


@given(seed=st.integers(0, 1000), offset=st.floats(-100.0, 100.0))
def test_an_offset_changes_no_advantage(seed: int, offset: float) -> None:
    policy, generator = fresh_policy(spec_of("CartPole-v1")), torch.Generator().manual_seed(seed)
    policy.return_moments.variance.fill_(4.0)
    value, reward = torch.randn(3, 9, generator=generator), 5.0 * torch.randn(3, 8, generator=generator)
    terminated, truncated, usable = torch.rand(3, 3, 8, generator=generator) < torch.tensor([0.2, 0.2, 0.9]).view(
        3, 1, 1
    )

    def estimated(value: torch.Tensor) -> Estimates:
        return estimate(
            value=value,
            reward=policy.scale_rewards(reward, terminated, 0.9),
            terminated=terminated,
            truncated=truncated,
            usable=usable,
            log_ratio=torch.zeros(3, 8),
            discount=0.9,
            trace_decay=0.8,
            rho_clip=1.0,
            trace_clip=1.0,
        )

    plain = estimated(value)
    policy.return_offset.fill_(offset)
    relative = estimated(value - offset / 2.0)
    torch.testing.assert_close(relative.advantage, plain.advantage, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(relative.correction, plain.correction, rtol=1e-4, atol=1e-3)


def features_of(*columns: NDArray[np.float64]) -> Features | None:
    """Returns the features of moments that are updated with these columns, as float32, in parts."""
    moments = RunningMoments((len(columns),))
    for part in np.array_split(np.stack(columns, 1).astype(np.float32), 7):
        moments.update(torch.from_numpy(part))
    return moments.features()


def test_features_that_do_not_vary_or_vary_too_finely_for_float32_are_counted() -> None:
    normal = np.random.default_rng(1).normal(0.0, 1.0, 700)
    usual = (normal, 1e-9 * normal, 1e9 * normal, 1e4 + normal, np.where(normal > 2.0, 1.0, 0.0))
    constant = (0.0 * normal, 0.0 * normal + 0.1, 0.0 * normal - 1e9, 1e10 + normal)
    coarse = (4e6 + normal, -4e6 + normal, 1e9 + 100.0 * normal)
    assert features_of(*usual) == Features(5, 0, 0)
    assert features_of(*usual, *constant, *coarse) == Features(12, 4, 3)


def test_features_are_unknown_before_enough_values_and_without_numbers() -> None:
    assert features_of(np.zeros(99)) is None
    assert features_of(np.zeros(100)) == Features(1, 1, 0)
    moments = RunningMoments(())
    moments.update(torch.zeros(1000))
    assert moments.features() is None
