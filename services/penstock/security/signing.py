"""Makes certificates: of an authority, and of services that it signs. No I/O.

All keys are on the curve P-256, which every TLS library accepts. Certificates are valid from one hour before they are
made, because the clocks of hosts disagree.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.security.roles import SERVERS, Identity

_AUTHORITY_LIFE = timedelta(days=3652)
_BEFORE = timedelta(hours=1)
_ORGANIZATION = "Penstock"
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority of a run, which signs certificates.

    Attributes:
        certificate: Its certificate.
        key: Its key.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, run: str, *, now: float) -> "Authority":
        """Makes an authority for ten years, with a new key, at this Unix time in seconds."""
        key, begin = ec.generate_private_key(ec.SECP256R1()), datetime.fromtimestamp(int(now), UTC)
        serial = x509.random_serial_number()
        # Authorities of a run have different names, so that a peer which trusts two finds the one that signed.
        name = x509.Name([*_name(run), x509.NameAttribute(NameOID.SERIAL_NUMBER, f"{serial:x}"[:16])])
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), serial)
            .not_valid_before(begin - _BEFORE)
            .not_valid_after(begin + _AUTHORITY_LIFE)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    def sign(self, identity: Identity, hosts: Sequence[str], *, days: int, now: float) -> tuple[bytes, bytes]:
        """Makes the certificate of a service, with a new key.

        Args:
            identity: Run and role.
            hosts: Further DNS names and IP addresses, beside the name of the role.
            days: Days for which it is valid, but no longer than the authority is.
            now: Unix time in seconds.

        Returns:
            Certificate and key in PEM.
        """
        key, begin = ec.generate_private_key(ec.SECP256R1()), datetime.fromtimestamp(int(now), UTC)
        end = min(begin + timedelta(days=days), self.certificate.not_valid_after_utc)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if identity.role in SERVERS:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        names = [x509.UniformResourceIdentifier(identity.uri), *map(_general_name, (identity.server_name, *hosts))]
        certificate = (
            x509.CertificateBuilder(self.certificate.subject, x509.Name(_name(str(identity))), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin - _BEFORE)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(issuer_key, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM), key_pem(key)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a key in PEM, without a password."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def run_of(authority: x509.Certificate) -> str:
    """Returns the name of the run for which an authority was made; empty if this package did not make it."""
    organizations = authority.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    names = authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names and [each.value for each in organizations] == [_ORGANIZATION] else ""


def _name(common: str) -> "list[x509.NameAttribute[str]]":
    return [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
        x509.NameAttribute(NameOID.COMMON_NAME, common),
    ]


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in allowed for name in _USAGES})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
