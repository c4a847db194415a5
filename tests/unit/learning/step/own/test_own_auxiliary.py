"""Auxiliary losses of a user's network are added to the loss, for the steps that count and their next observations."""

import dataclasses
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from penstock.algo.network import Network
from penstock.auxiliary import Transitions
from penstock.config import PPOConfig, SamplingConfig
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.step.learner import Learner
from tests.support.environments.tiny import spec_of
from tests.support.services.ranks import ranks_in_threads
from tests.support.training.training import CPU, make_batch, make_learner, parameters_of, same_parameters
from tests.unit.learning.step.own.test_own_priority import with_known_rows

HERE = __name__


class Plain(nn.Module):
    """A layer whose features are twice the observation, and which has a parameter."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((shape[0],), 2.0))

    def forward(self, observation: Tensor) -> Tensor:
        return self.scale * observation


class Kept(Plain):
    """Keeps what its auxiliary loss gets, and returns 0."""

    seen: ClassVar[list[Transitions]] = []

    def auxiliary_loss(self, steps: Transitions) -> Tensor:
        self.seen.append(steps)
        return 0.0 * steps.features.sum(1)


class Predicting(Plain):
    """Predicts the next features from the features, by a layer that nothing else trains."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.next = nn.Linear(shape[0], shape[0])

    def auxiliary_loss(self, steps: Transitions) -> Tensor:
        error: Tensor = self.next(steps.features) - steps.next_features.detach()
        return error.square().mean(1)


class Summed(Plain):
    def auxiliary_loss(self, steps: Transitions) -> Tensor:
        return steps.features.sum()


class Detached(Plain):
    def auxiliary_loss(self, steps: Transitions) -> Tensor:
        return steps.features.detach().sum(1)


class Infinite(Plain):
    def auxiliary_loss(self, steps: Transitions) -> Tensor:
        return steps.features.sum(1) / 0.0


class Failing(Plain):
    def auxiliary_loss(self, steps: Transitions) -> Tensor:
        raise KeyError("no such feature")


def network(kind: type[nn.Module], **settings: Any) -> Network:
    settings = {"trunk": "shared", "hidden_sizes": (16,), "normalise_observations": False, **settings}
    return Network(module=f"{HERE}:{kind.__name__}", **settings)


def learner_with(kind: type[nn.Module], **settings: Any) -> Learner:
    return make_learner(network=network(kind), epochs=1, minibatches=1, **settings)


def test_it_gets_the_features_of_each_step_and_of_the_observation_after_it() -> None:
    learner, batch = learner_with(Kept), make_batch()
    Kept.seen.clear()
    learner.train(batch, 0.0)
    (steps,) = [each for each in Kept.seen if len(each.features) == int(batch.valid.sum())]
    (observation,) = batch.observation
    expected = {
        (tuple(now.tolist()), tuple(then.tolist()), int(action), bool(ended))
        for now, then, action, ended in zip(
            (2.0 * observation[:, :-1])[batch.valid],
            (2.0 * observation[:, 1:])[batch.valid],
            batch.action[0][batch.valid],
            batch.terminated[batch.valid],
            strict=True,
        )
    }
    assert isinstance(steps.action, Tensor)
    found = zip(steps.features, steps.next_features, steps.action, steps.counted, strict=True)
    assert {(tuple(a.tolist()), tuple(b.tolist()), int(c), not bool(d)) for a, b, c, d in found} == expected
    assert any(ended for *_, ended in expected)


def test_a_loss_of_0_changes_nothing() -> None:
    with_it, without, batch = learner_with(Kept), learner_with(Plain), make_batch()
    outcome = with_it.train(batch, 0.0)
    without.train(batch, 0.0)
    assert same_parameters(with_it, without)
    assert outcome.statistics.own == {"auxiliary": 0.0}


@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_it_trains_the_networks_own_layers_and_its_mean_is_reported(trunk: str) -> None:
    learner, batch = make_learner(network=network(Predicting, trunk=trunk)), make_batch()
    before = {name: each.clone() for name, each in parameters_of(learner).items() if "next" in name}
    first = learner.train(batch, 0.0).statistics.own["auxiliary"]
    assert len(before) == (2 if trunk == "shared" else 4)
    assert all(not torch.equal(parameters_of(learner)[name], each) for name, each in before.items())
    for _ in range(20):
        last = learner.train(batch, 0.0).statistics.own["auxiliary"]
    assert first is not None and last is not None and last < 0.7 * first


def test_steps_that_fill_a_minibatch_up_or_end_an_episode_do_not_count() -> None:
    batch = make_batch()
    shown = dataclasses.replace(batch, terminated=torch.zeros_like(batch.terminated))
    losses = [learner_with(Predicting).train(each, 0.0).statistics.own["auxiliary"] for each in (batch, shown)]
    padded = learner_with(Predicting).train(with_known_rows(batch), 0.0).statistics.own["auxiliary"]
    assert losses[0] != losses[1]
    assert padded == pytest.approx(losses[0], rel=1e-5)


def test_segments_of_a_memory_have_it_too() -> None:
    memory = network(Predicting, memory="gru", memory_size=8)
    learner = make_learner(network=memory, burn_in_steps=4)
    batch = make_batch(network=memory, burn_in=4)
    found = [learner.train(batch, 0.0).statistics.own["auxiliary"] for _ in range(20)]
    assert found[0] is not None and found[-1] is not None and found[-1] < 0.7 * found[0]


def test_it_is_added_to_a_loss_of_the_users_own() -> None:
    with_both = learner_with(Predicting, loss="penstock.losses:ppo")
    plain = learner_with(Predicting, execution="eager")
    batch = make_batch()
    assert with_both.train(batch, 0.0).statistics.own == plain.train(batch, 0.0).statistics.own
    assert same_parameters(with_both, plain)


def test_the_run_says_that_it_is_added() -> None:
    assert learner_with(Predicting).notices == (f"policy.module {HERE}:Predicting adds an auxiliary loss",)
    assert learner_with(Plain).notices == ()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Summed, r"returned a tensor of shape \[\] and type torch.float32; return one loss per step, of shape \[8\]"),
        (Detached, r"returned a tensor without a gradient; compute it from steps.features"),
        (Infinite, r"returned (inf|nan) for made-up steps; keep it finite"),
        (Failing, r"failed: KeyError: .no such feature. .*line \d+\); correct it"),
    ],
)
def test_a_useless_one_is_refused_in_one_line_before_training(kind: type[nn.Module], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^policy.module '{HERE}:{kind.__name__}.auxiliary_loss'.* {reason}"):
        learner_with(kind)


def test_a_failure_during_training_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_with(Predicting)
    (layer,) = learner.policy.auxiliary_networks
    monkeypatch.setattr(layer, "next", nn.Linear(3, 3))
    with pytest.raises(TrainingFailed, match=r"auxiliary_loss' failed: RuntimeError: .*line \d+\); correct it"):
        learner.train(make_batch(), 0.0)


def test_several_ranks_refuse_it() -> None:
    with pytest.raises(ConfigurationError, match=r"^the auxiliary loss of policy.module needs a learner of one rank"):
        Learner(
            spec_of("CartPole-v1"),
            network(Predicting),
            ppo=PPOConfig(),
            sampling=SamplingConfig(),
            device=CPU,
            seed=0,
            ranks=ranks_in_threads(2)[0],
        )
