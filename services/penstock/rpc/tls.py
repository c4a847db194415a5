"""TLS of servers and clients: both sides present a certificate, and each verifies the other's.

A server takes the certificate that is current at each handshake, and a client at each connection, so that renewed files
need no restart.
"""

import functools
from typing import TYPE_CHECKING

import grpc

from penstock.machine import installation
from penstock.machine.files import briefly_in_a_file
from penstock.security.roles import Identity, Role

if TYPE_CHECKING:
    import ssl

    from penstock.security.certificate import Certificate
    from penstock.security.credentials import Credentials

_MEANINGS = (
    (
        ("certificate has expired",),
        "its certificate has expired; a renewed one is read without a restart; renew it with"
        f" {installation.how_to_renew()}",
    ),
    (("certificate is not yet valid",), "its certificate is not valid yet; correct the clocks of both hosts"),
    (("wrong_version_number", "http_request"), "it does not use TLS; set security.certificate there, or unset it here"),
    (
        ("hostname", "peer name"),
        "its certificate is for another run, role or address; give it one for its role in this run or, with"
        " security.server_names=address, one that covers its advertised address",
    ),
    (
        ("certificate_verify_failed", "local issuer"),
        "its certificate is not signed by the authority in security.authority; use certificates of one run",
    ),
    (
        # A server does not tell a client why it refuses a certificate.
        ("socket closed", "connection reset", "handshake"),
        "it ended the connection during the handshake: it refuses this client's certificate, for the reason in its log",
    ),
)
"""Meanings of parts of gRPC's descriptions to a client with a certificate, the most specific first."""

_PLAIN_MEANINGS = (
    (
        # A server does not tell a client in plain text that it needs TLS.
        ("socket closed", "connection reset"),
        "it ended the connection of a client without a certificate; if it uses TLS, set security.certificate here",
    ),
)
"""The same to a client without one."""

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


@functools.lru_cache(1)
def server_context(certificate: "Certificate") -> "ssl.SSLContext":
    """Returns the context of a server's direct sockets, whose clients must have a certificate of the authority."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    return _with(context, certificate)


@functools.lru_cache(1)
def client_context(certificate: "Certificate") -> "ssl.SSLContext":
    """Returns the context of a client's direct sockets, which verifies the server and its `expected_name`."""
    import ssl

    return _with(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate)


def expected_name(credentials: "Credentials", service: Role, host: str) -> str:
    """Returns the name that the certificate of a service of this role, called at this host, must have."""
    # A certificate names its role, so that it fits any address at which the service is reached.
    return host if credentials.by_address else Identity(credentials.identity.run, service).server_name


def channel_options(credentials: "Credentials", service: Role) -> Options:
    """Returns the options of a channel to a service of this role: the name that its certificate must have."""
    if credentials.by_address:
        return ()
    return (("grpc.ssl_target_name_override", expected_name(credentials, service, "")),)


def explained(details: str, *, certified: bool) -> str:
    """Returns the meaning of gRPC's description of a failed connection for certificates; empty if it is not about them.

    `certified` is whether the client has a certificate.
    """
    lowered = details.lower()
    if "failed to connect" not in lowered:
        return ""
    meanings = _MEANINGS if certified else _PLAIN_MEANINGS
    return next((meaning for parts, meaning in meanings if any(part in lowered for part in parts)), "")


def _with(context: "ssl.SSLContext", certificate: "Certificate") -> "ssl.SSLContext":
    """Gives a context this certificate and its authority."""
    import ssl

    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=certificate.authority_pem.decode())
    # The library reads a key from a file alone, and those on the disk may belong to another certificate by now.
    with briefly_in_a_file(certificate.certificate_pem + certificate.key_pem) as path:
        context.load_cert_chain(path)
    return context


def _configuration(certificate: "Certificate") -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key_pem, certificate.certificate_pem)], root_certificates=certificate.authority_pem
    )
