import numpy as np
import pytest

from helpers.environments import fresh_weights, spec_of
from penstock.acting.environments import make_environments
from penstock.acting.evaluation import evaluate
from penstock.types import EvaluationResult, EvaluationTask


def evaluation(
    env_id: str, *, episodes: int = 4, deterministic: bool = True, seed: int = 3, **kwargs: object
) -> EvaluationResult:
    weights = fresh_weights(spec_of(env_id, **kwargs), version=8)
    task = EvaluationTask(id=21, weights=weights, episodes=episodes, deterministic=deterministic, seed=seed)
    result = evaluate(task, make_environments(env_id, episodes, kwargs=kwargs), lambda: False)
    assert result is not None
    return result


def test_the_first_episode_of_each_environment_counts_and_nothing_after_it() -> None:
    result = evaluation("Counting-v0", episodes=8, length=2, spread=9)
    assert len(set(result.steps)) > 2
    assert list(result.returns) == [steps * (steps + 1) / 2 for steps in result.steps]


def test_a_result_names_its_task_and_version() -> None:
    result = evaluation("Counting-v0", length=3)
    assert (result.id, result.version) == (21, 8)
    assert (result.return_mean, result.return_std) == (6.0, 0.0)


def test_a_deterministic_evaluation_takes_the_most_likely_action() -> None:
    result = evaluation("Echo-v0")
    # A new policy's mode is near 0, the middle of the range from -1 to 3, in both elements.
    assert result.returns == pytest.approx([2.0] * 4, abs=0.1)
    assert len(set(result.returns)) == 1


def test_a_sampled_evaluation_explores_everywhere_by_itself() -> None:
    result = evaluation("Echo-v0", episodes=8, deterministic=False)
    assert len(set(result.returns)) == 8


def test_a_sampled_evaluation_draws_anew_at_every_step() -> None:
    # A return is the sum of 64 steps' two normals, of deviation sqrt(128); one draw for all steps would make it 90.
    returns = evaluation("Echo-v0", episodes=32, deterministic=False, bounded=False, length=64).returns
    assert 8.0 < np.std(returns) < 16.0


def test_a_sampled_evaluation_never_repeats_its_noise() -> None:
    # Actions are unbounded, so a return is a sum of noise; if noise repeated after 64 steps, it would double.
    short = np.array(evaluation("Echo-v0", deterministic=False, bounded=False, length=64).returns)
    long = np.array(evaluation("Echo-v0", deterministic=False, bounded=False, length=128).returns)
    assert (np.abs(long - 2.0 * short) > 0.1).all()


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_evaluation_repeats_with_its_seed_and_not_with_another(deterministic: bool) -> None:
    first, again, other = (
        evaluation("Pendulum-v1", episodes=2, deterministic=deterministic, seed=s) for s in (1, 1, 2)
    )
    assert first.returns == again.returns
    assert not set(first.returns) & set(other.returns)


def test_an_evaluation_is_given_up_when_asked_to() -> None:
    answers = iter([False, False, True])
    task = EvaluationTask(1, fresh_weights(spec_of("Counting-v0")), episodes=2, deterministic=True, seed=0)
    environments = make_environments("Counting-v0", 2, kwargs={"length": 50})
    assert evaluate(task, environments, lambda: next(answers)) is None
