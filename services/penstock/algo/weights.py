"""Conversion of policies to safetensors and back. The bytes and their metadata suffice to act with a policy."""

from collections.abc import Mapping

import safetensors.numpy
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from penstock.algo.policies import Policy
from penstock.algo.published import (
    METADATA_KEY,
    Description,
    damaged,
    of_metadata,
    read_metadata,
    to_metadata,
    unfitting,
)
from penstock.types.run import Weights

State = Mapping[str, Tensor]
"""Tensors of a policy on the host, contiguous, by the names of its `state_dict`."""


def describe(policy: Policy, version: int) -> str:
    """Returns the metadata of a policy's weights as JSON: version, spaces and architecture."""
    return to_metadata(Description(policy.spec, policy.network), version)


def build(metadata: str) -> Policy:
    """Builds a policy with the spaces and architecture in this metadata. Its weights are newly initialised."""
    description = of_metadata(metadata)
    return Policy(description.spec, description.network)


def dump(policy: Policy, version: int) -> Weights:
    """Returns the published form of a policy, including its normalisers."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.state_dict().items()}
    return encode(policy, version, state)


def encode(policy: Policy, version: int, state: State) -> Weights:
    """Returns the published form of a policy with this state. It reads no tensor of the policy."""
    # As arrays, whose bytes take safetensors a third of the time.
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    return Weights.of(version, safetensors.numpy.save(arrays, {METADATA_KEY: describe(policy, version)}))


def load(weights: Weights) -> Policy:
    """Builds a policy from its published form or from a checkpoint, in evaluation mode."""
    policy = build(read_metadata(weights.data))
    load_into(policy, weights)
    return policy.eval()


def load_into(policy: Policy, weights: Weights) -> None:
    """Replaces a policy's parameters and normalisers in place. Ignores a checkpoint's other tensors.

    Raises `ConfigurationError` if the bytes are cut short or belong to another architecture.
    """
    try:
        tensors = safetensors.torch.load(weights.data)
    except SafetensorError as error:
        raise damaged(str(error)) from None
    try:
        policy.load_state_dict({name: tensor for name, tensor in tensors.items() if "/" not in name})
    except RuntimeError as error:
        raise unfitting(str(error)) from None
