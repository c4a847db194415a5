"""Weights describe policies of every space, encoder and memory, and restore them alone."""

import dataclasses
import json
import math
from typing import Any

import pytest
import safetensors.torch
import torch

from penstock.algo import published
from penstock.algo import weights as policy_weights
from penstock.algo.network import Network
from penstock.algo.policies import Inputs, Policy
from penstock.algo.published import METADATA_KEY, read_metadata, read_version
from penstock.errors import ConfigurationError
from penstock.types.run import Weights
from penstock.types.spaces import (
    BoxSpace,
    DiscreteSpace,
    EnvironmentSpec,
    Leaf,
    MultiBinarySpace,
    MultiDiscreteSpace,
    Tree,
)
from tests.support.training.policies import fresh_policy, weights_of
from tests.support.training.policy_outputs import learn_moments

OBSERVATION = Tree(
    (
        Leaf(("camera", 0), BoxSpace("uint8", (2, 36, 40), (0.0,), (255.0,))),
        Leaf(("camera", 1), BoxSpace("uint8", (3, 4, 2), (0.0,), (3.0,))),
        Leaf(("unit",), DiscreteSpace(7, -2)),
        Leaf(("load",), BoxSpace("float64", (2, 2), (-math.inf,) * 4, (math.inf, 1.0, 2.0, 3.0))),
        Leaf(("lamps",), MultiBinarySpace((3,))),
        Leaf(("levels",), MultiDiscreteSpace((2,), (3, 4), (0, 5))),
    )
)
ACTION = Tree(
    (
        Leaf((0,), DiscreteSpace(3, 1)),
        Leaf((1,), MultiBinarySpace((2,))),
        Leaf((2,), BoxSpace("float32", (2,), (-1.0,) * 2, (1.0,) * 2)),
    )
)
NESTED = EnvironmentSpec("Nested-v0", OBSERVATION, ACTION, mask_bits=7)
PLAIN = EnvironmentSpec("Plain-v0", Tree.of(BoxSpace("float32", (3,), (-1.0,), (1.0,))), Tree.of(DiscreteSpace(2)))
NETWORKS = [
    Network(hidden_sizes=(8,)),
    Network(hidden_sizes=(8,), trunk="shared", memory="gru", memory_size=5),
    Network(hidden_sizes=(8,), memory="lstm", memory_size=5, squash_actions=True),
    Network(hidden_sizes=(8,), encoders={"levels": "embedding", "camera.0": "board", "unit": "flat"}),
]


def inputs_of(policy: Policy) -> Inputs:
    """Returns random inputs: 2 segments of 4 rows."""
    generator = torch.Generator().manual_seed(0)
    shapes = [space.observation_array[1] for space in policy.spec.observation.spaces]
    observation = tuple(torch.randint(3, (2, 4, *shape), generator=generator) for shape in shapes)
    mask = torch.full((2, 4, 1), 0b1111101, dtype=torch.uint8) if policy.spec.mask_bits else None
    if policy.memory_shape is None:
        return Inputs(observation, mask)
    state = torch.randn(2, *policy.memory_shape, generator=generator)
    return Inputs(observation, mask, state, torch.zeros(2, 4, dtype=torch.bool))


@pytest.mark.parametrize("network", NETWORKS)
def test_a_policy_of_a_tree_is_restored_from_its_weights_alone(network: Network) -> None:
    policy = fresh_policy(NESTED, network=network)
    inputs = inputs_of(policy)
    numbers = tuple(leaf.flatten(0, 1) for leaf in inputs.observation)
    learn_moments(policy, numbers, torch.arange(8.0))
    restored = policy_weights.load(weights_of(policy, 5))
    assert (restored.spec, restored.network, restored.memory_shape) == (NESTED, network, policy.memory_shape)
    assert restored.noise == policy.noise
    (ours, value), (theirs, expected) = restored.evaluate(inputs), policy.evaluate(inputs)
    assert torch.equal(value, expected)
    for mode, other in zip(ours.mode(), theirs.mode(), strict=True):
        assert torch.equal(mode, other)
    assert torch.equal(ours.entropy(), theirs.entropy())


def metadata_of(spec: EnvironmentSpec, network: Network) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(policy_weights.describe(fresh_policy(spec, network=network), 1))
    return described


