import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from penstock.algo.action_heads import ActionHead
from penstock.algo.advantages import Estimates, estimate
from penstock.algo.network import Network
from penstock.algo.priorities import segment_priorities
from penstock.config import Execution, SamplingConfig
from penstock.learning.step.batches import TrainingBatch
from penstock.learning.step.learner import Learner, TrainingOutcome
from penstock.learning.step.training_statistics import _explained_variance
from penstock.types.spaces import BoxSpace, Tree
from tests.support.segments.statistics import all_finite
from tests.support.training.policy_outputs import distribution_of, value_of
from tests.support.training.training import SMALL, make_batch, make_learner, parameters_of, same_parameters

UNNORMALISED = dataclasses.replace(SMALL, normalise_observations=False, normalise_returns=False)
TASKS = pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])


def log_prob_of(learner: Learner, batch: TrainingBatch) -> torch.Tensor:
    return distribution_of(learner.policy, batch.observation[0][:, :-1]).log_prob(batch.action[0])


@torch.no_grad()
def estimates_of(learner: Learner, batch: TrainingBatch, rho_clip: float = 1.0, trace_clip: float = 1.0) -> Estimates:
    log_prob = log_prob_of(learner, batch)
    return estimate(
        value=value_of(learner.policy, batch.observation[0]),
        reward=learner.policy.scale_rewards(batch.reward, batch.terminated, 0.99),
        terminated=batch.terminated,
        truncated=batch.truncated,
        usable=batch.valid,
        log_ratio=(log_prob - batch.behaviour_log_prob) * batch.valid,
        discount=0.99,
        trace_decay=0.95,
        rho_clip=rho_clip,
        trace_clip=trace_clip,
    )


def approximate_kl(outcome: TrainingOutcome) -> float:
    divergence = outcome.statistics.learning.approximate_kl
    assert divergence is not None
    return divergence


@torch.no_grad()
def surrogate(learner: Learner, batch: TrainingBatch, estimates: Estimates) -> float:
    """Returns the mean of ratio times advantage, which training of the policy increases."""
    log_prob = log_prob_of(learner, batch)
    advantage = estimates.advantage[batch.valid]
    ratio = (log_prob - batch.behaviour_log_prob)[batch.valid].exp()
    return float((ratio * (advantage - advantage.mean())).mean())


@torch.no_grad()
def value_error(learner: Learner, batch: TrainingBatch, estimates: Estimates) -> float:
    return float(
        (value_of(learner.policy, batch.observation[0])[:, :-1] - estimates.target)[batch.valid].square().mean()
    )


def invalid_rows_replaced(batch: TrainingBatch) -> TrainingBatch:
    """Returns the batch with other values, except observations, in rows that only reset."""
    assert not batch.valid.all()
    return dataclasses.replace(
        batch,
        action=(torch.where(batch.valid, batch.action[0], 1 - batch.action[0]),),
        reward=torch.where(batch.valid, batch.reward, 1e4),
        behaviour_log_prob=torch.where(batch.valid, batch.behaviour_log_prob, torch.nan),
        discounted_return=torch.where(batch.valid, batch.discounted_return, 1e5),
    )


@TASKS
def test_a_batch_raises_the_surrogate_and_lowers_the_value_error(env_id: str) -> None:
    learner = make_learner(env_id, network=UNNORMALISED, epochs=10, minibatches=4, learning_rate=3e-4)
    batch = make_batch(env_id, learner=learner)
    before = estimates_of(learner, batch)
    old_surrogate, old_error = surrogate(learner, batch, before), value_error(learner, batch, before)
    learner.train(batch, progress=0.0)
    assert surrogate(learner, batch, before) > old_surrogate + 0.01
    assert value_error(learner, batch, before) < old_error


def test_rows_that_only_reset_have_no_influence() -> None:
    one, other = make_learner(), make_learner()
    batch = make_batch(fresh=4)
    outcome, changed = one.train(batch, 0.5), other.train(invalid_rows_replaced(batch), 0.5)
    assert same_parameters(one, other)
    assert np.array_equal(outcome.priorities, changed.priorities)


