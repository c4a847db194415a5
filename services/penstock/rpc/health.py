"""Health queries to services."""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

STORAGE = "penstock.storage"
"""Name in the health service under which a service with a folder reports whether its disk can be written."""


def is_serving(address: str, timeout_s: float) -> bool:
    """Returns whether the service at host:port reports within `timeout_s` that it is ready."""
    return bool(_ask(address, "", timeout_s) == health_pb2.HealthCheckResponse.SERVING)


def storage_fails(address: str, timeout_s: float) -> bool:
    """Returns whether the service at host:port reports within `timeout_s` that its disk can't be written."""
    return bool(_ask(address, STORAGE, timeout_s) == health_pb2.HealthCheckResponse.NOT_SERVING)


def _ask(address: str, service: str, timeout_s: float) -> Any:
    """Returns the status of a health service; None without an answer."""
    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError:
            return None
        return response.status
