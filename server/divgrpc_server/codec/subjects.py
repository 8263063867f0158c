"""Subjects of calls, for access lines: the index, the number of rows, the results of each row.

Requests pass through a front as bytes. To parse a small one takes about 2 microseconds, and a large
one as long as a copy. Both are short compared with the work for the request.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from divgrpc.parameters import DEFAULT_K
from divgrpc.parameters.predict import DEFAULT_TOP_K
from divgrpc_protos.v1 import (
    evaluate_labels_pb2,
    evaluate_pb2,
    index_pb2,
    predict_pb2,
    query_pb2,
    vectors_pb2,
)
from divgrpc_server.ipc.subject_lines import NO_SUBJECT, SEVERAL, Subject, subject


def read(method: str, request: bytes) -> Subject:
    """Return the subject of a request."""
    if method not in _READERS:
        return NO_SUBJECT
    kind, describe = _READERS[method]
    try:
        return describe(kind.FromString(request))
    except DecodeError:
        return NO_SUBJECT


class StreamSubject:
    """The subject of all queries of one QueryStream.

    Rows are added up. Where the queries go to several indexes the name is `SEVERAL`; k is left out
    where it differs.
    """

    def __init__(self) -> None:
        self._index = ""
        self._rows = 0
        self._k: int | None = None
        self._one_k = True

    def add(self, message: bytes) -> None:
        """Count one message of the stream; bytes that are no message do not count."""
        try:
            query = query_pb2.QueryStreamRequest.FromString(message).query
        except DecodeError:
            return
        k = _value(query, "k", DEFAULT_K)
        if self._k is None:
            self._index, self._k = query.index, k
        if self._index != query.index:
            self._index = SEVERAL
        self._one_k = self._one_k and self._k == k
        self._rows += _rows(query.queries)

    @property
    def subject(self) -> Subject:
        """The subject of the messages so far."""
        return subject(self._index, self._rows, self._k if self._one_k else None)


def _rows(vectors: vectors_pb2.Vectors) -> int:
    return vectors.dense.rows or vectors.sparse.rows


def _value(request: Message, field: str, default: int) -> int:
    """Return the value of a field, which may be 0, or the default of a field that is not set."""
    value: int = getattr(request, field) if request.HasField(field) else default
    return value


_READERS: Final[Mapping[str, tuple[type[Message], Callable[[Any], Subject]]]] = {
    "Query": (
        query_pb2.QueryRequest,
        lambda request: subject(
            request.index, _rows(request.queries), _value(request, "k", DEFAULT_K)
        ),
    ),
    "PredictLabels": (
        predict_pb2.PredictLabelsRequest,
        lambda request: subject(
            request.index, _rows(request.documents), _value(request, "top_k", DEFAULT_TOP_K)
        ),
    ),
    "Evaluate": (
        evaluate_pb2.EvaluateRequest,
        lambda request: subject(request.index, _rows(request.queries)),
    ),
    "EvaluateLabels": (
        evaluate_labels_pb2.EvaluateLabelsRequest,
        lambda request: subject(request.index, _rows(request.documents)),
    ),
    "GetIndex": (index_pb2.GetIndexRequest, lambda request: subject(request.index)),
    "DeleteIndex": (index_pb2.DeleteIndexRequest, lambda request: subject(request.index)),
}
