import dataclasses
import math
from typing import Literal

import numpy as np
import pytest
import torch

from penstock.algo import published
from penstock.algo import weights as policy_weights
from penstock.algo.distributions import Categorical, DiagonalGaussian, SquashedGaussian
from penstock.algo.network import Network, Noise, NoiseKind
from penstock.algo.policies import Inputs, Policy
from penstock.algo.spaces import check_spaces, encoders_of, encoders_of_new, large_pictures, shown_encoders
from penstock.errors import ConfigurationError
from penstock.types.run import Weights
from penstock.types.spaces import (
    BoxSpace,
    DiscreteSpace,
    Encoder,
    EnvironmentSpec,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Space,
    Tree,
)
from tests.support.environments.tiny import spec_of
from tests.support.training.policies import fresh_policy, weights_of
from tests.support.training.policy_outputs import distribution_of, learn_moments, value_of

OBSERVATION = BoxSpace("float32", (3,), (-math.inf, -1.0, 0.0), (math.inf, 1.0, 5.0))


def spec_for(env_id: str, observation: Space, action: Space, frames: int = 1) -> EnvironmentSpec:
    return EnvironmentSpec(env_id, Tree.of(observation), Tree.of(action), frames=frames)


DISCRETE = spec_for("Discrete-v0", OBSERVATION, DiscreteSpace(4, start=2))
CONTINUOUS = spec_for("Continuous-v0", OBSERVATION, BoxSpace("float32", (2, 3), (-1.0,) * 6, (math.inf,) * 6))
SPECS = pytest.mark.parametrize("spec", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])


def observations(count: int = 5) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32))


def seasoned_policy(spec: EnvironmentSpec) -> Policy:
    """Returns a policy in which every tensor differs from that of a new policy."""
    policy = fresh_policy(spec, seed=3)
    learn_moments(policy, (observations(20) * 3.0 + 1.0,), torch.arange(20.0))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1)
    return policy


@SPECS
def test_a_policy_is_restored_from_its_weights_alone(spec: EnvironmentSpec) -> None:
    policy = seasoned_policy(spec)
    weights = weights_of(policy, version=12)
    loaded = policy_weights.load(weights)
    assert loaded.spec == policy.spec
    assert loaded.network == policy.network
    assert weights.version == published.read_version(weights.data) == 12
    assert torch.equal(value_of(loaded, observations()), value_of(policy, observations()))
    assert torch.equal(distribution_of(loaded, observations()).mode(), distribution_of(policy, observations()).mode())
    assert torch.equal(
        distribution_of(loaded, observations()).entropy(), distribution_of(policy, observations()).entropy()
    )
    one, ended = torch.ones(1), torch.zeros(1, dtype=torch.bool)
    assert torch.equal(loaded.scale_rewards(one, ended, 0.99), policy.scale_rewards(one, ended, 0.99))


@SPECS
def test_weights_replace_those_of_a_policy_in_place(spec: EnvironmentSpec) -> None:
    old, new = fresh_policy(spec), seasoned_policy(spec)
    assert not torch.equal(value_of(old, observations()), value_of(new, observations()))
    policy_weights.load_into(old, weights_of(new, version=1))
    assert torch.equal(value_of(old, observations()), value_of(new, observations()))


def test_dumped_weights_do_not_change_with_the_policy() -> None:
    policy = fresh_policy(DISCRETE)
    weights = weights_of(policy, version=1)
    before = value_of(policy, observations()).detach().clone()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert torch.equal(value_of(policy_weights.load(weights), observations()), before)


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_truncated_weights_are_refused(length: int) -> None:
    data = weights_of(fresh_policy(DISCRETE), version=1).data[:length]
    with pytest.raises(ConfigurationError):
        policy_weights.load(Weights.of(1, data))


