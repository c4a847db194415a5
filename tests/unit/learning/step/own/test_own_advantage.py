"""Advantages of the user's own take the place of V-trace, and useless ones are refused in one line."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import penstock
from penstock.advantages import Trajectories, backward_sum, v_trace
from penstock.algo.network import Network
from penstock.config import Execution, PPOConfig, SamplingConfig
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.step.learner import Learner
from tests.support.environments.tiny import spec_of
from tests.support.services.ranks import ranks_in_threads
from tests.support.training.training import (
    CPU,
    SMALL,
    make_batch,
    make_learner,
    numbers_of,
    same_parameters,
)
from tests.unit.learning.step.own.test_own_priority import with_known_rows

HERE = __name__
SHIPPED = "penstock.advantages:v_trace"
GRU = Network(hidden_sizes=(16,), memory="gru", memory_size=8)

Found = tuple[Tensor, Tensor]


def gae(steps: Trajectories) -> Found:
    """Generalised advantage estimation, row by row."""
    delta = steps.reward + steps.discount * steps.next_value - steps.value
    advantage, following = torch.zeros_like(delta), torch.zeros_like(delta[:, 0])
    for step in reversed(range(delta.shape[1])):
        following = torch.where(steps.ended[:, step], 0.0, following)
        following = delta[:, step] + steps.discount * steps.trace_decay * following
        advantage[:, step] = following
    return advantage, steps.value + advantage


def gae_by_sum(steps: Trajectories) -> Found:
    delta = steps.reward + steps.discount * steps.next_value - steps.value
    advantage = backward_sum(delta, torch.where(steps.ended, 0.0, steps.discount * steps.trace_decay))
    return advantage, steps.value + advantage


def one_step(steps: Trajectories) -> Found:
    target = steps.reward + steps.discount * steps.next_value
    return target - steps.value, target


class Seen:
    """V-trace that keeps the steps that it was called with."""

    steps: ClassVar[list[Trajectories]] = []

    def __call__(self, steps: Trajectories) -> Found:
        type(self).steps.append(steps)
        return v_trace(steps)


def across_ends(steps: Trajectories) -> Found:
    """A sum over the following steps that ends with episodes only."""
    delta = steps.reward + steps.discount * steps.next_value - steps.value
    ended = steps.terminated | steps.truncated
    advantage = backward_sum(delta, torch.where(ended, 0.0, steps.discount * steps.trace_decay))
    return advantage, steps.value + advantage


def mean_over_all(steps: Trajectories) -> Found:
    advantage, target = v_trace(steps)
    return advantage - steps.reward.mean(), target


def noisy(steps: Trajectories) -> Found:
    advantage, target = v_trace(steps)
    return advantage + torch.randn_like(advantage), target


def infinite(steps: Trajectories) -> Found:
    advantage, target = v_trace(steps)
    return advantage, target / (steps.terminated & steps.truncated)


def advantage_alone(steps: Trajectories) -> Any:
    return v_trace(steps)[0]


def per_segment(steps: Trajectories) -> Found:
    return steps.reward.sum(1), steps.value


def failing(steps: Trajectories) -> Found:
    return steps.reward @ torch.ones(7), steps.value


def two_arguments(steps: Trajectories, discount: float) -> Found:
    return v_trace(steps)


def changing(steps: Trajectories) -> Found:
    found = v_trace(steps)
    for each in (steps.reward, steps.value, steps.next_value, steps.usable, steps.ended, steps.log_ratio):
        each.zero_()
    return found


class Later:
    """Advantages that are bad in training: the trial calls the function three times."""

    calls = 0

    def __call__(self, steps: Trajectories) -> Found:
        type(self).calls += 1
        return v_trace(steps) if type(self).calls <= 3 else self.change(steps)

    def change(self, steps: Trajectories) -> Found:
        raise KeyError("late")


class Spoilt(Later):
    def change(self, steps: Trajectories) -> Found:
        advantage, target = v_trace(steps)
        advantage[0, 0], target[1, 1] = math.nan, math.inf
        return advantage, target


@pytest.mark.parametrize(
    ("execution", "network", "options", "rows_known"),
    [
        # Direct steps are taken on a CPU alone, where the host need not count rows.
        ("auto", SMALL, {}, False),
        ("eager", SMALL, {}, False),
        ("eager", SMALL, {"v_trace": False}, True),
        ("eager", SMALL, {"discount": 0.9, "trace_decay": 0.5, "rho_clip": 0.8, "trace_clip": 0.7}, False),
        ("auto", GRU, {"burn_in_steps": 4}, False),
        ("auto", GRU, {"burn_in_steps": 4}, True),
    ],
)
def test_v_trace_as_a_users_function_trains_the_same(
    execution: Execution, network: Network, options: dict[str, Any], rows_known: bool
) -> None:
    of_batch: dict[str, Any] = {
        "fresh": 4,
        "network": network,
        "burn_in": options.get("burn_in_steps", 0),
        "windows": 2,
    }
    batch = make_batch(**of_batch)
    if rows_known:
        batch = with_known_rows(batch, **of_batch)
    own, shipped = (
        make_learner(execution=execution, network=network, advantage=name, **options) for name in (SHIPPED, None)
    )
    assert own.execution == shipped.execution
    for progress in (0.0, 0.5):
        ours, theirs = own.train(batch, progress), shipped.train(batch, progress)
        if own.execution == "direct":
            # Its sums have another order.
            assert numbers_of(ours) == pytest.approx(numbers_of(theirs), rel=1e-3, abs=1e-6)
            np.testing.assert_allclose(ours.priorities, theirs.priorities, rtol=1e-4)
        else:
            assert numbers_of(ours) == numbers_of(theirs)
            assert np.array_equal(ours.priorities, theirs.priorities)
            # The errors are differences from targets, which are rounded.
            np.testing.assert_allclose(ours.fresh_errors, theirs.fresh_errors, rtol=1e-5)
    if own.execution == "direct":
        torch.testing.assert_close(own.parameters, shipped.parameters, rtol=0, atol=2e-4)
    else:
        assert same_parameters(own, shipped)


@pytest.mark.parametrize("name", ["gae", "gae_by_sum"])
def test_gae_of_a_user_equals_the_shipped_one(name: str) -> None:
    batch = make_batch(fresh=4)
    own, shipped = make_learner(advantage=f"{HERE}:{name}"), make_learner(v_trace=False)
    ours, theirs = own.estimate(batch, 0.0), shipped.estimate(batch, 0.0)
    assert ours.usable.equal(theirs.usable)
    torch.testing.assert_close(ours.steps.advantage, theirs.steps.advantage, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.steps.target, theirs.steps.target, rtol=1e-4, atol=1e-5)


def with_faults(batch: Any) -> Any:
    """Returns a batch with a reward that is not a number and one that is absurd."""
    reward = batch.reward.clone()
    reward[2, 3], reward[3, 4] = math.nan, 1e30
    return dataclasses.replace(batch, reward=reward)


def test_steps_with_absurd_numbers_end_the_sums_as_in_v_trace() -> None:
    batch = with_faults(make_batch(fresh=4))
    own, shipped = make_learner(advantage=f"{HERE}:gae"), make_learner(v_trace=False)
    ours, theirs = own.estimate(batch, 0.0), shipped.estimate(batch, 0.0)
    assert not ours.usable[2, 3] and not ours.usable[3, 4] and ours.usable.equal(theirs.usable)
    torch.testing.assert_close(ours.steps.advantage, theirs.steps.advantage, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.correction, theirs.correction, rtol=1e-4, atol=1e-5)
    assert own.train(batch, 0.0).unsound_rows == 2


def test_advantages_get_the_numbers_of_the_batch() -> None:
    Seen.steps = []
    learner = make_learner(advantage=f"{HERE}:Seen", rho_clip=0.9)
    batch = with_faults(make_batch(fresh=4))
    batch = dataclasses.replace(batch, truncated=batch.truncated.clone())
    batch.truncated[5, 7] = True
    estimated = learner.estimate(batch, 0.0)
    steps, usable = Seen.steps[-1], estimated.usable
    with torch.no_grad():
        distribution, value = learner.policy.evaluate(batch.inputs, bootstraps=True)
    assert steps.usable.equal(usable) and batch.terminated.any() and not usable.all()
    following = torch.where(batch.terminated, 0.0, value[:, 1:])
    log_ratio = distribution.log_prob(batch.action) - batch.behaviour_log_prob
    reward = learner.policy.scale_rewards(batch.reward, batch.terminated, 0.99)
    for ours, theirs in (
        (steps.value, value[:, :-1]),
        (steps.next_value, following),
        (steps.log_ratio, log_ratio),
        (steps.reward, reward),
    ):
        torch.testing.assert_close(ours, torch.where(usable, theirs, 0.0), rtol=1e-4, atol=1e-5)
    assert steps.terminated.equal(batch.terminated & usable) and steps.truncated.equal(batch.truncated & usable)
    assert steps.ended[:, -1].all() and steps.ended[2, 2] and steps.ended[3, 3] and steps.ended[5, 7]
    last = ~torch.cat([usable[:, 1:], torch.zeros(len(usable), 1, dtype=torch.bool)], 1)
    assert steps.ended[usable].equal((batch.terminated | batch.truncated | last)[usable])
    assert (steps.discount, steps.trace_decay, steps.rho_clip, steps.trace_clip) == (0.99, 0.95, 0.9, 1.0)


def test_advantages_may_change_their_inputs() -> None:
    batch = make_batch(fresh=4)
    ours, theirs = (make_learner(advantage=name, execution="eager") for name in (f"{HERE}:changing", None))
    for progress in (0.0, 0.5):
        outcomes = ours.train(batch, progress), theirs.train(batch, progress)
        assert numbers_of(outcomes[0]) == numbers_of(outcomes[1])
        np.testing.assert_allclose(outcomes[0].fresh_errors, outcomes[1].fresh_errors, rtol=1e-5)
    assert same_parameters(ours, theirs)


def test_a_run_says_who_gives_its_advantages() -> None:
    learner = make_learner(advantage=SHIPPED)
    assert learner.execution == "direct"
    assert learner.notices == (f"ppo.advantage {SHIPPED} replaces V-trace in the estimates of each batch",)


def test_advantages_that_are_not_deterministic_are_a_warning() -> None:
    before = torch.random.get_rng_state()
    [_, warning] = make_learner(advantage=f"{HERE}:noisy").notices
    assert warning.endswith("returns other numbers for the same steps; runs with one seed will differ")
    assert torch.random.get_rng_state().equal(before)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{HERE}:absent", f"names nothing of {HERE}; correct the part after the colon"),
        (f"{HERE}:two_arguments", r"does not take one argument \(line \d+\): missing .*; take \(steps\)"),
        (
            f"{HERE}:advantage_alone",
            r"\(line \d+\) returned a tensor of shape \[6, 12\] and type torch.float32; return advantages and targets,"
            r" two tensors of floats of shape \[6, 12\]",
        ),
        (f"{HERE}:per_segment", r"returned a tensor of shape \[6\] and type .*; return advantages and targets, two"),
        (f"{HERE}:infinite", "returned a target that is not finite for made-up steps; keep it finite, for example"),
        (f"{HERE}:across_ends", r"depends on steps that do not count \(steps.usable\); end sums over the following"),
        (f"{HERE}:mean_over_all", "depends on steps that do not count"),
        (f"{HERE}:failing", r"failed: RuntimeError: .* \(.*test_own_advantage.py, line \d+\); correct it"),
    ],
)
def test_what_is_no_advantage_is_refused_in_one_line_before_training(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        make_learner(advantage=name)
    assert str(refused.value).startswith(f"ppo.advantage {name!r}") and "\n" not in str(refused.value)


def test_advantages_that_fail_in_training_end_it_in_one_line() -> None:
    Later.calls = 0
    learner = make_learner(advantage=f"{HERE}:Later")
    with pytest.raises(TrainingFailed, match=r"failed: KeyError: 'late' \(.*, line \d+\); correct it") as failed:
        learner.train(make_batch(), 0.0)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("execution", ["auto", "eager"])
def test_a_step_whose_advantage_is_not_finite_is_left_out(execution: Execution) -> None:
    Spoilt.calls = 0
    learner = make_learner(advantage=f"{HERE}:Spoilt", execution=execution)
    outcome = learner.train(make_batch(), 0.0)
    assert (outcome.unsound_rows, outcome.refused_steps) == (2, 0) and np.isfinite(outcome.priorities).all()
    learner.check_finite()


def test_advantages_are_refused_by_several_ranks_and_not_imported() -> None:
    with pytest.raises(ConfigurationError, match=r"ppo.advantage needs a learner of one rank.*; remove it, or"):
        Learner(
            spec_of("CartPole-v1"),
            SMALL,
            ppo=PPOConfig(advantage="no_such_package:advantage"),
            sampling=SamplingConfig(),
            device=CPU,
            seed=0,
            ranks=ranks_in_threads(2)[0],
        )


def test_a_function_is_a_value_of_the_setting() -> None:
    name = penstock.Config(advantage=gae).ppo.advantage
    assert name is not None and name.endswith(":gae")
