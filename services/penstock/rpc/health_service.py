"""gRPC's standard health service, grpc.health.v1.Health, which orchestrators and commands query.

grpcio-health-checking has the same service. Each of its releases requires a range of protobuf that excludes others.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from penstock.errors import Overloaded, PenstockError
from penstock.rpc.errors import to_status
from penstock.rpc.methods import CHECK_HEALTH
from penstock.rpc.service import Handler, Reception, ServicerContext, serialise
from penstock.v1.health_pb2 import HealthRequest, HealthResponse

MOST_WATCHES = 32
"""Limit on concurrent watches, in addition to all other calls."""

MOST_BYTES = 2**12
"""Size in bytes of the largest request, which has the name of a service."""


class HealthService:
    """Health of a server's services, by their full names. Used on one event loop."""

    def __init__(self) -> None:
        self._status = dict[str, HealthResponse.Status]()
        self._changed = asyncio.Condition()
        self._watches = 0

    async def report(self, service: str, *, serving: bool) -> None:
        """Sets the health of a service; the empty name stands for all of them."""
        async with self._changed:
            self._status[service] = HealthResponse.STATUS_SERVING if serving else HealthResponse.STATUS_NOT_SERVING
            self._changed.notify_all()

    def handlers(self, reception: Reception) -> grpc.GenericRpcHandler:
        """Returns gRPC's handlers of the service, whose requests arrive by `reception`."""

        async def read(requests: AsyncIterator[bytes], context: ServicerContext) -> str:
            try:
                reception.admit(context.peer())
                data = await reception.only(requests)
                if len(data) > MOST_BYTES:
                    reception.refused(context.peer(), len(data))
                    raise Overloaded(f"a request for the health has {len(data)} bytes; the maximum is {MOST_BYTES}")
                return HealthRequest.FromString(data).service
            except DecodeError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"malformed message: {error}")
            except PenstockError as error:
                await context.abort(to_status(error), str(error))

        async def check(requests: AsyncIterator[bytes], context: ServicerContext) -> HealthResponse:
            service = await read(requests, context)
            if service not in self._status:
                await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {service!r} here")
            return HealthResponse(status=self._status[service])

        async def watch(requests: AsyncIterator[bytes], context: ServicerContext) -> None:
            await self._watch(await read(requests, context), context)

        handlers: dict[str, Handler] = {
            CHECK_HEALTH.name: grpc.stream_unary_rpc_method_handler(check, response_serializer=serialise),
            "Watch": grpc.stream_stream_rpc_method_handler(watch, response_serializer=serialise),
        }
        return grpc.method_handlers_generic_handler(CHECK_HEALTH.service, handlers)

    async def _watch(self, service: str, context: ServicerContext) -> None:
        """Sends the health of a service, and again after each change."""
        if self._watches >= MOST_WATCHES:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MOST_WATCHES} health watches are open, which is the limit; end some, or call Check",
            )
        self._watches += 1
        sent: Any = None
        try:
            while True:
                # A client may miss a status between two others.
                async with self._changed:
                    while (status := self._of(service)) == sent:
                        await self._changed.wait()
                await context.write(HealthResponse(status=status))
                sent = status
        finally:
            self._watches -= 1

    def _of(self, service: str) -> HealthResponse.Status:
        return self._status.get(service, HealthResponse.STATUS_SERVICE_UNKNOWN)