def test_the_final_observation_in_a_row_that_only_resets_bootstraps_a_truncated_step() -> None:
    one, other = make_learner(), make_learner()
    batch = make_batch()
    batch = dataclasses.replace(batch, truncated=batch.terminated, terminated=torch.zeros_like(batch.terminated))
    other_rows = torch.cat([batch.valid, torch.ones(6, 1, dtype=torch.bool)], 1)[..., None]
    one.train(batch, 0.0)
    other.train(dataclasses.replace(batch, observation=(torch.where(other_rows, batch.observation[0], 3.0),)), 0.0)
    assert not same_parameters(one, other)


def test_priorities_are_those_of_the_parameters_before_the_batch() -> None:
    learner, batch = make_learner(network=UNNORMALISED), make_batch(fresh=4)
    before = estimates_of(learner, batch)
    outcome = learner.train(batch, 0.0)
    expected = segment_priorities(before.advantage, batch.valid)
    assert outcome.priorities.shape == (6,)
    assert outcome.priorities.dtype == np.float64
    np.testing.assert_allclose(outcome.priorities, expected, rtol=1e-5)


def test_training_is_reproducible_for_a_seed_and_differs_for_another() -> None:
    batch = make_batch()
    learners = [make_learner(seed=seed) for seed in (1, 1, 2)]
    for learner in learners:
        learner.train(batch, 0.0)
    assert same_parameters(learners[0], learners[1])
    assert not same_parameters(learners[0], learners[2])


def test_initialisation_and_shuffling_each_depend_on_the_seed() -> None:
    one, other = make_learner(seed=1), make_learner(seed=2)
    assert not same_parameters(one, other)
    other.policy.load_state_dict(one.policy.state_dict())
    for learner in (one, other):
        learner.train(make_batch(), 0.0)
    assert not same_parameters(one, other)


def test_a_learner_does_not_use_torchs_global_generator() -> None:
    batch = make_batch()
    before = torch.get_rng_state()
    make_learner().train(batch, 0.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_is_not_written_to() -> None:
    batch = make_batch(fresh=4)
    copies = [tensor.clone() for tensor in batch.tensors]
    assert len(copies) == 10
    make_learner().train(batch, 0.0)
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(batch.tensors, copies, strict=True))


def test_only_fresh_valid_steps_enter_the_normalisers_and_the_step_count() -> None:
    learner, batch = make_learner(), make_batch(fresh=4)
    outcome = learner.train(batch, 0.0)
    seen = batch.observation[0][:4, :-1][batch.valid[:4]].double()
    assert 0 < len(seen) < 4 * 32
    ended = (batch.terminated | batch.truncated)[:4][batch.valid[:4]]
    assert outcome.fresh_episodes == int(ended.sum()) > 0
    assert outcome.fresh_steps == len(seen) == learner.policy.observation_moments.count
    torch.testing.assert_close(learner.policy.observation_moments.mean, seen.mean(0))
    returns = batch.discounted_return[:4][batch.valid[:4]].double()
    torch.testing.assert_close(learner.policy.return_moments.variance, returns.var(unbiased=False))


def test_the_normalisers_are_constant_within_a_batch() -> None:
    learner = make_learner(epochs=1, minibatches=1)
    learner.train(make_batch(learner=learner), 0.0)
    # If they changed between the estimates and the only gradient step, its ratios would not start at 1.
    outcome = learner.train(make_batch(learner=learner), 0.0)
    assert outcome.statistics.learning.approximate_kl == pytest.approx(0.0, abs=1e-6)
    assert outcome.statistics.learning.clipped_share == 0.0


def test_data_of_the_current_policy_has_an_effective_share_of_1() -> None:
    learner = make_learner()
    outcome = learner.train(make_batch(learner=learner), 0.0)
    assert outcome.statistics.learning.effective_sample_share == pytest.approx(1.0, abs=1e-5)


