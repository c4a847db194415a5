import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.algo.distributions import Categorical, DiagonalGaussian, SquashedGaussian

SEEDS = st.integers(0, 10_000)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0.0, 2.0, shape))


@given(seed=SEEDS)
def test_a_categorical_has_the_log_probability_entropy_and_mode_of_torchs(seed: int) -> None:
    logits = normal(seed, 4, 3, 5)
    action = torch.from_numpy(np.random.default_rng(seed).integers(0, 5, (4, 3)))
    theirs: Any = torch.distributions.Categorical(logits=logits)
    ours = Categorical.of_logits(logits)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), theirs.mode)


@given(seed=SEEDS)
def test_a_gaussian_has_the_log_probability_entropy_and_mode_of_torchs(seed: int) -> None:
    mean, log_std, action = normal(seed, 4, 3, 2), normal(seed + 1, 2), normal(seed + 2, 4, 3, 2)
    theirs: Any = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    ours = DiagonalGaussian(mean, log_std)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert torch.equal(ours.mode(), theirs.mode)


def test_gradients_of_a_gaussians_log_probability_are_torchs() -> None:
    mean, log_std = normal(0, 6, 2).requires_grad_(), normal(1, 2).requires_grad_()
    action = normal(2, 6, 2)
    theirs: Any = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    expected = torch.autograd.grad(theirs.log_prob(action).sum(), [mean, log_std])
    found = torch.autograd.grad(DiagonalGaussian(mean, log_std).log_prob(action).sum(), [mean, log_std])
    torch.testing.assert_close(found, expected)


@given(probabilities=st.lists(st.integers(1, 100), min_size=2, max_size=7))
def test_evenly_spread_noise_gives_each_action_its_share(probabilities: list[int]) -> None:
    count = 4096
    share = np.array(probabilities) / sum(probabilities)
    distribution = Categorical.of_logits(torch.from_numpy(np.log(share)).float().expand(count, -1))
    noise = ((torch.arange(count) + 0.5) / count)[:, None]
    frequency = np.bincount(distribution.sample(noise).numpy(), minlength=len(share)) / count
    # An interval of length p holds p * count grid points, give or take one.
    np.testing.assert_allclose(frequency, share, atol=1.1 / count)


def test_independent_uniform_noise_gives_each_action_its_share() -> None:
    count, share = 100_000, np.array([0.5, 0.3, 0.15, 0.05])
    distribution = Categorical.of_logits(torch.from_numpy(np.log(share)).float().expand(count, -1))
    noise = torch.from_numpy(np.random.default_rng(0).random((count, 1), np.float32))
    frequency = np.bincount(distribution.sample(noise).numpy(), minlength=4) / count
    assert (np.abs(frequency - share) < 4.0 * np.sqrt(share * (1.0 - share) / count)).all()


@pytest.mark.parametrize(("noise", "action"), [(0.0, 1), (0.49, 1), (0.51, 3), (1.0 - 2.0**-24, 3)])
def test_an_impossible_action_is_never_sampled(noise: float, action: int) -> None:
    logits = torch.tensor([-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf])
    # The cumulative probability reaches 1 before the last, impossible action.
    assert Categorical.of_logits(logits).sample(torch.tensor([noise])).item() == action


def test_gaussian_samples_have_its_mean_and_deviation() -> None:
    count = 200_000
    mean, log_std = torch.tensor([1.0, -3.0]), torch.tensor([0.5, -1.0])
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal((count, 2), np.float32))
    samples = DiagonalGaussian(mean.expand(count, -1), log_std).sample(noise)
    std = log_std.exp()
    assert ((samples.mean(0) - mean).abs() < 4.0 * std / count**0.5).all()
    assert ((samples.std(0) - std).abs() < 4.0 * std / (2.0 * count) ** 0.5).all()


def test_without_noise_a_gaussian_sample_is_the_mode() -> None:
    distribution = DiagonalGaussian(normal(0, 3, 2), normal(1, 2))
    assert torch.equal(distribution.sample(torch.zeros(3, 2)), distribution.mode())


@pytest.mark.parametrize("mean", [-3.0, -0.4, 0.0, 1.5])
@pytest.mark.parametrize("log_std", [-3.0, -1.0, 0.0, 0.7])
def test_a_squashed_gaussian_has_the_entropy_of_what_comes_out(mean: float, log_std: float) -> None:
    gaussian = DiagonalGaussian(torch.tensor([mean, mean], dtype=torch.float64), torch.tensor([log_std, log_std]))
    distribution = SquashedGaussian(gaussian, torch.tensor([True, False]))
    # -E[log p] by sums over a fine grid of u, where p is the density of tanh(u) by the change of variables.
    deviation = math.exp(log_std)
    u = torch.linspace(mean - 9 * deviation, mean + 9 * deviation, 40_001, dtype=torch.float64)
    log_p = torch.distributions.Normal(mean, deviation).log_prob(u)
    squashed = -(log_p.exp() * (log_p - torch.log1p(-(torch.tanh(u) ** 2)).clamp(min=-700.0))).sum() * (u[1] - u[0])
    assert distribution.entropy().item() == pytest.approx(squashed.item() + gaussian.entropy().item() / 2, abs=1e-3)


def test_squashing_leaves_log_probabilities_to_what_is_before_it() -> None:
    gaussian = DiagonalGaussian(torch.tensor([0.3, -2.0]), torch.tensor([0.1, 0.4]))
    distribution = SquashedGaussian(gaussian, torch.tensor([True, True]))
    action = distribution.sample(torch.tensor([0.5, -0.5]))
    assert torch.equal(action, gaussian.sample(torch.tensor([0.5, -0.5])))
    assert distribution.log_prob(action) == gaussian.log_prob(action)
    assert torch.equal(distribution.mode(), gaussian.mode())


def test_the_entropy_of_what_comes_out_has_a_finite_gradient_far_outside() -> None:
    mean = torch.tensor([40.0, -40.0], requires_grad=True)
    SquashedGaussian(DiagonalGaussian(mean, torch.zeros(2)), torch.tensor([True, True])).entropy().backward()
    assert mean.grad is not None
    # Towards the middle, at the slope of log(1 - tanh^2) where that is a straight line.
    torch.testing.assert_close(mean.grad, torch.tensor([-2.0, 2.0]))
