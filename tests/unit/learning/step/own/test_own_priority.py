"""A priority of the user's own takes the place of the shipped one, and useless ones are refused in one line."""

import dataclasses
import math
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import penstock
from penstock.algo.network import Network
from penstock.config import Execution, PPOConfig, SamplingConfig
from penstock.errors import ConfigurationError, TrainingFailed
from penstock.learning.step.batches import KnownRows, TrainingBatch
from penstock.learning.step.learner import Learner
from penstock.priorities import Segments
from tests.support.environments.tiny import spec_of
from tests.support.services.ranks import ranks_in_threads, together
from tests.support.training.training import (
    CPU,
    SMALL,
    collect_batch,
    make_batch,
    make_learner,
    same_parameters,
)

HERE = __name__
SHIPPED = "penstock.priorities:mean_advantage"
GRU = Network(hidden_sizes=(16,), memory="gru", memory_size=8)


class Seen:
    """A priority that keeps the segments that it was called with."""

    segments: ClassVar[list[Segments]] = []

    def __call__(self, segments: Segments) -> Tensor:
        type(self).segments.append(segments)
        return segments.age.float()


def newest_step(segments: Segments) -> Tensor:
    return segments.value_error[:, -1].abs()


def uncertain(segments: Segments) -> Tensor:
    return segments.entropy().sum(1) / segments.usable.sum(1).clamp(min=1)


def per_step(segments: Segments) -> Tensor:
    return segments.advantage.abs()


def counts(segments: Segments) -> Tensor:
    return segments.usable.sum(1)


def as_array(segments: Segments) -> Any:
    return segments.advantage.abs().mean(1).numpy()


def signed(segments: Segments) -> Tensor:
    return segments.advantage.mean(1)


def mean_over_usable(segments: Segments) -> Tensor:
    return segments.advantage.abs().sum(1) / segments.usable.sum(1)


def failing(segments: Segments) -> Tensor:
    return segments.advantage.abs() @ torch.ones(7)


def two_arguments(segments: Segments, alpha: float) -> Tensor:
    return segments.advantage.abs().mean(1)


def changing(segments: Segments) -> Tensor:
    segments.usable.zero_(), segments.age.zero_(), segments.importance.zero_(), segments.reward.zero_()
    return segments.priority + 1.0


class Later:
    """A priority that is bad from its second call on, which is the first batch."""

    calls = 0

    def __call__(self, segments: Segments) -> Tensor:
        type(self).calls += 1
        found = segments.advantage.abs().mean(1)
        return found if type(self).calls == 1 else self.change(found)

    def change(self, found: Tensor) -> Tensor:
        raise KeyError("late")


class Shorter(Later):
    def change(self, found: Tensor) -> Tensor:
        return found[1:]


class Spoilt(Later):
    def change(self, found: Tensor) -> Tensor:
        return torch.cat([torch.tensor([math.nan, -1.0, math.inf]), found[3:]])


def learner_with(priority: str | None, **options: Any) -> Learner:
    return make_learner(sampling=SamplingConfig(priority=priority), **options)


def with_known_rows(batch: TrainingBatch, env_id: str = "CartPole-v1", **options: Any) -> TrainingBatch:
    """Returns a batch with the facts about its rows that the host of a GPU knows."""
    return dataclasses.replace(batch, rows=KnownRows.of(collect_batch(env_id, **options), CPU))


@pytest.mark.parametrize(
    ("execution", "network", "rows_known"),
    # Direct steps are taken on a CPU alone, where the host need not count rows.
    [
        ("auto", SMALL, False),
        ("eager", SMALL, False),
        ("eager", SMALL, True),
        ("auto", GRU, False),
        ("auto", GRU, True),
    ],
)
def test_the_shipped_priority_as_a_users_function_is_the_same(
    execution: Execution, network: Network, rows_known: bool
) -> None:
    options: dict[str, Any] = {"fresh": 4, "network": network, "windows": 2}
    batch = make_batch(**options)
    if rows_known:
        batch = with_known_rows(batch, **options)
    own, shipped = (learner_with(name, execution=execution, network=network) for name in (SHIPPED, None))
    assert own.execution == shipped.execution
    for progress in (0.0, 0.5):
        ours, theirs = own.train(batch, progress), shipped.train(batch, progress)
        assert ours.refused_priorities == 0
        if own.execution == "direct":
            # Its sum has another order.
            np.testing.assert_allclose(ours.priorities, theirs.priorities, rtol=1e-5)
        else:
            assert np.array_equal(ours.priorities, theirs.priorities)
        assert np.array_equal(ours.fresh_errors, theirs.fresh_errors)
    # Nothing else changes: the masses, and with them the importance weights, come from the replay service.
    assert same_parameters(own, shipped)


