"""Health queries to services."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc

from penstock.machine.addresses import target
from penstock.rpc.methods import CHECK_HEALTH
from penstock.rpc.tls import channel_options, client_credentials
from penstock.security.roles import Role
from penstock.v1.health_pb2 import HealthRequest, HealthResponse

if TYPE_CHECKING:
    from penstock.security.credentials import Credentials

STORAGE = "penstock.storage"
"""Name in the health service under which a service with a folder reports whether its disk can be written."""


def is_serving(
    addresses: str | Sequence[str],
    timeout_s: float,
    credentials: "Credentials | None" = None,
    service: Role = "learner",
) -> bool:
    """Returns whether the service at an address, or at the first of several, reports in time that it is ready.

    With `credentials` it asks by TLS, and expects the certificate of the role `service`.
    """
    status = _ask_first(addresses, "", timeout_s, credentials, service)
    return bool(status == HealthResponse.STATUS_SERVING)


def storage_fails(
    addresses: str | Sequence[str],
    timeout_s: float,
    credentials: "Credentials | None" = None,
    service: Role = "learner",
) -> bool:
    """Returns whether the service, named as for `is_serving`, reports in time that its disk can't be written."""
    status = _ask_first(addresses, STORAGE, timeout_s, credentials, service)
    return bool(status == HealthResponse.STATUS_NOT_SERVING)


def _ask_first(
    addresses: str | Sequence[str], name: str, timeout_s: float, credentials: "Credentials | None", service: Role
) -> Any:
    """Returns the status at the first address that answers; None without an answer. All share the time."""
    several = [addresses] if isinstance(addresses, str) else addresses
    answers = (_ask(address, name, timeout_s / len(several), credentials, service) for address in several)
    return next((answer for answer in answers if answer is not None), None)


def _ask(address: str, name: str, timeout_s: float, credentials: "Credentials | None", service: Role) -> Any:
    """Returns the status under a name; None without an answer."""
    with blocking_channel(address, credentials, service) as channel:
        check = channel.unary_unary(
            CHECK_HEALTH.path,
            request_serializer=HealthRequest.SerializeToString,
            response_deserializer=HealthResponse.FromString,
        )
        try:
            response = check(HealthRequest(service=name), timeout=timeout_s)
        except grpc.RpcError:
            return None
        return response.status


def blocking_channel(address: str, credentials: "Credentials | None", service: Role) -> grpc.Channel:
    """Opens a channel without an event loop; with `credentials`, by TLS to a service of this role."""
    options = (("grpc.enable_http_proxy", 0),)
    if credentials is None:
        return grpc.insecure_channel(target(address), options=options)
    return grpc.secure_channel(
        target(address), client_credentials(credentials.current), (*options, *channel_options(credentials, service))
    )
