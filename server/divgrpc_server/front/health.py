"""The states of the services, for the standard health service.

The servicer of grpcio-health-checking 1.x is not used. If one caller of its Watch leaves, the
others hear of no change any more, so clients that balance between servers never call one that was
watched while it started. And if one caller does not read, no state can be set.
"""

import asyncio
from typing import Any, Final

import grpc
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckResponse

_SERVING: Final = HealthCheckResponse.SERVING
_NOT_SERVING: Final = HealthCheckResponse.NOT_SERVING
_UNKNOWN: Final = HealthCheckResponse.SERVICE_UNKNOWN


class Health:
    """The states of the services of a server."""

    def __init__(self, *services: str) -> None:
        """Take the names of the services, "" for the server. None of them serves yet."""
        self._statuses = dict.fromkeys(services, _NOT_SERVING)
        self._is_over = False
        self._changed = asyncio.Event()

    def set(self, *, serving: bool) -> None:
        """Set the state of all services; does nothing after `end`."""
        if not self._is_over:
            self._statuses = dict.fromkeys(self._statuses, _SERVING if serving else _NOT_SERVING)
            self._changed.set()
            self._changed = asyncio.Event()

    def end(self) -> None:
        """Say that no service serves, for ever."""
        self.set(serving=False)
        self._is_over = True

    async def check(
        self, request: health_pb2.HealthCheckRequest, context: aio.ServicerContext[bytes, Any]
    ) -> HealthCheckResponse:
        """Return the state of a service; ends the call with NOT_FOUND if there is none."""
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return HealthCheckResponse(status=status)

    async def watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: aio.ServicerContext[bytes, HealthCheckResponse],
    ) -> None:
        """Send the state of a service now and after each change, until the caller leaves."""
        sent_status = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, _UNKNOWN)
            if status != sent_status:
                await context.write(HealthCheckResponse(status=status))
                sent_status = status
            await changed.wait()