@pytest.mark.parametrize(("env_id", "network"), [("CartPole-v1", SMALL), ("Pendulum-v1", SMALL), ("CartPole-v1", GRU)])
def test_a_priority_gets_the_numbers_of_the_batch(env_id: str, network: Network) -> None:
    Seen.segments = []
    # Otherwise training would change the scale of the rewards before its estimates.
    network = dataclasses.replace(network, normalise_returns=False)
    burn_in = 4 if network.memory else 0
    learner = learner_with(f"{HERE}:Seen", env_id=env_id, network=network, burn_in_steps=burn_in)
    batch = make_batch(env_id, fresh=4, network=network, burn_in=burn_in, windows=2)
    # A row whose numbers have no meaning.
    reward, truncated = batch.reward.clone(), batch.truncated.clone()
    reward[2, 3] = math.nan
    truncated[4, 5] = True
    batch = dataclasses.replace(batch, reward=reward, truncated=truncated)
    expected = learner.estimate(batch, 0.3)
    with torch.no_grad():
        distribution, value = learner.policy.evaluate(batch.inputs, burn_in=burn_in, bootstraps=True)
        log_prob, entropy = distribution.log_prob(batch.action), distribution.entropy()
    outcome = learner.train(batch, 0.3)
    segments, usable = Seen.segments[1], expected.usable
    assert not usable[2, 3] and (usable.sum(1)[2] == 0 if network.memory else usable[2].any())
    assert segments.usable.equal(usable)

    def masked(values: Tensor) -> Tensor:
        return torch.where(usable, values, 0.0)

    for ours, theirs in (
        (segments.value, value[:, :-1]),
        (segments.value_error, expected.correction),
        (segments.target, value[:, :-1] + expected.correction),
        (segments.log_ratio, log_prob - batch.behaviour_log_prob),
        (segments.reward, batch.reward),
    ):
        torch.testing.assert_close(ours, masked(theirs), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(segments.advantage.abs().mean(1), expected.priority, rtol=1e-5, atol=1e-6)
    assert segments.truncated.equal(batch.truncated & usable) and segments.truncated[4, 5] == usable[4, 5]
    assert segments.terminated.equal(batch.terminated & usable)
    assert segments.age.tolist() == batch.staleness.tolist() and segments.fresh.tolist() == 4 * [True] + 2 * [False]
    assert segments.priority.tolist() == pytest.approx(4 * [0.0] + batch.priorities[4:].tolist())
    assert (segments.importance[:4] == 1.0).all() and (segments.importance[4:] != 1.0).all()
    rows = {*expected.steps.importance.flatten().tolist()}
    assert len(rows) == 3 and rows <= {*segments.importance.tolist()}
    # By now the policy has been trained, so its entropies are others.
    assert outcome.updates and not segments.entropy().allclose(masked(entropy))
    assert outcome.priorities.tolist() == batch.staleness.tolist()


def test_entropies_are_those_before_the_batch() -> None:
    learner, batch = learner_with(f"{HERE}:uncertain"), make_batch()
    with torch.no_grad():
        entropy = learner.policy.evaluate(batch.inputs, bootstraps=True)[0].entropy()
    usable = learner.estimate(batch, 0.0).usable
    expected = torch.where(usable, entropy, 0.0).sum(1) / usable.sum(1)
    np.testing.assert_allclose(learner.train(batch, 0.0).priorities, expected.double().numpy(), rtol=1e-5)


def test_a_priority_may_change_its_inputs() -> None:
    ours, theirs, batch = learner_with(f"{HERE}:changing"), learner_with(None), make_batch(fresh=4)
    before = (batch.valid.clone(), batch.reward.clone(), batch.staleness.copy())
    for progress in (0.0, 0.5):
        assert ours.train(batch, progress).unsound_rows == theirs.train(batch, progress).unsound_rows
    assert same_parameters(ours, theirs)
    assert batch.valid.equal(before[0]) and batch.reward.equal(before[1]) and (batch.staleness == before[2]).all()


def test_a_run_says_who_gives_its_priorities() -> None:
    learner = learner_with(SHIPPED)
    assert learner.execution == "direct" and learner_with(None).notices == ()
    assert learner.notices == (f"sampling.priority {SHIPPED} gives the priorities of segments",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package:priority", "No module named 'no_such_package'"),
        ("/nowhere.py:priority", "there is no file /nowhere.py"),
        (f"{HERE}:absent", f"names nothing of {HERE}; correct the part after the colon"),
        (f"{HERE}:HERE", "is a str, which can't be called; name a function, or a class with __call__"),
        (f"{HERE}:two_arguments", r"does not take one argument \(line \d+\): missing .*; take \(segments\)"),
        (
            f"{HERE}:per_step",
            r"\(line \d+\) returned a tensor of shape \[6, 8\] and type torch.float32; return one priority per segment,"
            r" such as segments.advantage.abs\(\).mean\(1\), in a tensor of floats of shape \[6\]",
        ),
        (f"{HERE}:counts", "returned a tensor of shape .* and type torch.int64; return one priority per segment"),
        (f"{HERE}:as_array", "returned a value of type ndarray; return one priority per segment"),
        (f"{HERE}:signed", r"returned a negative priority \(-[\d.]+\) for a made-up batch; return an absolute value"),
        (
            f"{HERE}:mean_over_usable",
            r"returned a priority that is not finite \(nan\) for a made-up batch; a segment may have no usable step:"
            r" divide by segments.usable.sum\(1\).clamp\(min=1\)",
        ),
        (f"{HERE}:failing", r"failed: RuntimeError: .* \(.*test_own_priority.py, line \d+\); correct it"),
    ],
)
def test_what_is_no_priority_is_refused_in_one_line_before_training(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        learner_with(name)
    assert str(refused.value).startswith(f"sampling.priority {name!r}") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Later", r"failed: KeyError: 'late' \(.*test_own_priority.py, line \d+\); correct it"),
        ("Shorter", r"returned a tensor of shape \[5\] and type torch.float32; return one priority per segment"),
    ],
)
def test_a_priority_that_fails_in_training_ends_it_in_one_line(name: str, message: str) -> None:
    globals()[name].calls = 0
    learner = learner_with(f"{HERE}:{name}")
    with pytest.raises(TrainingFailed, match=message) as failed:
        learner.train(make_batch(), 0.0)
    assert "\n" not in str(failed.value)


