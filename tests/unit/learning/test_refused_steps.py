"""A gradient step without a finite norm changes nothing and is counted; a run with only such steps ends."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from penstock.algo.losses import LossSettings
from penstock.algo.normalisation import MomentsUpdate
from penstock.algo.parameters import flatten
from penstock.algo.policies import Inputs, MomentsUpdates
from penstock.config import PPOConfig, build
from penstock.errors import Diverged
from penstock.learning.report.statistics import RunStatistics
from penstock.learning.run.refusals import Refusals
from penstock.learning.step.adam import Adam
from penstock.learning.step.execution import Descent, Eager, FixedShapes
from penstock.learning.step.gradient_steps import GradientStep, Steps, objective_of
from penstock.learning.step.learner import TrainingOutcome
from penstock.learning.step.schedules import loss_settings
from penstock.types.extents import Amounts
from tests.support.environments.bandit import Bandit
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy
from tests.support.training.training import CPU, SMALL

SETTINGS = loss_settings(PPOConfig(), 0.0)
RAW = dataclasses.replace(SMALL, normalise_observations=False, normalise_returns=False)


def make_step(learning_rate: float = 1e-2) -> GradientStep:
    policy = fresh_policy(spec_of("Pendulum-v1"))
    parameters = flatten(policy)
    objective = objective_of(policy, "float32", CPU)
    return GradientStep(objective, parameters, Adam(parameters, learning_rate), max_gradient_norm=0.5)


def steps_of(count: int = 16, target: float | None = None) -> Steps:
    generator = torch.Generator().manual_seed(count)
    columns = [torch.randn(count, generator=generator) for _ in range(7)]
    observation, action = torch.randn(count, 3, generator=generator), torch.randn(count, 1, generator=generator)
    rest: tuple[Any, ...] = (*columns, None)
    steps = Steps(Inputs((observation,)), (action,), *rest)
    steps = dataclasses.replace(steps, importance=steps.importance.abs())
    return steps if target is None else dataclasses.replace(steps, target=torch.full((count,), target))


def state_of(step: GradientStep) -> list[Tensor]:
    state = step.optimizer.state
    return [step.parameters.detach().clone(), *(state[name].clone() for name in ("exp_avg", "exp_avg_sq", "step"))]


DESCENTS: dict[str, Callable[[GradientStep], Descent]] = {
    "eager": Eager,
    "fixed shapes": lambda step: FixedShapes(step, minibatches=1, prepare=lambda take: take),
}


@pytest.mark.parametrize("execution", DESCENTS)
@pytest.mark.parametrize("target", [math.nan, math.inf, 1e30, 3e38])
def test_a_step_without_a_finite_norm_changes_neither_parameters_nor_the_optimizer(
    execution: str, target: float
) -> None:
    disturbed, alone = make_step(), make_step()
    for step, targets in ((disturbed, (None, target, target, None)), (alone, (None, None))):
        descent = DESCENTS[execution](step)
        for index, each in enumerate(targets):
            # Both take the same ordinary steps.
            descent.begin(steps_of(target=each), SETTINGS, most_steps=16)
            before = state_of(step) if index else None
            descended = descent.descend(torch.arange(16), 1)
            assert descended.refused.item() == float(each is not None)
            if each is not None and before is not None:
                assert all(torch.equal(one, other) for one, other in zip(state_of(step), before, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(state_of(disturbed), state_of(alone), strict=True))


def test_a_refused_first_step_changes_nothing() -> None:
    step = make_step()
    before = step.parameters.detach().clone()
    assert step(steps_of(target=math.nan), SETTINGS).refused.item() == 1.0
    assert torch.equal(step.parameters, before)
    assert step.optimizer.state["step"].item() == 0.0


@pytest.mark.parametrize("gradients", [(1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (1e-4, 1.0, 1e-4), (-1.0, 1.0, 1e17)])
def test_no_step_moves_a_parameter_by_more_than_ten_learning_rates(gradients: tuple[float, ...]) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = Adam(parameter, 1.0)
    for gradient in (*[0.0] * 50, *gradients * 20):
        before = parameter.item()
        parameter.grad = torch.tensor([gradient])
        optimizer.step(torch.zeros(()))
        assert abs(parameter.item() - before) <= 10.0


def test_refused_steps_are_excluded_from_means_and_set_priorities_to_zero() -> None:
    bandit = Bandit("continuous", RAW, minibatches=4, epochs=1)
    bandit.learner.train(bandit.collect(), 0.0)
    batch = bandit.collect()
    before = bandit.learner.parameters.detach().clone()
    # The squares of all rewards overflow float32, but no reward is absurd relative to the others.
    outcome = bandit.learner.train(dataclasses.replace(batch, reward=batch.reward * 1e30), 0.0)
    assert (outcome.updates, outcome.refused_steps) == (0, 4)
    assert torch.equal(bandit.learner.parameters, before)
    assert outcome.priorities.tolist() == [0.0] * 8
    assert outcome.statistics.learning.value_loss is None
    assert outcome.statistics.learning.approximate_kl is not None
    after = bandit.learner.train(bandit.collect(), 0.0)
    assert (after.updates, after.refused_steps) == (4, 0)
    assert after.statistics.learning.value_loss is not None


def test_a_batch_without_a_counted_row_leaves_fixed_shapes_finite() -> None:
    step = make_step()
    descended = step(steps_of(), SETTINGS, torch.zeros(16, dtype=torch.bool))
    assert all(scalar.isfinite() for scalar in descended.scalars)
    assert step.parameters.isfinite().all()


def outcome_of(
    refused: int = 0, rows: int = 0, moments: MomentsUpdate | None = None, priorities: int = 0
) -> TrainingOutcome:
    bandit = Bandit("discrete", RAW)
    outcome = bandit.learner.train(bandit.collect(), 0.0)
    return dataclasses.replace(
        outcome,
        refused_steps=refused,
        unsound_rows=rows,
        refused_priorities=priorities,
        moments=MomentsUpdates(observations=moments or MomentsUpdate(), returns=MomentsUpdate()),
    )


def make_refusals(**policy: bool) -> tuple[Refusals, RunStatistics]:
    statistics = RunStatistics(limits=Amounts(steps=1), earlier_s=0.0)
    return Refusals(build({"ppo": {"max_refused_batches": 3}, "policy": policy}), statistics), statistics


def notices_of(statistics: RunStatistics) -> list[str]:
    return [notice.text for notice in statistics.status().notices]


def test_a_run_ends_after_max_refused_batches_consecutive_batches() -> None:
    refusals, _ = make_refusals(normalise_returns=False)
    bad, good = outcome_of(refused=1), outcome_of()
    for outcome in (bad, bad, good, bad, bad):
        refusals.observe(outcome)
    with pytest.raises(
        Diverged,
        match=r"^training has diverged: 3 batches in a row .*ppo\.learning_rate \(now 0\.001\)"
        r".*scale of the environment's rewards or set policy\.normalise_returns to true[^\n]*$",
    ):
        refusals.observe(bad)


def test_refusals_are_reported_at_1_10_and_100() -> None:
    refusals, statistics = make_refusals()
    bad, good = outcome_of(refused=1, rows=2, moments=MomentsUpdate(left_out=3)), outcome_of()
    for _ in range(99):
        refusals.observe(bad)
        refusals.observe(good)
    notices = notices_of(statistics)
    assert [text.split()[0] for text in notices if "gradient steps were refused" in text] == ["1", "10"]
    assert [text.split()[0] for text in notices if "left out of training" in text] == ["2", "10", "100"]
    assert [text.split()[0] for text in notices if "normalisation" in text] == ["3", "12", "102"]


def test_priorities_of_a_users_function_that_count_as_0_are_reported() -> None:
    statistics = RunStatistics(limits=Amounts(steps=1), earlier_s=0.0)
    refusals = Refusals(build({"sampling": {"priority": "mine:priority"}}), statistics)
    for count in (0, 1, 3, 8):
        refusals.observe(outcome_of(priorities=count))
    assert notices_of(statistics) == [
        f"{count} priorities of segments were NaN, infinite or negative, and count as 0: correct sampling.priority"
        " mine:priority"
        for count in (1, 12)
    ]


def test_a_run_that_diverges_names_the_functions_of_the_user() -> None:
    own = {"learner": {"optimizer": "mine:make"}, "ppo": {"advantage": "mine:advantage", "max_refused_batches": 1}}
    refusals = Refusals(build(own), RunStatistics(limits=Amounts(steps=1), earlier_s=0.0))
    with pytest.raises(Diverged, match=r"correct ppo\.advantage mine:advantage, correct learner\.optimizer mine:make"):
        refusals.observe(outcome_of(refused=1))


def test_a_large_change_of_scale_is_reported() -> None:
    refusals, statistics = make_refusals()
    for change in (1.0, 99.0, 101.0):
        refusals.observe(outcome_of(moments=MomentsUpdate(scale_change=change)))
    (notices,) = notices_of(statistics)
    assert "scale of the observations changed by a factor of 101" in notices


def test_loss_settings_have_the_values_of_the_settings_of_the_same_names() -> None:
    ppo = PPOConfig(clip_range=0.3, clip_range_schedule="linear", entropy_coefficient=0.1, value_coefficient=0.7)
    settings = loss_settings(ppo, 0.75)
    assert settings.clip_range == pytest.approx(0.075)
    assert settings.entropy_coefficient == 0.1
    for field in dataclasses.fields(LossSettings):
        if field.name != "clip_range":
            assert getattr(settings, field.name) == getattr(ppo, field.name)


def test_a_learner_with_values_that_are_not_finite_raises_diverged() -> None:
    bandit = Bandit("discrete", SMALL)
    bandit.learner.train(bandit.collect(), 0.0)
    bandit.learner.check_finite()
    with torch.no_grad():
        bandit.learner.parameters[3] = math.nan
    with pytest.raises(Diverged, match="neither published nor saved"):
        bandit.learner.check_finite()
