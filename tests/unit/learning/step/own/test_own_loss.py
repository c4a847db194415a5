"""A loss of the user's own takes the place of PPO's, and what can't be trained with is refused in one line."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import penstock
from penstock.algo.network import Network
from penstock.config import PPOConfig, Precision, SamplingConfig
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.step.learner import Learner
from penstock.losses import LossSettings, Minibatch, Policy, ppo
from tests.support.environments.tiny import spec_of
from tests.support.services.ranks import ranks_in_threads
from tests.support.training.training import (
    CPU,
    SMALL,
    make_batch,
    make_learner,
    numbers_of,
    parameters_of,
    same_parameters,
)

HERE = __name__
PPO = "penstock.losses:ppo"

Returned = tuple[Tensor, Mapping[str, Tensor]]


def value_alone(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return batch.mean((batch.value - batch.target).square())


class Counted:
    """PPO's loss with a statistic of its own, and an instance with state."""

    def __init__(self, scale: float = 2.0) -> None:
        self._scale = scale

    def __call__(self, policy: Policy, batch: Minibatch, settings: LossSettings) -> Returned:
        loss, statistics = ppo(policy, batch, settings)
        return self._scale * loss, {"largest_value": batch.value.max(), **statistics, "nothing": torch.tensor(math.nan)}


