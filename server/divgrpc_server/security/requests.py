"""What a message of a caller asks for: the index, the points that it adds, and its defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from divgrpc_protos.v1 import (
    attributes_pb2,
    diversify_pb2,
    evaluate_labels_pb2,
    evaluate_pb2,
    index_pb2,
    query_pb2,
    writes_pb2,
)
from divgrpc_server.codec import subjects


@dataclass(slots=True)
class Request:
    """What a message asks for.

    index: the name of the index, "" if the message names none.
    rows: the number of points that it may add.
    creates: whether the message builds an index; if so, `rows` are in the index when it is done.
    needs_admin: whether the message sets the defaults of the index.
    """

    index: str = ""
    rows: int = 0
    creates: bool = False
    needs_admin: bool = False


_NONE: Final = Request()


def read(method: str, message: bytes) -> Request:
    """Return what a message asks for; one that cannot be parsed asks for nothing."""
    try:
        if method in _READERS:
            return _READERS[method](message)
        kind = subjects.REQUEST_KINDS.get(method)
        return _NONE if kind is None else Request(kind.FromString(message).index)
    except DecodeError:
        return _NONE


def _evaluate(message: bytes) -> Request:
    request = evaluate_pb2.EvaluateRequest.FromString(message)
    return Request(request.index, needs_admin=request.set_default)


def _evaluate_labels(message: bytes) -> Request:
    request = evaluate_labels_pb2.EvaluateLabelsRequest.FromString(message)
    return Request(request.index, needs_admin=request.set_default)


def _diversify_stream(message: bytes) -> Request:
    return Request(diversify_pb2.DiversifyStreamRequest.FromString(message).request.index)


def _query_stream(message: bytes) -> Request:
    return Request(query_pb2.QueryStreamRequest.FromString(message).query.index)


def _upsert(message: bytes) -> Request:
    return _rows_of(writes_pb2.UpsertRequest.FromString(message))


def _write_stream(message: bytes) -> Request:
    request = writes_pb2.WriteStreamRequest.FromString(message)
    if request.HasField("upsert"):
        return _rows_of(request.upsert)
    return Request(request.delete.index)


def _rows_of(upsert: writes_pb2.UpsertRequest) -> Request:
    return Request(upsert.index, len(upsert.ids) or len(upsert.string_ids))


def _build(message: bytes) -> Request:
    request = index_pb2.BuildRequest.FromString(message)
    if request.WhichOneof("step") == "header":
        # The rows are counted as they come, because a caller may announce too few.
        return Request(request.header.index, creates=True)
    return Request(rows=_rows(request.chunk))


def _build_once(message: bytes) -> Request:
    request = index_pb2.BuildOnceRequest.FromString(message)
    return Request(request.index, _rows(request), creates=True)


def _add_attributes(message: bytes) -> Request:
    return Request(attributes_pb2.AddAttributesRequest.FromString(message).header.index)


def _rows(rows: Any) -> int:  # noqa: ANN401  # a chunk or a whole build
    count: int = rows.vectors.dense.rows or rows.vectors.sparse.rows
    return count + len(rows.rows_without_vector)


_READERS: Final[Mapping[str, Callable[[bytes], Request]]] = {
    "Evaluate": _evaluate,
    "EvaluateLabels": _evaluate_labels,
    "DiversifyStream": _diversify_stream,
    "QueryStream": _query_stream,
    "Upsert": _upsert,
    "WriteStream": _write_stream,
    "Build": _build,
    "BuildOnce": _build_once,
    "AddAttributes": _add_attributes,
}
