"""Experts act as policies would: their actions, the noise on them, and its log probabilities."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock.acting.policies.experts import ExpertRunner
from penstock.acting.policies.randomness import Streams
from penstock.acting.values.spaces import ActionMap
from penstock.algo.distributions import Categorical, DiagonalGaussian
from penstock.algo.network import AT_BOUND, Network
from penstock.errors import ConfigurationError
from penstock.types.spaces import (
    BoxSpace,
    DiscreteSpace,
    EnvironmentSpec,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    Tree,
)

PLANE = Tree.of(BoxSpace("float32", (2,), (-1.0,), (1.0,)))
LOPSIDED = BoxSpace("float32", (2,), (-1.0, 0.0), (3.0, 10.0))
ROWS = 4_000


def spec(*spaces: Space, mask_bits: int = 0) -> EnvironmentSpec:
    """Returns a spec with these leaves of a Tuple as its action, or with the only one."""
    tree = Tree.of(*spaces) if len(spaces) == 1 else Tree(tuple(Leaf((at,), each) for at, each in enumerate(spaces)))
    return EnvironmentSpec("Test-v0", PLANE, tree, mask_bits=mask_bits)


def acted(
    expert: Callable[..., Any],
    of: EnvironmentSpec,
    *,
    noise: float = 0.0,
    rows: int = 1,
    network: Network | None = None,
    mask: NDArray[np.bool_] | None = None,
) -> tuple[list[NDArray[Any]], NDArray[np.float32], ExpertRunner]:
    """Returns the actions of all rows, [rows, ...] per leaf, and their log probabilities, <float32>[rows]."""
    runner = ExpertRunner(expert, of, network or Network(), noise)
    window = runner.begin(Streams(3, 1, np.array([0], np.uint32)).draw(runner.noise, 0, rows))
    observation = (np.array([[0.25, -0.5]], np.float32),)
    taken = [window.act(observation, mask=None if mask is None else mask[None]) for _ in range(rows)]
    return [np.concatenate(leaf) for leaf in zip(*taken, strict=True)], window.log_probs()[0], runner


def test_an_expert_sees_an_observation_as_make_gives_it_and_acts_in_the_units_of_the_environment() -> None:
    seen = []

    def expert(observation: NDArray[np.float32]) -> tuple[int, list[float]]:
        seen.append(observation)
        return 5, [1.0, 10.0]

    of = spec(DiscreteSpace(3, start=4), LOPSIDED)
    (choice, numbers), _, runner = acted(expert, of)
    np.testing.assert_array_equal(seen[0], [0.25, -0.5])
    assert choice.tolist() == [1] and choice.dtype == np.int64
    np.testing.assert_allclose(numbers, [[0.0, 1.0]])
    assert runner.clipped == 0 and not runner.has_log_probs


@pytest.mark.parametrize("squashes", [False, True])
def test_actions_come_back_from_the_map_of_policies_as_the_expert_gave_them(squashes: bool) -> None:
    network, wanted = Network(squash_actions=squashes), np.array([[2.5, 0.75]])
    of = spec(LOPSIDED)
    actions, _, _ = acted(lambda observation: wanted[0], of, network=network)
    (mapped,) = ActionMap(of.action, network)(tuple(actions))
    np.testing.assert_allclose(mapped.astype(float), wanted, rtol=1e-5)


def test_actions_outside_of_their_bounds_are_clipped_and_counted() -> None:
    (numbers,), _, runner = acted(lambda observation: [7.0, 5.0], spec(LOPSIDED), rows=3)
    np.testing.assert_allclose(numbers, [[1.0, 0.0]] * 3)
    assert runner.clipped == 3
    (numbers,), _, _ = acted(lambda observation: [7.0, 5.0], spec(LOPSIDED), network=Network(squash_actions=True))
    np.testing.assert_allclose(numbers, [[np.arctanh(AT_BOUND), 0.0]], rtol=1e-6)


def test_noise_on_numbers_is_gaussian_with_the_density_that_a_policy_would_have() -> None:
    (numbers,), log_probs, runner = acted(lambda observation: [1.0, 10.0], spec(LOPSIDED), noise=0.2, rows=ROWS)
    mean = torch.tensor([0.0, 1.0])
    expected = DiagonalGaussian(mean.expand(ROWS, 2), torch.full((ROWS, 2), 0.2).log())
    np.testing.assert_allclose(log_probs, expected.log_prob(torch.from_numpy(numbers)).numpy(), atol=1e-4)
    np.testing.assert_allclose(numbers.mean(0), mean, atol=4 * 0.2 / ROWS**0.5)
    np.testing.assert_allclose(numbers.std(0), 0.2, rtol=4 / (2 * ROWS) ** 0.5)
    assert runner.has_log_probs


def test_noise_on_choices_replaces_them_with_its_probability_by_legal_ones() -> None:
    legal = np.array([True, True, False, True, *[True] * 2])
    of = spec(MultiDiscreteSpace((2,), (4, 2), (0, 0)), mask_bits=6)
    (chosen,), log_probs, _ = acted(lambda observation, mask: [3, 0], of, noise=0.3, rows=ROWS, mask=legal)
    first, second = np.bincount(chosen[:, 0], minlength=4) / ROWS, np.bincount(chosen[:, 1], minlength=2) / ROWS
    probabilities = np.array([0.1, 0.1, 0.0, 0.8]), np.array([0.85, 0.15])
    np.testing.assert_allclose(first, probabilities[0], atol=4 * 0.4 / ROWS**0.5)
    np.testing.assert_allclose(second, probabilities[1], atol=4 * 0.36 / ROWS**0.5)
    parts = [
        Categorical(torch.from_numpy(each).float().log().expand(ROWS, -1)).log_prob(torch.from_numpy(chosen[:, at]))
        for at, each in enumerate(probabilities)
    ]
    np.testing.assert_allclose(log_probs, sum(parts), atol=1e-5)


def test_without_noise_choices_are_certain_and_the_mask_is_the_second_argument() -> None:
    masks = []

    def expert(observation: Any, mask: NDArray[np.bool_]) -> list[int]:
        masks.append(mask)
        return [1, 0, 1]

    legal = np.array([False, True, True, True, False, True])
    (bits,), log_probs, runner = acted(expert, spec(MultiBinarySpace((3,)), mask_bits=6), mask=legal)
    assert bits.tolist() == [[1, 0, 1]] and log_probs.tolist() == [0.0] and runner.has_log_probs
    np.testing.assert_array_equal(masks[0], legal)


def test_the_greedy_action_has_no_noise() -> None:
    runner = ExpertRunner(lambda observation: [1.0, 5.0], spec(LOPSIDED), Network(), noise=0.5)
    (action,) = runner.act_greedily((np.zeros((1, 2), np.float32),))
    np.testing.assert_allclose(action.astype(float), [[0.0, 0.0]], atol=1e-7)


def test_an_expert_with_a_state_is_reset_before_each_episode() -> None:
    class Counting:
        steps = 0

        def reset(self) -> None:
            self.steps = 0

        def __call__(self, observation: Any) -> int:
            self.steps += 1
            return self.steps - 1

    runner = ExpertRunner(Counting(), spec(DiscreteSpace(3)), Network(), 0.0)
    window = runner.begin(np.zeros((1, 5, 2), np.float32))
    begun = [True, False, True, False, False]
    taken = [window.act((np.zeros((1, 2), np.float32),), begun=np.array([each])) for each in begun]
    assert [int(action[0][0]) for action in taken] == [0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    ("answer", "space", "message"),
    [
        (3, DiscreteSpace(3), "an action outside of its space: Discrete(3, start=0), choice 0, alternative 3, counted"),
        (-1, DiscreteSpace(3), "an action outside of its space"),
        (0.5, DiscreteSpace(3), "returned 0.5, where an action has integers of shape ()"),
        (None, DiscreteSpace(3), "returned None, where an action has integers of shape ()"),
        ([1.0], LOPSIDED, "returned [1.0], where an action has finite numbers of shape (2,)"),
        ([1.0, np.nan], LOPSIDED, "where an action has finite numbers of shape (2,)"),
        ("up", LOPSIDED, "returned 'up', where an action has finite numbers"),
    ],
)
def test_an_answer_that_is_no_action_is_refused_in_one_line(answer: Any, space: Space, message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)) as refusal:
        acted(lambda observation: answer, spec(space))
    assert "\n" not in str(refusal.value)


def test_a_choice_that_the_mask_forbids_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a choice that its action mask forbids"):
        acted(lambda observation, mask: 1, spec(DiscreteSpace(2), mask_bits=2), mask=np.array([True, False]))


def test_an_expert_that_raises_is_named_with_its_line() -> None:
    def expert(observation: Any) -> int:
        raise KeyError("joint")

    with pytest.raises(ConfigurationError, match=r"the expert failed: KeyError: 'joint' \(.*test_experts.py, line \d+"):
        acted(expert, spec(DiscreteSpace(2)))
