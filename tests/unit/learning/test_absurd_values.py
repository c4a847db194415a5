"""No value in a batch corrupts the state of the learner, and learning continues as without it."""

import dataclasses
import functools
import itertools
from typing import Any, Literal

import numpy as np
import pytest
import torch

from penstock.algo.network import Network
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.learner import Learner
from tests.support.environments.bandit import Bandit
from tests.support.segments.statistics import all_finite
from tests.support.tiers import gate_of

VALUES = (3e38, -3e38, 1e30, 1e20, float("nan"), float("inf"))
COLUMNS = ("observation", "reward", "discounted_return", "behaviour_log_prob", "action")
CHOICES: list[tuple[bool, bool, Literal["tanh", "relu"]]] = [
    (False, False, "relu"),
    (False, True, "tanh"),
    (True, False, "tanh"),
    (True, True, "relu"),
]
NETWORKS = {
    f"{'standardised' if observations else 'raw'} observations, {'scaled' if returns else 'raw'} returns": Network(
        hidden_sizes=(16,), activation=activation, normalise_observations=observations, normalise_returns=returns
    )
    for observations, returns, activation in CHOICES
}
KINDS = ["discrete", "continuous"]
SETTINGS = pytest.mark.parametrize("setting", NETWORKS)
ACTIONS = pytest.mark.parametrize("actions", KINDS)


def columns_of(actions: str) -> tuple[str, ...]:
    return COLUMNS[:-1] if actions == "discrete" else COLUMNS


def with_value(batch: TrainingBatch, column: str, value: float) -> TrainingBatch:
    """Returns the batch with this value in one row of a fresh segment and in one of a replayed segment."""
    of_leaves = column in ("observation", "action")
    changed = (getattr(batch, column)[0] if of_leaves else getattr(batch, column)).clone()
    for segment, step in ((0, 5), (batch.reward.shape[0] - 1, 2)):
        changed[segment, step] = value
    replacement: dict[str, Any] = {column: (changed,) if of_leaves else changed}
    return dataclasses.replace(batch, **replacement)


def assert_finite(learner: Learner) -> None:
    learner.check_finite()
    assert learner.policy.return_moments.scale().isfinite().all()
    assert (learner.policy.return_moments.scale() > 0.0).all()
    assert (learner.policy.observation_moments.scale() > 0.0).all()


def results_of(actions: str, setting: str, absurd: tuple[tuple[str, float], ...], ordinary: int) -> dict[str, float]:
    """Trains 20 ordinary batches, one batch with each absurd value, and `ordinary` further batches.

    If `absurd` is empty, ordinary batches take the place of those with absurd values.

    Returns:
        Statistics of the last 100 of the further batches.
    """
    bandit = Bandit(actions, NETWORKS[setting])
    learner, last = bandit.learner, []
    for value in (*[None] * 20, *(absurd or [None] * len(VALUES)), *[None] * ordinary):
        batch = bandit.collect()
        outcome = learner.train(batch if value is None else with_value(batch, *value), 0.0)
        assert np.isfinite(outcome.priorities).all()
        if value is not None:
            assert_finite(learner)
        last.append(outcome.statistics)
    assert_finite(learner)
    tail = last[-min(100, ordinary) :]
    return {
        "score": bandit.score(),
        "value_loss": float(np.mean([each.learning.value_loss for each in tail])),
        "explained_variance": float(np.mean([each.learning.explained_variance for each in tail])),
        "return_scale": learner.policy.return_moments.scale().item(),
        "observation_scale": learner.policy.observation_moments.scale().mean().item(),
    }


@functools.cache
def undisturbed(actions: str, setting: str, ordinary: int) -> dict[str, float]:
    return results_of(actions, setting, (), ordinary)


def assert_learns_as_without(actions: str, setting: str, column: str, ordinary: int) -> None:
    disturbed = results_of(actions, setting, tuple((column, value) for value in VALUES), ordinary)
    alone = undisturbed(actions, setting, ordinary)
    # The best scores of the two tasks are 1.8 and 0, and an untrained policy scores 0.9 and -1.
    assert disturbed["score"] == pytest.approx(alone["score"], abs=0.05)
    assert disturbed["value_loss"] == pytest.approx(alone["value_loss"], rel=0.2)
    assert disturbed["explained_variance"] == pytest.approx(alone["explained_variance"], abs=0.1)
    for name in ("return_scale", "observation_scale"):
        assert disturbed[name] == pytest.approx(alone[name], rel=0.03), name


@pytest.mark.parametrize(("actions", "setting"), gate_of(2, itertools.product(KINDS, NETWORKS)))
def test_absurd_values_in_any_column_do_not_affect_learning(actions: str, setting: str) -> None:
    for column in columns_of(actions):
        assert_learns_as_without(actions, setting, column, ordinary=20)


@pytest.mark.long
@SETTINGS
@ACTIONS
def test_a_thousand_batches_after_absurd_values_learn_as_without_them(actions: str, setting: str) -> None:
    for column in columns_of(actions):
        assert_learns_as_without(actions, setting, column, ordinary=1000)


@SETTINGS
@pytest.mark.parametrize("value", gate_of(2, VALUES))
@pytest.mark.parametrize("column", COLUMNS)
def test_one_bad_row_excludes_that_row_and_not_the_batch(column: str, value: float, setting: str) -> None:
    bandit = Bandit("continuous", NETWORKS[setting])
    for _ in range(3):
        bandit.learner.train(bandit.collect(), 0.0)
    outcome = bandit.learner.train(with_value(bandit.collect(), column, value), 0.0)
    # The row before a bad observation needs its value, too.
    assert outcome.unsound_rows <= 4
    assert outcome.refused_steps == 0
    assert outcome.updates == 4
    assert all_finite(outcome.statistics)


@SETTINGS
def test_a_batch_of_only_absurd_values_changes_no_parameter(setting: str) -> None:
    bandit = Bandit("discrete", NETWORKS[setting])
    bandit.learner.train(bandit.collect(), 0.0)
    before = bandit.learner.parameters.detach().clone()
    batch = bandit.collect()
    absurd = torch.full_like(batch.behaviour_log_prob, torch.nan)
    outcome = bandit.learner.train(dataclasses.replace(batch, behaviour_log_prob=absurd), 0.0)
    assert torch.equal(bandit.learner.parameters, before)
    assert (outcome.updates, outcome.unsound_rows) == (0, 64)
    assert outcome.fresh_steps == 32
    assert outcome.priorities.tolist() == [0.0] * 8