def test_staleness_counts_versions_between_acting_and_training() -> None:
    statistics = make_learner().train(make_batch(number=9, version=4, fresh=4), 0.0).statistics
    assert (statistics.staleness_mean, statistics.staleness_max) == (5.0, 5)
    assert (statistics.fresh_lag_mean, statistics.fresh_lag_max) == (5.0, 5)


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        ("constant", 1e-3),
        ("linear", 2.5e-4),
        ("cosine", 1.4644661e-4),
        ([[0.0, 0.1], [0.5, 1.0], [1.0, 0.2]], 6e-4),
        ([[0.8, 0.5]], 5e-4),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: object, rate: float) -> None:
    learner = make_learner(learning_rate=1e-3, learning_rate_schedule=schedule)
    assert learner.train(make_batch(), progress=0.75).statistics.learning_rate == pytest.approx(rate)
    assert learner.optimizer.learning_rate == pytest.approx(rate)


def test_a_linear_schedule_stops_learning_at_the_end_of_the_run() -> None:
    learner = make_learner(learning_rate_schedule="linear")
    before = parameters_of(learner)
    learner.train(make_batch(), progress=1.0)
    assert all(torch.equal(parameter, before[name]) for name, parameter in learner.policy.named_parameters())


def test_every_minibatch_of_every_epoch_is_a_gradient_step() -> None:
    learner = make_learner(epochs=3, minibatches=5)
    learner.train(make_batch(), 0.0)
    assert learner.optimizer.state["step"].item() == 15.0


@pytest.mark.parametrize("setting", ["clip_range", "entropy_coefficient"])
def test_a_scheduled_setting_falls_to_zero_over_the_run(setting: str) -> None:
    schedule = {"clip_range": "clip_range_schedule", "entropy_coefficient": "entropy_schedule"}[setting]
    batch = make_batch()

    def trained(progress: float, **ppo: Any) -> Learner:
        learner = make_learner(learning_rate=1e-2, learning_rate_schedule="constant", epochs=4, **ppo)
        learner.train(batch, progress)
        return learner

    # After three quarters of the run, a quarter of the initial value is left.
    assert same_parameters(trained(0.75, **{setting: 0.4, schedule: "linear"}), trained(0.75, **{setting: 0.1}))
    assert same_parameters(trained(0.75, **{setting: 0.4}), trained(0.0, **{setting: 0.4}))
    assert not same_parameters(trained(0.75, **{setting: 0.4}), trained(0.75, **{setting: 0.1}))


def test_passes_end_once_the_policy_exceeds_the_target_kl() -> None:
    batch = make_batch()
    free = make_learner(epochs=8, minibatches=2, learning_rate=3e-2).train(batch, 0.0)
    assert free.updates == 16
    learner = make_learner(epochs=8, minibatches=2, learning_rate=3e-2, target_kl=1e-3)
    stopped = learner.train(batch, 0.0)
    assert stopped.updates in range(2, 16, 2)
    assert learner.optimizer.state["step"].item() == float(stopped.updates)
    assert approximate_kl(stopped) < approximate_kl(free)
    # A policy that never moves that far makes all passes.
    assert make_learner(epochs=8, minibatches=2, target_kl=1e3).train(batch, 0.0).updates == 16


def test_the_target_kl_is_compared_with_the_movement_of_each_pass() -> None:
    batch = make_batch()
    settings: dict[str, Any] = {"minibatches": 2, "learning_rate": 3e-3}
    first, both = (approximate_kl(make_learner(epochs=epochs, **settings).train(batch, 0.0)) for epochs in (1, 2))
    second = 2.0 * both - first
    assert 0.0 < 2.0 * first < second
    between = math.sqrt(first * second)
    assert make_learner(epochs=8, target_kl=between, **settings).train(batch, 0.0).updates == 2 * 2


def test_replayed_segments_are_weighted_by_their_probabilities() -> None:
    batch = make_batch(fresh=2)
    skewed, fresh_skewed = (
        dataclasses.replace(batch, probabilities=batch.probabilities * torch.tensor(factors))
        for factors in ([1.0, 1.0, 0.9, 1.0, 1.0, 1.0], [0.5, 0.1, 1.0, 1.0, 1.0, 1.0])
    )
    learners = [make_learner() for _ in range(3)]
    for learner, variant in zip(learners, (batch, skewed, fresh_skewed), strict=True):
        learner.train(variant, 0.5)
    assert not same_parameters(learners[0], learners[1])
    assert same_parameters(learners[0], learners[2])


