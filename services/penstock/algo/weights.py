"""Conversion of policies to safetensors and back. The bytes and their metadata suffice to act with a policy."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from penstock.algo.own_policies import policy_of
from penstock.algo.policies import Policy
from penstock.algo.published import (
    METADATA_KEY,
    Description,
    damaged,
    of_metadata,
    read_metadata,
    to_metadata,
    unfitting,
    with_own_module,
)
from penstock.types.run import Weights

_TYPES = {"<f4": "F32", "<f8": "F64", "<i8": "I64", "<i4": "I32", "|b1": "BOOL", "|u1": "U8"}
"""Names of safetensors' types by NumPy's."""

_ANY_VERSION = 1_234_567_890_123_456_789
"""Version in whose place each version is written."""

State = Mapping[str, Tensor]
"""Tensors of a policy on the host, contiguous, by the names of its `state_dict`."""


def describe(policy: Policy, version: int) -> str:
    """Returns the metadata of a policy's weights as JSON: version, spaces and architecture."""
    return to_metadata(Description(policy.spec, policy.network), version)


def build(metadata: str, module: str | None = None) -> Policy:
    """Builds a policy with the spaces and architecture in this metadata. Its weights are newly initialised.

    `module` is the only module that may be imported. Raises `ForeignCode` if the metadata name another one.
    """
    description = with_own_module(of_metadata(metadata), module)
    return policy_of(description.spec, description.network)


class Encoder:
    """Encoder of the versions of one policy. It keeps their common parts: names, shapes, spaces and architecture."""

    def __init__(self, policy: Policy) -> None:
        """Prepares the head of the file. The policy keeps the shapes and types of its tensors."""
        self._slots = list(_slots(policy))
        state = self.state()
        # Elements of 8 bytes come first, so that all are aligned in the file.
        self._order = sorted(state, key=lambda name: -state[name].element_size())
        entries, end = {}, 0
        for name in self._order:
            array = state[name].cpu().numpy()
            begin, end = end, end + array.nbytes
            entries[name] = {"dtype": _TYPES[array.dtype.str], "shape": array.shape, "data_offsets": (begin, end)}
        self._bytes = end
        head = json.dumps({"__metadata__": {METADATA_KEY: describe(policy, _ANY_VERSION)}, **entries})
        self._before, self._after = head.split(str(_ANY_VERSION))

    def state(self) -> dict[str, Tensor]:
        """Returns the policy's tensors as they are now, detached, by the names of its `state_dict`."""
        return {name: tensors[key].detach() for name, tensors, key in self._slots}

    def encode(self, version: int, state: State) -> Weights:
        """Returns the published form of the policy with this state. It reads no tensor of the policy."""
        head = f"{self._before}{version}{self._after}"
        # Spaces align the first tensor.
        head += " " * (-len(head) % 8)
        arrays = [state[name].numpy().reshape(-1).view(np.uint8).data for name in self._order]
        assert sum(map(len, arrays)) == self._bytes
        return Weights.of(version, b"".join((len(head).to_bytes(8, "little"), head.encode(), *arrays)))


def _slots(policy: Policy) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yields the name of each tensor in `state_dict`, and the mapping of its module and the key that hold it now."""
    published = policy.state_dict().keys()
    for prefix, module in policy.named_modules(remove_duplicate=False):
        for tensors in (module._parameters, module._buffers):
            for key in tensors:
                name = f"{prefix}.{key}" if prefix else key
                if name in published:
                    yield name, tensors, key


def load(weights: Weights, module: str | None = None) -> Policy:
    """Builds a policy from its published form or from a checkpoint, in evaluation mode. `module` as for `build`."""
    policy = build(read_metadata(weights.data), module)
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
        policy.load(tensors)
    except RuntimeError as error:
        raise unfitting(str(error)) from None
