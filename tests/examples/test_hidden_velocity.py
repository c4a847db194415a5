"""CartPole without velocities: the same task as CartPole-v1, and the velocities are not observed."""

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from examples.hidden_velocity import ENV_ID, HiddenVelocityCartPole


def test_it_is_cartpole_except_for_the_velocities() -> None:
    hidden, full = gymnasium.make(ENV_ID), gymnasium.make("CartPole-v1")
    actions = np.random.default_rng(1)
    seen, whole = hidden.reset(seed=5)[0], full.reset(seed=5)[0]
    for _ in range(200):
        assert seen.tolist() == [whole[0], whole[2]]
        action = actions.integers(2)
        ours, theirs = hidden.step(action), full.step(action)
        seen, whole = ours[0], theirs[0]
        assert ours[1:4] == theirs[1:4]
        if ours[2] or ours[3]:
            seen, whole = hidden.reset()[0], full.reset()[0]


def test_an_episode_is_truncated_where_cartpoles_is() -> None:
    spec, original = gymnasium.spec(ENV_ID), gymnasium.spec("CartPole-v1")
    assert (spec.max_episode_steps, spec.reward_threshold) == (original.max_episode_steps, original.reward_threshold)


def test_it_follows_gymnasiums_rules() -> None:
    check_env(HiddenVelocityCartPole(), skip_render_check=True)
