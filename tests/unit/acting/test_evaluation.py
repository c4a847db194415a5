import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from helpers.environments import fresh_weights, spec_of
from penstock.acting.environments import make_environments
from penstock.acting.evaluation import evaluate
from penstock.acting.inference import PolicyRunner
from penstock.acting.randomness import Streams
from penstock.acting.single_environments import StepOutcome
from penstock.types.evaluation import EvaluationResult, EvaluationTask


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
        return dataclasses.replace(outcome, reward=reward)

    environments.step = step_with_nan  # type: ignore[method-assign]
    task = EvaluationTask(1, fresh_weights(spec_of("Counting-v0")), 4, deterministic=True, seed=3)
    result = evaluate(task, environments, lambda: False)
    assert result is not None
    assert result.failure == "environment 2 returned rewards whose sum is nan"
