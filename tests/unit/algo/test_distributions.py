import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.algo.distributions import Categorical, DiagonalGaussian, Joint, MultiCategorical, SquashedGaussian

SEEDS = st.integers(0, 10_000)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0.0, 2.0, shape))


@given(seed=SEEDS)
def test_a_categorical_has_the_log_probability_entropy_and_mode_of_torch(seed: int) -> None:
    logits = normal(seed, 4, 3, 5)
    action = torch.from_numpy(np.random.default_rng(seed).integers(0, 5, (4, 3)))
    reference: Any = torch.distributions.Categorical(logits=logits)
    distribution = Categorical.of_logits(logits)
    torch.testing.assert_close(distribution.log_prob(action), reference.log_prob(action))
    torch.testing.assert_close(distribution.entropy(), reference.entropy())
    assert torch.equal(distribution.mode(), reference.mode)


@given(seed=SEEDS)
def test_a_gaussian_has_the_log_probability_entropy_and_mode_of_torch(seed: int) -> None:
    mean, log_std, action = normal(seed, 4, 3, 2), normal(seed + 1, 2), normal(seed + 2, 4, 3, 2)
    reference: Any = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    distribution = DiagonalGaussian(mean, log_std)
    torch.testing.assert_close(distribution.log_prob(action), reference.log_prob(action))
    torch.testing.assert_close(distribution.entropy(), reference.entropy())
    assert torch.equal(distribution.mode(), reference.mode)


def test_the_log_probability_of_a_gaussian_has_the_gradient_of_torch() -> None:
    mean, log_std = normal(0, 6, 2).requires_grad_(), normal(1, 2).requires_grad_()
    action = normal(2, 6, 2)
    reference: Any = torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)
    expected = torch.autograd.grad(reference.log_prob(action).sum(), [mean, log_std])
    found = torch.autograd.grad(DiagonalGaussian(mean, log_std).log_prob(action).sum(), [mean, log_std])
    torch.testing.assert_close(found, expected)


@given(probabilities=st.lists(st.integers(1, 100), min_size=2, max_size=7))
def test_evenly_spread_noise_samples_each_action_by_its_probability(probabilities: list[int]) -> None:
    count = 4096
    share = np.array(probabilities) / sum(probabilities)
    distribution = Categorical.of_logits(torch.from_numpy(np.log(share)).float().expand(count, -1))
    noise = ((torch.arange(count) + 0.5) / count)[:, None]
    frequency = np.bincount(distribution.sample(noise).numpy(), minlength=len(share)) / count
    # An interval of length p contains p * count grid points, plus or minus one.
    np.testing.assert_allclose(frequency, share, atol=1.1 / count)


def test_uniform_noise_samples_each_action_by_its_probability() -> None:
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


def test_gaussian_samples_have_the_mean_and_deviation_of_the_distribution() -> None:
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
def test_the_entropy_of_a_squashed_gaussian_is_that_of_the_squashed_action(mean: float, log_std: float) -> None:
    gaussian = DiagonalGaussian(torch.tensor([mean, mean], dtype=torch.float64), torch.tensor([log_std, log_std]))
    distribution = SquashedGaussian(gaussian.mean, gaussian.log_std, torch.tensor([True, False]))
    # -E[log p] as a sum over a fine grid of u, where p is the density of tanh(u) by the change of variables.
    deviation = math.exp(log_std)
    u = torch.linspace(mean - 9 * deviation, mean + 9 * deviation, 40_001, dtype=torch.float64)
    log_p = -0.5 * ((u - mean) / deviation) ** 2 - math.log(deviation * math.sqrt(2.0 * math.pi))
    squashed = -(log_p.exp() * (log_p - torch.log1p(-(torch.tanh(u) ** 2)).clamp(min=-700.0))).sum() * (u[1] - u[0])
    assert distribution.entropy().item() == pytest.approx(squashed.item() + gaussian.entropy().item() / 2, abs=1e-3)


def test_log_probabilities_of_a_squashed_gaussian_are_those_before_squashing() -> None:
    gaussian = DiagonalGaussian(torch.tensor([0.3, -2.0]), torch.tensor([0.1, 0.4]))
    distribution = SquashedGaussian(gaussian.mean, gaussian.log_std, torch.tensor([True, True]))
    action = distribution.sample(torch.tensor([0.5, -0.5]))
    assert torch.equal(action, gaussian.sample(torch.tensor([0.5, -0.5])))
    assert distribution.log_prob(action) == gaussian.log_prob(action)
    assert torch.equal(distribution.mode(), gaussian.mode())


def test_the_entropy_of_a_saturated_action_has_a_finite_gradient() -> None:
    mean = torch.tensor([40.0, -40.0], requires_grad=True)
    torch.autograd.backward(SquashedGaussian(mean, torch.zeros(2), torch.tensor([True, True])).entropy())
    assert mean.grad is not None
    # The gradient points to the middle and is the slope of log(1 - tanh^2), which is linear there.
    torch.testing.assert_close(mean.grad, torch.tensor([-2.0, 2.0]))


TEMPERATURES = pytest.mark.parametrize("temperature", [0.3, 0.8, 2.0, 5.0])


@TEMPERATURES
def test_a_tempered_categorical_divides_its_logits_by_the_temperature(temperature: float) -> None:
    logits = [1.0, -2.0, 0.5, 3.0]
    weights = [math.exp(logit / temperature) for logit in logits]
    expected = [math.log(weight / sum(weights)) for weight in weights]
    tempered = Categorical.of_logits(torch.tensor(logits)).tempered(temperature)
    found = [tempered.log_prob(torch.tensor(action)).item() for action in range(4)]
    assert found == pytest.approx(expected, abs=1e-5)
    assert sum(map(math.exp, found)) == pytest.approx(1.0, abs=1e-6)


