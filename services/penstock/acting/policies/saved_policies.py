"""Policies in files: which code they may import, and errors that name the file. This module does not import torch."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.algo import published
from penstock.algo.network import Network
from penstock.errors import ConfigurationError, ForeignCode
from penstock.machine import environment_names
from penstock.runs import checkpoint_file
from penstock.runs.folder import find_checkpoint
from penstock.types.run import Weights
from penstock.types.spaces import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """A policy in a file.

    Attributes:
        file: The file.
        weights: Its policy.
        spec: Spaces of its environment.
        network: Its architecture, with the only module that may be imported.
    """

    file: Path
    weights: Weights
    spec: EnvironmentSpec
    network: Network

    def errors_named(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the policy is loaded, whose errors name the file."""
        return _errors_of(self.file)


def read_policy(
    path: str | os.PathLike[str], *, module: str | type | None = None, trust_code: bool = False
) -> SavedPolicy:
    """Reads a policy. Takes the arguments of `acting.policies.trained.load_policy`, and raises its errors."""
    file = find_checkpoint(Path(path))
    data = checkpoint_file.read(file).data
    with _errors_of(file):
        named = published.module_of(data)
        own = named if trust_code else None
        if module is not None and not trust_code:
            own = environment_names.absolute(environment_names.name_of(module, what="network"))
        described = published.with_own_module(published.of_metadata(published.read_metadata(data)), own)
        weights = Weights.of(published.read_version(data), data)
        return SavedPolicy(file, weights, described.spec, described.network)


@contextlib.contextmanager
def _errors_of(file: Path) -> Iterator[None]:
    try:
        yield
    except ForeignCode as error:
        remedy = "if you trust that code, name it too (module=, in commands --policy.module) or add trust_code=True (in"
        remedy += " commands --trust-code)"
        raise ForeignCode(f"{file}: {error.finding}", remedy) from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        # Only a file of a release without digests can get here.
        raise checkpoint_file.damaged(file, str(error)) from None
