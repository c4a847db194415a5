"""The vectorised forms of Pendulum and Acrobot have the rows of Gymnasium's single environments, bit for bit."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.acting.environments.native import classic_control
from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.vectors import Environments, NextStepEnvironments
from penstock.acting.evaluation import evaluate
from penstock.errors import ConfigurationError
from penstock.types.evaluation import EvaluationTask
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_weights

FORMS = ("Pendulum-v1", "Acrobot-v1")


def made(env_id: str, count: int, vectorization: str, **kwargs: Any) -> Environments:
    return make_environments(env_id, count, kwargs=kwargs, vectorization=vectorization, workers=2)


def actions_of(env_id: str, generator: np.random.Generator, count: int) -> tuple[NDArray[Any], ...]:
    if env_id == "Acrobot-v1":
        return (generator.integers(0, 3, count),)
    # Beyond the bounds of the torque too.
    return (generator.uniform(-3.0, 3.0, (count, 1)).astype(np.float32),)


def assert_same(env_id: str, one: Environments, other: Environments, seeds: list[int], steps: int) -> int:
    """Compares all rows; returns the number of ends of episodes."""
    assert one.spec == other.spec and one.timed and other.timed
    for environments in (one, other):
        environments.reset(seeds)
    ends, generator = 0, np.random.default_rng(seeds)
    for _ in range(steps):
        np.testing.assert_array_equal(one.observation[0], other.observation[0])
        assert one.observation[0].dtype == other.observation[0].dtype
        action = actions_of(env_id, generator, one.count)
        ours, theirs = one.step(action), other.step(action)
        for mine, yours in zip(ours[:5], theirs[:5], strict=True):
            assert mine.dtype == yours.dtype
            np.testing.assert_array_equal(mine, yours)
        ends += int((ours.terminated | ours.truncated).sum())
    return ends


@pytest.mark.parametrize("env_id", FORMS)
def test_whole_episodes_and_those_after_them_are_the_same(env_id: str) -> None:
    single, native = (made(env_id, 3, form) for form in ("sync", "native"))
    assert isinstance(single, SingleEnvironments) and isinstance(native, NextStepEnvironments)
    assert assert_same(env_id, single, native, [2**40 + 1, 7, 0], 520) >= 3


@given(
    env_id=st.sampled_from(FORMS),
    seed=st.integers(0, 2**61),
    count=st.integers(1, 9),
    limit=st.integers(1, 20),
    gravity=st.one_of(st.none(), st.integers(0, 20), st.floats(0.0, 30.0)),
)
def test_rows_are_the_same_for_any_seed_count_limit_and_argument(
    env_id: str, seed: int, count: int, limit: int, gravity: float | None
) -> None:
    kwargs = {} if gravity is None or env_id == "Acrobot-v1" else {"g": gravity}
    single, native = (made(env_id, count, form, max_episode_steps=limit, **kwargs) for form in ("sync", "native"))
    ends = assert_same(env_id, single, native, [seed + each for each in range(count)], 25)
    assert ends >= count


def test_a_pole_that_swings_up_terminates_in_the_same_step() -> None:
    """A torque with the speed of the second pole swings it up in about 100 steps."""
    single, native = (made("Acrobot-v1", 4, form) for form in ("sync", "native"))
    for environments in (single, native):
        environments.reset([1, 2, 3, 4])
    terminated = 0
    for _ in range(250):
        np.testing.assert_array_equal(single.observation[0], native.observation[0])
        speed = single.observation[0][:, 5].astype(np.float64)
        action = (np.where(speed > 0.0, 2, 0),)
        outcomes = [environments.step(action) for environments in (single, native)]
        for mine, yours in zip(outcomes[0][:5], outcomes[1][:5], strict=True):
            np.testing.assert_array_equal(mine, yours)
        terminated += int(outcomes[0].terminated.sum())
    assert terminated >= 4


@pytest.mark.parametrize("env_id", FORMS)
def test_single_environments_in_worker_processes_have_the_same_rows(env_id: str) -> None:
    workers, native = (made(env_id, 4, form, max_episode_steps=12) for form in ("process", "native"))
    try:
        assert assert_same(env_id, workers, native, [5, 6, 7, 8], 30) == 8
    finally:
        workers.close()


@pytest.mark.parametrize("env_id", FORMS)
def test_an_evaluation_has_the_same_returns(env_id: str) -> None:
    weights = fresh_weights(spec_of(env_id), version=1)
    task = EvaluationTask(id=1, weights=weights, episodes=4, deterministic=False, seed=3)
    single, native = (
        evaluate(task, made(env_id, 4, form, max_episode_steps=40), lambda: False) for form in ("sync", "native")
    )
    assert single is not None and native is not None
    assert (single.returns, single.steps) == (native.returns, native.steps)


def test_a_form_has_the_spec_of_the_registered_version() -> None:
    for env_id in FORMS:
        made_spec = made(env_id, 3, "native")._envs._envs.spec  # type: ignore[attr-defined]
        registered = gymnasium.spec(env_id)
        assert (made_spec.id, made_spec.max_episode_steps) == (env_id, registered.max_episode_steps)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"gravity": 9.8}, "it takes no argument 'gravity'; it takes render_mode, g"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1, not 0"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason) as refused:
        made("Pendulum-v1", 2, "native", **arguments)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_squares_are_rounded_as_those_of_single_numbers(dtype: type) -> None:
    numbers: NDArray[Any] = np.random.default_rng(0).uniform(-30.0, 30.0, 20_000).astype(dtype)
    expected = np.array([number ** dtype(2) for number in numbers])
    np.testing.assert_array_equal(classic_control._square(numbers), expected)
