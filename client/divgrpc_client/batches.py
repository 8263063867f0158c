"""A batch of queries, cut into requests that fit gRPC's message limit and joined again.

No I/O: the clients ask `next_request` what to send and tell `accept` what came back. Rows are
answered alike whatever they travel with, so cutting changes nothing, save that a new generation may
be published between two requests. A result speaks of one generation, so the parts that an older one
answered are asked again.
"""

from typing import Final, cast

from divgrpc.parameters import LIMITS
from divgrpc.types import QueryResult
from divgrpc_client import requests, responses
from divgrpc_client.options import QUERY_DEFAULTS, QueryOptions
from divgrpc_client.vectors import VectorsLike, as_matrix, row_ends
from divgrpc_protos.arrays import row_count
from divgrpc_protos.v1 import query_pb2

# What a message holds beside the vectors or the results is far below this.
_HEADROOM_BYTES: Final = 2**16
MESSAGE_BYTES: Final = LIMITS["message_bytes_max"] - _HEADROOM_BYTES
# The most that one result and one row can take in an answer: a varint id and two floats; an offset,
# four counts and a duality gap.
_RESULT_BYTES: Final = 9 + 4 + 4
_ROW_BYTES: Final = 5 + 4 * 5 + 4
# A name that is replaced faster than it can be asked has no one generation to speak of.
_ROUNDS_MAX: Final = 4


class Batch:
    """One call of `query`: which rows to ask next, and the result once all are answered.

    Raises `InvalidArgumentError` for queries and options that cannot be sent.
    """

    def __init__(self, name: str, queries: VectorsLike, options: QueryOptions) -> None:
        self._matrix = as_matrix("queries", queries, one_row=True)
        self._fields = requests.query_fields(name, options)
        # It is a number, since the fields are; a 0 is the server's to refuse.
        self._ends = self._cut(int(options.get("k") or cast(int, QUERY_DEFAULTS["k"])))
        self._parts: list[QueryResult | None] = [None] * len(self._ends)
        self._asked = 0
        self._rounds = 1

    def _cut(self, k: int) -> list[int]:
        rows = row_count(self._matrix)
        per_answer = max(1, MESSAGE_BYTES // (_RESULT_BYTES * k + _ROW_BYTES))
        most = min(LIMITS["query_rows_max"], per_answer)
        ends = row_ends(self._matrix, MESSAGE_BYTES) or [0]
        return ends if rows <= most else sorted({*ends, *range(most, rows, most)})

    def next_request(self) -> query_pb2.QueryRequest | None:
        """Return what to send now, None when every part is answered by one generation."""
        while self._asked < len(self._ends) and self._parts[self._asked] is not None:
            self._asked += 1
        if self._asked == len(self._ends):
            return None
        start = self._ends[self._asked - 1] if self._asked else 0
        return requests.query(self._fields, self._matrix, start, self._ends[self._asked])

    def accept(self, response: query_pb2.QueryResponse) -> None:
        """Take the answer to the request that `next_request` gave last."""
        self._parts[self._asked] = responses.query_result(response)
        self._asked += 1
        if self._asked == len(self._ends) > 1 and self._rounds < _ROUNDS_MAX:
            self._drop_older()

    def _drop_older(self) -> None:
        newest = max(part.generation for part in self._parts if part is not None)
        for position, part in enumerate(self._parts):
            if part is not None and part.generation < newest:
                self._parts[position] = None
                self._asked = 0
        self._rounds += 1

    def result(self) -> QueryResult | None:
        """Return the joined result; None where the index changed too fast to give one."""
        parts = [part for part in self._parts if part is not None]
        if len({part.generation for part in parts}) > 1:
            return None
        return responses.joined(parts)
