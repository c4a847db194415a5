"""Trained policies that act on single observations: their state, their masks, and what they refuse."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

import tests.support.environments.exact_tasks
import tests.support.environments.tiny  # noqa: F401 - registers Drifting-v0
from penstock.acting.policies.trained import TrainedPolicy, load_policy
from penstock.algo import weights as policy_weights
from penstock.algo.policies import Policy
from penstock.errors import ConfigurationError
from penstock.types.differences import same_spaces
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, MemoryKind, Tree
from tests.support.environments.exact_tasks import STEPS, Convention
from tests.support.environments.made import make_environments
from tests.support.training.policies import fresh_weights, remembering_policy, weights_of

Observation = NDArray[np.float32]
CONVENTIONS: tuple[Convention, ...] = ("observation", "info", "method")


def observations(count: int, seed: int) -> list[Observation]:
    return list(np.random.default_rng(seed).uniform(-1.0, 1.0, (count, 2)).astype(np.float32))


def expected_actions(policy: Policy, episode: list[Observation]) -> list[float]:
    """Returns the most likely actions in one episode of Drifting-v0, with the state carried from row to row."""
    state, actions = torch.zeros(1, *(policy.memory_shape or ())), []
    for row, observation in enumerate(episode):
        with torch.inference_mode():
            begun = torch.tensor([row == 0])
            distribution, after = policy.act((torch.from_numpy(observation[None]),), None, state, begun)
        assert after is not None
        state = after
        actions.append(distribution.mode()[0].item())
    return actions


@pytest.fixture(params=["gru", "lstm"])
def remembering(request: pytest.FixtureRequest) -> Policy:
    kind: MemoryKind = request.param
    return remembering_policy(make_environments("Drifting-v0", 1, kwargs={}).spec, kind)


def test_a_policy_with_memory_carries_its_state_and_forgets_it_at_a_reset(remembering: Policy) -> None:
    trained, played = TrainedPolicy(weights_of(remembering, 0)), []
    episodes = [observations(6, seed=1), observations(9, seed=2)]
    for episode in episodes:
        trained.reset()
        played += [float(trained.act(observation)[0]) for observation in episode]
    expected = [action for episode in episodes for action in expected_actions(remembering, episode)]
    np.testing.assert_allclose(played, expected, atol=1e-4)
    without_a_reset = expected_actions(remembering, episodes[0] + episodes[1])
    without_a_state = [expected_actions(remembering, [each])[0] for episode in episodes for each in episode]
    for other in (without_a_reset, without_a_state):
        assert np.abs(np.array(played) - other).max() > 0.1


def test_a_new_policy_begins_an_episode_without_a_reset(remembering: Policy) -> None:
    trained, episode = TrainedPolicy(weights_of(remembering, 0)), observations(4, seed=3)
    played = [float(trained.act(observation)[0]) for observation in episode]
    np.testing.assert_allclose(played, expected_actions(remembering, episode), atol=1e-4)


def test_sampled_actions_of_a_policy_with_memory_follow_the_same_states(remembering: Policy) -> None:
    trained, episode = TrainedPolicy(weights_of(remembering, 0)), observations(3, seed=4)
    sampled = []
    for _ in range(400):
        trained.reset()
        sampled.append([float(trained.act(observation, deterministic=False)[0]) for observation in episode])
    expected = expected_actions(remembering, episode)
    without_a_state = [expected_actions(remembering, [each])[0] for each in episode]
    assert np.abs(np.array(expected) - without_a_state).max() > 0.5
    # The standard deviation of an action is 1, and that of these means 0.05.
    np.testing.assert_allclose(np.mean(sampled, axis=0), expected, atol=0.25)
    assert (np.std(sampled, axis=0) > 0.8).all()


def masked_spec(env_id: str, convention: Convention) -> EnvironmentSpec:
    return make_environments(env_id, 1, kwargs={"masks": convention}).spec


def given_mask(env: Any, convention: Convention, info: dict[str, Any]) -> Any:
    """Returns the mask to pass to the policy; None where the observation has it."""
    if convention == "method":
        return env.action_masks()
    return info["action_mask"] if convention == "info" else None


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("env_id", ["MaskedChoice-v0", "MaskedLocks-v0"])
def test_a_policy_with_masks_takes_only_legal_actions(env_id: str, convention: Convention, deterministic: bool) -> None:
    trained = TrainedPolicy(fresh_weights(masked_spec(env_id, convention)))
    env = gymnasium.make(env_id, masks=convention).unwrapped
    for seed in range(20):
        observation, info = env.reset(seed=seed)
        for _ in range(STEPS):
            mask = given_mask(env, convention, info)
            action = trained.act(observation, action_mask=mask, deterministic=deterministic)
            # The environment raises an exception for an illegal action.
            observation, _, _, _, info = env.step(action)


REFUSED: dict[str, tuple[Callable[[TrainedPolicy], Any], str]] = {
    "no mask": (lambda trained: trained.act(np.int64(2)), "was trained with action masks of 6 bits; pass action_mask"),
    "another size": (
        lambda trained: trained.act(np.int64(2), action_mask=np.ones(5)),
        "of 5 elements, where Discrete\\(6, start=0\\) has 6 alternatives",
    ),
    "no legal action": (
        lambda trained: trained.act(np.int64(2), action_mask=np.zeros(6)),
        "without a legal action",
    ),
    "another shape": (
        lambda trained: trained.act(np.zeros((3, 1), np.int64), action_mask=np.ones(6)),
        "an observation of shape \\(3, 1\\), where this policy of MaskedChoice-v0 expects \\(\\), or \\(N\\) for a",
    ),
    "one mask for a batch": (
        lambda trained: trained.act(np.zeros(3, np.int64), action_mask=np.ones((1, 6))),
        "1 action masks for 3 observations; pass one for each",
    ),
    "another type": (
        lambda trained: trained.act(np.zeros((), np.float32), action_mask=np.ones(6)),
        "an observation of type float32, where this policy of MaskedChoice-v0 expects",
    ),
    "a value out of range": (
        lambda trained: trained.act(np.int64(99), action_mask=np.ones(6)),
        "an observation with 99, outside of Discrete",
    ),
    "a seed out of range": (lambda trained: trained.reset(seed=-1), "must be from 0 to 2\\^64 - 1; got -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_observation_or_a_mask_that_does_not_fit_is_refused_in_one_line(case: str) -> None:
    trained = TrainedPolicy(fresh_weights(masked_spec("MaskedChoice-v0", "info")))
    act, message = REFUSED[case]
    with pytest.raises(ConfigurationError, match=f"^[^\n]*{message}[^\n]*$"):
        act(trained)


def test_a_nested_observation_and_action_have_the_form_of_the_environment() -> None:
    trained = TrainedPolicy(fresh_weights(make_environments("Gears-v0", 1, kwargs={}).spec))
    env = gymnasium.make("Gears-v0")
    observation, _ = env.reset(seed=1)
    for _ in range(STEPS):
        action = trained.act(observation)
        assert env.action_space.contains(action)
        observation, *_ = env.step(action)
    with pytest.raises(ConfigurationError, match=r"^[^\n]*speed[^\n]*$"):
        trained.act({"load": observation["load"]})


def drifting(seed: int | None = None) -> TrainedPolicy:
    return TrainedPolicy(fresh_weights(make_environments("Drifting-v0", 1, kwargs={}).spec), seed=seed)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_observations_that_are_not_finite_are_refused(value: float) -> None:
    for call in (drifting().act, drifting().values):
        with pytest.raises(ConfigurationError, match=r"^an observation with .*can't act on it$"):
            call([0.0, value])
        with pytest.raises(ConfigurationError, match=r"^an observation with .*can't act on it$"):
            call([[0.0, 0.0], [value, 0.0]])


@pytest.mark.parametrize("observation", [[0.0, 0.0, 0.0], [[[0.0, 0.0]]], 0.0, None, ["a", "b"], [[0.0], [0.0, 0.0]]])
def test_other_shapes_are_refused_with_those_that_are_possible(observation: object) -> None:
    with pytest.raises(ConfigurationError, match=r"^an observation[^\n]*expects[^\n]*\(2,\)"):
        drifting().act(observation)


def test_the_actions_of_a_batch_are_those_of_its_rows() -> None:
    trained, batch = drifting(), np.stack(observations(20, seed=5))
    actions = trained.act(batch)
    assert actions.shape == (20, 1)
    np.testing.assert_array_equal(actions, np.stack([trained.act(row) for row in batch]))
    np.testing.assert_allclose(trained.values(batch), [trained.values(row) for row in batch], rtol=1e-5)
    assert isinstance(trained.values(batch[0]), float)


def test_a_batch_of_a_policy_with_memory_is_a_batch_of_episodes(remembering: Policy) -> None:
    trained = TrainedPolicy(weights_of(remembering, 0))
    episodes = [observations(6, seed=1), observations(6, seed=2)]
    played = np.stack([trained.act(np.stack(rows))[:, 0] for rows in zip(*episodes, strict=True)], axis=1)
    expected = [expected_actions(remembering, episode) for episode in episodes]
    np.testing.assert_allclose(played, expected, atol=1e-4)
    with pytest.raises(ConfigurationError, match=r"1 observations after 2, .*call reset"):
        trained.act(episodes[0][0])
    trained.reset()
    trained.act(episodes[0][0])


def test_predict_takes_and_returns_the_state_as_other_libraries_do(remembering: Policy) -> None:
    trained, episodes = TrainedPolicy(weights_of(remembering, 0)), [observations(6, seed=1), observations(6, seed=2)]
    played, state = [], None
    for row, observation in enumerate(episodes[0] + episodes[1]):
        action, state = trained.predict(observation, state, episode_start=row % 6 == 0)
        played.append(float(action[0]))
    expected = [expected_actions(remembering, episode) for episode in episodes]
    np.testing.assert_allclose(played, expected[0] + expected[1], atol=1e-4)
    # A batch, of which one row begins anew, while `act` remembers an episode of its own.
    batched: list[Observation] = []
    states, alone = None, []
    for first, second in zip(*episodes, strict=True):
        actions, states = trained.predict(np.stack([first, second]), states, np.array([False, len(batched) == 3]))
        batched.append(actions[:, 0])
        alone.append(float(trained.act(first)[0]))
    anew = expected[1][:3] + expected_actions(remembering, episodes[1][3:])
    np.testing.assert_allclose(np.stack(batched, 1), [expected[0], anew], atol=1e-4)
    np.testing.assert_allclose(alone, expected[0], atol=1e-4)
    assert states is not None and remembering.memory_shape is not None
    assert states.shape == (2, *remembering.memory_shape) and states.dtype == np.float32


def test_predict_of_a_policy_without_memory_is_act() -> None:
    trained, batch = drifting(seed=1), np.stack(observations(5, seed=1))
    actions, state = trained.predict(batch)
    assert state is None and np.array_equal(actions, trained.act(batch))
    # Stable-Baselines3 passes flags for each environment in any case.
    actions, _ = trained.predict(batch[0], None, np.ones(1, np.bool_))
    assert np.array_equal(actions, trained.act(batch[0]))
    sampled = [trained.predict(batch[0], deterministic=False)[0] for _ in range(2)]
    trained.reset(seed=1)
    assert [trained.act(batch[0], deterministic=False) for _ in range(2)] == sampled and sampled[0] != sampled[1]


def test_a_state_or_a_flag_that_does_not_fit_is_refused_in_one_line(remembering: Policy) -> None:
    trained, one = TrainedPolicy(weights_of(remembering, 0)), observations(1, seed=1)[0]
    _, state = trained.predict(one)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: trained.predict(np.stack([one, one]), state), "a state of shape .* expects .*; pass the state that"),
        (lambda: trained.predict(np.stack([one, one]), None, [True]), r"episode_start of shape \(1,\) for 2 observ"),
        (lambda: trained.predict(np.zeros(3)), r"an observation of shape \(3,\)"),
        (lambda: drifting().predict(one, state), "has no memory; leave out state"),
    ]
    for act, message in refused:
        with pytest.raises(ConfigurationError, match=f"^[^\n]*{message}[^\n]*$"):
            act()


@pytest.mark.parametrize("kind", ["plain", "gru"])
def test_a_saved_policy_is_read_back_bit_for_bit(tmp_path: Path, kind: str) -> None:
    spec = make_environments("Drifting-v0", 1, kwargs={}).spec
    own = fresh_weights(spec, version=7) if kind == "plain" else weights_of(remembering_policy(spec, "gru"), 7)
    trained = TrainedPolicy(own)
    with torch.no_grad():
        # Parameters that were changed after loading are saved as they are.
        next(trained.policy.parameters()).add_(1.0)
    file = trained.save(tmp_path / "own.safetensors")
    loaded = load_policy(file)
    assert (loaded.version, loaded.policy.spec, loaded.policy.network) == (7, spec, trained.policy.network)
    before, after = trained.policy.state_dict(), loaded.policy.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert loaded.save(str(tmp_path / "again.safetensors")).read_bytes() == file.read_bytes()


def test_a_policy_is_saved_under_a_name_that_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"in a \.safetensors file; name it cartpole\.safetensors$"):
        drifting().save("cartpole")
    with pytest.raises(ConfigurationError, match=r"^can't write .*nowhere"):
        drifting().save(tmp_path / "nowhere" / "own.safetensors")


def test_values_and_probabilities_are_not_remembered(remembering: Policy) -> None:
    trained, episode = TrainedPolicy(weights_of(remembering, 0)), observations(6, seed=1)
    played = []
    for observation in episode:
        trained.values(observation)
        played.append(float(trained.act(observation)[0]))
    np.testing.assert_allclose(played, expected_actions(remembering, episode), atol=1e-4)


def test_values_are_in_units_of_the_rewards() -> None:
    policy = policy_weights.load(fresh_weights(make_environments("Drifting-v0", 1, kwargs={}).spec))
    before = TrainedPolicy(weights_of(policy, 0)).values([0.3, -0.2])
    policy.return_moments.variance.fill_(25.0)
    policy.return_moments.count.fill_(1.0)
    after = TrainedPolicy(weights_of(policy, 0)).values([0.3, -0.2])
    assert before != 0.0 and after == pytest.approx(5.0 * before, rel=1e-5)


def test_a_seed_repeats_the_sampled_actions() -> None:
    one, other, batch = drifting(seed=7), drifting(seed=7), np.zeros((5, 2), np.float32)
    first = [one.act(batch, deterministic=False) for _ in range(3)]
    np.testing.assert_array_equal(first, [other.act(batch, deterministic=False) for _ in range(3)])
    assert len(np.unique(first)) == 15
    one.reset(seed=7)
    np.testing.assert_array_equal(first[0], one.act(batch, deterministic=False))


def test_probabilities_have_the_form_of_the_action() -> None:
    trained = TrainedPolicy(fresh_weights(masked_spec("MaskedChoice-v0", "info")), seed=1)
    mask = np.array([1, 0, 1, 1, 0, 1])
    probabilities = trained.probabilities(2, action_mask=mask)
    assert probabilities.shape == (6,) and probabilities.sum() == pytest.approx(1.0, abs=1e-5)
    assert (probabilities[mask == 0] == 0.0).all()
    count, many = 4_000, np.full(4_000, 2)
    np.testing.assert_allclose(
        trained.probabilities(many[:3], action_mask=np.tile(mask, (3, 1))), np.tile(probabilities, (3, 1)), rtol=1e-5
    )
    sampled = trained.act(many, action_mask=np.tile(mask, (count, 1)), deterministic=False)
    np.testing.assert_allclose(np.bincount(sampled, minlength=6) / count, probabilities, atol=0.05)
    with pytest.raises(ConfigurationError, match="an action of Drifting-v0 is continuous"):
        drifting().probabilities([0.0, 0.0])


def test_a_call_uses_one_thread_and_restores_the_setting() -> None:
    trained, used = drifting(), []
    trained.policy.critic.register_forward_hook(lambda *_: used.append(torch.get_num_threads()))
    trained.policy.actor.register_forward_hook(lambda *_: used.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        trained.act([0.0, 0.0])
        trained.act([[0.0, 0.0]], deterministic=False)
        trained.values([0.0, 0.0])
        with pytest.raises(ConfigurationError):
            trained.act([0.0])
        assert set(used) == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Accepting(gymnasium.Env[Any, Any]):
    """Has one action space, and accepts its members alone."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return np.zeros(2, np.float32), 1.0, False, False, {}


