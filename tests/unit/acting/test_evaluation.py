import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.wrappers import Autoreset, TimeLimit
from numpy.typing import NDArray

from penstock.acting.environments.single_environments import SingleEnvironments, StepOutcome
from penstock.acting.environments.variants import MixedEnvironments
from penstock.acting.evaluation import evaluate
from penstock.acting.policies.inference import PolicyRunner
from penstock.acting.policies.randomness import Streams
from penstock.algo.policies import Policy
from penstock.errors import EnvironmentFailed
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.spaces import MemoryKind
from tests.support.environments.exact_tasks import STEPS
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_weights, remembering_policy, weights_of


def evaluation(
    env_id: str, *, episodes: int = 4, deterministic: bool = True, seed: int = 3, **kwargs: object
) -> EvaluationResult:
    weights = fresh_weights(spec_of(env_id, **kwargs), version=8)
    task = EvaluationTask(id=21, weights=weights, episodes=episodes, deterministic=deterministic, seed=seed)
    result = evaluate(task, make_environments(env_id, episodes, kwargs=kwargs), lambda: False)
    assert result is not None
    return result


def test_only_the_first_episode_of_each_environment_counts() -> None:
    result = evaluation("Counting-v0", episodes=8, length=2, spread=9)
    assert len(set(result.steps)) > 2
    assert list(result.returns) == [steps * (steps + 1) / 2 for steps in result.steps]


def test_a_result_contains_its_task_and_version() -> None:
    result = evaluation("Counting-v0", length=3)
    assert (result.id, result.version) == (21, 8)
    assert (result.return_mean, result.return_std) == (6.0, 0.0)


def test_a_deterministic_evaluation_takes_the_most_likely_action() -> None:
    result = evaluation("Echo-v0")
    # The mode of a new policy is near 0 in both elements, which is the middle of their range, 1.
    assert result.returns == pytest.approx([2.0] * 4, abs=0.1)
    assert len(set(result.returns)) == 1


def test_a_sampled_evaluation_has_separate_noise_in_each_environment() -> None:
    result = evaluation("Echo-v0", episodes=8, deterministic=False)
    assert len(set(result.returns)) == 8


def test_a_sampled_evaluation_draws_new_noise_at_every_step() -> None:
    # A return is the sum of 128 normals, with a deviation of 11. One draw for all steps would give a deviation of 90.
    returns = evaluation("Echo-v0", episodes=32, deterministic=False, bounded=False, length=64).returns
    assert 8.0 < np.std(returns) < 16.0


def test_a_sampled_evaluation_never_repeats_its_noise() -> None:
    # Actions are unbounded, so a return is a sum of noise. It would double if the noise repeated after 64 steps.
    short = np.array(evaluation("Echo-v0", deterministic=False, bounded=False, length=64).returns)
    long = np.array(evaluation("Echo-v0", deterministic=False, bounded=False, length=128).returns)
    assert (np.abs(long - 2.0 * short) > 0.1).all()


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_evaluation_is_reproducible_for_a_seed_and_differs_for_another(deterministic: bool) -> None:
    first, again, other = (
        evaluation("Pendulum-v1", episodes=2, deterministic=deterministic, seed=s) for s in (1, 1, 2)
    )
    assert first.returns == again.returns
    assert not set(first.returns) & set(other.returns)