@pytest.mark.parametrize("data", [b"", b"not weights at all", b"\x02\0\0\0\0\0\0\0{}", b"\xff" * 64])
def test_bytes_that_are_not_weights_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="not Penstock weights"):
        published.read_version(data)


def test_weights_of_another_architecture_are_refused() -> None:
    weights = weights_of(fresh_policy(DISCRETE, network=Network(hidden_sizes=(8,))), version=1)
    with pytest.raises(ConfigurationError, match=r"do not fit") as caught:
        policy_weights.load_into(fresh_policy(DISCRETE), weights)
    assert "\n" not in str(caught.value)


def test_discrete_actions_have_a_categorical_and_one_noise_value() -> None:
    policy = fresh_policy(DISCRETE)
    distribution = distribution_of(policy, observations())
    assert isinstance(distribution, Categorical)
    assert distribution.log_probs.shape == (5, 4)
    assert policy.noise == (Noise(NoiseKind.UNIFORM, 1),)


def test_continuous_actions_have_a_gaussian_and_one_noise_value_per_element() -> None:
    policy = fresh_policy(CONTINUOUS, network=Network(hidden_sizes=(8,), initial_log_std=-0.5))
    distribution = distribution_of(policy, observations())
    assert isinstance(distribution, DiagonalGaussian)
    assert distribution.mean.shape == (5, 6)
    assert distribution.log_std.tolist() == [-0.5] * 6
    assert policy.noise == (Noise(NoiseKind.NORMAL, 6),)


@SPECS
def test_a_new_policy_has_no_preference(spec: EnvironmentSpec) -> None:
    distribution = distribution_of(fresh_policy(spec), observations())
    if isinstance(distribution, Categorical):
        np.testing.assert_allclose(distribution.log_probs.exp().detach(), 0.25, atol=0.02)
    else:
        assert isinstance(distribution, DiagonalGaussian)
        np.testing.assert_allclose(distribution.mean.detach(), 0.0, atol=0.05)


def test_deviations_stay_within_their_range() -> None:
    policy = fresh_policy(CONTINUOUS, network=Network(hidden_sizes=(8,), initial_log_std=50.0))
    distribution = distribution_of(policy, observations())
    assert isinstance(distribution, DiagonalGaussian)
    assert distribution.log_std.max().item() == 2.0


IMAGES = spec_for("Images-v0", BoxSpace("uint8", (2, 36, 44), (0.0,), (255.0,)), DiscreteSpace(3), frames=2)


def images(*leading: int) -> torch.Tensor:
    pixels = np.random.default_rng(0).integers(0, 256, (*leading, 2, 36, 44), np.uint8)
    return torch.from_numpy(pixels)


