"""Readings: the calls Get, Count and Scroll, which a worker answers at once."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from google.protobuf.message import Message

from divgrpc.engine import Engine
from divgrpc.errors import invalid
from divgrpc.parameters import LIMITS, check_index_name
from divgrpc_protos.v1 import points_pb2
from divgrpc_server.codec import filters, points
from divgrpc_server.codec.statuses import ReplyTooLargeError
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging.logs import Logger
from divgrpc_server.worker.error_replies import pack_error

_PAGE_ROWS: Final = 1_000
_PAGE_ROWS_MAX: Final = 10_000
# Maximum number of bytes of all points of a response. The rest of a message has its other fields.
_PAGE_BYTES_MAX: Final = LIMITS["message_bytes_max"] - 2**14


class Reading:
    """One call that reads stored points; it has the methods of `worker.batches.Batch`.

    A reading is answered as a whole, so `ends_soon` is true and `answer_slice` is never called.
    """

    ends_soon = True

    def __init__(self, request: Request, message: Any, answer: Callable[..., Message]) -> None:  # noqa: ANN401  # one of the messages in `READS`
        self.id = request.id
        self.deadline = request.deadline
        self.tag = request.tag
        self.exchanges, self.may_lack = request.exchanges, False
        self.name = check_index_name(message.index)
        self.is_withdrawn = False
        self._message = message
        self._answer = answer

    def start(self, index: Engine) -> Reply:
        """Return the reply; raises the errors of the core, and `ReplyTooLargeError`."""
        payload = self._answer(index, self._message).SerializeToString()
        if len(payload) > LIMITS["message_bytes_max"]:
            raise _too_large()
        return Reply(self.id, Outcome.ANSWER, payload)

    def answer_slice(self) -> Reply | None:
        """Raise, because `start` has answered."""
        raise AssertionError("a reading has no slices")

    def pack_error(self, error: Exception, log: Logger) -> Reply:
        """Return the reply that carries an error."""
        return pack_error(self.id, self.tag, error, log)


def _get(index: Engine, request: points_pb2.GetRequest) -> points_pb2.GetResponse:
    kind, parts = index.manifest.id_kind, points.parse_parts(request.parts)
    rows = index.find(points.requested_ids(request, kind))
    # The size is known before anything is read, so a call that asks for too much ends at once.
    if index.bytes_of_rows(rows, parts).sum() > _PAGE_BYTES_MAX:
        raise _too_large()
    records = points.pack_records(index.records(rows, parts), kind)
    return points_pb2.GetResponse(
        generation=index.generation, points=records, sequence=index.sequence
    )


def _count(index: Engine, request: points_pb2.CountRequest) -> points_pb2.CountResponse:
    passing = index.passing(filters.parse_filter(request.filter))
    count = index.rows if passing is None else passing.count
    return points_pb2.CountResponse(
        generation=index.generation, count=count, sequence=index.sequence
    )


def _scroll(index: Engine, request: points_pb2.ScrollRequest) -> points_pb2.ScrollResponse:
    kind, parts = index.manifest.id_kind, points.parse_parts(request.parts)
    count = min(request.page_size or _PAGE_ROWS, _PAGE_ROWS_MAX)
    passing = index.passing(filters.parse_filter(request.filter))
    # One point more than the page shows whether there is another page.
    rows, keys = index.following(_key(request.page_token), count + 1, passing)
    totals = np.cumsum(index.bytes_of_rows(rows, parts))
    fitting = int(np.searchsorted(totals, _PAGE_BYTES_MAX, side="right"))
    size = min(count, len(rows), max(1, fitting))
    page = points.pack_records(index.records(rows[:size], parts), kind)
    response = points_pb2.ScrollResponse(
        generation=index.generation, points=page, sequence=index.sequence
    )
    if size < len(rows):
        response.next_page_token = str(keys[size - 1])
    return response


def _too_large() -> ReplyTooLargeError:
    return ReplyTooLargeError(
        f"the points would take more than {LIMITS['message_bytes_max']} bytes; "
        "ask for fewer points, or without vectors, payloads or labels"
    )


# The request message of each operation, and the function that answers it.
READS: Final[Mapping[int, tuple[type[Message], Callable[..., Message]]]] = {
    Op.GET: (points_pb2.GetRequest, _get),
    Op.COUNT: (points_pb2.CountRequest, _count),
    Op.SCROLL: (points_pb2.ScrollRequest, _scroll),
}


def parse_reading(request: Request, log: Logger) -> Reading | Reply:
    """Return the reading of a request, or a reply with an error if the request is invalid."""
    kind, answer = READS[request.op]
    try:
        return Reading(request, kind.FromString(request.payload), answer)
    except Exception as error:  # noqa: BLE001  # becomes the status of the call
        return pack_error(request.id, request.tag, error, log)


def _key(token: str) -> int:
    """Return the key after which a page begins; raises `InvalidArgumentError`."""
    if not token:
        return -1
    is_number = token.isascii() and token.isdecimal() and len(token) < 20
    if not is_number or int(token) >= 2**63:
        raise invalid("page_token", "is not a token that Scroll has returned")
    return int(token)
