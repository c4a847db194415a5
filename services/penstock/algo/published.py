"""The metadata of a published policy: its version, spaces and architecture. This module does not import torch."""

import json
from dataclasses import dataclass, replace
from typing import Any, get_args

from penstock.algo.network import Network
from penstock.errors import ConfigurationError, ForeignCode
from penstock.machine.environment_names import same_code
from penstock.machine.foreign_errors import shortened
from penstock.types.records import plain, record_of
from penstock.types.spaces import MEMORY_PARTS, SPACE_KINDS, ActivationName, EnvironmentSpec, Tree, Trunk

METADATA_KEY = "penstock"


@dataclass(frozen=True, slots=True)
class Description:
    """Description from which a policy is built: the spaces of its environment, and its architecture."""

    spec: EnvironmentSpec
    network: Network


def to_metadata(description: Description, version: int) -> str:
    """Returns the metadata of a policy's weights as JSON."""
    network = plain(description.network)
    return json.dumps({"version": version, "environment": description.spec.to_json(), "network": network})


def of_metadata(metadata: str) -> Description:
    """Returns the description in this metadata. Raises `ConfigurationError` for a choice of a newer release."""
    described = json.loads(metadata)
    environment = described["environment"]
    for tree in (environment["observation"], environment["action"]):
        _check_kinds(tree)
    network = record_of(Network, described["network"])
    for name, value, known in (
        ("trunk", network.trunk, get_args(Trunk)),
        ("activation", network.activation, get_args(ActivationName)),
        ("memory", network.memory, (None, *MEMORY_PARTS)),
    ):
        if value not in known:
            raise ConfigurationError(
                f"the weights are of a policy with policy.{name} {value!r}, which this release does not support; use"
                " the release that saved them"
            )
    return Description(EnvironmentSpec.from_json(environment), network)


def with_own_module(description: Description, own: str | None) -> Description:
    """Returns the description with the reader's own module (`policy.module`) in place of the one that it names.

    Nothing is imported. Raises `ForeignCode` if it names a module that is not the reader's own.
    """
    named = description.network.module
    if named is None or named == own:
        return description
    if own is None or not isinstance(named, str) or not same_code(own, named):
        here = "is unset here" if own is None else f"is {own!r} here"
        raise ForeignCode(
            f"the policy was trained with policy.module {shortened(repr(named))}, whose code would run, and"
            f" policy.module {here}",
            "if you trust that code, set policy.module to it here too",
        )
    return replace(description, network=replace(description.network, module=own))


def module_of(data: bytes) -> str | None:
    """Returns the module that a published policy or checkpoint names; None if it names none."""
    return of_metadata(read_metadata(data)).network.module


def read_version(data: bytes) -> int:
    """Returns the version of a published policy or checkpoint. Raises `ConfigurationError` as `read_metadata` does."""
    return int(json.loads(read_metadata(data))["version"])


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


def damaged(fault: str) -> ConfigurationError:
    """Returns the refusal of bytes that are not a complete safetensors file."""
    return ConfigurationError(f"the weights are damaged or cut short ({fault}); use another checkpoint")


def unfitting(fault: str) -> ConfigurationError:
    """Returns the refusal of weights of another architecture."""
    return ConfigurationError(
        f"the weights do not fit this policy ({' '.join(fault.split())}); the environment's spaces or the [policy]"
        " settings have changed"
    )


def _check_kinds(value: dict[str, Any]) -> None:
    kinds = [value["kind"]] if value["kind"] != Tree.KIND else [leaf["space"]["kind"] for leaf in value["leaves"]]
    for kind in kinds:
        if kind not in SPACE_KINDS:
            raise ConfigurationError(
                f"the weights are for a kind of space that this release does not support, {kind!r}; use the release"
                " that saved them"
            )
