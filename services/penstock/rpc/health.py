"""Health queries to services."""

from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from penstock.addresses import target

STORAGE = "penstock.storage"
"""Name in the health service under which a service with a folder reports whether its disk can be written."""


def is_serving(addresses: str | Sequence[str], timeout_s: float) -> bool:
    """Returns whether the service at an address, or at the first of several, reports in time that it is ready."""
    return bool(_ask_first(addresses, "", timeout_s) == health_pb2.HealthCheckResponse.SERVING)


def storage_fails(addresses: str | Sequence[str], timeout_s: float) -> bool:
    """Returns whether the service, named as for `is_serving`, reports in time that its disk can't be written."""
    return bool(_ask_first(addresses, STORAGE, timeout_s) == health_pb2.HealthCheckResponse.NOT_SERVING)


def _ask_first(addresses: str | Sequence[str], service: str, timeout_s: float) -> Any:
    """Returns the status at the first address that answers; None without an answer. All share the time."""
    names = [addresses] if isinstance(addresses, str) else addresses
    answers = (_ask(name, service, timeout_s / len(names)) for name in names)
    return next((answer for answer in answers if answer is not None), None)


def _ask(address: str, service: str, timeout_s: float) -> Any:
    """Returns the status of a health service; None without an answer."""
    with grpc.insecure_channel(target(address), options=(("grpc.enable_http_proxy", 0),)) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError:
            return None
        return response.status