gymnasium.register("Accepting-v0", f"{__name__}:Accepting", disable_env_checker=True)

INTEGERS: dict[str, gymnasium.Space[Any]] = {
    "box of uint8": Box(0, 20, (2,), np.uint8),
    "box of int8 below 0": Box(np.array([-3, -9], np.int8), np.array([3, -7], np.int8), dtype=np.int8),
    "box of int32": Box(-3, 3, (2, 2), np.int32),
    "box of uint32": Box(0, 3, (1,), np.uint32),
    "box of int64": Box(-3, 3, (2,), np.int64),
    "scalar box of int16": Box(-3, 3, (), np.int16),
    "multi discrete of int32": MultiDiscrete([3, 2], dtype=np.int32),
    "multi discrete of uint8 with starts": MultiDiscrete([3, 2], start=[5, 1], dtype=np.uint8),
    "multi discrete of two dimensions": MultiDiscrete(np.array([[3, 2], [4, 5]]), dtype=np.int16),
    "discrete": Discrete(3),
    "multi binary": MultiBinary([2, 3]),
    "dict": Dict(grip=Discrete(2), arm=Tuple([Box(-1, 1, (2,), np.int8), MultiBinary(2)])),
}
if "dtype" in inspect.signature(Discrete).parameters:  # not in Gymnasium 1.2.0
    INTEGERS |= {
        "discrete of int32 from -2": Discrete(5, start=-2, dtype=np.int32),
        "discrete of uint8": Discrete(200, dtype=np.uint8),
        "dict with a discrete of int16": Dict(grip=Discrete(2, dtype=np.int16), arm=Discrete(3)),
    }
