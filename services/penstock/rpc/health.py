"""Asks a service whether it is well."""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

STORAGE = "penstock.storage"
"""Under this name a service with a folder reports whether its disk can be written."""


def is_serving(address: str, timeout_s: float) -> bool:
    """Whether the service at host:port reports that it is ready, within this time."""
    return bool(_ask(address, "", timeout_s) == health_pb2.HealthCheckResponse.SERVING)


def storage_fails(address: str, timeout_s: float) -> bool:
    """Whether the service at host:port reports that its disk can't be written; False if it does not tell in time."""
    return bool(_ask(address, STORAGE, timeout_s) == health_pb2.HealthCheckResponse.NOT_SERVING)


def _ask(address: str, service: str, timeout_s: float) -> Any:
    """The status of a health service; None without an answer."""
    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        try:
            response = health_pb2_grpc.HealthStub(channel).Check(  # type: ignore[attr-defined]
                health_pb2.HealthCheckRequest(service=service), timeout=timeout_s
            )
        except grpc.RpcError:
            return None
        return response.status
