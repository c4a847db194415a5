"""Masks are exact: illegal actions have probability 0 and gradient 0, and are never drawn."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.algo.distributions import Categorical, MultiCategorical

DRAWS = {1: 100_000, 2: 2_000_000, 3: 2_000_000, 5: 2_000_000, 8: 2_000_000, 18: 1_500_000, 64: 400_000, 1000: 30_000}
DRAWS |= {361: 60_000, 6561: 10_000}
"""Number of draws by number of actions, 10^7 in total."""

ENDS = (0.0, 2.0**-24, 1.0 - 2.0**-23, 1.0 - 2.0**-24)
"""The two smallest and the two largest uniform numbers."""

ROWS = 50
"""Distributions per number of actions."""


def random_logits(random: np.random.Generator, rows: int, n: int) -> torch.Tensor:
    scale = random.choice([0.01, 1.0, 10.0], (rows, 1))
    return torch.from_numpy((random.standard_normal((rows, n)) * scale).astype(np.float32))


def random_masks(random: np.random.Generator, rows: int, n: int) -> torch.Tensor:
    """Returns masks, <bool>[rows, n], with at least one legal action, which may be the first or the last."""
    legal = random.random((rows, n)) < random.choice([0.0, 0.1, 0.5, 0.95, 1.0], (rows, 1))
    legal[np.arange(rows), random.choice([0, n - 1, *random.integers(n, size=2)], rows)] = True
    ends = random.random(rows) < 0.3
    legal[ends, : n - n // 3] |= ~legal[ends, : n - n // 3].any(-1, keepdims=True)
    # A mask that ends with illegal actions, where a cumulative sum below 1 would select them.
    legal[ends, n - n // 3 :] = False
    return torch.from_numpy(legal)


def temperatures(random: np.random.Generator, count: int) -> list[float]:
    return [1.0, 0.1, 10.0, *np.exp(random.uniform(math.log(0.1), math.log(10.0), count - 3)).tolist()]


def hard_noise(random: np.random.Generator, distribution: Categorical, draws: int) -> torch.Tensor:
    """Returns noise, <float32>[rows, draws, 1]: both ends, cumulative probabilities, and uniform numbers."""
    cumulative = distribution.log_probs.exp().cumsum(-1).clamp(max=ENDS[-1])
    rows, n = cumulative.shape
    at_borders = cumulative.gather(-1, torch.from_numpy(random.integers(n, size=(rows, draws // 4))))
    uniform = torch.from_numpy(random.random((rows, draws - draws // 4 - len(ENDS)), np.float32))
    return torch.cat([torch.tensor(ENDS).expand(rows, -1), at_borders, uniform], -1).unsqueeze(-1)


def hard_draws(n: int) -> Iterator[tuple[Categorical, torch.Tensor]]:
    """Yields masked distributions, [rows, n], with their draws, <int64>[rows, draws]."""
    random = np.random.default_rng(n)
    for temperature in temperatures(random, 5):
        distribution = Categorical.of_logits(random_logits(random, ROWS, n), random_masks(random, ROWS, n))
        distribution = distribution.tempered(temperature)
        noise = hard_noise(random, distribution, DRAWS[n] // ROWS // 5)
        assert distribution.legal is not None
        aligned = Categorical(distribution.log_probs.unsqueeze(1), distribution.legal.unsqueeze(1))
        yield distribution, aligned.sample(noise)


@pytest.mark.parametrize("n", DRAWS)
def test_no_illegal_action_is_drawn(n: int) -> None:
    for distribution, actions in hard_draws(n):
        assert distribution.legal is not None
        assert distribution.legal.gather(-1, actions).all()
        # A drawn action has a finite log probability, so that ratios are finite.
        assert distribution.log_probs.gather(-1, actions).isfinite().all()
        assert distribution.legal.gather(-1, distribution.mode().unsqueeze(-1)).all()


def test_ten_million_actions_are_drawn() -> None:
    assert sum(DRAWS.values()) >= 10_000_000


def test_the_last_legal_action_is_drawn_if_rounded_probabilities_sum_to_less_than_the_noise() -> None:
    legal = torch.arange(1_500) < 1_000
    distribution = Categorical.of_logits(torch.zeros(1_500), legal)
    assert distribution.log_probs.exp().cumsum(-1)[-1] <= ENDS[-1]
    assert distribution.sample(torch.tensor([ENDS[-1]])).item() == 999


@pytest.mark.parametrize(("noise", "action"), [(0.0, 0), (0.5, 2), (0.5 + 2.0**-24, 2), (ENDS[-1], 2)])
def test_no_illegal_action_is_drawn_if_rounding_raises_the_cumulative_sum_there(noise: float, action: int) -> None:
    # A parallel sum adds other terms for each element. The illegal actions 1 and 3 have the effect of such a rounding.
    rounded = torch.tensor([0.5, 2.0**-23, 0.5 - 2.0**-22, 2.0**-23]).log()
    assert Categorical(rounded, torch.tensor([True, False, True, False])).sample(torch.tensor([noise])).item() == action


@given(n=st.integers(1, 40), seed=st.integers(0, 10_000))
def test_a_mask_of_ones_changes_no_result(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    logits, noise = random_logits(random, 30, n), torch.from_numpy(random.random((30, 1), np.float32))
    plain, masked = Categorical.of_logits(logits), Categorical.of_logits(logits, torch.ones(30, n) > 0)
    assert torch.equal(plain.sample(noise), masked.sample(noise))
    assert torch.equal(plain.log_probs, masked.log_probs)
    assert torch.equal(plain.entropy(), masked.entropy())


@given(
    n=st.sampled_from([1, 2, 3, 7, 40, 300]), seed=st.integers(0, 10_000), temperature=st.sampled_from([0.1, 1.0, 4.0])
)
def test_a_masked_distribution_is_that_of_the_legal_actions_alone(n: int, seed: int, temperature: float) -> None:
    random = np.random.default_rng(seed)
    logits, legal = random_logits(random, 6, n).requires_grad_(), random_masks(random, 6, n)
    masked = Categorical.of_logits(logits, legal).tempered(temperature)
    action = masked.sample(torch.from_numpy(random.random((6, 1), np.float32)))
    weights = torch.from_numpy(random.standard_normal((2, 6)))
    found = torch.stack([masked.log_prob(action), masked.entropy()])
    (gradient,) = torch.autograd.grad((found * weights).sum(), logits)
    for row in range(6):
        numbers = legal[row].nonzero().squeeze(-1)
        own = logits[row, numbers].detach().double().requires_grad_()
        alone: Any = torch.distributions.Categorical(logits=own / temperature)
        place = (numbers == action[row]).nonzero().squeeze()
        expected = torch.stack([alone.log_prob(place), alone.entropy()])
        torch.testing.assert_close(found[:, row].double(), expected, rtol=2e-5, atol=2e-5)
        (slope,) = torch.autograd.grad((expected * weights[:, row]).sum(), own)
        torch.testing.assert_close(gradient[row, numbers].double(), slope, rtol=2e-4, atol=2e-4)
    assert (masked.log_probs[~legal] == -math.inf).all()
    assert (masked.log_probs.exp()[~legal] == 0.0).all()
    assert (gradient[~legal] == 0.0).all()


def test_the_entropy_of_a_single_legal_action_is_0_with_gradient_0() -> None:
    logits = torch.tensor([[3.0, -50.0, 2.0]], requires_grad=True)
    entropy = Categorical.of_logits(logits, torch.tensor([False, True, False])).entropy()
    (gradient,) = torch.autograd.grad(entropy.sum(), logits)
    assert entropy.item() == 0.0
    assert (gradient == 0.0).all()


def test_probabilities_that_underflow_have_a_finite_entropy_and_gradient() -> None:
    logits = torch.tensor([[0.0, -300.0, 5.0]], requires_grad=True)
    distribution = Categorical.of_logits(logits, torch.tensor([True, True, False]))
    (gradient,) = torch.autograd.grad(distribution.entropy().sum(), logits)
    assert distribution.entropy().item() == 0.0
    assert gradient.isfinite().all()


def surprise(actions: torch.Tensor, share: torch.Tensor) -> float:
    """Returns the chi-square statistic of drawn actions as a standard normal number (Wilson and Hilferty 1931)."""
    possible = share > 0.0
    expected = share[possible].double() * actions.numel()
    observed = torch.bincount(actions, minlength=share.numel())[possible]
    statistic = ((observed - expected) ** 2 / expected).sum().item()
    freedom = max(expected.numel() - 1, 1)
    spread = 2.0 / (9.0 * freedom)
    return float(((statistic / freedom) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread))


@pytest.mark.parametrize(("n", "temperature"), [(2, 1.0), (5, 0.5), (18, 1.0), (100, 3.0)])
def test_legal_actions_are_drawn_by_their_probabilities(n: int, temperature: float) -> None:
    random = np.random.default_rng(n)
    legal = torch.from_numpy(random.random(n) < 0.6) | (torch.arange(n) == n // 2)
    logits = torch.from_numpy(random.standard_normal(n).astype(np.float32))
    distribution = Categorical.of_logits(logits, legal).tempered(temperature)
    noise = torch.from_numpy(random.random((100_000, 1), np.float32))
    assert surprise(distribution.sample(noise), distribution.log_probs.exp()) < 4.5


def test_each_choice_is_drawn_by_its_probabilities_and_independently() -> None:
    random = np.random.default_rng(0)
    legal = torch.tensor([[True, True, False, True], [False, True, True, False], [True, True, True, True]])
    logits = torch.from_numpy(random.standard_normal((3, 4)).astype(np.float32))
    distribution = MultiCategorical(Categorical.of_logits(logits, legal))
    actions = distribution.sample(torch.from_numpy(random.random((200_000, 3), np.float32)))
    shares = distribution.choices.log_probs.exp()
    for choice in range(3):
        assert surprise(actions[:, choice], shares[choice]) < 4.5
    together = (shares[0][:, None, None] * shares[1][:, None] * shares[2]).reshape(-1)
    assert surprise(actions @ torch.tensor([16, 4, 1]), together) < 4.5