def test_a_bad_priority_counts_as_0_and_is_counted() -> None:
    Spoilt.calls = 0
    outcome = learner_with(f"{HERE}:Spoilt").train(make_batch(), 0.0)
    assert outcome.priorities[:3].tolist() == [0.0, 0.0, 0.0] and (outcome.priorities[3:] > 0.0).all()
    assert outcome.refused_priorities == 3


def test_the_trial_of_a_priority_leaves_the_random_generators_unchanged() -> None:
    before = torch.random.get_rng_state()
    learner_with(f"{HERE}:uncertain")
    assert torch.random.get_rng_state().equal(before)


def test_the_first_of_several_ranks_alone_computes_priorities() -> None:
    ranks = ranks_in_threads(2)
    several = [
        Learner(
            spec_of("CartPole-v1"),
            SMALL,
            ppo=PPOConfig(epochs=2, minibatches=2),
            sampling=SamplingConfig(priority=name),
            device=CPU,
            seed=0,
            ranks=rank,
        )
        for rank, name in zip(ranks, (f"{HERE}:uncertain", None), strict=True)
    ]
    batch = make_batch(fresh=4)
    ours, theirs = together([partial(learner.train, batch, 0.1) for learner in several], ranks)
    assert same_parameters(*several) and ours.priorities.tolist() != theirs.priorities.tolist()


def test_a_function_is_a_value_of_the_setting() -> None:
    name = penstock.Config(priority=signed).sampling.priority
    assert name is not None and name.endswith(":signed")