def without_gradient(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return value_alone(policy, batch, settings).detach()


def per_row(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return batch.value - batch.target


def number(policy: Policy, batch: Minibatch, settings: LossSettings) -> float:
    return 1.0


def nothing(policy: Policy, batch: Minibatch, settings: LossSettings) -> None: ...


def listed(policy: Policy, batch: Minibatch, settings: LossSettings) -> Any:
    return value_alone(policy, batch, settings), [1.0]


def number_as_statistic(policy: Policy, batch: Minibatch, settings: LossSettings) -> Any:
    return value_alone(policy, batch, settings), {"share": 0.5}


def rows_as_statistic(policy: Policy, batch: Minibatch, settings: LossSettings) -> Returned:
    return value_alone(policy, batch, settings), {"share": batch.value}


def measured(policy: Policy, batch: Minibatch, settings: LossSettings) -> Returned:
    return value_alone(policy, batch, settings), {"entropy": batch.mean(batch.entropy)}


def badly_named(policy: Policy, batch: Minibatch, settings: LossSettings) -> Returned:
    return value_alone(policy, batch, settings), {"My share": batch.mean(batch.entropy)}


def many(policy: Policy, batch: Minibatch, settings: LossSettings) -> Returned:
    return value_alone(policy, batch, settings), {f"number_{each}": torch.zeros(()) for each in range(33)}


def failing(policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor:
    return batch.value.reshape(7, 7)


def two_arguments(policy: Policy, batch: Minibatch) -> Tensor:
    return batch.value.mean()


class Needy:
    def __init__(self, scale: float) -> None: ...


class WithParameters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)


class Later:
    """A loss that does something else from its fifth call on: two of the trial's three, and two steps later."""

    calls = 0

    def __call__(self, policy: Policy, batch: Minibatch, settings: LossSettings) -> Tensor | Returned:
        type(self).calls += 1
        loss = value_alone(policy, batch, settings)
        return loss if type(self).calls < 5 else self.change(loss)

    def change(self, loss: Tensor) -> Tensor | Returned:
        raise KeyError("late")


class Renaming(Later):
    def change(self, loss: Tensor) -> Tensor | Returned:
        return loss, {"new": loss}


class Vanishing(Later):
    def change(self, loss: Tensor) -> Tensor | Returned:
        return loss * math.nan


@pytest.mark.parametrize(
    ("env_id", "network", "options"),
    [
        ("CartPole-v1", SMALL, {}),
        ("Pendulum-v1", Network(hidden_sizes=(16,), trunk="shared"), {"normalise_advantages": False}),
        ("CartPole-v1", Network(hidden_sizes=(16,), memory="gru", memory_size=8), {"burn_in_steps": 4}),
        ("Pendulum-v1", Network(hidden_sizes=(16,), memory="lstm", memory_size=8), {"value_clip_range": 0.1}),
        ("FrozenLake-v1", SMALL, {"entropy_schedule": "linear"}),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_loss_of_ppo_as_a_users_loss_trains_the_same_bits(
    env_id: str, network: Network, options: dict[str, Any], precision: Precision
) -> None:
    batch = make_batch(env_id, fresh=4, network=network, burn_in=options.get("burn_in_steps", 0))
    eager = make_learner(env_id, network=network, execution="eager", precision=precision, **options)
    own = make_learner(env_id, network=network, loss=PPO, precision=precision, **options)
    assert own.execution == "eager"
    for progress in (0.0, 0.5):
        ours, theirs = own.train(batch, progress), eager.train(batch, progress)
        assert numbers_of(ours) == numbers_of(theirs) and None not in numbers_of(ours)
        assert np.array_equal(ours.priorities, theirs.priorities)
        assert np.array_equal(own.squared_gradients(batch, progress), eager.squared_gradients(batch, progress))
    assert same_parameters(own, eager)


def test_a_loss_decides_what_is_trained() -> None:
    learner = make_learner(loss=f"{HERE}:value_alone")
    before = parameters_of(learner)
    outcome = learner.train(make_batch(), 0.0)
    changed = {name.partition(".")[0] for name, each in parameters_of(learner).items() if not each.equal(before[name])}
    assert "critic" in changed and "actor" not in changed
    # Numbers that the loss does not tell are unknown, and those of the learner are not.
    learning = outcome.statistics.learning
    assert learning.policy_loss is None and learning.value_loss is None
    assert learning.entropy is not None and outcome.statistics.own == {}


def test_a_class_is_made_once_and_its_statistics_are_means_over_the_steps() -> None:
    learner = make_learner(loss=f"{HERE}:Counted")
    statistics = learner.train(make_batch(), 0.0).statistics
    assert list(statistics.own) == ["largest_value", "nothing"] and statistics.own["nothing"] is None
    assert isinstance(statistics.own["largest_value"], float)
    assert statistics.learning.value_loss is not None and statistics.learning.value_loss > 0.0


def test_a_learner_without_a_loss_of_its_own_is_unchanged() -> None:
    learner = make_learner()
    assert learner.execution == "direct" and learner.notices == ()
    assert learner.train(make_batch(), 0.0).statistics.own == {}


def test_a_run_says_that_it_has_a_loss_of_its_own() -> None:
    assert make_learner(loss=PPO).notices == (
        f"learner.loss {PPO} replaces the loss of PPO, so torch takes the steps (eager)",
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ppo", "has no module or no function; write it as file.py:my_loss or my_package.my_module:MyLoss"),
        ("no_such_package:ppo", "No module named 'no_such_package'"),
        ("nowhere.py:ppo", "there is no file nowhere.py"),
        (f"{HERE}:absent", f"names nothing of {HERE}; correct the part after the colon"),
        (f"{HERE}:HERE", "is a str, which can't be called; name a function, or a class with __call__"),
        (f"{HERE}:Needy", "can't be made without arguments: TypeError: .*; give them default values"),
        (f"{HERE}:WithParameters", "has parameters of its own, which would not be trained; put them into a network"),
        (f"{HERE}:two_arguments", r"does not take three arguments \(line \d+\): too many.*; take \(policy, batch, "),
        (f"{HERE}:without_gradient", r"\(line \d+\) returned a tensor without a gradient; compute it from"),
        (f"{HERE}:per_row", r"returned a tensor of shape \[32\] and type torch.float32; return a tensor of one float"),
        (f"{HERE}:number", "returned a value of type float; return a tensor of one float, such as batch.mean"),
        (f"{HERE}:nothing", "returned a value of type NoneType; return"),
        (f"{HERE}:listed", "returned statistics of type list; return them in a dict"),
        (
            f"{HERE}:number_as_statistic",
            "returned a value of type float as the statistic share; return a tensor",
        ),
        (f"{HERE}:rows_as_statistic", r"a tensor of shape \[32\] and type torch.float32 as the statistic share;"),
        (f"{HERE}:measured", "returned the statistic entropy, which the learner measures; give it another name"),
        (f"{HERE}:badly_named", "returned a statistic with the name 'My share'; use up to 40 lower-case letters"),
        (f"{HERE}:many", "returned 33 statistics; return at most 32"),
        (f"{HERE}:failing", r"failed: RuntimeError: shape .* \(.*test_own_loss.py, line \d+\); correct it"),
    ],
)
def test_what_is_no_loss_is_refused_in_one_line_before_training(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        make_learner(loss=name)
    assert str(refused.value).startswith(f"learner.loss {name!r}") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Later", r"failed: KeyError: 'late' \(.*test_own_loss.py, line \d+\); correct it"),
        ("Renaming", "returned the statistics new, and none in its first call; return the same names in each call"),
    ],
)
def test_a_loss_that_fails_in_training_ends_it_in_one_line(name: str, message: str) -> None:
    globals()[name].calls = 0
    learner = make_learner(loss=f"{HERE}:{name}")
    with pytest.raises(TrainingFailed, match=message) as failed:
        learner.train(make_batch(), 0.0)
    assert "\n" not in str(failed.value)
    learner.check_finite()


def test_a_step_with_a_loss_that_is_not_a_number_is_refused() -> None:
    Vanishing.calls = 0
    learner = make_learner(loss=f"{HERE}:Vanishing")
    outcome = learner.train(make_batch(), 0.0)
    assert (outcome.updates, outcome.refused_steps) == (1, 3)
    learner.check_finite()


def test_a_loss_is_refused_by_several_ranks_and_not_imported() -> None:
    with pytest.raises(ConfigurationError, match=r"learner.loss needs a learner of one rank.*; remove it, or"):
        Learner(
            spec_of("CartPole-v1"),
            SMALL,
            ppo=PPOConfig(),
            sampling=SamplingConfig(),
            device=CPU,
            seed=0,
            ranks=ranks_in_threads(2)[0],
            loss="no_such_package:loss",
        )


def test_a_function_is_a_value_of_the_setting() -> None:
    # Modules beside the script that runs have the name of their file.
    name = penstock.Config(loss=value_alone).learner.loss
    assert name is not None and name.endswith(":value_alone")
