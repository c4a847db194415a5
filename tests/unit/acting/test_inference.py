import numpy as np
import pytest

from helpers.environments import decided_weights, spec_of
from penstock.acting.inference import PolicyRunner

SPECS = pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])


@SPECS
def test_an_action_does_not_depend_on_how_many_environments_share_the_call(env_id: str) -> None:
    spec = spec_of(env_id)
    runner, generator = PolicyRunner(decided_weights(spec)), np.random.default_rng(0)
    observation = generator.normal(size=(13, *spec.observation.shape)).astype(np.float32)  # type: ignore[union-attr]
    noise = generator.random((13, runner.policy.noise_size), np.float32)
    action, log_prob = runner.act(observation, noise)
    for count in range(1, 13):
        few_actions, few_log_probs = runner.act(observation[:count], noise[:count])
        assert np.array_equal(few_actions, action[:count])
        assert np.array_equal(few_log_probs, log_prob[:count])


@SPECS
def test_greedy_actions_need_no_noise(env_id: str) -> None:
    spec = spec_of(env_id)
    runner = PolicyRunner(decided_weights(spec))
    observation = np.ones((3, *spec.observation.shape), np.float32)  # type: ignore[union-attr]
    greedy = runner.act_greedily(observation)
    assert len(greedy) == 3
    assert np.array_equal(greedy, runner.act_greedily(observation))


def test_newer_weights_act_from_then_on() -> None:
    spec = spec_of("Pendulum-v1")
    runner, observation = PolicyRunner(decided_weights(spec, seed=0)), np.ones((1, 3), np.float32)
    newer = decided_weights(spec, seed=1, version=5)
    runner.update(newer)
    assert runner.version == 5
    assert np.array_equal(runner.act_greedily(observation), PolicyRunner(newer).act_greedily(observation))
