"""What a front reads from a request: its subject for the access log, its index, its fingerprint.

Fronts pass requests on as bytes, so this module parses each request once more. Parsing a small
request takes about a microsecond. Parsing a large request takes about as long as copying it.
Answering the request takes much longer than parsing it.
"""

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from divgrpc.parameters import DEFAULT_K, INDEX_NAME
from divgrpc.parameters.predict import DEFAULT_TOP_K
from divgrpc_protos.v1 import (
    attributes_pb2,
    diagnose_pb2,
    diversify_pb2,
    evaluate_labels_pb2,
    evaluate_pb2,
    index_pb2,
    points_pb2,
    predict_pb2,
    query_pb2,
    shard_index_pb2,
    vectors_pb2,
    writes_pb2,
)
from divgrpc_server.ipc.packets import Op

# A little more than the longest name of an index.
_NAME_CHARACTERS_MAX: Final = 80
# A larger message is not kept in its parsed form.
_KEPT_BYTES_MAX: Final = 1 << 16
# Maximum number of indexes of a stream whose rows are counted apart.
_INDEXES_MAX: Final = 100
_SEVERAL: Final = "*"  # in place of a name, if the messages of a stream name several indexes


class Subject(NamedTuple):
    """What the access log says about a call.

    name: the name of the index, "" if the call has none.
    rows, k: the number of rows and the value of k, None if unknown. The rows of an upsert are its
        ids. The rows of a deletion are the points that it deleted or, if it failed, its ids.
    """

    name: str = ""
    rows: int | None = None
    k: int | None = None


NO_SUBJECT: Final = Subject()
_UNREAD: Final = object()
# For each method: its request message, the field with the rows, and the field and default of k.
_METHODS: Final[Mapping[str, tuple[type[Message], str, str, int]]] = {
    "Query": (query_pb2.QueryRequest, "queries", "k", DEFAULT_K),
    "PredictLabels": (predict_pb2.PredictLabelsRequest, "documents", "top_k", DEFAULT_TOP_K),
    "Diversify": (diversify_pb2.DiversifyRequest, "vectors", "k", DEFAULT_K),
    "Evaluate": (evaluate_pb2.EvaluateRequest, "queries", "", 0),
    "EvaluateLabels": (evaluate_labels_pb2.EvaluateLabelsRequest, "documents", "", 0),
    "Diagnose": (diagnose_pb2.DiagnoseRequest, "", "", 0),
    "Get": (points_pb2.GetRequest, "", "", 0),
    "Count": (points_pb2.CountRequest, "", "", 0),
    "Scroll": (points_pb2.ScrollRequest, "", "", 0),
    "Upsert": (writes_pb2.UpsertRequest, "", "", 0),
    "Delete": (writes_pb2.DeleteRequest, "", "", 0),
    "Compact": (writes_pb2.CompactRequest, "", "", 0),
    "Retrain": (writes_pb2.RetrainRequest, "", "", 0),
    "GetIndex": (index_pb2.GetIndexRequest, "", "", 0),
    "DeleteIndex": (index_pb2.DeleteIndexRequest, "", "", 0),
}
# The message of each method whose messages name an index.
_KINDS: Final[Mapping[str, type[Message]]] = {
    **{name: row[0] for name, row in _METHODS.items()},
    "DiversifyStream": diversify_pb2.DiversifyStreamRequest,
    "QueryStream": query_pb2.QueryStreamRequest,
    "WriteStream": writes_pb2.WriteStreamRequest,
    "Build": index_pb2.BuildRequest,
    "BuildOnce": index_pb2.BuildOnceRequest,
    "AddAttributes": attributes_pb2.AddAttributesRequest,
}
# The request message of each operation that names an index, except STREAM and PICKS.
_REQUESTS: Final[Mapping[int, type[Message]]] = {
    Op.QUERY: query_pb2.QueryRequest,
    Op.PREDICT: predict_pb2.PredictLabelsRequest,
    Op.DIVERSIFY: diversify_pb2.DiversifyRequest,
    Op.GET: points_pb2.GetRequest,
    Op.COUNT: points_pb2.CountRequest,
    Op.SCROLL: points_pb2.ScrollRequest,
    Op.UPSERT: writes_pb2.UpsertRequest,
    Op.DELETE: writes_pb2.DeleteRequest,
    Op.ASK: shard_index_pb2.AskRequest,
}


class IncomingMessage:
    """A message of a method as bytes, which is parsed when a part of it is read.

    A small message is parsed once. A large one is parsed each time, so that a call that waits does
    not hold it twice.
    """

    __slots__ = ("_message", "method", "payload")

    def __init__(self, method: str, payload: bytes) -> None:
        self.method = method
        self.payload = payload
        self._message: Any = _UNREAD

    @property
    def message(self) -> Any:  # noqa: ANN401  # of the kind of the method
        """The message; None if it cannot be parsed, or if the method's message names no index."""
        if self._message is not _UNREAD:
            return self._message
        kind = _KINDS.get(self.method)
        try:
            message = None if kind is None else kind.FromString(self.payload)
        except DecodeError:
            message = None
        if len(self.payload) <= _KEPT_BYTES_MAX:
            self._message = message
        return message