FLOATS: dict[str, gymnasium.Space[Any]] = {
    "box of float16": Box(-0.1, 0.3, (3,), np.float16),
    "box of float64 with inexact bounds": Box(0.1, 0.7, (2,), np.float64),
    "half-bounded box": Box(np.array([0.0, -np.inf]), np.array([np.inf, 1e-7]), dtype=np.float64),
    "scalar box": Box(-2.0, 2.0, (), np.float32),
    "tuple": Tuple([Box(-2.0, 2.0, (2, 1), np.float16), Dict(push=Box(0, 3, (1,), np.uint8))]),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS])
def test_the_space_of_the_environment_contains_every_action(name: str) -> None:
    env = gymnasium.make("Accepting-v0", space=(INTEGERS | FLOATS)[name])
    spec = make_environments("Accepting-v0", 1, kwargs={"space": env.action_space}).spec
    trained, generator = TrainedPolicy(fresh_weights(spec), seed=1), np.random.default_rng(0)
    observation, _ = env.reset(seed=1)
    env.step(trained.act(observation))
    batch = generator.uniform(-1.0, 1.0, (50, 2)).astype(np.float32)
    for row in batch:
        env.step(trained.act(row, deterministic=False))
    actions = trained.act(batch, deterministic=False)
    assert batch_space(env.action_space, len(batch)).contains(actions)


