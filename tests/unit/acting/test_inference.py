import numpy as np
import pytest
import torch

from helpers.environments import decided_weights, fresh_policy, spec_of
from penstock.acting.inference import PolicyRunner
from penstock.algo import weights as policy_weights
from penstock.algo.policies import Network
from penstock.types.spaces import BoxSpace

ROWS = 16
"""Number of rows of a call without padding."""

SPECS = pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])


@SPECS
def test_an_action_does_not_depend_on_how_many_environments_share_the_call(env_id: str) -> None:
    spec = spec_of(env_id)
    assert isinstance(spec.observation, BoxSpace)
    runner, generator = PolicyRunner(decided_weights(spec)), np.random.default_rng(0)
    observation = generator.normal(size=(13, *spec.observation.shape)).astype(np.float32)
    noise = generator.random((13, runner.policy.noise.size), np.float32)
    action, log_prob = runner.act(observation, noise)
    for count in range(1, 13):
        few_actions, few_log_probs = runner.act(observation[:count], noise[:count])
        assert np.array_equal(few_actions, action[:count])
        assert np.array_equal(few_log_probs, log_prob[:count])


@SPECS
def test_greedy_actions_need_no_noise(env_id: str) -> None:
    spec = spec_of(env_id)
    assert isinstance(spec.observation, BoxSpace)
    runner = PolicyRunner(decided_weights(spec))
    observation = np.ones((3, *spec.observation.shape), np.float32)
    greedy = runner.act_greedily(observation)
    assert len(greedy) == 3
    assert np.array_equal(greedy, runner.act_greedily(observation))


def test_a_runner_acts_with_refreshed_weights() -> None:
    spec = spec_of("Pendulum-v1")
    runner, observation = PolicyRunner(decided_weights(spec, seed=0)), np.ones((1, 3), np.float32)
    newer = decided_weights(spec, seed=1, version=5)
    runner.refresh(newer)
    assert runner.version == 5
    assert np.array_equal(runner.act_greedily(observation), PolicyRunner(newer).act_greedily(observation))


SQUASHED = Network(hidden_sizes=(16, 16), squash_actions=True, state_dependent_std=True)


@pytest.mark.parametrize("temperature", [0.4, 2.5])
@pytest.mark.parametrize(
    ("env_id", "network"), [("CartPole-v1", None), ("Pendulum-v1", None), ("Pendulum-v1", SQUASHED)]
)
def test_a_tempered_runner_returns_the_log_probabilities_at_its_temperature(
    env_id: str, network: Network | None, temperature: float
) -> None:
    spec, generator = spec_of(env_id), np.random.default_rng(0)
    assert isinstance(spec.observation, BoxSpace)
    policy = fresh_policy(spec, network=network)
    with torch.no_grad():
        policy.get_parameter("actor.4.weight").mul_(100.0)
    runner = PolicyRunner(policy_weights.dump(policy, 0), temperature=temperature)
    observation = generator.normal(size=(ROWS, *spec.observation.shape)).astype(np.float32)
    noise = generator.random((ROWS, policy.noise.size), np.float32)
    action, log_prob = runner.act(observation, noise)
    with torch.inference_mode():
        plain = policy.distribution(torch.from_numpy(observation))
    tempered = plain.tempered(temperature)
    assert np.array_equal(action, tempered.sample(torch.from_numpy(noise)).numpy())
    assert np.array_equal(log_prob, tempered.log_prob(torch.from_numpy(action)).numpy())
    assert np.abs(log_prob - plain.log_prob(torch.from_numpy(action)).numpy()).max() > 0.1
    # Newer weights are tempered too, and the most likely action never is.
    runner.refresh(policy_weights.dump(policy, 1))
    assert np.array_equal(runner.act(observation, noise)[1], log_prob)
    plain_runner = PolicyRunner(policy_weights.dump(policy, 0))
    assert np.array_equal(runner.act_greedily(observation), plain_runner.act_greedily(observation))


@SPECS
def test_without_a_temperature_a_runner_acts_like_the_policy_bit_for_bit(env_id: str) -> None:
    spec, generator = spec_of(env_id), np.random.default_rng(0)
    assert isinstance(spec.observation, BoxSpace)
    weights = decided_weights(spec)
    observation = generator.normal(size=(ROWS, *spec.observation.shape)).astype(np.float32)
    runner = PolicyRunner(weights)
    noise = generator.random((ROWS, runner.policy.noise.size), np.float32)
    with torch.inference_mode():
        distribution = runner.policy.distribution(torch.from_numpy(observation))
        expected = distribution.sample(torch.from_numpy(noise))
        expected_log_prob = distribution.log_prob(expected)
    for same in (runner, PolicyRunner(weights, temperature=1.0)):
        action, log_prob = same.act(observation, noise)
        assert np.array_equal(action, expected.numpy())
        assert np.array_equal(log_prob, expected_log_prob.numpy())
