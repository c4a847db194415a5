"""The PEM files of a certificate: their content, and who may read a key."""

import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from penstock.errors import ConfigurationError
from penstock.machine.system_errors import in_words

_OTHERS, _ALL_BUT_READING_GROUP = 0o077, 0o037


def content(path: Path) -> bytes:
    """Returns the content of a file. Raises `ConfigurationError` if it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def private_content(path: Path) -> bytes:
    """Returns the content of a key's file. Raises `ConfigurationError` if it can't be read, or others can use it."""
    try:
        with path.open("rb") as file:
            # Of the open file, because a link leads to it and may lead to another one later.
            _check_private(path, os.fstat(file.fileno()))
            return file.read()
    except OSError as error:
        raise _unreadable(path, error) from None


def public_key(pem: bytes, path: Path) -> PublicKeyTypes:
    """Returns the public part of a key, from the content of its file. Raises `ConfigurationError`."""
    try:
        return load_pem_private_key(pem, password=None).public_key()
    except TypeError:
        raise ConfigurationError(
            f"the key {path} has a password, which a service can't enter; name a key without one in security.key"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(
            f"{path} holds no private key in PEM, or a damaged one; name the key of the certificate in security.key"
        ) from None


def certificates(pem: bytes, path: Path) -> list[x509.Certificate]:
    """Returns the certificates in the content of a file; at least one. Raises `ConfigurationError`."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise ConfigurationError(
            f"{path} holds no certificate in PEM, or a damaged one; name a file with -----BEGIN CERTIFICATE-----, or"
            " make one with penstock certificates RUN"
        ) from None


def _unreadable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"can't read {path}: "
        + in_words(error, path, "make it with penstock certificates RUN, or name another file in [security]")
    )


def _check_private(path: Path, status: os.stat_result) -> None:
    """Raises `ConfigurationError` if other users can use a key.

    The rule is PostgreSQL's. A group may read a key of root, because containers get secrets in this way.
    """
    mode, user = status.st_mode & 0o777, os.geteuid()
    if status.st_uid not in (user, 0):
        raise ConfigurationError(
            f"{path} belongs to the user with the number {status.st_uid}, but a key must belong to the user {user} who"
            " runs the service, or to root; copy it as that user"
        )
    allowed, surplus = (0o600, _OTHERS) if status.st_uid == user else (0o640, _ALL_BUT_READING_GROUP)
    if mode & surplus:
        raise ConfigurationError(
            f"other users can use the key {path}, whose mode is {mode:04o} and must be {allowed:04o} or less; run"
            f" chmod {allowed:o} on it, and renew it if others may have read it"
        )
