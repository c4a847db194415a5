import dataclasses
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.algo.losses import Losses, LossSettings
from penstock.algo.network import Network
from penstock.algo.parameters import flatten
from penstock.algo.policies import Inputs, Policy
from penstock.errors import ConfigurationError
from penstock.learning.step.adam import Adam
from penstock.learning.step.execution import Descent, Eager, FixedShapes, Take, descent_by
from penstock.learning.step.gradient_steps import Descended, GradientStep, Objective, Steps, objective_of
from penstock.learning.step.learner import Learner
from penstock.learning.step.own.loss import OwnLoss
from penstock.losses import Minibatch, ppo
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy
from tests.support.training.training import CPU, SMALL, make_batch, make_learner

SETTINGS = LossSettings(
    clip_range=0.2,
    value_clip_range=0.3,
    value_coefficient=0.5,
    entropy_coefficient=0.01,
    normalise_advantages=True,
    clip_anchor=0.5,
    behaviour_weight_clip=5.0,
)
TASKS = pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])


def with_statistic(policy: Policy, batch: Minibatch, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    return ppo(policy, batch, settings)[0], {"value": batch.mean(batch.value)}


def make_step(env_id: str, loss: str | None = None) -> GradientStep:
    policy = fresh_policy(spec_of(env_id))
    parameters = flatten(policy)
    objective = objective_of(policy, "float32", CPU)
    if loss is not None:
        objective = OwnLoss(loss).objective(policy, "float32", CPU, 0)
    return GradientStep(objective, parameters, Adam(parameters, 1e-2), max_gradient_norm=0.5)


def random_steps(env_id: str, count: int, seed: int) -> Steps:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator)

    discrete = env_id == "CartPole-v1"
    action = torch.randint(2, (count,), generator=generator) if discrete else normal(1)
    inputs = Inputs((normal(4 if discrete else 3),))
    rest: tuple[Any, ...] = (*(normal() for _ in range(7)), None)
    steps = Steps(inputs, (action,), *rest)
    return dataclasses.replace(steps, importance=steps.importance.abs())


def descend(descent: Descent, env_id: str, counts: tuple[int, ...]) -> Descended:
    """Descends on batches of these numbers of steps, with different clip ranges, in at most four minibatches."""
    done = []
    for index, count in enumerate(counts):
        settings = dataclasses.replace(SETTINGS, clip_range=0.3 / (index + 1), entropy_coefficient=0.02 * index)
        descent.begin(random_steps(env_id, count, seed=index), settings, most_steps=64)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(9))
        done.append(descent.descend(order, min(4, count)))
    scalars = zip(*(each.scalars for each in done), strict=True)
    return Descended.of(torch.cat([each.log_prob for each in done]), [torch.cat(each) for each in scalars])


@TASKS
@pytest.mark.parametrize("loss", [None, f"{__name__}:with_statistic"])
def test_padded_minibatches_descend_like_unpadded_ones(env_id: str, loss: str | None) -> None:
    plain, filled = make_step(env_id, loss), make_step(env_id, loss)
    counts = (37, 64, 3, 50)
    shapes = []

    def watch(take: Take) -> Take:
        def taken() -> Descended:
            descended = take()
            shapes.append(descended.log_prob.shape)
            return descended

        return taken

    expected = descend(Eager(plain), env_id, counts)
    done = descend(FixedShapes(filled, minibatches=4, prepare=watch), env_id, counts)
    assert len(done.refused) == len(expected.refused) == 4 + 4 + 3 + 4
    assert set(shapes) == {(16,)}
    for field in dataclasses.fields(Descended):
        ours, theirs = getattr(done, field.name), getattr(expected, field.name)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, equal_nan=loss is not None)
    assert len(done.own) == len(expected.own) == (0 if loss is None else 1)
    torch.testing.assert_close(filled.parameters, plain.parameters, rtol=0, atol=1e-6)


def test_a_batch_larger_than_all_previous_ones_enlarges_the_buffers() -> None:
    plain, filled = make_step("CartPole-v1"), make_step("CartPole-v1")
    fixed = FixedShapes(filled, minibatches=4, prepare=lambda take: take)
    for descent in (Eager(plain), fixed):
        for count in (20, 90, 30):
            descent.begin(random_steps("CartPole-v1", count, seed=count), SETTINGS, most_steps=count)
            descent.descend(torch.arange(count), 4)
    torch.testing.assert_close(filled.parameters, plain.parameters, rtol=0, atol=1e-6)