@pytest.mark.parametrize("incarnation", [0, 1])
def test_an_evaluation_shares_neither_noise_nor_resets_with_a_run_of_the_same_seed(
    incarnation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = evaluation("Echo-v0", deterministic=False, bounded=False)
    streams = Streams(3, incarnation, np.arange(4, dtype=np.uint32))
    runner = PolicyRunner(fresh_weights(spec_of("Echo-v0", bounded=False), version=8))
    noise = streams.draw(runner.policy.noise, 0, 1)[:, 0]
    (actions,), _ = runner.act((np.zeros((4, 1), np.float32),), noise)
    run_returns = actions.sum(axis=1)
    assert (np.abs(run_returns - np.array(result.returns)) > 1e-3).all()

    environments = make_environments("Counting-v0", 4, kwargs={})
    reset, seeds = environments.reset, list[int]()

    def recorded(each: Sequence[int]) -> None:
        seeds.extend(each)
        reset(each)

    monkeypatch.setattr(environments, "reset", recorded)
    task = EvaluationTask(1, fresh_weights(spec_of("Counting-v0")), 4, deterministic=True, seed=3)
    evaluate(task, environments, lambda: False)
    assert len(seeds) == 4
    assert not set(seeds) & set(streams.reset_seeds())


def test_an_evaluation_is_abandoned_on_request() -> None:
    answers = iter([False, False, True])
    task = EvaluationTask(1, fresh_weights(spec_of("Counting-v0")), episodes=2, deterministic=True, seed=0)
    environments = make_environments("Counting-v0", 2, kwargs={"length": 50})
    assert evaluate(task, environments, lambda: next(answers)) is None


def bounded(
    environment: dict[str, object], clock: Callable[[], float] = lambda: 0.0, **bounds: Any
) -> EvaluationResult:
    """Evaluates 4 episodes within bounds."""
    task = EvaluationTask(1, fresh_weights(spec_of("Counting-v0")), 4, deterministic=True, seed=3)
    task = dataclasses.replace(task, **bounds)
    result = evaluate(task, make_environments("Counting-v0", 4, kwargs=environment), lambda: False, clock)
    assert result is not None
    return result


def test_an_episode_that_does_not_end_is_cut_at_the_step_limit() -> None:
    result = bounded({"length": 1000}, max_episode_steps=10)
    assert (result.unfinished, result.out_of_time, result.failure) == (4, False, "")
    assert result.steps == (10,) * 4
    assert result.returns == (55.0,) * 4


@pytest.mark.parametrize(
    ("env_id", "vectorization", "kwargs", "cut"),
    [
        ("Counting-v0", "sync", {"length": 1000}, True),
        ("Counting-v0", "sync", {"length": 1000, "max_episode_steps": 30}, False),
        ("ResetsAtOnce-v0", "native", {"length": 1000}, True),
        ("CartPole-v1", "native", {}, False),
    ],
)
def test_episodes_without_a_time_limit_have_a_bound_of_their_own(
    env_id: str, vectorization: str, kwargs: dict[str, object], cut: bool
) -> None:
    task = EvaluationTask(1, fresh_weights(spec_of(env_id)), 2, deterministic=True, seed=3)
    task = dataclasses.replace(task, max_episode_steps=40, untimed_episode_steps=7)
    result = evaluate(task, make_environments(env_id, 2, kwargs=kwargs, vectorization=vectorization), lambda: False)
    assert result is not None
    assert result.steps == (7, 7) if cut else min(result.steps) > 7


@pytest.mark.parametrize(
    ("wrap", "timed"),
    [(lambda env: env, False), (lambda env: TimeLimit(env, 9), True), (lambda env: Autoreset(TimeLimit(env, 9)), True)],
)
def test_a_time_limit_is_found_below_wrappers_and_among_variants(
    wrap: Callable[[gymnasium.Env[Any, Any]], gymnasium.Env[Any, Any]], timed: bool
) -> None:
    timeless = make_environments("Counting-v0", 1, kwargs={})
    single = SingleEnvironments([wrap(gymnasium.make("Counting-v0"))], spec_of("Counting-v0"))
    assert single.timed is timed and not timeless.timed
    assert not MixedEnvironments([single, timeless]).timed


def test_episodes_that_end_at_the_step_limit_are_finished() -> None:
    assert bounded({"length": 10}, max_episode_steps=10).unfinished == 0


def test_only_episodes_longer_than_the_step_limit_are_unfinished() -> None:
    whole = bounded({"length": 2, "spread": 9})
    shortest = min(whole.steps)
    cut = bounded({"length": 2, "spread": 9}, max_episode_steps=shortest)
    assert 0 < cut.unfinished < 4
    assert cut.unfinished == sum(steps > shortest for steps in whole.steps)
    assert cut.steps == (shortest,) * 4


def test_episodes_are_cut_at_the_time_limit() -> None:
    seconds = itertools.count()
    result = bounded({"length": 10**6}, clock=lambda: float(next(seconds)), max_seconds=20.0)
    assert (result.unfinished, result.out_of_time) == (4, True)
    assert result.steps == (20,) * 4


def test_rewards_that_are_not_finite_are_a_failure_that_names_the_environment() -> None:
    environments = make_environments("Counting-v0", 4, kwargs={"length": 5})
    step = environments.step

    def step_with_nan(action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        outcome = step(action)
        reward = outcome.reward.copy()
        reward[2] = np.nan
        return outcome._replace(reward=reward)

    environments.step = step_with_nan  # type: ignore[method-assign]
    task = EvaluationTask(1, fresh_weights(spec_of("Counting-v0")), 4, deterministic=True, seed=3)
    result = evaluate(task, environments, lambda: False)
    assert result is not None
    assert result.failure == "environment 2 returned rewards whose sum is nan"


def remembered_actions(policy: Policy, observations: list[Any], begun: list[Any]) -> NDArray[np.float32]:
    """Returns the most likely actions, [L, N, A], at rows of observations, [L][N, ...], with states from row to row."""
    assert policy.memory_shape is not None
    state, actions = torch.zeros(len(begun[0]), *policy.memory_shape), []
    for observation, first in zip(observations, begun, strict=True):
        with torch.inference_mode():
            distribution, after = policy.act(
                (torch.from_numpy(observation),), None, state, torch.from_numpy(np.array(first))
            )
        assert after is not None
        state = after
        actions.append(distribution.mode()[0].numpy())
    return np.stack(actions)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_policy_with_memory_carries_its_state_through_an_episode_and_begins_the_next_without(
    kind: MemoryKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = make_environments("Drifting-v0", 6, kwargs={})
    observations, begun, taken = list[Any](), [np.ones(6, np.bool_)], list[Any]()
    step = environments.step

    def noted(action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        observations.append(environments.observation[0].copy())
        taken.append(action[0].copy())
        outcome = step(action)
        begun.append(~outcome.valid)
        return outcome

    monkeypatch.setattr(environments, "step", noted)
    policy = remembering_policy(environments.spec, kind)
    task = EvaluationTask(1, weights_of(policy, 0), 6, deterministic=True, seed=3)
    result = evaluate(task, environments, lambda: False)
    assert result is not None
    # Environments with short episodes begin another one while the rest still play.
    assert np.any(begun[1:-1])
    np.testing.assert_allclose(taken, remembered_actions(policy, observations, begun[:-1]), atol=1e-4)
    never, always = ([np.full(6, first)] * len(observations) for first in (False, True))
    for others in (remembered_actions(policy, observations, each) for each in (never, always)):
        assert np.abs(np.array(taken) - others).max() > 0.1


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("env_id", ["MaskedChoice-v0", "MaskedLocks-v0"])
def test_an_evaluation_takes_only_legal_actions(env_id: str, deterministic: bool) -> None:
    masked = make_environments(env_id, 8, kwargs={})
    task = EvaluationTask(1, fresh_weights(masked.spec), 8, deterministic=deterministic, seed=3)
    result = evaluate(task, masked, lambda: False)
    assert result is not None
    assert (result.failure, result.steps) == ("", (STEPS,) * 8)
    # These environments raise an exception for an illegal action.
    unmasked = make_environments(env_id, 8, kwargs={}, use_masks=False)
    with pytest.raises(EnvironmentFailed, match="got the illegal action"):
        evaluate(dataclasses.replace(task, weights=fresh_weights(unmasked.spec)), unmasked, lambda: False)