def test_weights_of_earlier_releases_which_lack_fields_mean_their_defaults() -> None:
    described = metadata_of(PLAIN, Network())
    for part, later in (
        (described["environment"], {"mask_bits", "action_types"}),
        (described["network"], {"encoders", "memory", "memory_size", "moves", "module"}),
        (described["network"], {"variance_epsilon", "widest_range"}),
    ):
        for name in later:
            del part[name]
    assert published.of_metadata(json.dumps(described)) == published.Description(PLAIN, Network())
    assert (Network().variance_epsilon, Network().widest_range) == (1e-8, 1e38)


def test_weights_with_masks_memory_and_encoders_describe_them() -> None:
    described = metadata_of(NESTED, NETWORKS[1])
    assert described["environment"]["mask_bits"] == 7
    assert [leaf["path"] for leaf in described["environment"]["observation"]["leaves"]][:2] == [
        ["camera", 0],
        ["camera", 1],
    ]
    assert (described["network"]["memory"], described["network"]["memory_size"]) == ("gru", 5)
    assert metadata_of(NESTED, NETWORKS[3])["network"]["encoders"] == NETWORKS[3].encoders


def test_weights_describe_the_types_of_actions_that_are_not_those_of_a_policy() -> None:
    types = tuple("uint8" if position == 0 else "" for position in range(len(NESTED.action.leaves)))
    spec = dataclasses.replace(NESTED, action_types=types)
    assert metadata_of(spec, NETWORKS[0])["environment"]["action_types"] == list(types)
    assert policy_weights.load(weights_of(fresh_policy(spec), 1)).spec.action_types == types


def test_values_of_earlier_releases_have_no_offset() -> None:
    policy = fresh_policy(PLAIN)
    policy.begin_returns(torch.full((8,), 50.0))
    assert policy.return_offset.item() == 50.0
    data = weights_of(policy, 1).data
    assert policy_weights.load(Weights.of(1, data)).return_offset.item() == 50.0
    tensors = safetensors.torch.load(data)
    del tensors["return_offset"]
    earlier = safetensors.torch.save(tensors, {METADATA_KEY: policy_weights.describe(policy, 1)})
    policy_weights.load_into(policy, Weights.of(1, earlier))
    assert policy.return_offset.item() == 0.0


@pytest.mark.parametrize("spec", [PLAIN, NESTED], ids=["not nested", "nested"])
def test_weights_for_an_unknown_kind_of_space_are_refused(spec: EnvironmentSpec) -> None:
    data = weights_of(fresh_policy(spec), 1).data
    for kind in (b"discrete", b"multi_binary"):
        if kind not in data:
            continue
        newer = data.replace(b'\\"' + kind + b'\\"', b'\\"' + b"x" * len(kind) + b'\\"')
        assert newer != data
        with pytest.raises(ConfigurationError, match=r"kind of space that this release does not support, 'x+'[^\n]*$"):
            policy_weights.load(Weights.of(1, newer))


@pytest.mark.parametrize("network", NETWORKS)
def test_an_encoder_writes_each_version_as_the_policy_is_then(network: Network) -> None:
    policy = fresh_policy(NESTED, network=network)
    encoder = policy_weights.Encoder(policy)
    encoder.encode(1, encoder.state())
    for module in policy.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            # Replaced, not changed in place, as some normalisers do.
            setattr(module, name, buffer + 1)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    weights = encoder.encode(10**6, encoder.state())
    assert weights.version == 10**6
    assert read_version(weights.data) == 10**6
    assert read_metadata(weights.data) == policy_weights.describe(policy, 10**6)
    restored = policy_weights.load(weights).state_dict()
    assert restored.keys() == policy.state_dict().keys()
    assert all(torch.equal(restored[name], tensor) for name, tensor in policy.state_dict().items())


@pytest.mark.parametrize("choice", ["trunk", "activation", "memory"])
def test_a_choice_of_a_newer_release_is_refused_in_one_line(choice: str) -> None:
    description = published.Description(PLAIN, Network())
    described = json.loads(published.to_metadata(description, 1))
    described["network"][choice] = "newer"
    with pytest.raises(ConfigurationError, match=rf"policy\.{choice} 'newer', which [^\n]*$"):
        published.of_metadata(json.dumps(described))
