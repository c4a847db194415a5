"""TLS of servers and clients: both sides present a certificate, and both verify that of the other.

A server takes the certificate that is current at each handshake, and a client at each connection, so that renewed files
need no restart.
"""

from typing import TYPE_CHECKING

import grpc

from penstock.security.roles import Identity, Role

if TYPE_CHECKING:
    from penstock.security.certificate import Certificate
    from penstock.security.credentials import Credentials

_MEANINGS = (
    (
        ("certificate has expired",),
        "its certificate has expired; renew it with `penstock certificates RUN --renew`, after which no restart is"
        " needed",
    ),
    (("certificate is not yet valid",), "its certificate is not valid yet; correct the clocks of both hosts"),
    (("wrong_version_number", "http_request"), "it does not use TLS; set security.certificate there, or unset it here"),
    (
        ("hostname", "peer name"),
        "its certificate is for another run, role or address; give it that of its role in this run or, with"
        " security.server_names=address, one that covers its advertised address",
    ),
    (
        ("certificate_verify_failed", "local issuer"),
        "its certificate is not signed by the authority in security.authority; use certificates of one run",
    ),
    (
        # A server tells a client neither that it needs TLS nor why it refuses a certificate.
        ("socket closed", "connection reset", "handshake"),
        "it ended the connection during the handshake: it refuses this client's certificate, for the reason in its log,"
        " or only one of the two has security.certificate set",
    ),
)
"""What parts of gRPC's descriptions mean, the most specific first."""

Options = tuple[tuple[str, str | int], ...]


def server_credentials(credentials: "Credentials") -> grpc.ServerCredentials:
    """Returns gRPC's credentials of a server, which can be used for one port."""
    used = credentials.current

    def renewed() -> "grpc.ServerCertificateConfiguration | None":
        nonlocal used
        if credentials.current is used:
            return None
        used = credentials.current
        return _configuration(used)

    # gRPC's stubs leave out that None means "as before".
    return grpc.dynamic_ssl_server_credentials(_configuration(used), renewed, True)  # type: ignore[arg-type]


def client_credentials(certificate: "Certificate") -> grpc.ChannelCredentials:
    """Returns gRPC's credentials of a client with this certificate."""
    return grpc.ssl_channel_credentials(certificate.authority_pem, certificate.key_pem, certificate.certificate_pem)


def channel_options(credentials: "Credentials", service: Role) -> Options:
    """Returns the options of a channel to a service of this role: the name that its certificate must have."""
    if credentials.by_address:
        return ()
    # A certificate names its role, so that it fits any address at which the service is reached.
    return (("grpc.ssl_target_name_override", Identity(credentials.identity.run, service).server_name),)


def explained(details: str) -> str:
    """Returns what gRPC's description of a failed connection means for certificates; empty if it is not about them."""
    lowered = details.lower()
    if "failed to connect" not in lowered:
        return ""
    return next((meaning for parts, meaning in _MEANINGS if any(part in lowered for part in parts)), "")


def _configuration(certificate: "Certificate") -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key_pem, certificate.certificate_pem)], root_certificates=certificate.authority_pem
    )
