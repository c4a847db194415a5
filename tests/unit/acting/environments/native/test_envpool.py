"""Tasks of EnvPool behave like environments of Gymnasium. Its distributions are compared with Gymnasium's."""

import importlib.util
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.acting.environments.single_environments import SingleEnvironments
from penstock.acting.environments.vectors import Environments, NextStepEnvironments
from penstock.acting.values.masks import MaskSource, Place
from penstock.apps.environments import make_played
from penstock.config import build
from penstock.errors import ConfigurationError, UnknownEnvironment
from penstock.machine import environment_names, extras
from tests.support.environments.made import make_environments

needs_envpool = pytest.mark.skipif(extras.missing("envpool"), reason="the extra envpool is not installed")

EPISODES = 1000
"""Episodes of each side of a comparison, two of each environment, so that the second ones begin by an autoreset."""

ERROR = 1e-4
"""Probability with which a test of two equal distributions fails."""

MOST_ERRORS_OF_MEANS = 3.89
"""Standard errors that equal means exceed with the probability `ERROR`. With a probability of 0.9, the test finds a
difference of 0.23 standard deviations, which is (3.89 + 1.28) * sqrt(2 / EPISODES)."""

MOST_DISTANCE = math.sqrt(-math.log(ERROR / 2) / 2 * 2 / EPISODES)
"""Distance of the distribution functions of equal distributions, by Kolmogorov and Smirnov: 0.0995."""


def made(task: str, count: int = 3, vectorization: str = "auto", **kwargs: Any) -> Environments:
    return make_environments(f"envpool:{task}", count, kwargs=kwargs, vectorization=vectorization)


def policy_of(environments: Environments, seed: int) -> Callable[[], tuple[NDArray[np.generic], ...]]:
    """Returns a function that draws actions: legal ones, or uniform ones between the bounds of a box."""
    action, generator = environments.spec.action, np.random.default_rng(seed)
    if action.choices:
        source = MaskSource(Place.INFO, action)

        def choose() -> tuple[NDArray[np.generic], ...]:
            scores = 1.0 + generator.random((environments.count, source.bits))
            mask = environments.action_mask
            return source.highest(scores if mask is None else scores * mask)

        return choose
    (box,) = action.spaces
    return lambda: (generator.uniform(box.low, box.high, (environments.count, *box.shape)).astype(np.float32),)  # type: ignore[union-attr]


@needs_envpool
def test_numbers_of_its_infos_are_those_of_the_last_step() -> None:
    made_with_keys = make_environments(
        "envpool:CartPole-v1", 3, kwargs={"max_episode_steps": 5}, info_metrics=["elapsed_step", "reward_sum"]
    )
    made_with_keys.reset([1, 2, 3])
    outcome = made_with_keys.step((np.zeros(3, np.int64),))
    while not outcome.truncated.all():
        outcome = made_with_keys.step((np.arange(3) % 2,))
    assert outcome.info is not None and np.isnan(outcome.info[:, 1]).all()
    assert outcome.info[:, 0].tolist() == [5.0] * 3


@needs_envpool
@pytest.mark.parametrize(
    ("task", "kwargs", "steps"),
    [
        ("CartPole-v1", {"max_episode_steps": 12}, 40),
        ("MiniGrid-DoorKey-8x8-v0", {"max_episode_steps": 12}, 40),
        ("Game2048-v1", {}, 600),
    ],
)
def test_an_episodes_last_row_is_followed_by_one_that_only_resets(
    task: str, kwargs: dict[str, Any], steps: int
) -> None:
    environments = made(task, 4, **kwargs)
    assert isinstance(environments, NextStepEnvironments) and environments.timed
    environments.reset([1, 2, 3, 4])
    draw, ended, ends = policy_of(environments, 0), np.zeros(4, np.bool_), 0
    for _ in range(steps):
        outcome = environments.step(draw())
        np.testing.assert_array_equal(outcome.valid, ~ended)
        np.testing.assert_array_equal(outcome.begun, ended)
        assert not outcome.reward[ended].any()
        ended = outcome.terminated | outcome.truncated
        ends += int(ended.sum())
    assert ends >= 8


@needs_envpool
def test_masks_have_the_legal_actions_and_are_no_part_of_the_observation() -> None:
    environments = made("Game2048-v1")
    environments.reset([1, 2, 3])
    assert environments.spec.mask_bits == 4 and [leaf.path for leaf in environments.spec.observation.leaves] == [
        ("board",)
    ]
    draw, illegal = policy_of(environments, 0), 0
    for _ in range(60):
        assert environments.action_mask is not None
        illegal += int((~environments.action_mask).sum())
        before = environments.observation[0].copy()
        outcome = environments.step(draw())
        moved = (environments.observation[0] != before).any((1, 2))
        assert moved[outcome.valid].all()
    assert illegal


@needs_envpool
def test_a_mask_in_the_info_has_gymnasiums_name() -> None:
    from penstock.acting.environments.native import envpool

    mask = np.ones((2, 3), np.bool_)
    renamed = envpool._with_mask({"legal_action_mask": mask, "env_id": np.arange(2)})
    assert renamed["action_mask"] is mask
    assert "action_mask" not in envpool._with_mask({"env_id": np.arange(2)})


