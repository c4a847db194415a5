"""The environment of a run in a caller's own loop has the observations and masks that the policy was trained on."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import penstock
import tests.support.environments.exact_tasks  # noqa: F401 - registers tasks with masks and nested spaces
from penstock.acting.policies.trained import TrainedPolicy
from penstock.acting.values.leaves import flatten
from penstock.apps.environments import variants_of
from penstock.config import Config
from penstock.errors import ConfigurationError
from tests.support.environments.tiny import TAXI
from tests.support.training.policies import fresh_weights

STEPS = 40
SETTINGS: dict[str, dict[str, Any]] = {
    "native": {"environment": {"id": "CartPole-v1", "vectorization": "native"}},
    "single": {"environment": {"id": "Pendulum-v1"}},
    "stacked": {"environment": {"id": "CartPole-v1", "frame_stack": 3}},
    "integers": {"environment": {"id": TAXI}},
    "masks": {"environment": {"id": "MaskedChoice-v0", "kwargs": {"masks": "method"}}},
    "without masks": {"environment": {"id": "MaskedLocks-v0", "kwargs": {"masks": "info"}, "action_masks": False}},
    "nested": {"environment": {"id": "Gears-v0"}},
}


@pytest.mark.parametrize("case", SETTINGS)
def test_a_policy_plays_what_an_actor_sees(case: str) -> None:
    environment = (config := Config(**SETTINGS[case])).environment
    trained_in = variants_of(environment, environment.variant_kwargs).make(0, 1)
    policy = TrainedPolicy(fresh_weights(trained_in.spec), seed=3)
    env = penstock.make(config)
    observation, info = env.reset(seed=11)
    trained_in.reset([11])
    for _ in range(STEPS):
        assert env.observation_space.contains(observation)
        for leaf, expected in zip(
            flatten(trained_in.spec.observation, observation), trained_in.acting_observation, strict=True
        ):
            np.testing.assert_array_equal(leaf, expected[0])
        assert ("action_mask" in info) == (trained_in.action_mask is not None)
        try:
            action = policy.act(observation, action_mask=info.get("action_mask"), deterministic=False)
            assert env.action_space.contains(action)
            observation, reward, terminated, truncated, info = env.step(action)
        except penstock.PenstockError:
            # Without masks, the task refuses an illegal action.
            assert case == "without masks"
            return
        outcome = trained_in.step(tuple(np.asarray(leaf)[None] for leaf in flatten(trained_in.spec.action, action)))
        assert (reward, terminated, truncated) == (outcome.reward[0], outcome.terminated[0], outcome.truncated[0])
        if terminated or truncated:
            with pytest.raises(gymnasium.error.ResetNeeded):
                env.step(action)
            break
    env.close()


def test_it_is_made_from_the_folder_of_a_run_and_rendered(tmp_path: Path) -> None:
    config = penstock.preset("cartpole")
    (tmp_path / "config.toml").write_text(config.to_toml())
    env = penstock.make(tmp_path, render_mode="rgb_array")
    assert env.render_mode == "rgb_array" and env.spec is not None and env.spec.id == "CartPole-v1"
    first, _ = env.reset(seed=4)
    np.testing.assert_array_equal(first, gymnasium.make("CartPole-v1").reset(seed=4)[0])
    assert env.render().shape == (400, 600, 3)
    assert penstock.make(tmp_path).render() is None


def test_observations_are_not_overwritten() -> None:
    env = penstock.make(Config(environment={"id": "CartPole-v1"}))
    first, _ = env.reset(seed=1)
    kept = first.copy()
    env.step(np.int64(1))
    np.testing.assert_array_equal(first, kept)


def test_a_variant_is_chosen() -> None:
    config = Config(environment={"id": "Pendulum-v1", "variants": [{"g": 9.0}, {"g": 3.0}]})
    made = [penstock.make(config, variant=variant, render_mode="rgb_array") for variant in (0, 1)]
    assert [env.spec.kwargs["g"] for env in made if env.spec is not None] == [9.0, 3.0]


def test_what_is_not_possible_is_refused(tmp_path: Path) -> None:
    config = Config(environment={"id": "CartPole-v1"})
    with pytest.raises(ConfigurationError, match="variant 1 does not exist; the run has 1, from 0"):
        penstock.make(config, variant=1)
    with pytest.raises(ConfigurationError, match="reset without options"):
        penstock.make(config).reset(options={"low": 0.0})
    with pytest.raises(ConfigurationError, match="can't read the configuration"):
        penstock.make(tmp_path)