def test_actions_of_weights_without_recorded_types_are_as_before() -> None:
    spec = make_environments("Accepting-v0", 1, kwargs={"space": INTEGERS["box of uint8"]}).spec
    assert spec.action_types == ("uint8",)
    earlier = dataclasses.replace(spec, action_types=())
    assert earlier == spec and same_spaces(earlier, spec)
    action = TrainedPolicy(fresh_weights(earlier)).act([0.0, 0.0])
    assert (action.dtype, action.tolist()) == (np.int64, TrainedPolicy(fresh_weights(spec)).act([0.0, 0.0]).tolist())


def seeing(shape: tuple[int, ...], dtype: str = "uint8", high: float = 255.0, frames: int = 1) -> TrainedPolicy:
    tree = Tree.of(BoxSpace(dtype, shape, (0.0,), (high,)))
    return TrainedPolicy(fresh_weights(EnvironmentSpec("Seeing-v0", tree, Tree.of(DiscreteSpace(50)), frames)))


@pytest.mark.parametrize("shape", [(3, 40, 36), (4, 36, 36), (1, 40, 40)])
def test_images_may_have_channels_last(shape: tuple[int, ...]) -> None:
    trained, first = seeing(shape), np.random.default_rng(0).integers(0, 256, (5, *shape), np.uint8)
    last = np.moveaxis(first, 1, -1)
    values, probabilities = trained.values(first), trained.probabilities(first)
    np.testing.assert_array_equal(trained.values(last), values)
    np.testing.assert_array_equal(trained.probabilities(last), probabilities)
    assert trained.values(last[0]) == pytest.approx(values[0], rel=1e-5)
    assert trained.act(last[0]) == trained.act(first[0])
    with pytest.raises(ConfigurationError, match=rf"expects \({shape[0]}, "):
        trained.act(first[0][:, :-1])