def changes_of(learner: Learner) -> Tensor:
    return learner.parameters.detach() - make_learner().parameters.detach()


def test_bfloat16_learns_nearly_the_same_as_float32() -> None:
    exact, rough = make_learner(), make_learner(precision="bfloat16")
    batch = make_batch()
    expected, outcome = (learner.train(batch, 0.0).statistics for learner in (exact, rough))
    for name in ("policy_loss", "value_loss", "entropy", "gradient_norm"):
        expected_mean = getattr(expected.learning, name)
        assert getattr(outcome.learning, name) == pytest.approx(expected_mean, rel=0.02, abs=0.01), name
    ours, theirs = changes_of(rough), changes_of(exact)
    assert not torch.equal(ours, theirs)
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > 0.98


def test_in_bfloat16_outputs_parameters_and_gradients_are_float32() -> None:
    learner = make_learner("Pendulum-v1", precision="bfloat16")
    seen = []
    objective = objective_of(learner.policy, "bfloat16", CPU)

    def watched(steps: Steps, settings: LossSettings, counted: Tensor | None) -> tuple[Tensor, Losses]:
        log_prob, loss = objective(steps, settings, counted)
        seen.extend([log_prob, loss.total, loss.value])
        return log_prob, loss

    step = GradientStep(watched, learner.parameters, learner.optimizer, 0.5)
    step(random_steps("Pendulum-v1", 8, seed=0), SETTINGS)
    for parameter in learner.policy.parameters():
        assert parameter.grad is not None
        seen += [parameter, parameter.grad]
    assert {tensor.dtype for tensor in seen} == {torch.float32}


def test_in_bfloat16_the_ratios_of_a_batch_begin_at_1() -> None:
    learner = make_learner(precision="bfloat16", epochs=1, minibatches=1)
    outcome = learner.train(make_batch(), 0.0)
    assert outcome.statistics.learning.approximate_kl == pytest.approx(0.0, abs=1e-9)


def test_a_cuda_graph_on_a_cpu_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"'graphed' needs CUDA, and learner\.device is 'cpu'; use eager"):
        make_learner(execution="graphed")


@pytest.mark.parametrize(
    ("folder", "remedy"),
    [
        ("/venv/torch", r"install a C\+\+ compiler \(g\+\+\)"),
        ("/my venv/torch", "install torch into a folder without a space, unlike /my venv/torch"),
    ],
)
def test_a_loss_that_cannot_be_compiled_raises_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, folder: str, remedy: str
) -> None:
    plain = make_step("CartPole-v1")
    objective: Objective = plain.objective

    def untraceable(steps: Steps, settings: LossSettings, counted: Tensor | None) -> tuple[Tensor, Losses]:
        torch._dynamo.graph_break()
        return objective(steps, settings, counted)

    descent = descent_by("compiled", dataclasses.replace(plain, objective=untraceable), minibatches=4)
    monkeypatch.setattr(torch, "__path__", [folder])
    with pytest.raises(
        ConfigurationError, match=rf"can't be compiled: .*; {remedy}.*, or set learner\.execution to eager"
    ):
        descend(descent, "CartPole-v1", (20,))


@pytest.mark.nightly
@pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler")
@pytest.mark.skipif(" " in torch.__path__[0], reason="torch can't compile from a folder with a space")
@pytest.mark.parametrize(
    ("env_id", "network"),
    [
        ("CartPole-v1", SMALL),
        ("Pendulum-v1", dataclasses.replace(SMALL, trunk="shared", squash_actions=True, state_dependent_std=True)),
        ("CartPole-v1", dataclasses.replace(SMALL, memory="gru", memory_size=8)),
        ("CartPole-v1", dataclasses.replace(SMALL, memory="lstm", memory_size=8)),
    ],
)
@pytest.mark.parametrize("loss", [None, "penstock.losses:ppo"])
def test_compiled_and_eager_steps_learn_the_same(env_id: str, network: Network, loss: str | None) -> None:
    eager, compiled = (
        make_learner(env_id, network=network, execution=name, loss=loss, clip_range_schedule="linear")
        for name in ("eager", "compiled")
    )
    for progress, segments in ((0.0, 4), (0.3, 6), (0.6, 6)):
        batch = make_batch(env_id, segments=segments, learner=eager)
        outcomes = [learner.train(batch, progress).statistics for learner in (eager, compiled)]
        assert outcomes[1].learning.policy_loss == pytest.approx(outcomes[0].learning.policy_loss, abs=1e-5)
        torch.testing.assert_close(compiled.parameters, eager.parameters, rtol=0, atol=1e-5)