@TEMPERATURES
def test_each_choice_of_several_is_tempered(temperature: float) -> None:
    logits = normal(3, 6, 2, 4)
    tempered = MultiCategorical(Categorical.of_logits(logits)).tempered(temperature)
    assert torch.equal(tempered.choices.log_probs, Categorical.of_logits(logits).tempered(temperature).log_probs)
    assert not torch.equal(tempered.choices.log_probs, Categorical.of_logits(logits).log_probs)


@pytest.mark.parametrize("leaves", [1, 2, 3])
def test_an_action_has_a_sample_and_a_mode_of_each_leaf(leaves: int) -> None:
    gaussians = tuple(DiagonalGaussian(normal(leaf, 5, 2), normal(leaf + 9, 2)) for leaf in range(leaves))
    noise, joint = normal(20, 5, 2 * leaves), Joint(gaussians)
    samples = [each.sample(noise[:, 2 * leaf : 2 * leaf + 2]) for leaf, each in enumerate(gaussians)]
    for found, expected in ((joint.sample(noise), samples), (joint.mode(), [each.mode() for each in gaussians])):
        assert len(found) == leaves
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@TEMPERATURES
def test_samples_of_a_tempered_categorical_have_its_probabilities(temperature: float) -> None:
    count = 100_000
    tempered = Categorical.of_logits(torch.tensor([1.0, -2.0, 0.5, 3.0]).expand(count, -1)).tempered(temperature)
    noise = torch.from_numpy(np.random.default_rng(1).random((count, 1), np.float32))
    frequency = np.bincount(tempered.sample(noise).numpy(), minlength=4) / count
    share = tempered.log_probs[0].exp().numpy()
    assert (np.abs(frequency - share) <= 4.0 * np.sqrt(share * (1.0 - share) / count)).all()


def test_an_impossible_action_is_impossible_at_every_temperature() -> None:
    tempered = Categorical.of_logits(torch.tensor([0.0, -torch.inf, 1.0])).tempered(100.0)
    assert tempered.log_probs.isnan().sum() == 0
    assert tempered.log_prob(torch.tensor(1)).item() == -math.inf


@TEMPERATURES
@pytest.mark.parametrize("squashed", [False, True])
def test_a_tempered_gaussian_is_a_density_with_a_multiplied_deviation(temperature: float, squashed: bool) -> None:
    mean, log_std = 0.7, -0.4
    gaussian = DiagonalGaussian(torch.tensor([[mean]], dtype=torch.float64), torch.tensor([[log_std]]).double())
    policy = SquashedGaussian(gaussian.mean, gaussian.log_std, torch.tensor([True])) if squashed else gaussian
    tempered = policy.tempered(temperature)
    deviation = temperature * math.exp(log_std)
    grid = torch.linspace(mean - 10 * deviation, mean + 10 * deviation, 20_001, dtype=torch.float64)
    density = tempered.log_prob(grid[:, None]).exp()
    step = float(grid[1] - grid[0])
    assert float(density.sum()) * step == pytest.approx(1.0, abs=1e-6)
    assert float((density * (grid - mean) ** 2).sum()) * step == pytest.approx(deviation**2, rel=1e-5)
    expected = -0.5 * 1.5**2 - math.log(deviation * math.sqrt(2.0 * math.pi))
    assert tempered.log_prob(torch.tensor([mean + 1.5 * deviation])).item() == pytest.approx(expected, abs=1e-5)
    # Noise is multiplied by the tempered deviation, and the mode is unchanged.
    moved = tempered.sample(torch.tensor([[1.5]], dtype=torch.float64))
    assert moved.item() == pytest.approx(mean + 1.5 * deviation)
    assert torch.equal(tempered.mode(), policy.mode())


def test_the_deviation_of_each_observation_is_tempered() -> None:
    mean, log_std = normal(0, 5, 2), normal(1, 5, 2)
    tempered = DiagonalGaussian(mean, log_std).tempered(2.0)
    action = normal(2, 5, 2)
    reference: Any = torch.distributions.Independent(torch.distributions.Normal(mean, 2.0 * log_std.exp()), 1)
    torch.testing.assert_close(tempered.log_prob(action), reference.log_prob(action))


def test_temperature_1_returns_the_same_distribution() -> None:
    gaussian = DiagonalGaussian(normal(0, 6, 3).float(), normal(1, 3).float())
    categorical, squashed = (
        Categorical.of_logits(normal(2, 6, 4).float()),
        SquashedGaussian(gaussian.mean, gaussian.log_std, torch.ones(3) > 0),
    )
    several = MultiCategorical(Categorical.of_logits(normal(3, 6, 2, 4).float()))
    assert several.tempered(1.0) is several
    assert categorical.tempered(1.0) is categorical
    assert gaussian.tempered(1.0) is gaussian
    assert squashed.tempered(1.0).log_std is gaussian.log_std


def test_the_last_action_is_sampled_if_rounded_probabilities_sum_to_less_than_the_noise() -> None:
    noise = 1.0 - 2.0**-24
    distribution = Categorical.of_logits(torch.zeros(1, 1_000))
    assert distribution.log_probs.exp().cumsum(-1)[0, -1] <= noise
    assert distribution.sample(torch.tensor([[noise]])).item() == 999
