"""The calls Diversify and DiversifyStream: picks from candidates that a caller sends or names."""

import math
import time
from collections.abc import Iterator
from typing import Any, Final

from divgrpc.diversifier import (
    iterate_picks,
    pick_candidates,
    pick_from,
    prepare_candidates,
    values_within,
)
from divgrpc.engine import Engine
from divgrpc.errors import invalid
from divgrpc.parameters import LIMITS
from divgrpc.search.quota_candidates import QuotaValues
from divgrpc.types import Pick
from divgrpc.types.quotas import Quotas
from divgrpc.vectors import RowsLike
from divgrpc_protos.v1 import diversify_pb2
from divgrpc_server.codec import requests, results
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging.logs import Logger
from divgrpc_server.worker.error_replies import pack_error

DIVERSIFICATIONS: Final = (Op.DIVERSIFY, Op.PICKS)
# Picks that are made within this many seconds are sent in one message. Sending a message takes as
# long as many picks.
_PART_SECONDS: Final = 0.002


class Picking:
    """One call; it has the methods of `worker.batches.Batch`.

    `name` is the name of the index, "" if the caller sends vectors.
    """

    def __init__(self, request: Request, diversification: requests.Diversification) -> None:
        self.id = request.id
        self.deadline = request.deadline
        self.tag = request.tag
        self.exchanges, self.may_lack = request.exchanges, False
        self.name = diversification.name
        self.is_withdrawn = False
        self._streams = request.op == Op.PICKS
        self._request = diversification
        self._picks: Iterator[Pick] = iter(())
        self._rank = 0
        self._end_time = math.inf

    @property
    def ends_soon(self) -> bool:
        """Whether the next slice is the last; this is unknown."""
        return False

    def start(self, index: Engine | None) -> Reply | None:
        """Return the reply, or None if picks are streamed, which `answer_slice` makes.

        `index` is None if the caller sends vectors. Raises the errors of the core.
        """
        vectors, query = self._candidates(index)
        request, quotas = self._request, self._request.quotas
        if quotas is None and not self._streams:
            result = pick_candidates(vectors, request.scores, request.parameters, query=query)
        else:
            candidates = prepare_candidates(
                vectors, request.scores, request.parameters, query=query
            )
            if quotas is None:
                self._picks = iterate_picks(candidates, request.parameters)
                # From now on the stream ends with the picks so far, and is not late.
                self._end_time, self.deadline = self.deadline, math.inf
                return None
            if self._streams:
                field = "group_by" if quotas.group_by is not None else "quotas"
                raise invalid(field, "decides by all picks together, so picks cannot be streamed")
            within = self._values(quotas, index, len(candidates.scores))
            result = pick_from(candidates, request.parameters, within)
        payload = results.pack_diversification(result)
        if len(payload) > LIMITS["message_bytes_max"]:
            raise results.reply_too_large()
        return Reply(self.id, Outcome.ANSWER, payload)

    def _candidates(self, index: Engine | None) -> tuple[RowsLike, RowsLike | None]:
        """Return the vectors of the candidates, and the query if there is one."""
        request = self._request
        if index is None:
            return request.vectors, request.query
        request = self._request = request.over(index.metric)
        return index.vectors_of(request.ids), None

    def _values(self, quotas: Quotas, index: Engine | None, count: int) -> QuotaValues:
        """Return the values of the candidates for quotas."""
        request = self._request
        if index is None:
            return values_within(quotas, request.columns, request.parameters, count)
        return index.quota_values(quotas, request.ids, request.parameters.k_or_default)

    def answer_slice(self) -> Reply:
        """Return the next picks as a part, or the end of the stream."""
        now = time.monotonic()
        end, picks = min(now + _PART_SECONDS, self._end_time), list[Pick]()
        while now < end and (pick := next(self._picks, None)) is not None:
            picks.append(pick)
            now = time.monotonic()
        if not picks:
            return Reply(self.id, Outcome.ANSWER, b"")
        places, scores, selection_scores = zip(*picks, strict=True)
        message = diversify_pb2.DiversifyStreamResponse(
            rank=self._rank, places=places, scores=scores, selection_scores=selection_scores
        )
        self._rank += len(picks)
        return Reply(self.id, Outcome.PART, message.SerializeToString())

    def pack_error(self, error: Exception, log: Logger) -> Reply:
        """Return the reply that carries an error."""
        return pack_error(self.id, self.tag, error, log)


def parse_diversification(request: Request, log: Logger) -> Picking | Reply:
    """Return the work of a request, or a reply with an error if the request is invalid."""
    message: Any
    try:
        if request.op == Op.PICKS:
            message = diversify_pb2.DiversifyStreamRequest.FromString(request.payload).request
        else:
            message = diversify_pb2.DiversifyRequest.FromString(request.payload)
        return Picking(request, requests.parse_diversification(message))
    except Exception as error:  # noqa: BLE001  # becomes the status of the call
        return pack_error(request.id, request.tag, error, log)
