from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock.acting.policies.inference import PolicyRunner
from penstock.algo.network import Network
from penstock.algo.policies import Policy
from penstock.types.spaces import EnvironmentSpec, MemoryKind
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import decided_weights, fresh_policy, remembering_policy, weights_of

ROWS = 16
"""Number of rows of a call without padding."""

SPECS = pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])


def shape_of(spec: EnvironmentSpec) -> tuple[int, ...]:
    """Returns the shape of an observation that is not nested."""
    (space,) = spec.observation.spaces
    return space.observation_array[1]


def noise_size(policy: Policy) -> int:
    """Returns the number of random numbers of one action."""
    return sum(part.size for part in policy.noise)


@SPECS
def test_an_action_does_not_depend_on_how_many_environments_share_the_call(env_id: str) -> None:
    spec = spec_of(env_id)
    runner, generator = PolicyRunner(decided_weights(spec)), np.random.default_rng(0)
    observation = generator.normal(size=(13, *shape_of(spec))).astype(np.float32)
    noise = generator.random((13, noise_size(runner.policy)), np.float32)
    (action,), log_prob = runner.act((observation,), noise)
    for count in range(1, 13):
        (few_actions,), few_log_probs = runner.act((observation[:count],), noise[:count])
        assert np.array_equal(few_actions, action[:count])
        assert np.array_equal(few_log_probs, log_prob[:count])


@SPECS
def test_greedy_actions_need_no_noise(env_id: str) -> None:
    spec = spec_of(env_id)
    runner = PolicyRunner(decided_weights(spec))
    observation = np.ones((3, *shape_of(spec)), np.float32)
    (greedy,), (again,) = runner.act_greedily((observation,)), runner.act_greedily((observation,))
    assert len(greedy) == 3
    assert np.array_equal(greedy, again)


def test_a_runner_acts_with_refreshed_weights() -> None:
    spec = spec_of("Pendulum-v1")
    runner, observation = PolicyRunner(decided_weights(spec, seed=0)), np.ones((1, 3), np.float32)
    newer = decided_weights(spec, seed=1, version=5)
    runner.refresh(newer)
    assert runner.version == 5
    (refreshed,), (loaded,) = runner.act_greedily((observation,)), PolicyRunner(newer).act_greedily((observation,))
    assert np.array_equal(refreshed, loaded)


SQUASHED = Network(hidden_sizes=(16, 16), squash_actions=True, state_dependent_std=True)


@pytest.mark.parametrize("temperature", [0.4, 2.5])
@pytest.mark.parametrize(
    ("env_id", "network"), [("CartPole-v1", None), ("Pendulum-v1", None), ("Pendulum-v1", SQUASHED)]
)
def test_a_tempered_runner_returns_the_log_probabilities_at_its_temperature(
    env_id: str, network: Network | None, temperature: float
) -> None:
    spec, generator = spec_of(env_id), np.random.default_rng(0)
    policy = fresh_policy(spec, network=network)
    with torch.no_grad():
        policy.get_parameter("actor.4.weight").mul_(100.0)
    runner = PolicyRunner(weights_of(policy, 0), temperature=temperature)
    observation = generator.normal(size=(ROWS, *shape_of(spec))).astype(np.float32)
    noise = generator.random((ROWS, noise_size(policy)), np.float32)
    (action,), log_prob = runner.act((observation,), noise)
    with torch.inference_mode():
        plain, _ = policy.act((torch.from_numpy(observation),), None, None, None)
    tempered = plain.tempered(temperature)
    (sampled,), taken = tempered.sample(torch.from_numpy(noise)), (torch.from_numpy(action),)
    assert np.array_equal(action, sampled.numpy())
    assert np.array_equal(log_prob, tempered.log_prob(taken).numpy())
    assert np.abs(log_prob - plain.log_prob(taken).numpy()).max() > 0.1
    # Newer weights are tempered too, and the most likely action never is.
    runner.refresh(weights_of(policy, 1))
    assert np.array_equal(runner.act((observation,), noise)[1], log_prob)
    plain_runner = PolicyRunner(weights_of(policy, 0))
    (greedy,), (plain_greedy,) = runner.act_greedily((observation,)), plain_runner.act_greedily((observation,))
    assert np.array_equal(greedy, plain_greedy)


@SPECS
def test_without_a_temperature_a_runner_acts_like_the_policy_bit_for_bit(env_id: str) -> None:
    spec, generator = spec_of(env_id), np.random.default_rng(0)
    weights = decided_weights(spec)
    observation = generator.normal(size=(ROWS, *shape_of(spec))).astype(np.float32)
    runner = PolicyRunner(weights)
    noise = generator.random((ROWS, noise_size(runner.policy)), np.float32)
    with torch.inference_mode():
        distribution, _ = runner.policy.act((torch.from_numpy(observation),), None, None, None)
        expected = distribution.sample(torch.from_numpy(noise))
        expected_log_prob = distribution.log_prob(expected)
    for same in (runner, PolicyRunner(weights, temperature=1.0)):
        (action,), log_prob = same.act((observation,), noise)
        assert np.array_equal(action, expected[0].numpy())
        assert np.array_equal(log_prob, expected_log_prob.numpy())


STATES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.set_autocast_enabled("cpu", False)),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "no gradients": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "anomalies": (lambda: torch.autograd.set_detect_anomaly(True), lambda: torch.autograd.set_detect_anomaly(False)),
    "products": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "errors of NumPy": (lambda: np.seterr(all="raise"), lambda: np.seterr(all="warn")),
}


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("change", "undo"), STATES.values(), ids=STATES)
def test_no_state_in_which_an_environment_leaves_its_libraries_changes_the_policy(
    change: Callable[[], object], undo: Callable[[], object], kind: MemoryKind
) -> None:
    weights = weights_of(remembering_policy(spec_of("CartPole-v1"), kind), 0)
    observation, noise = (np.full((2, 4), 0.3, np.float32),), np.full((2, 1), 0.5, np.float32)

    def answers() -> list[NDArray[np.float32]]:
        runner = PolicyRunner(weights)
        return [runner.act(observation, noise)[1], runner.act(observation, noise)[1], runner.values(observation)]

    expected = answers()
    change()
    try:
        found, enabled = answers(), torch.is_autocast_enabled("cpu")
    finally:
        undo()
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert enabled == (change is STATES["autocast"][0])


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("data_type", "device"), [(torch.float64, "cpu"), (torch.float16, "cpu"), (None, "meta")])
def test_a_policy_acts_alike_and_keeps_the_defaults_that_an_environment_has_set_in_torch(
    kind: MemoryKind, data_type: torch.dtype | None, device: str
) -> None:
    spec = spec_of("CartPole-v1")
    weights, later = (weights_of(remembering_policy(spec, kind), version) for version in (0, 1))
    observation, noise = (np.ones((2, 4), np.float32),), np.full((2, 1), 0.5, np.float32)
    expected = PolicyRunner(weights).act(observation, noise)[1]
    usual = torch.get_default_dtype()
    torch.set_default_dtype(data_type or usual)
    torch.set_default_device(device)
    try:
        runner = PolicyRunner(weights)
        log_prob = runner.act(observation, noise)[1]
        runner.refresh(later)
        made = torch.zeros(1)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(usual)
    assert np.array_equal(log_prob, expected)
    assert (made.dtype, made.device.type) == (data_type or usual, device)