@pytest.mark.parametrize("execution", ["eager", "auto"])
@pytest.mark.parametrize(("normalise", "valid", "minibatches"), [(True, 5, 1), (True, 17, 3), (False, 5, 5)])
def test_a_batch_with_few_usable_steps_has_fewer_minibatches(
    execution: Execution, normalise: bool, valid: int, minibatches: int
) -> None:
    learner = make_learner(epochs=2, minibatches=8, normalise_advantages=normalise, execution=execution)
    batch = make_batch(segments=4, unroll_length=8)
    rows = batch.valid & (batch.valid.flatten().cumsum(0).view(batch.valid.shape) <= valid)
    outcome = learner.train(dataclasses.replace(batch, valid=rows), 0.0)
    assert all_finite(outcome.statistics) and outcome.statistics.learning.gradient_norm
    assert learner.optimizer.state["step"].item() == 2.0 * minibatches
    # Advantages minus their mean are all 0 in minibatches of one step.
    assert outcome.statistics.learning.policy_loss


def test_without_v_trace_no_trace_is_cut() -> None:
    batch = make_batch(fresh=6)
    shifted = dataclasses.replace(batch, behaviour_log_prob=batch.behaviour_log_prob + 3.0)
    gae, cut = (make_learner(v_trace=v_trace, epochs=1).train(shifted, 0.0).fresh_errors for v_trace in (False, True))
    on_policy = make_learner(v_trace=False, epochs=1).train(batch, 0.0).fresh_errors
    np.testing.assert_array_equal(gae, on_policy)
    # A ratio of exp(-3) reduces each temporal difference to a twentieth, and later ones to almost nothing.
    assert (cut < 0.1 * gae).all()


def gradient_of(batch: TrainingBatch) -> torch.Tensor:
    """Returns the gradient of policy and values over a batch with full correction for its draw."""
    sampling = SamplingConfig(beta=1.0, final_beta=1.0)
    learner = make_learner(
        network=UNNORMALISED,
        epochs=1,
        minibatches=1,
        normalise_advantages=False,
        entropy_coefficient=0.0,
        max_gradient_norm=1e6,
        sampling=sampling,
    )
    learner.train(batch, 0.0)
    # Adam's first moment after one step.
    moment: torch.Tensor = learner.optimizer.state["exp_avg"]
    return moment / (1.0 - 0.9)


@pytest.mark.parametrize("fresh", [0, 1])
def test_the_gradient_of_a_replayed_segment_is_multiplied_by_its_importance_weight(fresh: int) -> None:
    segments = 2 + fresh
    batch = make_batch(segments=segments, fresh=fresh)
    # The weights of replayed segments are proportional to 1 / probability, with a mean of 1.
    batch = dataclasses.replace(batch, probabilities=torch.tensor([1.0] * fresh + [0.2, 0.6]).double())
    weights = [1.0] * fresh + [1.5, 0.5]
    expected, steps = torch.zeros(()), int(batch.valid.sum())
    for segment, weight in enumerate(weights):
        alone = batch.valid & (torch.arange(segments) == segment)[:, None]
        equal = dataclasses.replace(batch, valid=alone, probabilities=torch.ones(segments).double())
        expected = expected + weight * gradient_of(equal) * int(alone.sum()) / steps
    torch.testing.assert_close(gradient_of(batch), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 10.0, 1e6])
def test_neither_the_first_batch_nor_later_ones_depend_on_the_scale_of_rewards(scale: float) -> None:
    one, other = make_learner(), make_learner()
    for segments in (6, 7):
        batch = make_batch(segments=segments)
        scaled = {name: scale * getattr(batch, name) for name in ("reward", "discounted_return")}
        ours = one.train(batch, 0.0).priorities
        theirs = other.train(dataclasses.replace(batch, **scaled), 0.0).priorities
        np.testing.assert_allclose(theirs, ours, rtol=1e-2)


def test_rho_clip_and_trace_clip_bound_different_ratios() -> None:
    learner = make_learner(network=UNNORMALISED, rho_clip=2.0, trace_clip=0.5)
    batch = make_batch(learner=learner)
    # Each action is three times as likely as it was when it was taken.
    batch = dataclasses.replace(batch, behaviour_log_prob=batch.behaviour_log_prob - math.log(3.0))
    expected = [
        segment_priorities(estimates_of(learner, batch, *clips).advantage, batch.valid)
        for clips in ((2.0, 0.5), (0.5, 2.0))
    ]
    found = learner.train(batch, 0.0).priorities
    np.testing.assert_allclose(found, expected[0], rtol=1e-4)
    assert not np.allclose(found, expected[1], rtol=1e-2)