@pytest.mark.parametrize("trunk", ["separate", "shared"])
def test_the_arrangement_of_images_in_batches_does_not_change_the_outputs(trunk: Literal["separate", "shared"]) -> None:
    policy = fresh_policy(IMAGES, network=Network(hidden_sizes=(16,), trunk=trunk, activation="relu"))
    sequences = images(3, 5)
    joint, value = policy.evaluate(Inputs((sequences,)), bootstraps=True)
    (distribution,) = joint.parts
    assert isinstance(distribution, Categorical)
    assert (distribution.log_probs.shape, value.shape) == ((3, 4, 3), (3, 5))
    row_joint, one_by_one = policy.evaluate(Inputs((sequences.flatten(0, 1),)))
    (rows,) = row_joint.parts
    assert isinstance(rows, Categorical)
    torch.testing.assert_close(value.flatten(), one_by_one, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(distribution.log_probs, rows.log_probs.view(3, 5, 3)[:, :-1], rtol=1e-5, atol=1e-6)


def test_pixels_of_any_type_are_divided_by_255() -> None:
    policy = fresh_policy(IMAGES)
    torch.testing.assert_close(value_of(policy, images(4).float()), value_of(policy, images(4)))
    bright = torch.full((8, 2, 36, 44), 255, dtype=torch.uint8)
    convolved = policy.critic[0](torch.ones(8, 2, 36, 44))
    torch.testing.assert_close(policy.critic[1:](convolved).squeeze(-1), value_of(policy, bright))


def test_a_policy_of_images_is_restored_from_its_weights_alone() -> None:
    policy = fresh_policy(IMAGES)
    weights = weights_of(policy, version=1)
    loaded = policy_weights.load(weights)
    assert loaded.spec == IMAGES
    assert torch.equal(value_of(loaded, images(8)), value_of(policy, images(8)))
    assert len(policy_weights.describe(policy, 1)) < 1_000


def test_images_do_not_change_the_normaliser_of_flat_observations() -> None:
    policy = fresh_policy(IMAGES)
    before = value_of(policy, images(8))
    learn_moments(policy, (images(8),), torch.arange(8.0))
    assert torch.equal(value_of(policy, images(8)), before)
    assert policy.return_moments.scale() != 1.0


@pytest.mark.parametrize(
    ("space", "encoder", "message"),
    [
        (BoxSpace("uint8", (1, 35, 84), (0.0,), (255.0,)), "image", "at least 36 x 36; use board or flat"),
        (BoxSpace("float32", (3, 84, 84), (0.0,), (255.0,)), "image", r"bytes .* use board or flat"),
        (BoxSpace("uint8", (84,), (0.0,), (255.0,)), "board", "two or three dimensions, not 1; use flat"),
        (OBSERVATION, "one_hot", "integers with bounds; use flat"),
        (OBSERVATION, "embedding", "integers with bounds; use flat"),
        (OBSERVATION, "token_gru", "integers that all have the same bounds; use flat"),
        (MultiDiscreteSpace((2,), (3, 4), (0, 0)), "token_mean", "integers that all have the same bounds"),
        (BoxSpace("int64", (2,), (0.0, 0.0), (9.0, math.inf)), "one_hot", "integers with bounds; use flat"),
    ],
)
def test_an_encoder_that_does_not_suit_its_space_is_refused(space: Space, encoder: Encoder, message: str) -> None:
    spec, encoders = spec_for("Odd-v0", space, DiscreteSpace(3)), {"observation": encoder}
    for attempt in (lambda: check_spaces(spec, encoders), lambda: Policy(spec, Network(encoders=encoders))):
        with pytest.raises(
            ConfigurationError,
            match=f"^policy.encoders chooses {encoder} for observation of Odd-v0, .*{message}[^\n]*$",
        ):
            attempt()


def test_an_encoder_of_no_part_of_an_observation_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^policy.encoders names 'camera', .*; its parts are: observation$"):
        check_spaces(DISCRETE, {"camera": "flat"})


VARIANTS = [
    Network(trunk="shared"),
    Network(hidden_sizes=(), trunk="shared"),
    Network(state_dependent_std=True, initial_log_std=-0.7),
    Network(squash_actions=True),
    Network(trunk="shared", state_dependent_std=True, squash_actions=True, activation="relu", hidden_sizes=(16,)),
]


@SPECS
@pytest.mark.parametrize("network", VARIANTS)
def test_every_architecture_is_restored_from_its_weights_and_evaluates_alike(
    spec: EnvironmentSpec, network: Network
) -> None:
    policy = Policy(spec, network)
    restored = policy_weights.load(weights_of(policy, 3))
    assert restored.network == network
    noise = torch.full((5, sum(part.size for part in policy.noise)), 0.3)
    distribution, value = policy.evaluate(Inputs((observations(),)))
    action = distribution.sample(noise)
    for other in (policy, restored):
        torch.testing.assert_close(value_of(other, observations()), value, rtol=0.0, atol=0.0)
        alone, _ = other.act((observations(),), None, None, None)
        torch.testing.assert_close(alone.log_prob(action), distribution.log_prob(action), rtol=0.0, atol=0.0)
        torch.testing.assert_close(alone.entropy(), distribution.entropy(), rtol=0.0, atol=0.0)


def test_a_shared_trunk_learns_from_both_heads() -> None:
    policy = Policy(CONTINUOUS, Network(trunk="shared"))
    distribution, value = policy.evaluate(Inputs((observations(),)))
    trunk = list(policy.trunk.parameters())
    for loss in (value.sum(), distribution.log_prob((torch.ones(5, 6),)).sum()):
        gradients = torch.autograd.grad(loss, trunk, retain_graph=True)
        assert all(gradient.abs().sum() > 0.0 for gradient in gradients)


def test_a_state_dependent_deviation_starts_at_the_configured_value() -> None:
    policy = Policy(CONTINUOUS, Network(state_dependent_std=True, initial_log_std=-0.7))
    distribution = distribution_of(policy, observations())
    assert isinstance(distribution, DiagonalGaussian)
    assert distribution.log_std.shape == (5, 6)
    torch.testing.assert_close(distribution.log_std, torch.full((5, 6), -0.7), rtol=0.0, atol=0.1)
    assert distribution.log_std.std(0).min() > 0.0


def test_only_elements_with_bounds_on_both_sides_are_squashed() -> None:
    # Only the first three elements have both bounds.
    space = BoxSpace("float32", (2, 3), (-1.0,) * 6, (1.0,) * 3 + (math.inf,) * 3)
    policy = Policy(spec_for("Half-v0", OBSERVATION, space), Network(squash_actions=True))
    distribution = distribution_of(policy, observations())
    assert isinstance(distribution, SquashedGaussian)
    assert distribution.squashed.tolist() == [True] * 3 + [False] * 3


def test_a_policy_sees_standardised_observations() -> None:
    policy = fresh_policy(DISCRETE)
    before = value_of(policy, observations())
    moments = torch.cat([observations(), -observations()]) * 7.0
    learn_moments(policy, (moments,), torch.zeros(10))
    deviation = moments.std(0, unbiased=False)
    torch.testing.assert_close(value_of(policy, observations() * deviation), before)


def test_actor_and_critic_share_no_parameters() -> None:
    policy = fresh_policy(CONTINUOUS)
    torch.autograd.backward(value_of(policy, observations()).sum())
    assert all(parameter.grad is None for parameter in policy.actor.parameters())
    assert all(parameter.grad is not None for parameter in policy.critic.parameters())


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_actions_of_integers_in_boxes_are_refused(dtype: str) -> None:
    spec = spec_for("Odd-v0", OBSERVATION, BoxSpace(dtype, (1,), (0.0,), (9.0,)))
    for attempt in (lambda: check_spaces(spec), lambda: Policy(spec, Network())):
        with pytest.raises(ConfigurationError, match=r"^Odd-v0 has the [^\n]*$"):
            attempt()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1"])
def test_the_tasks_of_the_presets_are_supported(env_id: str) -> None:
    spec = spec_of(env_id)
    loaded = policy_weights.load(weights_of(fresh_policy(spec), version=0))
    assert dataclasses.asdict(loaded.spec) == dataclasses.asdict(spec)


def test_extreme_observations_give_finite_actions_and_values() -> None:
    network = Network(hidden_sizes=(16, 16), activation="relu", normalise_observations=False)
    for env_id in ("CartPole-v1", "Pendulum-v1"):
        policy = fresh_policy(spec_of(env_id), network=network)
        size = 4 if env_id == "CartPole-v1" else 3
        distribution, value = policy.evaluate(Inputs((torch.full((1, size), 3e38),)))
        assert value.isfinite().all()
        action = distribution.sample(torch.full((1, 1), 0.5))
        assert distribution.log_prob(action).isfinite().all()


def numbers(*shape: int, dtype: str = "float32", high: float = 255.0) -> BoxSpace:
    return BoxSpace(dtype, shape, (0.0,), (high,))


def codes(*shape: int, n: int) -> MultiDiscreteSpace:
    size = math.prod(shape)
    return MultiDiscreteSpace(shape, (n,) * size, (0,) * size)


@pytest.mark.parametrize(
    ("space", "encoder"),
    [
        (numbers(2, 3), "flat"),
        (numbers(1, 4), "flat"),
        (numbers(4, 1), "flat"),
        (numbers(10, 10), "flat"),
        (numbers(3, 20, 20), "flat"),
        (numbers(50, 6), "flat"),
        (numbers(84, 84, 3), "board"),
        (numbers(3, 36, 36, high=math.inf), "board"),
        (numbers(7, 7, 3, dtype="uint8"), "flat"),
        (numbers(16, 16, 3, dtype="uint8"), "board"),
        (numbers(36, 36, 3, dtype="uint8"), "image"),
        (numbers(3, 3, dtype="int8", high=2.0), "flat"),
        (numbers(1, 9, dtype="int8", high=2.0), "flat"),
        (numbers(6, 7, dtype="int8", high=2.0), "board"),
        (numbers(5, 5, 2, dtype="int32", high=31.0), "board"),
        (numbers(10, 10, 4, dtype="bool", high=1.0), "board"),
        (numbers(4, 5, dtype="int64", high=math.inf), "flat"),
        (numbers(9, 9, dtype="int64", high=math.inf), "board"),
        (codes(3, 3, n=3), "one_hot"),
        (codes(1, 4, n=3), "one_hot"),
        (codes(3, 3, n=1000), "embedding"),
        (codes(5, 5, n=3), "board"),
        (MultiBinarySpace((1, 8)), "flat"),
        (MultiBinarySpace((8, 8)), "board"),
        (OBSERVATION, "flat"),
        (DiscreteSpace(5), "one_hot"),
    ],
)
def test_a_new_policy_convolves_images_and_boards_alone(space: Space, encoder: Encoder) -> None:
    spec = spec_for("Parts-v0", space, DiscreteSpace(2))
    chosen = encoders_of_new(spec)
    assert encoders_of(spec, chosen) == (encoder,)
    check_spaces(spec, chosen)
    assert shown_encoders(spec, chosen) == f"encoders: observation {encoder} (policy.encoders)"


@pytest.mark.parametrize(
    ("shape", "ratio"), [((210, 160, 3), "4.8"), ((4, 84, 84), ""), ((96, 96, 3), ""), ((128, 128), "2.3")]
)
def test_a_line_warns_of_pictures_that_cost_many_times_the_usual_ones(shape: tuple[int, ...], ratio: str) -> None:
    spec = spec_for("Pictures-v0", BoxSpace("uint8", shape, (0.0,), (255.0,)), DiscreteSpace(2))
    lines = large_pictures(spec, {})
    assert len(lines) == bool(ratio)
    assert all(f"takes {ratio} times the computation of 84 x 84" in line for line in lines)
    assert not large_pictures(spec, {"observation": "flat"})


def test_the_board_of_moves_keeps_its_planes_at_any_size() -> None:
    spec = spec_for("Slide-v0", numbers(3, 3, dtype="int8", high=2.0), DiscreteSpace(81))
    assert encoders_of_new(spec) == {"observation": "flat"}
    chosen = encoders_of_new(spec, "observation")
    check_spaces(spec, chosen, "observation")
    assert encoders_of(spec, chosen) == ("board",)


def test_the_encoders_of_many_parts_are_shown_in_one_short_line() -> None:
    leaves = tuple(Leaf(("arm", position), numbers(2)) for position in range(40))
    spec = EnvironmentSpec("Arms-v0", Tree(leaves), Tree.of(DiscreteSpace(2)))
    line = shown_encoders(spec, {"arm.1": "flat"})
    assert line.startswith("encoders: arm.0 flat, arm.1 flat, ") and line.endswith(" and 32 more (policy.encoders)")
