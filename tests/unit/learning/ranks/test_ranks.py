"""Several ranks that train on the same batches learn what one learns, up to rounding."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from penstock.algo.network import Network
from penstock.algo.policies import Inputs
from penstock.config import PPOConfig, SamplingConfig
from penstock.errors import ConfigurationError
from penstock.learning.ranks.ranks import ALONE, Ranks, evaluated, part_of
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.learner import Learner
from tests.support.environments.tiny import spec_of
from tests.support.services.ranks import ranks_in_threads, together
from tests.support.tiers import gate_of
from tests.support.training.training import CPU, SMALL, make_batch, numbers_of, same_parameters

SEGMENTS = 7
"""Not divisible by the numbers of ranks."""

ROUNDING = 2e-6
"""Largest difference of a parameter, whose last bit is 1.2e-7 at 1. A run of `BATCHES` moves some by more than 0.01."""

BATCHES = 3

SHARED = dataclasses.replace(SMALL, trunk="shared")
SQUASHED = dataclasses.replace(SMALL, squash_actions=True, state_dependent_std=True)
GRU = dataclasses.replace(SMALL, memory="gru", memory_size=8)
LSTM = dataclasses.replace(SMALL, memory="lstm", memory_size=8)

CASES = {
    "choices in compiled code": ("CartPole-v1", SMALL, {"execution": "auto"}),
    "a vector in compiled code": ("Pendulum-v1", SMALL, {"execution": "auto"}),
    "choices with autograd": ("CartPole-v1", SHARED, {}),
    "a squashed vector": ("Pendulum-v1", SQUASHED, {}),
    "a GRU": ("CartPole-v1", GRU, {}),
    "an LSTM after a burn-in": ("CartPole-v1", LSTM, {"execution": "auto", "burn_in_steps": 3}),
    "advantages as they are": ("CartPole-v1", SMALL, {"normalise_advantages": False}),
    "a bound on the divergence": ("CartPole-v1", SMALL, {"target_kl": 1e-5}),
}


def learner_of(env_id: str, network: Network, ranks: Ranks = ALONE, **options: Any) -> Learner:
    execution = options.pop("execution", "eager")
    ppo = {"epochs": 2, "minibatches": 3, "target_kl": None, "entropy_coefficient": 0.01} | options
    return Learner(
        spec_of(env_id),
        network,
        ppo=PPOConfig(**ppo),
        sampling=SamplingConfig(),
        device=CPU,
        seed=0,
        execution=execution,
        ranks=ranks,
    )


def batches_of(env_id: str, network: Network, burn_in: int = 0) -> list[TrainingBatch]:
    """Returns batches with replayed segments, whose rows that reset differ in number."""
    return [
        make_batch(
            env_id,
            segments=SEGMENTS,
            fresh=3,
            network=network,
            burn_in=burn_in,
            unroll_length=16,
            windows=1 + number,
            number=3 + number,
        )
        for number in range(BATCHES)
    ]


@given(count=st.integers(0, 100), ranks=st.integers(1, 20))
def test_each_row_belongs_to_one_rank(count: int, ranks: int) -> None:
    parts = [part_of(count, rank, ranks) for rank in range(ranks)]
    assert [row for part in parts for row in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("count", gate_of(1, [2, 3]))
@pytest.mark.parametrize(("env_id", "network", "options"), CASES.values(), ids=CASES)
def test_several_ranks_learn_what_one_learns(
    env_id: str, network: Network, options: dict[str, Any], count: int
) -> None:
    one, ranks = learner_of(env_id, network, **options), ranks_in_threads(count)
    several = [learner_of(env_id, network, rank, **options) for rank in ranks]
    began = one.parameters.detach().clone()
    for batch in batches_of(env_id, network, options.get("burn_in_steps", 0)):
        expected = one.train(batch, 0.1)
        outcomes = together([partial(learner.train, batch, 0.1) for learner in several], ranks)
        for outcome in outcomes:
            assert numbers_of(outcome) == pytest.approx(numbers_of(expected), rel=1e-4, abs=1e-6)
            np.testing.assert_allclose(outcome.priorities, expected.priorities, rtol=1e-4, atol=1e-6)
            assert (outcome.updates, outcome.fresh_steps) == (expected.updates, expected.fresh_steps)
            assert outcome.moments == expected.moments
    torch.testing.assert_close(several[0].parameters, one.parameters, rtol=0.0, atol=ROUNDING)
    assert float((one.parameters.detach() - began).abs().amax()) > 0.01
    assert all(same_parameters(several[0], learner) for learner in several[1:])


def test_a_gradient_step_takes_one_sum() -> None:
    ranks = ranks_in_threads(2)
    several = [learner_of("CartPole-v1", SMALL, rank) for rank in ranks]
    (batch, *_) = batches_of("CartPole-v1", SMALL)
    outcomes = together([partial(learner.train, batch, 0.1) for learner in several], ranks)
    # The other one has the estimates for the batch.
    assert [rank.sums for rank in ranks] == [outcome.updates + 1 for outcome in outcomes] == [7, 7]


@pytest.mark.parametrize("execution", ["auto", "eager"])
def test_ranks_without_a_row_of_a_minibatch_take_its_step(execution: str) -> None:
    options: dict[str, Any] = {"minibatches": 1000, "execution": execution, "normalise_advantages": False}
    one = learner_of("CartPole-v1", SMALL, **options)
    ranks = ranks_in_threads(3)
    several = [learner_of("CartPole-v1", SMALL, rank, **options) for rank in ranks]
    batch = make_batch("CartPole-v1", segments=2, unroll_length=8)
    expected = one.train(batch, 0.1)
    outcomes = together([partial(learner.train, batch, 0.1) for learner in several], ranks)
    assert [outcome.updates for outcome in outcomes] == 3 * [expected.updates]
    torch.testing.assert_close(several[2].parameters, one.parameters, rtol=0.0, atol=ROUNDING)


def test_the_gradient_of_a_segment_needs_no_other_rank() -> None:
    (batch, *_) = batches_of("CartPole-v1", SMALL)
    for execution in ("auto", "eager"):
        one = learner_of("CartPole-v1", SMALL, execution=execution)
        ranks = ranks_in_threads(2)
        several = [learner_of("CartPole-v1", SMALL, rank, execution=execution) for rank in ranks]
        found = together([partial(learner.squared_gradients, batch, 0.1) for learner in several], ranks)
        np.testing.assert_allclose(found[1], one.squared_gradients(batch, 0.1), rtol=1e-4)


def test_segments_are_evaluated_once() -> None:
    inputs = Inputs((torch.arange(10.0).view(5, 2),))
    actions = (torch.arange(5.0).view(5, 1),)

    def evaluation(evaluate: list[int]) -> Callable[[Inputs, tuple[Tensor, ...]], tuple[Tensor, Tensor]]:
        def evaluated_here(given: Inputs, taken: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            evaluate.append(len(taken[0]))
            return taken[0] * 2.0, given.observation[0] * 3.0

        return evaluated_here

    evaluated_by: list[list[int]] = [[], [], []]
    ranks = ranks_in_threads(3)
    results = together(
        [
            partial(evaluated, rank, evaluation(sizes), inputs, actions)
            for rank, sizes in zip(ranks, evaluated_by, strict=True)
        ],
        ranks,
    )
    assert evaluated_by == [[1], [2], [2]]
    for log_prob, value in results:
        assert torch.equal(log_prob, actions[0] * 2.0)
        assert torch.equal(value, inputs.observation[0] * 3.0)


def test_captured_steps_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="'graphed' captures the gradient steps of one rank"):
        learner_of("CartPole-v1", SMALL, ranks_in_threads(2)[0], execution="graphed")
