"""The identity in the certificate of a service: its run and its role in it.

The URI `penstock://<run>/<role>` is the identity, by which peers decide what a service may do. The DNS name
`<role>.<run>.penstock` has the same parts, and clients expect it of a server whatever its address.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from penstock.errors import ConfigurationError

Role = Literal["actor", "learner", "replay", "evaluator", "operator"]
"""Task of a service in a run; `operator` is the user with a command such as `penstock status`."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)
SERVERS: Final[tuple[Role, ...]] = ("replay", "learner")
"""Roles that present their certificates as servers, too."""

SCHEME: Final = "penstock://"
"""Beginning of the URI of every identity."""

_MOST_CHARACTERS = 40
_DIGEST_CHARACTERS = 8
_RUN_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Identity:
    """Run and role of the owner of a certificate.

    Attributes:
        run: Name of the run.
        role: Role in it.
    """

    run: str
    role: Role

    @property
    def uri(self) -> str:
        """The URI in the certificate."""
        return f"{SCHEME}{self.run}/{self.role}"

    @property
    def server_name(self) -> str:
        """The DNS name in the certificate, which does not depend on the address of the service."""
        return f"{self.role}.{self.run}.penstock"

    @classmethod
    def parse(cls, uri: str) -> "Identity":
        """Reads a URI. Raises `ValueError` with the expected form."""
        run, _, name = uri.removeprefix(SCHEME).partition("/")
        role = next((role for role in ROLES if role == name), None)
        if not uri.startswith(SCHEME) or not _is_run_name(run) or role is None:
            raise ValueError(f"must be {SCHEME}RUN/ROLE with a role of {', '.join(ROLES)}; got {uri!r}")
        return cls(run, role)

    def __str__(self) -> str:
        return f"{self.role} of run {self.run}"


def check_run_name(name: str) -> None:
    """Raises `ConfigurationError` if a run can't have this name in certificates, where it is part of a DNS name."""
    if not _is_run_name(name):
        raise ConfigurationError(
            f"the run's name {name!r} can't be part of a DNS name; use at most {_MOST_CHARACTERS} lower-case letters,"
            " digits and inner hyphens"
        )


def run_name_of(text: str) -> str:
    """Returns the name that a run has in certificates, made of other text such as its folder's name.

    A name that differs from the text ends with digits of the text's SHA-256, because services accept every peer with
    the same name, and one authority may sign for several runs. Raises `ConfigurationError` if the text has no letters
    or digits.
    """
    label = _label(text)
    if not label:
        raise ConfigurationError(f"{text!r} has no letters or digits for the run's name in certificates; name the run")
    if label == text and len(label) <= _MOST_CHARACTERS:
        return label
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{label[: _MOST_CHARACTERS - 1 - len(digest)].rstrip('-')}-{digest}"


def is_ambiguous(name: str, text: str) -> bool:
    """Returns whether a run has the name that earlier releases cut from this text, and from others."""
    label = _label(text)
    return len(label) > _MOST_CHARACTERS and name == label[:_MOST_CHARACTERS].rstrip("-")


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _is_run_name(name: str) -> bool:
    return len(name) <= _MOST_CHARACTERS and _RUN_NAME.fullmatch(name) is not None