def test_the_effective_share_of_fresh_data_excludes_replayed_data() -> None:
    learner = make_learner()
    batch = make_batch(learner=learner, fresh=3)
    # The replayed half was collected by a policy with other probabilities in every second step.
    other = batch.behaviour_log_prob.clone()
    other[3:, ::2] += 2.0
    statistics = learner.train(dataclasses.replace(batch, behaviour_log_prob=other), 0.0).statistics.learning
    assert statistics.fresh_effective_share == pytest.approx(1.0, abs=1e-5)
    assert statistics.effective_sample_share is not None and statistics.effective_sample_share < 0.9


@pytest.mark.parametrize(("progress", "constant"), [(0.0, 0.2), (0.5, 0.6), (1.0, 1.0)])
def test_beta_moves_from_its_first_to_its_final_value_over_the_run(progress: float, constant: float) -> None:
    batch = make_batch(fresh=2)
    annealed, fixed, other = (
        make_learner(learning_rate_schedule="constant", sampling=SamplingConfig(beta=first, final_beta=final))
        for first, final in ((0.2, 1.0), (constant, constant), (0.4, 0.4))
    )
    for learner in (annealed, fixed, other):
        learner.train(batch, progress)
    assert same_parameters(annealed, fixed)
    assert not same_parameters(annealed, other)


@pytest.mark.parametrize(("bound", "share"), [(1.0, 0.75), (-1.0, 0.25), (0.0, 0.0)])
@pytest.mark.parametrize("squashed", [False, True])
def test_the_share_of_actions_at_one_bound_is_that_of_the_element_with_the_most(
    bound: float, share: float, squashed: bool
) -> None:
    network = Network(hidden_sizes=(16,), squash_actions=squashed)
    batch = make_batch("Pendulum-v1", segments=4, fresh=4, network=network)
    torque = torch.zeros_like(batch.action[0])
    # Beyond a bound, and just within it; a tanh never reaches it.
    torque[:3] = 4.0 * max(bound, 0.0)
    torque[3:] = 4.0 * min(bound, 0.0) + 0.99 * (1.0 if bound == 0.0 else 0.0)
    learner = make_learner("Pendulum-v1", network=network)
    found = learner.train(dataclasses.replace(batch, action=(torque,)), 0.0).statistics.learning.actions_at_bound
    assert found == pytest.approx(share)


def test_actions_without_bounds_are_never_at_one() -> None:
    head = ActionHead(Tree.of(BoxSpace("float32", (2,), (-math.inf, 5.0), (math.inf, math.inf))), Network())
    (limits,) = head.limits
    assert limits is not None and limits.tolist() == [[pytest.approx(-1e30), 5.0], [pytest.approx(1e30)] * 2]
    assert make_learner().train(make_batch(fresh=2), 0.0).statistics.learning.actions_at_bound is None


@pytest.mark.parametrize("usable", [None, torch.tensor([True] * 40 + [False] * 10)])
@pytest.mark.parametrize("scale", [1e-2, 1e3])
def test_the_explained_variance_does_not_depend_on_the_scale_of_the_returns(
    usable: torch.Tensor | None, scale: float
) -> None:
    learner, batch = make_learner(), make_batch(segments=4)
    steps = learner.estimate(batch, 0.0).steps
    steps = dataclasses.replace(steps.take(torch.arange(50)), usable=usable)
    target = torch.randn(50, generator=torch.Generator().manual_seed(0))
    value = target + 0.5 * torch.randn(50, generator=torch.Generator().manual_seed(1))
    counted = torch.arange(50) < (50 if usable is None else 40)
    found = _explained_variance(dataclasses.replace(steps, target=target * scale, proximal_value=value * scale))
    expected = 1.0 - (target - value)[counted].var(unbiased=False) / target[counted].var(unbiased=False)
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
