"""The certificate of a service: reads it with its key and its authority, and refuses with one line the certificates
that TLS would refuse.

TLS reports a wrong file as a failed handshake, at each peer and without the file's name. So everything that can be
known before is checked when the files are read. No other part of Penstock reads certificates.
"""

import functools
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from penstock.errors import ConfigurationError
from penstock.machine import installation
from penstock.security.pem_files import certificates, content, private_content, public_key
from penstock.security.roles import SCHEME, SERVERS, Identity, Role

_MOST_PEERS = 4_096
"""Certificates of peers that are remembered."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a service, in PEM.

    Attributes:
        certificate: The certificate, followed by those between it and the authority if there are any.
        key: Its key, without a password.
        authority: The certificates of the authorities whose signature is trusted.
    """

    certificate: Path
    key: Path
    authority: Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that was read and checked.

    Attributes:
        identity: Run and role.
        names: DNS names and IP addresses for which it is valid.
        expires: End of its validity, in Unix seconds.
        authority_expires: Earliest end of the validity of those that signed it, in Unix seconds.
        certificate_pem: Content of the file of the certificate.
        key_pem: Content of the file of the key.
        authority_pem: Content of the file of the authority.
    """

    identity: Identity
    names: tuple[str, ...]
    expires: float
    authority_expires: float
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    authority_pem: bytes


def read(files: Files, expected: Role | None, *, now: float) -> Certificate:
    """Reads and checks the certificate of a service.

    Args:
        files: Its files.
        expected: Role that the certificate must have; None: any.
        now: Unix time in seconds.

    Raises:
        ConfigurationError: A file can't be read or used, other users can read the key, the key or the authority does
            not belong to the certificate, the certificate is not valid now, or its identity or purpose is not the
            expected.
    """
    pem, authority_pem = content(files.certificate), content(files.authority)
    (leaf, *between), authorities = certificates(pem, files.certificate), certificates(authority_pem, files.authority)
    key_pem = private_content(files.key)
    if public_key(key_pem, files.key) != _key_of(leaf, files.certificate):
        raise ConfigurationError(
            f"{files.key} is not the key of {files.certificate}; name files that were made together in security.key"
            " and security.certificate"
        )
    identity, names = stated(leaf, files.certificate)
    if expected not in (None, identity.role):
        raise ConfigurationError(
            f"{files.certificate} is the certificate of the {identity}, but a service with the role {expected} was"
            " started with it; name the certificate of this role in security.certificate"
        )
    _check_time(leaf, files.certificate, now)
    _check_purposes(leaf, identity.role, files.certificate)
    signers = _signers(leaf, between, authorities)
    if not signers:
        raise ConfigurationError(
            f"{files.certificate} is not signed by an authority in {files.authority}; name the file with the"
            " certificate of its authority in security.authority"
        )
    for each in signers:
        _check_time(each, files.authority, now)
    return Certificate(
        identity,
        names,
        expires=leaf.not_valid_after_utc.timestamp(),
        authority_expires=min(each.not_valid_after_utc.timestamp() for each in signers),
        certificate_pem=pem,
        key_pem=key_pem,
        authority_pem=authority_pem,
    )


# A server asks at each call, and has few clients beside the number of their calls.
@functools.lru_cache(maxsize=_MOST_PEERS)
def identity_of(pem: bytes) -> Identity:
    """Returns the identity in a peer's certificate, which TLS has verified. Raises `ValueError` if it has none."""
    return _identity(_alternative_names(x509.load_pem_x509_certificate(pem)))


@functools.lru_cache(maxsize=_MOST_PEERS)
def expiry_of(pem: bytes) -> float:
    """Returns the end of the validity of a certificate, in Unix seconds. Raises `ValueError` if it is none."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


def covers(names: Sequence[str], host: str) -> bool:
    """Returns whether a certificate with these names is valid for a host: a DNS name, or an IP address.

    As in TLS, `*` stands for one label, the leftmost, and for no part of an IP address.
    """
    try:
        sought = ipaddress.ip_address(host)
    except ValueError:
        wanted = host.lower().rstrip(".")
        above = wanted.partition(".")[2]
        return any(name.lower() in (wanted, f"*.{above}" if above else wanted) for name in names)
    return str(sought) in names


def stated(certificate: x509.Certificate, path: Path) -> tuple[Identity, tuple[str, ...]]:
    """Returns the identity and the names in a certificate. Raises `ConfigurationError`."""
    try:
        found = _alternative_names(certificate)
        identity = _identity(found)
    except ValueError as error:
        raise ConfigurationError(
            f"{path} is not the certificate of a service: {error}; make one with penstock certificates RUN, or with"
            f" the URI {SCHEME}RUN/ROLE among its alternative names"
        ) from None
    addresses = (str(each) for each in found.get_values_for_type(x509.IPAddress))
    return identity, (*found.get_values_for_type(x509.DNSName), *addresses)


def in_utc(unix_s: float) -> str:
    """Returns a time in words."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _key_of(certificate: x509.Certificate, path: Path) -> CertificatePublicKeyTypes:
    try:
        return certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{path} has a key of an unknown kind; use a key on the curve P-256") from None


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ValueError("it has no alternative names") from None
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise ValueError("its alternative names can't be read") from None


def _identity(names: x509.SubjectAlternativeName) -> Identity:
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    found = [uri for uri in uris if uri.startswith(SCHEME)]
    if len(found) != 1:
        raise ValueError(f"it must have one URI {SCHEME}RUN/ROLE, and has {', '.join(found) or 'none'}")
    return Identity.parse(found[0])


def _check_time(certificate: x509.Certificate, path: Path, now: float) -> None:
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    if now > end:
        raise ConfigurationError(
            f"{path} expired at {in_utc(end)}, and now it is {in_utc(now)}; renew it with {installation.how_to_renew()}"
        )
    if now < begin:
        raise ConfigurationError(
            f"{path} is valid from {in_utc(begin)} on, and now it is {in_utc(now)}; correct the clock of this host, or"
            " wait"
        )


def _check_purposes(certificate: x509.Certificate, role: Role, path: Path) -> None:
    """Raises `ConfigurationError` if a certificate that is restricted to purposes lacks one that its role needs."""
    try:
        stated = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return
    needed = {ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth"}
    if role in SERVERS:
        needed[ExtendedKeyUsageOID.SERVER_AUTH] = "serverAuth"
    lacking = [name for purpose, name in needed.items() if purpose not in stated]
    if lacking and ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE not in stated:
        raise ConfigurationError(
            f"{path} lacks the extended key usage {' and '.join(lacking)}, which a service with the role {role} needs;"
            " issue it with this usage"
        )


def _is_signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Returns whether a certificate has the signature and the name of this issuer."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _signers(
    leaf: x509.Certificate, between: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> list[x509.Certificate]:
    """Returns the certificates from the signer of a leaf up to a trusted one; none if they lead to no trusted one."""
    found: list[x509.Certificate] = []
    current = leaf
    while True:
        # An authority that was renewed with its key is there twice.
        trusted = [each for each in authorities if _is_signed(current, each)]
        if trusted:
            return [*found, max(trusted, key=lambda each: each.not_valid_after_utc)]
        above = next((each for each in between if each not in found and _is_signed(current, each)), None)
        if above is None:
            return []
        found.append(above)
        current = above
