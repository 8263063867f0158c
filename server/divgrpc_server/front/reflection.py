"""Server reflection, v1alpha and v1, so that tools such as grpcurl can ask what there is.

grpcio-reflection knows v1alpha alone. v1 is the same messages under another name, byte for byte, so
the same servicer answers both, and v1's descriptor is made from v1alpha's.
"""

from collections.abc import Iterable
from typing import Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc import aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

from divgrpc_server.front.standard_requests import of_many

_ALPHA: Final = "grpc.reflection.v1alpha"
_V1: Final = "grpc.reflection.v1"
_SERVICE: Final = "ServerReflection"


def add_reflection(server: aio.Server, services: Iterable[str]) -> None:
    """Register both versions of the reflection service, which tell of `services` and each other."""
    _describe_v1()
    names = [*services, f"{_ALPHA}.{_SERVICE}", f"{_V1}.{_SERVICE}"]
    servicer = reflection.aio.ReflectionServicer(service_names=names)
    method: grpc.RpcMethodHandler[bytes, reflection_pb2.ServerReflectionResponse] = (
        grpc.stream_stream_rpc_method_handler(
            of_many(reflection_pb2.ServerReflectionRequest, servicer.ServerReflectionInfo),
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
    )
    for package in (_ALPHA, _V1):
        handler = grpc.method_handlers_generic_handler(
            f"{package}.{_SERVICE}", {"ServerReflectionInfo": method}
        )
        server.add_generic_rpc_handlers((handler,))


def _describe_v1() -> None:
    """Put v1's descriptor where reflection looks for descriptors."""
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
