"""Standard gRPC services: health, reflection in the versions v1alpha and v1, and refusals.

Requests are parsed here so that a request that cannot be parsed ends with INVALID_ARGUMENT, whereas
gRPC itself would return UNKNOWN. grpcio-reflection supports only v1alpha of reflection. The
messages of v1 differ from those of v1alpha only in their package name, so the same servicer serves
both versions.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError, Message
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from divgrpc.errors import DivgrpcError
from divgrpc_server.codec.statuses import MalformedError, status_of
from divgrpc_server.front.health import Health

DETAILS_KEY: Final = "grpc-status-details-bin"
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_ALPHA: Final = "grpc.reflection.v1alpha"
_V1: Final = "grpc.reflection.v1"
_REFLECTION: Final = "ServerReflection"
# Keys in the trailing metadata of a health check, because HealthCheckResponse has no fields for
# numbers of kernels.
_COMPILED_KEY: Final = "divgrpc-kernels-compiled"
_TOTAL_KEY: Final = "divgrpc-kernels-total"

_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer")
_Context = aio.ServicerContext[bytes, _Answer]


def health_handler(
    states: Health, kernels: Callable[[], tuple[int, int]]
) -> grpc.GenericRpcHandler:
    """Return the handler of the health service.

    `kernels` returns the number of compiled kernels and of all kernels. While some kernels are not
    compiled, Check returns both numbers in its trailing metadata.
    """

    async def check(
        request: health_pb2.HealthCheckRequest, context: _Context[health_pb2.HealthCheckResponse]
    ) -> health_pb2.HealthCheckResponse:
        ready, total = kernels()
        if ready < total:
            context.set_trailing_metadata(((_COMPILED_KEY, str(ready)), (_TOTAL_KEY, str(total))))
        return await states.check(request, context)

    request, pack = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse.SerializeToString
    handlers: dict[str, grpc.RpcMethodHandler[bytes, health_pb2.HealthCheckResponse]] = {
        "Check": grpc.unary_unary_rpc_method_handler(
            _parsing(request, check), response_serializer=pack
        ),
        "Watch": grpc.unary_stream_rpc_method_handler(
            _parsing(request, states.watch), response_serializer=pack
        ),
    }
    return grpc.method_handlers_generic_handler(HEALTH, handlers)


class RefusingHandler(grpc.GenericRpcHandler):
    """Refuses all calls of a service with an error that says whom to call."""

    def __init__(self, service: str, error: DivgrpcError) -> None:
        """Take the full name of the service."""
        self._prefix, self._error = f"/{service}/", error

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[bytes, bytes] | None":
        """Return what refuses a call of any kind, None for a call of another service."""

        async def refuse(_: AsyncIterator[bytes], context: _Context[Any]) -> None:
            await _abort(self._error, context)

        if not handler_call_details.method.startswith(self._prefix):
            return None
        return grpc.stream_stream_rpc_method_handler(refuse)


def reflection_handlers(
    services: Iterable[str], authenticate: Callable[[_Context[Any]], None]
) -> list[grpc.GenericRpcHandler]:
    """Return the handlers of both versions of reflection.

    Both versions list `services` and the two reflection services. `authenticate` raises an error
    for a caller without a valid token.
    """
    _describe_v1()
    names = [*services, f"{_ALPHA}.{_REFLECTION}", f"{_V1}.{_REFLECTION}"]
    servicer = reflection.aio.ReflectionServicer(service_names=names)

    async def answer(
        requests: AsyncIterator[bytes], context: _Context[reflection_pb2.ServerReflectionResponse]
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        try:
            authenticate(context)
        except DivgrpcError as error:
            await _abort(error, context)

        async def parsed() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
            async for data in requests:
                yield await _parse(reflection_pb2.ServerReflectionRequest, data, context)

        async for response in servicer.ServerReflectionInfo(parsed(), context):
            yield response

    method: grpc.RpcMethodHandler[bytes, reflection_pb2.ServerReflectionResponse] = (
        grpc.stream_stream_rpc_method_handler(
            answer, response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString
        )
    )
    return [
        grpc.method_handlers_generic_handler(
            f"{package}.{_REFLECTION}", {"ServerReflectionInfo": method}
        )
        for package in (_ALPHA, _V1)
    ]


def _describe_v1() -> None:
    """Derive the descriptor of v1 from the one of v1alpha, and add it to the default pool."""
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = file.name.replace("v1alpha", "v1")
    file.package = _V1
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.type_name = field.type_name.replace(_ALPHA, _V1)
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(_ALPHA, _V1)
            method.output_type = method.output_type.replace(_ALPHA, _V1)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


def _parsing(
    kind: type[_Request], method: Callable[[_Request, _Context[_Answer]], Awaitable[_Answer]]
) -> Callable[[bytes, _Context[_Answer]], Awaitable[_Answer]]:
    """Return a handler that parses the request and calls `method` with it."""

    async def handle(data: bytes, context: _Context[_Answer]) -> _Answer:
        return await method(await _parse(kind, data, context), context)

    return handle


async def _parse(kind: type[_Request], data: bytes, context: _Context[_Answer]) -> _Request:
    """Return the parsed message, or end the call with INVALID_ARGUMENT."""
    try:
        return kind.FromString(data)
    except DecodeError:
        await _abort(MalformedError("the message is not what the method takes"), context)
    raise AssertionError("abort raises")


async def _abort(error: DivgrpcError, context: _Context[Any]) -> None:
    status = status_of(error, "")
    details = ((DETAILS_KEY, status.SerializeToString()),)
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    await context.abort(code, status.message, details)
