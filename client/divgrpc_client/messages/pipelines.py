"""Queries of one stream: numbered as they are sent, results in the order of the queries.

No I/O. Answers arrive as they are ready, and `accept` yields those whose turn has come. The clients
limit how many queries are on their way, and so how many answers wait here.
"""

from collections.abc import Iterator

from google.rpc import status_pb2

from divgrpc.errors import InvalidArgumentError
from divgrpc.types import QueryResult
from divgrpc_client.messages import arguments, requests, responses
from divgrpc_client.messages.batches import MESSAGE_BYTES
from divgrpc_client.messages.options import QueryOptions
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, row_ends
from divgrpc_protos.arrays import row_count
from divgrpc_protos.v1 import query_pb2


class Pipeline:
    """One call of `query_stream`; raises as `QueryBatch` does."""

    def __init__(self, name: str, options: QueryOptions, in_flight: int) -> None:
        self.in_flight = arguments.count("in_flight", in_flight)
        self._fields = requests.query_fields(name, options)
        self._sent = 0
        self._turn = 0
        self._early: dict[int, query_pb2.QueryStreamResponse] = {}

    @property
    def due(self) -> bool:
        """True while the server owes an answer."""
        return self._sent > self._turn + len(self._early)

    @property
    def unanswered(self) -> int:
        """How many items were sent whose results were not yielded."""
        return self._sent - self._turn

    def request(self, queries: VectorsLike) -> query_pb2.QueryStreamRequest:
        """Return the message of the next item, which is one row or several.

        Raises `InvalidArgumentError` if the item is no matrix, or too large for one message.
        """
        matrix = as_matrix("queries", queries, one_row=True)
        rows = row_count(matrix)
        if row_ends(matrix, MESSAGE_BYTES)[:1] not in ([], [rows]):
            raise InvalidArgumentError(
                "queries", f"an item of a stream must fit one message, got {rows} rows; use query"
            )
        message = query_pb2.QueryStreamRequest(
            correlation_id=self._sent, query=requests.query(self._fields, matrix, 0, rows)
        )
        self._sent += 1
        return message

    def accept(
        self, response: query_pb2.QueryStreamResponse
    ) -> Iterator[QueryResult | status_pb2.Status]:
        """Take an answer, and yield every result or error whose turn has come."""
        self._early[response.correlation_id] = response
        while (ready := self._early.pop(self._turn, None)) is not None:
            self._turn += 1
            if ready.WhichOneof("outcome") == "response":
                yield responses.query_result(ready.response)
            else:
                yield ready.error
