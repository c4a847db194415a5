"""The learner with memory and action masks: minibatches of segments, burn-in, and rows that do not count."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.algo.memory import Unroll, by_rows, lstm_by_sequences
from penstock.algo.network import Network
from penstock.algo.parameters import flatten
from penstock.algo.policies import Inputs, Policy
from penstock.config import PPOConfig, Precision
from penstock.learning.step.adam import Adam
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.execution import Descent, Eager, FixedShapes
from penstock.learning.step.gradient_steps import GradientStep, Steps, objective_of
from penstock.learning.step.schedules import loss_settings
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Leaf, MemoryKind, MultiDiscreteSpace, Tree
from tests.support.environments.tiny import spec_of
from tests.support.segments.statistics import all_finite
from tests.support.training.policies import fresh_policy
from tests.support.training.training import CPU, SMALL, make_batch, make_learner, same_parameters

GRU = dataclasses.replace(SMALL, memory="gru", memory_size=8)
KINDS = pytest.mark.parametrize("kind", ["gru", "lstm"])
BURN_IN = 5

MASKED = EnvironmentSpec(
    "Masked-v0",
    Tree((Leaf(("board",), BoxSpace("float32", (3,), (-9.0,), (9.0,))), Leaf(("unit",), DiscreteSpace(4)))),
    Tree((Leaf((0,), DiscreteSpace(3)), Leaf((1,), MultiDiscreteSpace((2,), (2, 4), (0, 0))))),
    mask_bits=9,
)


def with_memory(kind: MemoryKind) -> Network:
    return dataclasses.replace(SMALL, memory=kind, memory_size=8)


def recurrent_batch(network: Network = GRU, *, burn_in: int = BURN_IN, fresh: int | None = None) -> TrainingBatch:
    """Returns a batch of a second window, whose first rows continue episodes."""
    batch = make_batch(network=network, burn_in=burn_in, windows=2, fresh=fresh)
    assert batch.begun is not None and batch.begun.any() and not batch.begun[:, 0].all()
    return batch


@KINDS
@pytest.mark.parametrize("burn_in", [0, BURN_IN])
def test_data_of_the_current_policy_have_ratios_of_1(kind: MemoryKind, burn_in: int) -> None:
    learner = make_learner(network=with_memory(kind), burn_in_steps=burn_in, epochs=1, minibatches=1)
    batch = make_batch(learner=learner, burn_in=burn_in, windows=2)
    outcome = learner.train(batch, 0.0)
    assert outcome.statistics.learning.effective_sample_share == pytest.approx(1.0, abs=1e-5)
    assert outcome.statistics.learning.approximate_kl == pytest.approx(0.0, abs=1e-6)
    assert all_finite(outcome.statistics)


@pytest.mark.parametrize(
    ("kind", "precision", "unroll"),
    [("lstm", "float32", lstm_by_sequences), ("lstm", "bfloat16", by_rows), ("gru", "float32", by_rows)],
)
def test_automatic_execution_learns_the_same_with_the_fastest_unroll(
    kind: MemoryKind, precision: Precision, unroll: Unroll
) -> None:
    automatic, eager = (
        make_learner(network=with_memory(kind), burn_in_steps=BURN_IN, precision=precision, execution=execution)
        for execution in ("auto", "eager")
    )
    assert (automatic.policy.unroll, eager.policy.unroll) == (unroll, by_rows)
    batch = recurrent_batch(with_memory(kind))
    for learner in (automatic, eager):
        learner.train(batch, 0.0)
    assert same_parameters(automatic, eager) == (unroll is by_rows)
    torch.testing.assert_close(automatic.parameters, eager.parameters, rtol=0.0, atol=1e-4)


def test_minibatches_are_of_segments() -> None:
    learner = make_learner(network=GRU, burn_in_steps=BURN_IN, epochs=3, minibatches=4)
    assert learner.train(recurrent_batch(), 0.0).updates == 12
    # A batch of 6 segments has no more than 6 minibatches.
    many = make_learner(network=GRU, burn_in_steps=BURN_IN, epochs=1, minibatches=50)
    assert many.train(recurrent_batch(), 0.0).updates == 6


def test_rows_that_only_reset_have_no_influence_on_a_recurrent_policy() -> None:
    one, other = (make_learner(network=GRU, burn_in_steps=BURN_IN) for _ in range(2))
    batch = recurrent_batch(fresh=4)
    assert not batch.valid.all()
    changed = dataclasses.replace(
        batch,
        action=(torch.where(batch.valid, batch.action[0], 1 - batch.action[0]),),
        reward=torch.where(batch.valid, batch.reward, 1e4),
        behaviour_log_prob=torch.where(batch.valid, batch.behaviour_log_prob, torch.nan),
        discounted_return=torch.where(batch.valid, batch.discounted_return, 1e5),
    )
    outcome, after = one.train(batch, 0.5), other.train(changed, 0.5)
    assert same_parameters(one, other)
    assert np.array_equal(outcome.priorities, after.priorities)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("memory", value) for value in (math.nan, math.inf)),
        # Other observations are clipped.
        ("observation", math.nan),
        *(("reward", value) for value in (math.nan, math.inf)),
    ],
)
def test_a_segment_with_an_absurd_value_is_left_out(column: str, value: float) -> None:
    network = dataclasses.replace(GRU, normalise_observations=False, normalise_returns=False)
    learner = make_learner(network=network, burn_in_steps=BURN_IN, epochs=1, minibatches=1)
    batch = recurrent_batch(network)
    assert batch.memory is not None and batch.begun is not None
    segment = int(batch.begun[:, : BURN_IN + 1].any(1).logical_not().nonzero()[0])
    changed = (batch.observation[0] if column == "observation" else getattr(batch, column)).clone()
    changed[segment, 0] = value
    replacement: dict[str, Any] = {column: (changed,) if column == "observation" else changed}
    outcome = learner.train(dataclasses.replace(batch, **replacement), 0.0)
    learner.check_finite()
    assert np.isfinite(outcome.priorities).all()
    assert outcome.unsound_rows == int(batch.valid[segment].sum())
    assert (outcome.updates, outcome.refused_steps) == (1, 0)
    others = torch.arange(batch.valid.shape[0]) != segment
    alone = make_learner(network=network, burn_in_steps=BURN_IN, epochs=1, minibatches=1)
    alone.train(dataclasses.replace(batch, valid=batch.valid & others[:, None]), 0.0)
    torch.testing.assert_close(learner.parameters, alone.parameters, rtol=0, atol=1e-6)


def test_the_state_after_the_burn_in_is_that_of_the_current_parameters_and_has_no_gradient() -> None:
    policy = fresh_policy(spec_of("CartPole-v1"), network=GRU)
    batch = recurrent_batch()
    assert batch.memory is not None and batch.begun is not None
    _, value = policy.evaluate(batch.inputs, burn_in=BURN_IN, bootstraps=True)
    state = batch.memory
    for row in range(BURN_IN):
        _, after = policy.act((batch.observation[0][:, row],), None, state, batch.begun[:, row])
        assert after is not None
        state = after.detach()
    rest = Inputs((batch.observation[0][:, BURN_IN:],), None, state, batch.begun[:, BURN_IN:])
    _, expected = policy.evaluate(rest, bootstraps=True)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    assert policy.memory is not None
    learnt = [*policy.memory.parameters(), *policy.critic.parameters()]
    ours, theirs = (torch.autograd.grad(each.sum(), learnt) for each in (value, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_values_of_a_segment_are_those_of_acting_step_by_step() -> None:
    policy, batch = fresh_policy(spec_of("CartPole-v1"), network=GRU), recurrent_batch(burn_in=0)
    assert batch.memory is not None and batch.begun is not None
    joint, _ = policy.evaluate(batch.inputs, bootstraps=True)
    found, state = joint.log_prob(batch.action), batch.memory
    for row in range(batch.reward.shape[1]):
        step, after = policy.act((batch.observation[0][:, row],), None, state, batch.begun[:, row])
        assert after is not None
        torch.testing.assert_close(found[:, row], step.log_prob((batch.action[0][:, row],)), rtol=1e-4, atol=1e-6)
        state = after


def masked_steps(policy: Policy, count: int, seed: int, length: int | None) -> Steps:
    """Returns random steps of `MASKED`, whose actions are legal; segments of `length` steps with memory."""
    generator = torch.Generator().manual_seed(seed)
    rows = (count,) if length is None else (count, length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*rows, *shape, generator=generator)

    legal = torch.rand(*rows, 9, generator=generator) < 0.5
    # The last alternative of each choice is always legal.
    legal[..., [2, 4, 8]] = True
    packed = torch.from_numpy(np.packbits(legal.numpy(), axis=-1, bitorder="little"))
    begun = None if length is None else torch.rand(rows, generator=generator) < 0.2
    state = None if length is None else torch.randn(count, *(policy.memory_shape or ()), generator=generator)
    inputs = Inputs((normal(3), torch.randint(4, rows, generator=generator)), packed, state, begun)
    action = (torch.full(rows, 2), torch.tensor([1, 3]).expand(*rows, 2).clone())
    usable = None if length is None else torch.rand(rows, generator=generator) < 0.8
    return Steps(inputs, action, normal(), normal(), normal(), normal(), normal(), normal().abs(), normal(), usable)


def masked_step(memory: MemoryKind | None) -> tuple[Policy, GradientStep]:
    policy = fresh_policy(MASKED, network=Network(hidden_sizes=(16,), memory=memory, memory_size=8))
    parameters = flatten(policy)
    objective = objective_of(policy, "float32", CPU)
    return policy, GradientStep(objective, parameters, Adam(parameters, 1e-2), max_gradient_norm=0.5)


SETTINGS = loss_settings(PPOConfig(), 0.0)


@pytest.mark.parametrize("memory", [None, "gru", "lstm"])
def test_padded_minibatches_descend_like_unpadded_ones_with_masks_and_memory(memory: MemoryKind | None) -> None:
    trained = []
    length = None if memory is None else 6
    for make in (Eager, lambda step: FixedShapes(step, minibatches=3, prepare=lambda take: take)):
        policy, step = masked_step(memory)
        before = step.parameters.detach().clone()
        descent: Descent = make(step)
        for seed, count in enumerate((10, 24, 2, 17)):
            descent.begin(masked_steps(policy, count, seed, length), SETTINGS, most_steps=24)
            done = descent.descend(torch.randperm(count, generator=torch.Generator().manual_seed(3)), min(3, count))
            assert not done.refused.any()
            assert done.log_prob.shape[0] == count
        assert not torch.equal(step.parameters, before)
        trained.append(step.parameters.detach())
    torch.testing.assert_close(*trained, rtol=0, atol=1e-6)


@KINDS
def test_steps_that_do_not_count_have_no_influence_on_the_gradient(kind: MemoryKind) -> None:
    results = []
    for target in (0.0, 1e6):
        policy, step = masked_step(kind)
        steps = masked_steps(policy, 8, 0, 6)
        assert steps.usable is not None and not steps.usable.all()
        changed: dict[str, Any] = {
            name: torch.where(steps.usable, getattr(steps, name), target)
            for name in ("target", "advantage", "policy_weight", "proximal_value")
        }
        step(dataclasses.replace(steps, **changed), SETTINGS)
        results.append(step.parameters.detach())
    assert torch.equal(*results)