def test_an_image_whose_shape_does_not_decide_has_channels_first() -> None:
    trained, image = seeing((36, 36, 36)), np.zeros((36, 36, 36), np.uint8)
    image[0] = 255
    assert trained.values(image) != trained.values(np.moveaxis(image, 0, -1))


@pytest.mark.parametrize(("shape", "given"), [((1, 40, 40), (40, 40)), ((1, 4), (4,)), ((4, 1), (4,)), ((1,), ())])
def test_one_observation_may_lack_dimensions_of_size_1(shape: tuple[int, ...], given: tuple[int, ...]) -> None:
    trained = seeing(shape) if len(shape) == 3 else seeing(shape, "float32", 1.0)
    values = np.random.default_rng(0).integers(0, 2, shape).astype(np.uint8 if len(shape) == 3 else np.float32)
    assert trained.values(values.reshape(given)) == trained.values(values)
    assert trained.values(values.reshape(given).tolist()) == trained.values(values)


def test_observations_may_be_tensors() -> None:
    trained, values = drifting(), np.array([0.25, -0.5], np.float32)
    for tensor in (torch.from_numpy(values), torch.tensor(values.astype(np.float64), requires_grad=True)):
        assert trained.values(tensor) == trained.values(values)
    assert trained.act(torch.from_numpy(np.stack([values, values]))).shape == (2, 1)
