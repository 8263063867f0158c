"""A request of each method that names an index, and is wrong otherwise where work would begin."""

from typing import Any

from google.protobuf import message_factory

from divgrpc_protos.v1 import (
    attributes_pb2,
    diverse_index_pb2,
    diversify_pb2,
    index_pb2,
    query_pb2,
    writes_pb2,
)

SERVICE = diverse_index_pb2.DESCRIPTOR.services_by_name["DiverseIndex"]
METHODS = tuple(sorted(method.name for method in SERVICE.methods))
# These requests name no index.
NAMELESS = ("GetServerInfo", "ListIndexes")


def naming(method: str, index: str) -> bytes:
    """Return a serialised request of a method for an index."""
    wrong = index_pb2.BuildParameters(n_bits=99)
    special: dict[str, Any] = {
        "GetServerInfo": index_pb2.GetServerInfoRequest,
        "ListIndexes": index_pb2.ListIndexesRequest,
        "Build": lambda: index_pb2.BuildRequest(
            header=index_pb2.BuildHeader(index=index, parameters=wrong)
        ),
        "BuildOnce": lambda: index_pb2.BuildOnceRequest(index=index, parameters=wrong),
        "AddAttributes": lambda: attributes_pb2.AddAttributesRequest(
            header=attributes_pb2.AddAttributesHeader(index=index)
        ),
        "QueryStream": lambda: query_pb2.QueryStreamRequest(
            query=query_pb2.QueryRequest(index=index)
        ),
        "DiversifyStream": lambda: diversify_pb2.DiversifyStreamRequest(
            request=diversify_pb2.DiversifyRequest(index=index)
        ),
        "WriteStream": lambda: writes_pb2.WriteStreamRequest(
            upsert=writes_pb2.UpsertRequest(index=index)
        ),
    }
    if method in special:
        return bytes(special[method]().SerializeToString())
    kind = message_factory.GetMessageClass(SERVICE.methods_by_name[method].input_type)
    return bytes(kind(index=index).SerializeToString())
