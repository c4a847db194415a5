"""Certificates of runs for tests: as `penstock certificates` makes them, and as authorities of users may make them."""

import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.security.authority import DAYS, issue
from penstock.security.certificate import Files
from penstock.security.roles import Role

RUN = "blue"
DAY_S = 86_400.0
BOTH = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)


def certificates_of(folder: Path, run: str = RUN, *, age_days: float = 0.0, days: int = DAYS) -> dict[Role, Files]:
    """Returns the files of every role. Made in a new folder, they have an authority of their own.

    With an age above `days`, the certificates have expired.
    """
    issued = issue(folder, run, days=days, hosts={}, now=time.time() - age_days * DAY_S)
    return {each.identity.role: each.files for each in issued}


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def certifying(self, other: "Pair") -> "Pair":
        """Returns the other authority with its key, and with a certificate from this one, valid as long as this one."""
        builder = (
            x509.CertificateBuilder(
                self.certificate.subject, other.certificate.subject, other.key.public_key(), x509.random_serial_number()
            )
            .not_valid_before(self.certificate.not_valid_before_utc)
            .not_valid_after(self.certificate.not_valid_after_utc)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        )
        return Pair(builder.sign(self.key, hashes.SHA256()), other.key)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A certificate of a user's own authority. Times are relative to the present, in days.

    Attributes:
        uris: Its URIs.
        names: Its DNS names and IP addresses.
        begin: Begin of its validity.
        end: End of its validity.
        purposes: Its extended key usages; empty: no such extension.
        is_authority: Whether it may sign others.
    """

    uris: Sequence[str] = (f"penstock://{RUN}/replay",)
    names: Sequence[str] = ("replay.example.org",)
    begin: float = -1.0
    end: float = 30.0
    purposes: Sequence[x509.ObjectIdentifier] = BOTH
    is_authority: bool = False
    subject: str = "a service"

    def signed_by(self, issuer: Pair | None) -> Pair:
        """Makes it with a new key; without an issuer, it signs itself."""
        key, now = ec.generate_private_key(ec.SECP256R1()), time.time()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.subject)])
        builder = (
            x509.CertificateBuilder(issuer.certificate.subject if issuer else name, name, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.fromtimestamp(now + self.begin * DAY_S, UTC))
            .not_valid_after(datetime.fromtimestamp(now + self.end * DAY_S, UTC))
            .add_extension(x509.BasicConstraints(ca=self.is_authority, path_length=None), critical=True)
        )
        names = [*map(x509.UniformResourceIdentifier, self.uris), *map(_general_name, self.names)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if self.purposes:
            builder = builder.add_extension(x509.ExtendedKeyUsage(self.purposes), critical=False)
        return Pair(builder.sign(issuer.key if issuer else key, hashes.SHA256()), key)


def authority(subject: str = "an authority", *, signed_by: Pair | None = None, end: float = 365.0) -> Pair:
    """Makes an authority: one that signs itself, or one between."""
    made = Foreign(uris=(), names=(), purposes=(), end=end, is_authority=True, subject=subject)
    return made.signed_by(signed_by)


def write(folder: Path, certificate: Sequence[Pair], *authorities: Pair, key: Pair | None = None) -> Files:
    """Writes a certificate, followed by those between, its key (or another one), and the trusted authorities."""
    folder.mkdir(exist_ok=True)
    files = Files(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")
    files.certificate.write_bytes(b"".join(each.pem for each in certificate))
    files.key.touch(0o600)
    files.key.write_bytes((key or certificate[0]).key_pem)
    files.authority.write_bytes(b"".join(each.pem for each in authorities))
    return files


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
