"""A user's loss is tried on a made-up minibatch of every kind of space, before anything is trained with it."""

import pytest
import torch
from torch import Tensor

from penstock.algo.network import Network
from penstock.algo.parameters import flatten
from penstock.config import PPOConfig, Precision
from penstock.errors import ConfigurationError
from penstock.learning.step.own.loss import OwnLoss
from penstock.learning.step.own.loss_check import made_up_steps, try_loss
from penstock.learning.step.schedules import loss_settings
from penstock.losses import LossSettings, Minibatch, Policy, ppo
from penstock.types.spaces import EnvironmentSpec
from tests.support.environments.tiny import spec_of
from tests.support.segments.spaces import ALL_SPECS
from tests.support.training.policies import fresh_policy
from tests.support.training.training import CPU, SMALL, make_learner
from tests.unit.learning.test_memory_and_masks import MASKED

HERE = __name__
GRU = Network(hidden_sizes=(8,), memory="gru", memory_size=8)


def value_alone(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return batch.mean((batch.value - batch.target).square())


def plain_mean(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return ppo(policy, batch, settings)[0] + batch.value.square().mean()


def noisy(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return ppo(policy, batch, settings)[0] + batch.mean(batch.value * torch.randn_like(batch.value))


def not_a_number(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return batch.mean((batch.value - batch.value.detach() - 1.0).log())


def infinite_gradient(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return batch.mean((batch.value - batch.value.detach()).abs().sqrt())


def changed_in_place(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    squared = batch.value.exp()
    loss = batch.mean(squared)
    squared.zero_()
    return loss


def warnings_of(
    name: str, spec: EnvironmentSpec, network: Network = SMALL, precision: Precision = "float32"
) -> list[str]:
    policy, loss = fresh_policy(spec, network=network), OwnLoss(name)
    parameters, burn_in = flatten(policy), 3 if network.memory else 0
    before, state = parameters.detach().clone(), torch.random.get_rng_state()
    objective = loss.objective(policy, precision, CPU, burn_in)
    trial = try_loss(loss, objective, policy, parameters, loss_settings(PPOConfig(), 0.0), burn_in)
    assert parameters.equal(before) and torch.random.get_rng_state().equal(state)
    assert parameters.grad is not None and not parameters.grad.any() and not trial.waits
    return list(trial.warnings)


@pytest.mark.parametrize(
    "spec", [*ALL_SPECS, MASKED], ids=lambda spec: f"{spec.observation.shown()}, {spec.action.shown()}"
)
@pytest.mark.parametrize("network", [SMALL, GRU], ids=["rows", "segments"])
def test_the_loss_of_ppo_passes_for_all_spaces(spec: EnvironmentSpec, network: Network) -> None:
    assert warnings_of("penstock.losses:ppo", spec, network) == []


def test_the_loss_of_ppo_passes_in_a_lower_precision() -> None:
    assert warnings_of("penstock.losses:ppo", spec_of("Pendulum-v1"), SMALL, "bfloat16") == []


def test_the_made_up_minibatch_is_the_same_each_time() -> None:
    policy = fresh_policy(MASKED, network=GRU)
    first, second = made_up_steps(policy, 4, 2), made_up_steps(policy, 4, 2)
    assert all(ours.equal(theirs) for ours, theirs in zip(first.columns, second.columns, strict=True))


def test_parameters_without_a_gradient_are_a_warning() -> None:
    [warning] = warnings_of(f"{HERE}:value_alone", spec_of("CartPole-v1"))
    assert "does not depend on actor.0.weight, actor.0.bias, actor.2.weight and 3 more of the policy's 12" in warning
    assert warning.endswith("parameters; they will not be trained")
    # The learner hands it on.
    assert make_learner(loss=f"{HERE}:value_alone").notices[1:] == (warning,)


def test_a_loss_that_is_not_deterministic_is_a_warning() -> None:
    [warning] = warnings_of(f"{HERE}:noisy", spec_of("CartPole-v1"))
    assert warning.endswith("returns another gradient for the same minibatch; runs with one seed will differ")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("plain_mean", r"\(line \d+\) depends on steps that do not count \(batch.counted\); average with batch.mean"),
        ("not_a_number", "returned nan for a made-up minibatch; keep it finite, for example without logarithms"),
        ("infinite_gradient", "has a gradient that is not finite for a made-up minibatch; keep it finite"),
        ("changed_in_place", "has no gradient: RuntimeError: one of the variables needed .*; correct it"),
    ],
)
@pytest.mark.parametrize("network", [SMALL, GRU], ids=["rows", "segments"])
def test_what_would_train_wrongly_is_refused(name: str, message: str, network: Network) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        warnings_of(f"{HERE}:{name}", spec_of("Pendulum-v1"), network)
    assert "\n" not in str(refused.value) and f"learner.loss '{HERE}:{name}'" in str(refused.value)
