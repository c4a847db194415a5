"""Intrinsic rewards of a user's module: they are learnt, added to the task's, and saved. Useless ones are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import penstock
from penstock.algo import advantages
from penstock.algo.network import Network
from penstock.config import Execution, PPOConfig, SamplingConfig
from penstock.errors import ConfigurationError
from penstock.intrinsic import Experience
from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import RunProgress
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from tests.support.environments.tiny import spec_of
from tests.support.services.ranks import ranks_in_threads
from tests.support.training.training import CPU, make_batch, make_learner, same_parameters

HERE = __name__


class Predicted(nn.Module):
    """Rewards the error of a linear prediction of the next observation."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = [torch.Size(shape).numel() for shape in shapes]
        self.layer = nn.Linear(sum(self.sizes), sum(self.sizes))

    def forward(self, steps: Experience) -> Tensor:
        before, after = (
            torch.cat([part.flatten(1).float() for part in parts], 1)
            for parts in (steps.observation, steps.next_observation)
        )
        return nn.functional.mse_loss(self.layer(before), after, reduction="none").mean(1)


class Frozen(Predicted):
    """Has a part that is not trained."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        super().__init__(*shapes)
        self.target = nn.Linear(sum(self.sizes), 4).requires_grad_(False)


class OneNumber(Predicted):
    def forward(self, steps: Experience) -> Tensor:
        return super().forward(steps).mean()


class Negative(Predicted):
    def forward(self, steps: Experience) -> Tensor:
        return -super().forward(steps)


class NotFinite(Predicted):
    def forward(self, steps: Experience) -> Tensor:
        return super().forward(steps) / 0.0


class Untrained(Predicted):
    def forward(self, steps: Experience) -> Tensor:
        return super().forward(steps).detach()


class Failing(Predicted):
    def forward(self, steps: Experience) -> Tensor:
        raise ValueError("no such part")


class WithArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()


def not_a_module(steps: Experience) -> Tensor:
    return steps.observation[0].sum(1)


def learner_with(name: str = "Predicted", env_id: str = "CartPole-v1", **settings: object) -> Learner:
    return make_learner(env_id, intrinsic_reward=f"{HERE}:{name}", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("execution", ["auto", "eager"])
def test_rewards_without_weight_leave_training_as_it_is(env_id: str, execution: Execution) -> None:
    # V-trace as the user's function, because compiled estimates round differently.
    settings: dict[str, Any] = {"execution": execution, "advantage": "penstock.advantages:v_trace"}
    plain = make_learner(env_id, **settings)
    own = [learner_with("Predicted", env_id, intrinsic_coefficient=weight, **settings) for weight in (0.0, 1.0)]
    assert {each.execution for each in own} == {plain.execution}
    for _ in range(2):
        batch = make_batch(env_id, fresh=4)
        for learner in (plain, *own):
            learner.train(batch, 0.0)
    assert same_parameters(plain, own[0])
    assert not same_parameters(plain, own[1])


def test_the_module_learns_what_it_has_seen_and_rewards_it_less() -> None:
    learner, rewards, errors = learner_with(epochs=4, minibatches=4), [], []
    batch = make_batch("CartPole-v1", segments=8)
    for _ in range(40):
        own = learner.train(batch, 0.0).statistics.own
        rewards.append(own["intrinsic_reward"])
        errors.append(own["intrinsic_value_error"])
    first, last = rewards[1], rewards[-1]
    assert first is not None and last is not None and last < 0.2 * first
    assert all(error is not None and error >= 0.0 for error in errors)


def test_only_fresh_steps_train_the_module() -> None:
    states = []
    for fresh in (0, 4):
        learner = learner_with()
        before = {name: each.clone() for name, each in learner.own.intrinsic_state.items()}
        learner.train(make_batch("CartPole-v1", fresh=fresh), 0.0)
        states.append({name: torch.equal(before[name], each) for name, each in learner.own.intrinsic_state.items()})
    replayed, some_fresh = states
    assert replayed["module.layer.weight"] and not replayed["critic.0.weight"]
    assert not some_fresh["module.layer.weight"] and not some_fresh["critic.0.weight"]


def test_frozen_parameters_of_the_module_stay() -> None:
    learner = learner_with("Frozen")
    before = learner.own.intrinsic_state["module.target.weight"].clone()
    learner.train(make_batch("CartPole-v1"), 0.0)
    assert torch.equal(learner.own.intrinsic_state["module.target.weight"], before)


def test_advantages_are_those_of_the_task_plus_those_of_rewards_that_no_end_stops() -> None:
    batch = make_batch("CartPole-v1", segments=4, unroll_length=64)
    ends = batch.terminated & batch.valid
    assert ends.any()
    settings: dict[str, Any] = {"execution": "eager", "normalise_advantages": False, "v_trace": False}
    plain, learner = make_learner(**settings), learner_with(intrinsic_coefficient=0.5, **settings)
    assert same_parameters(plain, learner)
    found: list[tuple[Tensor, Tensor]] = []
    original: Callable[..., advantages.Estimates] = advantages.estimate

    def watched(**given: Tensor) -> advantages.Estimates:
        estimates = original(**given)
        found.append((given["terminated"], estimates.advantage))
        return estimates

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advantages, "estimate", watched)
        estimated = learner.estimate(batch, 0.0)
    ((never, own),) = found
    assert not never.any()
    expected = plain.estimate(batch, 0.0).steps.advantage + 0.5 * own[estimated.usable]
    torch.testing.assert_close(estimated.steps.advantage, expected)


@pytest.mark.parametrize(
    "network",
    [Network(hidden_sizes=(16,)), Network(hidden_sizes=(16,), memory="gru", memory_size=8)],
    ids=["without memory", "with memory"],
)
def test_burn_in_and_memory_have_the_rows_of_the_steps(network: Network) -> None:
    burn_in = 3 if network.memory else 0
    learner = learner_with(network=network, burn_in_steps=burn_in)
    batch = make_batch("CartPole-v1", learner=learner, burn_in=burn_in, windows=2)
    outcome = learner.train(batch, 0.0)
    assert outcome.updates and outcome.statistics.own["intrinsic_reward"]


def saved(learner: Learner, folder: Path) -> Path:
    (folder / "checkpoints").mkdir()
    return checkpoints.save(RunFolder(folder), checkpoints.take(learner, RunProgress()), keep=2)


def test_a_resumed_learner_continues_bit_for_bit(tmp_path: Path) -> None:
    learner, batch = learner_with(), make_batch("CartPole-v1", fresh=4)
    learner.train(batch, 0.0)
    resumed = learner_with(seed=5)
    checkpoints.restore(resumed, saved(learner, tmp_path))
    for each in (learner, resumed):
        each.train(batch, 0.5)
    assert same_parameters(learner, resumed)
    ours, theirs = learner.own.intrinsic_state, resumed.own.intrinsic_state
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (None, "Predicted", "it has no intrinsic rewards, which ppo.intrinsic_reward .*Predicted now computes; resume"),
        ("Predicted", None, "it has intrinsic rewards, and ppo.intrinsic_reward is not set; resume"),
        ("Predicted", "Frozen", "Missing key.*target.* ppo.intrinsic_reward .*Frozen now computes; resume with"),
    ],
)
def test_a_checkpoint_with_others_is_refused(
    before: str | None, after: str | None, message: str, tmp_path: Path
) -> None:
    path = saved(make_learner() if before is None else learner_with(before), tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        checkpoints.restore(make_learner() if after is None else learner_with(after), path)
    # A new run may begin with its policy.
    checkpoints.start_from(make_learner() if after is None else learner_with(after), path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OneNumber", r"returned a tensor of shape \[\] .*; return one reward per step, \[8\]"),
        ("Negative", "returned a reward that is negative or not finite; return errors, squared"),
        ("NotFinite", "returned a reward that is negative or not finite"),
        ("Untrained", "returned rewards without a gradient; return the error of a prediction"),
        ("Failing", "failed: ValueError: no such part .*; correct it"),
        ("WithArguments", r"can't be made for parts of the shapes \(4,\): TypeError.*; correct it"),
        ("not_a_module", "is not a subclass of torch.nn.Module"),
        ("Missing", "is not a subclass of torch.nn.Module"),
    ],
)
def test_rewards_that_cannot_be_learnt_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        learner_with(name)
    assert "\n" not in str(refused.value)


def test_several_ranks_refuse_them_and_import_nothing() -> None:
    with pytest.raises(ConfigurationError, match=r"ppo.intrinsic_reward needs a learner of one rank.*; remove it, or"):
        Learner(
            spec_of("CartPole-v1"),
            Network(),
            ppo=PPOConfig(intrinsic_reward="no_such_package:Reward"),
            sampling=SamplingConfig(),
            device=CPU,
            seed=0,
            ranks=ranks_in_threads(2)[0],
        )


def test_a_class_is_a_value_of_the_setting() -> None:
    assert penstock.Config(intrinsic_reward=Predicted).ppo.intrinsic_reward == f"{HERE}:Predicted"
