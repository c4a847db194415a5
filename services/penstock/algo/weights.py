"""Conversion of policies to safetensors and back. The bytes and their metadata suffice to act with a policy."""

import dataclasses
import json
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from penstock.algo.policies import Network, Policy
from penstock.errors import ConfigurationError
from penstock.types.run import Weights
from penstock.types.spaces import SPACE_KINDS, EnvironmentSpec, Space

METADATA_KEY = "penstock"


def describe(policy: Policy, version: int) -> str:
    """Returns the metadata of a policy's weights as JSON: version, spaces and architecture."""
    environment = {
        "id": policy.spec.id,
        "observation": policy.spec.observation.to_json(),
        "action": policy.spec.action.to_json(),
        "frames": policy.spec.frames,
    }
    return json.dumps({"version": version, "environment": environment, "network": dataclasses.asdict(policy.network)})


def build(metadata: str) -> Policy:
    """Builds a policy with the spaces and architecture in this metadata. Its weights are newly initialised."""
    description = json.loads(metadata)
    environment, network = description["environment"], description["network"]
    spec = EnvironmentSpec(
        environment["id"],
        _space_from_json(environment["observation"]),
        _space_from_json(environment["action"]),
        environment.get("frames", 1),
    )
    return Policy(spec, Network(**{**network, "hidden_sizes": tuple(network["hidden_sizes"])}))


def dump(policy: Policy, version: int) -> Weights:
    """Returns the published form of a policy, including its normalisers."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.state_dict().items()}
    return Weights.of(version, safetensors.torch.save(state, {METADATA_KEY: describe(policy, version)}))


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


def _space_from_json(value: dict[str, Any]) -> Space:
    kind = value["kind"]
    if kind not in SPACE_KINDS:
        raise ConfigurationError(
            f"the weights are for a kind of space that this release does not support, {kind!r}; use the release that"
            " saved them"
        )
    return SPACE_KINDS[kind].from_json(value)
