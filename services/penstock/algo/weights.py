"""Conversion of policies to safetensors and back. The bytes and their metadata suffice to act with a policy."""

import json
from collections.abc import Mapping
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from penstock.algo.policies import Network, Policy
from penstock.errors import ConfigurationError
from penstock.types.records import plain, record_of
from penstock.types.run import Weights
from penstock.types.spaces import SPACE_KINDS, EnvironmentSpec, Tree

METADATA_KEY = "penstock"

State = Mapping[str, Tensor]
"""Tensors of a policy on the host, contiguous, by the names of its `state_dict`."""

_SINCE_CONTRACT_2 = ("encoders", "memory", "memory_size", "moves", "module")
"""Fields of `Network` that contract 1 does not have. Their defaults must never change."""


def describe(policy: Policy, version: int) -> str:
    """Returns the metadata of a policy's weights as JSON: version, spaces and architecture.

    Fields that contract 1 does not have are left out at their defaults, so that its actors can read the weights.
    """
    spec, standard = policy.spec, plain(Network())
    environment: dict[str, object] = {
        "id": spec.id,
        "observation": spec.observation.to_json(),
        "action": spec.action.to_json(),
        "frames": spec.frames,
    }
    if spec.mask_bits:
        environment["mask_bits"] = spec.mask_bits
    network = {
        name: value
        for name, value in plain(policy.network).items()
        if name not in _SINCE_CONTRACT_2 or value != standard[name]
    }
    return json.dumps({"version": version, "environment": environment, "network": network})


def build(metadata: str) -> Policy:
    """Builds a policy with the spaces and architecture in this metadata. Its weights are newly initialised."""
    description = json.loads(metadata)
    environment = description["environment"]
    spec = EnvironmentSpec(
        environment["id"],
        _tree_from_json(environment["observation"]),
        _tree_from_json(environment["action"]),
        environment.get("frames", 1),
        environment.get("mask_bits", 0),
    )
    return Policy(spec, record_of(Network, description["network"]))


def dump(policy: Policy, version: int) -> Weights:
    """Returns the published form of a policy, including its normalisers."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.state_dict().items()}
    return encode(policy, version, state)


def encode(policy: Policy, version: int, state: State) -> Weights:
    """Returns the published form of a policy with this state. It reads no tensor of the policy."""
    return Weights.of(version, safetensors.torch.save(dict(state), {METADATA_KEY: describe(policy, version)}))


def load(weights: Weights) -> Policy:
    """Builds a policy from its published form or from a checkpoint, in evaluation mode."""
    policy = build(read_metadata(weights.data))
    load_into(policy, weights)
    return policy.eval()


def read_version(data: bytes) -> int:
    """Returns the version of a published policy or checkpoint. Raises `ConfigurationError` as `read_metadata` does."""
    return int(json.loads(read_metadata(data))["version"])


def load_into(policy: Policy, weights: Weights) -> None:
    """Replaces a policy's parameters and normalisers in place. Ignores a checkpoint's other tensors.

    Raises `ConfigurationError` if the bytes are cut short or belong to another architecture.
    """
    try:
        tensors = safetensors.torch.load(weights.data)
    except SafetensorError as error:
        raise ConfigurationError(f"the weights are damaged or cut short ({error}); use another checkpoint") from None
    try:
        policy.load_state_dict({name: tensor for name, tensor in tensors.items() if "/" not in name})
    except RuntimeError as error:
        raise ConfigurationError(
            f"the weights do not fit this policy ({' '.join(str(error).split())}); the environment's spaces or the"
            " [policy] settings have changed"
        ) from None


def read_metadata(data: bytes) -> str:
    """Returns Penstock's metadata from a safetensors file's bytes. Raises `ConfigurationError` for other bytes."""
    try:
        length = int.from_bytes(data[:8], "little")
        metadata: str = json.loads(data[8 : 8 + length])["__metadata__"][METADATA_KEY]
        return metadata
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(
            "these are not Penstock weights: a safetensors file with Penstock's metadata was expected"
        ) from None


def _tree_from_json(value: dict[str, Any]) -> Tree:
    kinds = [value["kind"]] if value["kind"] != Tree.KIND else [leaf["space"]["kind"] for leaf in value["leaves"]]
    for kind in kinds:
        if kind not in SPACE_KINDS:
            raise ConfigurationError(
                f"the weights are for a kind of space that this release does not support, {kind!r}; use the release"
                " that saved them"
            )
    return Tree.from_json(value)
