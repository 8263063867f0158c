"""What a message of a caller asks for: the index, the points that it adds, and its defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from divgrpc_protos.v1 import attributes_pb2, diversify_pb2, index_pb2, query_pb2, writes_pb2
from divgrpc_server.codec.subjects import IncomingMessage


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


def read(incoming: IncomingMessage) -> Request:
    """Return what a message asks for; one that cannot be parsed asks for nothing."""
    message = incoming.message
    if message is None:
        return _NONE
    reader = _READERS.get(incoming.method)
    return Request(message.index) if reader is None else reader(message)


def _evaluate(request: Any) -> Request:  # noqa: ANN401  # an EvaluateRequest or EvaluateLabelsRequest
    return Request(request.index, needs_admin=request.set_default)


def _diversify_stream(request: diversify_pb2.DiversifyStreamRequest) -> Request:
    return Request(request.request.index)


def _query_stream(request: query_pb2.QueryStreamRequest) -> Request:
    return Request(request.query.index)


def _upsert(request: writes_pb2.UpsertRequest) -> Request:
    return Request(request.index, len(request.ids) or len(request.string_ids))


def _write_stream(request: writes_pb2.WriteStreamRequest) -> Request:
    if request.HasField("upsert"):
        return _upsert(request.upsert)
    return Request(request.delete.index)


def _build(request: index_pb2.BuildRequest) -> Request:
    if request.WhichOneof("step") == "header":
        # The rows are counted as they come, because a caller may announce too few.
        return Request(request.header.index, creates=True)
    return Request(rows=_rows(request.chunk))


def _build_once(request: index_pb2.BuildOnceRequest) -> Request:
    return Request(request.index, _rows(request), creates=True)


def _add_attributes(request: attributes_pb2.AddAttributesRequest) -> Request:
    return Request(request.header.index)


def _rows(rows: Any) -> int:  # noqa: ANN401  # a chunk or a whole build
    count: int = rows.vectors.dense.rows or rows.vectors.sparse.rows
    return count + len(rows.rows_without_vector)


_READERS: Final[Mapping[str, Callable[[Any], Request]]] = {
    "Evaluate": _evaluate,
    "EvaluateLabels": _evaluate,
    "DiversifyStream": _diversify_stream,
    "QueryStream": _query_stream,
    "Upsert": _upsert,
    "WriteStream": _write_stream,
    "Build": _build,
    "BuildOnce": _build_once,
    "AddAttributes": _add_attributes,
}