@needs_envpool
@pytest.mark.parametrize("task", ["CartPole-v1", "MiniGrid-DoorKey-8x8-v0"])
def test_a_seed_starts_the_same_episodes_in_any_vector(task: str) -> None:
    few, many = made(task, 2, max_episode_steps=9), made(task, 4, max_episode_steps=9)
    few.reset([2**31 + 14, 15])
    many.reset([11, 12, 14, 15])
    for action in np.random.default_rng(0).integers(0, 2, (30, 4)):
        for ours, theirs in zip(few.observation, many.observation, strict=True):
            np.testing.assert_array_equal(ours, theirs[2:])
        few.step((action[2:],))
        many.step((action,))
    seen = many.observation[0 if task == "CartPole-v1" else 1]
    assert not np.array_equal(seen[0], seen[2])


@needs_envpool
def test_a_single_environment_has_the_rows_of_a_pool_and_is_rendered() -> None:
    single, pool = made("CartPole-v1", 2, "sync"), made("CartPole-v1", 2, "native")
    assert isinstance(single, SingleEnvironments) and single.spec == pool.spec
    for environments in (single, pool):
        environments.reset([5, 6])
    for action in np.random.default_rng(0).integers(0, 2, (60, 2)):
        np.testing.assert_array_equal(single.observation[0], pool.observation[0])
        for ours, theirs in zip(*(each.step((action,))[:5] for each in (single, pool)), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    environment = build({"environment": {"id": "envpool:CartPole-v1"}}).environment
    played = make_played(environment, environment.variant_kwargs[0], "rgb_array")
    played.reset(seed=1)
    assert played.render().shape == (400, 600, 3)
    played.close()


@needs_envpool
@pytest.mark.parametrize(
    ("task", "kwargs", "reason"),
    [
        ("CatPole-v1", {}, "EnvPool has no task 'CatPole-v1'; did you mean envpool:CartPole-v1?"),
        ("Pong-v9", {}, "EnvPool has no task 'Pong-v9'; did you mean envpool:Pong-v5?"),
        ("ConnectFour-v1", {}, "envpool:ConnectFour-v1 has 2 players, and a policy of Penstock plays one;"),
        ("CartPole-v1", {"colour": 1}, "it takes no argument 'colour'; check environment.kwargs"),
        ("CartPole-v1", {"seed": 1}, "Penstock chooses the argument seed of EnvPool; remove it"),
    ],
)
def test_what_can_not_be_trained_on_is_refused_in_one_line(task: str, kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        made(task, **kwargs)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


@needs_envpool
def test_an_id_is_found_in_another_case_and_without_a_version() -> None:
    assert made("cartpole-v1").spec.observation == made("CartPole").spec.observation


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "envpool" else installed(name))
    with pytest.raises(UnknownEnvironment, match=r"^the environment 'envpool:Pong-v5' needs envpool; .*envpool[^\n]*$"):
        made("Pong-v5")


def test_a_run_with_a_task_of_envpool_names_no_code_of_others() -> None:
    from penstock.config.foreign_code import code_in

    config = build({"environment": {"id": f"{environment_names.ENVPOOL}:Pong-v5"}})
    assert not code_in(config.environment, config.policy)
    assert code_in(build({"environment": {"id": "my_module:Pong-v5"}}).environment, config.policy)


def episodes_of(name: str, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the returns and lengths of two episodes of each environment, under the random policy."""
    environments = make_environments(name, EPISODES // 2, kwargs={}, vectorization="auto", use_masks=False)
    environments.reset(range(seed, seed + environments.count))
    draw, number = policy_of(environments, seed), np.zeros(environments.count, np.int64)
    totals, lengths = (np.zeros((3, environments.count)) for _ in range(2))
    rows = np.arange(environments.count)
    while (number < 2).any():
        outcome = environments.step(draw())
        totals[number, rows] += outcome.reward
        lengths[number, rows] += outcome.valid
        number = np.minimum(number + (outcome.terminated | outcome.truncated), 2)
    environments.close()
    return totals[:2].ravel(), lengths[:2].ravel()


def differences(one: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float]:
    """Returns the difference of the means in standard errors, and the distance of the distribution functions."""
    deviation = math.sqrt((one.var() + other.var()) / EPISODES)
    values = np.union1d(one, other)
    shares = (np.searchsorted(np.sort(each), values, side="right") / EPISODES for each in (one, other))
    distance = float(np.abs(np.subtract(*shares)).max())
    return abs(one.mean() - other.mean()) / deviation if deviation else 0.0, distance


@needs_envpool
@pytest.mark.nightly
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1"])
def test_returns_and_lengths_are_distributed_as_gymnasiums(env_id: str) -> None:
    for ours, theirs in zip(episodes_of(env_id, 10_000), episodes_of(f"envpool:{env_id}", 20_000), strict=True):
        errors, distance = differences(ours, theirs)
        assert errors < MOST_ERRORS_OF_MEANS
        assert distance < MOST_DISTANCE


def test_the_comparison_finds_the_differences_that_it_claims() -> None:
    """Of 50 pairs of samples of normal distributions, most of those with other means are found, and no equal ones."""
    generator = np.random.default_rng(0)
    found = {0.0: 0, 0.23: 0}
    for shift in found:
        for _ in range(50):
            errors, distance = differences(generator.normal(size=EPISODES), generator.normal(shift, size=EPISODES))
            found[shift] += errors >= MOST_ERRORS_OF_MEANS or distance >= MOST_DISTANCE
    assert found[0.0] == 0
    assert found[0.23] >= 40