def read(incoming: IncomingMessage, response: bytes | None = None) -> Subject:
    """Return the subject of a request; `response` is None if the call failed."""
    method, request = incoming.method, incoming.message
    if method == "DiversifyStream" and request is not None:
        method, request = "Diversify", request.request
    if method not in _METHODS or request is None:
        return NO_SUBJECT
    _, rows, k, default_k = _METHODS[method]
    if method in ("Upsert", "Delete"):
        return Subject(request.index, _rows_of_write(request, response))
    if not rows:
        return Subject(request.index)
    count = _rows(getattr(request, rows))
    if isinstance(request, diversify_pb2.DiversifyRequest):
        count = count or len(request.ids) or len(request.string_ids)
    return Subject(request.index, count, _value(request, k, default_k) if k else None)


class StreamSubject:
    """The combined subject of all messages of a stream.

    The number of rows is the sum over the messages; the rows of a deletion are its ids. If the
    messages name several indexes, the index is "*". If their values of k differ, k is left out.
    `rows_of_indexes` has the rows by index.
    """

    def __init__(self, method: str) -> None:
        """Create the subject of a call without messages; `method` is QueryStream or WriteStream."""
        self._read = _STREAMS[method]
        self._index: str | None = None
        self._rows = 0
        self.rows_of_indexes: Counter[str] = Counter()
        self._k: int | None = None

    def add(self, message: bytes) -> None:
        """Add one message of the stream; bytes that cannot be parsed are ignored."""
        try:
            index, rows, k = self._read(message)
        except DecodeError:
            return
        index = index[:_NAME_CHARACTERS_MAX]
        if self._index is None:
            self._index, self._k = index, k
        if self._index != index:
            self._index = _SEVERAL
        if self._k != k:
            self._k = None
        self._rows += rows or 0
        # A caller may name as many indexes as it likes, and names as long as a message.
        is_known = index in self.rows_of_indexes
        has_room = len(self.rows_of_indexes) < _INDEXES_MAX and INDEX_NAME.fullmatch(index)
        self.rows_of_indexes[index if is_known or has_room else _SEVERAL] += rows or 0

    @property
    def subject(self) -> Subject:
        """The subject of the messages so far."""
        return Subject(self._index or "", self._rows, self._k)


def _read_query(message: bytes) -> Subject:
    """Return the subject of one message of a QueryStream; raises `DecodeError`."""
    query = query_pb2.QueryStreamRequest.FromString(message).query
    return Subject(query.index, _rows(query.queries), _value(query, "k", DEFAULT_K))


def _read_write(message: bytes) -> Subject:
    """Return the subject of one message of a WriteStream; raises `DecodeError`."""
    request = writes_pb2.WriteStreamRequest.FromString(message)
    write = request.upsert if request.HasField("upsert") else request.delete
    return Subject(write.index, _rows_of_write(write, None))


# For each method that answers a stream of messages: a function that reads one message.
_STREAMS: Final[Mapping[str, Callable[[bytes], Subject]]] = {
    "QueryStream": _read_query,
    "WriteStream": _read_write,
}


def index_of(op: int, payload: bytes) -> str:
    """Return the name of the index that a request of a caller names.

    Returns "" for any other operation, and for a request that cannot be parsed.
    """
    if op not in (Op.STREAM, Op.PICKS) and op not in _REQUESTS:
        return ""
    try:
        if op == Op.PICKS:
            return diversify_pb2.DiversifyStreamRequest.FromString(payload).request.index
        if op == Op.STREAM:
            return query_pb2.QueryStreamRequest.FromString(payload).query.index
        request: Any = _REQUESTS[op].FromString(payload)
    except DecodeError:
        return ""
    return str(request.index)


def partial_remedy(op: int, payload: bytes) -> str:
    """Return what to do so that shards that are missing may be left out of the answer to a query.

    Returns "" unless the query allows this, and names stored points all the same.
    """
    try:
        query = query_pb2.QueryRequest()
        if op == Op.STREAM:
            query = query_pb2.QueryStreamRequest.FromString(payload).query
        elif op == Op.QUERY:
            query.ParseFromString(payload)
    except DecodeError:
        return ""
    if not query.allow_partial:
        return ""
    if query.like_ids or query.like_string_ids:
        field, remedy = "like", "send vectors as queries instead"
    elif query.HasField("page_token"):
        field, remedy = "page_token", "begin again with page 1"
    elif query.already_shown_ids or query.already_shown_string_ids:
        field, remedy = "already_shown", "give vectors instead of ids"
    else:
        return ""
    return (
        f"allow_partial has no effect with {field}, because it names points, which may be on any"
        f" shard: {remedy}"
    )


def fingerprint(op: int, payload: bytes) -> bytes:
    """Return a hash of a request and its operation that does not depend on a correlation id."""
    if op == Op.STREAM:
        op = Op.QUERY
        with contextlib.suppress(DecodeError):
            payload = query_pb2.QueryStreamRequest.FromString(payload).query.SerializeToString()
    return hashlib.blake2b(payload, digest_size=16, person=bytes((op,))).digest()


def _rows_of_write(
    request: writes_pb2.UpsertRequest | writes_pb2.DeleteRequest, response: bytes | None
) -> int | None:
    """Return the rows of a write; None for a deletion by a filter that failed."""
    if isinstance(request, writes_pb2.DeleteRequest) and response is not None:
        return writes_pb2.DeleteResponse.FromString(response).rows
    return len(request.ids) or len(request.string_ids) or None


def _rows(vectors: vectors_pb2.Vectors) -> int:
    return vectors.dense.rows or vectors.sparse.rows


def _value(request: Message, field: str, default: int) -> int:
    """Return the value of a field if it is set (it may be 0), otherwise `default`."""
    value: int = getattr(request, field) if request.HasField(field) else default
    return value
