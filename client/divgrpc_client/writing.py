"""The methods of both clients that write to an index."""

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

from divgrpc.columns.values import arguments_of_records
from divgrpc.types import WriteMode, WriteResult
from divgrpc.types.filters import FilterLike
from divgrpc.types.records import (
    AttributesLike,
    AttributeTypes,
    IdsOf,
    NumbersLike,
    PayloadsLike,
)
from divgrpc_client import calls
from divgrpc_client.messages import batches, write_streams, writes
from divgrpc_client.messages.labels import LabelsLike
from divgrpc_client.messages.options import OnProgress, spelled_out
from divgrpc_client.messages.requests import index_name
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.messages.write_streams import Write
from divgrpc_client.messages.writes import Conditions, RowArguments
from divgrpc_client.methods import many_results, one_result
from divgrpc_client.rpc import sync_stack
from divgrpc_client.rpc.call import RpcCall
from divgrpc_client.rpc.security import Peer
from divgrpc_protos.v1 import writes_pb2

ResultT = TypeVar("ResultT")

# Seconds until a write fails. The first write to a server starts a process.
_WRITE_SECONDS: Final = 30.0


class WriteMethods:
    """Methods that a client inherits."""

    if TYPE_CHECKING:
        _stack = sync_stack
        _peer: Peer

        def _ask(
            self,
            method: str,
            exchange: batches.Exchange[Any, Any, ResultT],
            timeout: float | None,
            request_id: str | None,
        ) -> ResultT: ...

        def _link(self) -> calls.Link: ...

    @one_result
    @spelled_out
    def upsert(
        self,
        name: str,
        ids: IdsOf,
        vectors: VectorsLike | None = None,
        *,
        attributes: AttributesLike = None,
        attribute_types: AttributeTypes = None,
        payloads: PayloadsLike = None,
        labels: LabelsLike | None = None,
        categories: NumbersLike = None,
        subtopics: NumbersLike = None,
        mode: WriteMode = "upsert",
        if_sequence: int | None = None,
        write_id: str | None = None,
        timeout: float | None = _WRITE_SECONDS,
        request_id: str | None = None,
    ) -> WriteResult:
        """Insert points into an index, or replace the points that have these ids.

        ids: one id or several, of the kind that the index has, all different.
        vectors: (rows, dims) numbers. Without `vectors`, existing points keep their vectors, and
            also the attributes, payloads, labels, categories and sub-topics that are not given. If
            the index was built with `vectors_optional`, new points then have no vector, and None in
            a list of vectors is a point without one.
        attributes: values by the name of an attribute that the index declares, as in `build`. With
            `vectors`, an attribute that is not given has no value.
        attribute_types: as in `build`; only for values that do not show their type, such as None
            alone.
        payloads: (rows,) bytes or texts; None for a row without a payload.
        labels: (rows, L) label sets, or `PointLabels` of `get`, as in `build`, of an index that was
            built with labels of its points. With `vectors`, points have no labels if none are
            given.
        categories, subtopics: (rows,) integers, -1 for none, of an index that was built with some.
            With `vectors`, points have none if none are given.
        mode: "insert_only" raises an error if a point exists, and "update_only" if one does not.
        if_sequence: write only if this is the number of the last write.
        write_id: a name for this write, at most 128 bytes. The server makes a write of the same
            name once, and refuses another write of that name. Default: a random name, so that the
            client may try again.

        When the method returns, all later calls see the points, and the points are as safe as the
        server's option `durability` says. Rows that do not fit one message (4 MiB, 10,000 rows) are
        sent in several; each of these is written as a whole or not at all. Raises
        `IndexNotFoundError`, `ConditionFailedError` and `StorageFullError`.
        """
        conditions = Conditions(if_sequence, write_id)
        columns = (attributes, attribute_types, payloads, labels, categories, subtopics)
        rows = RowArguments(ids, vectors, *columns)
        exchange = writes.upsert(name, rows, mode, conditions)
        return self._ask("Upsert", exchange, timeout, request_id)

    @one_result
    @spelled_out
    def upsert_records(
        self,
        name: str,
        records: Iterable[Mapping[str, Any]],
        *,
        labels: LabelsLike | None = None,
        categories: NumbersLike = None,
        subtopics: NumbersLike = None,
        mode: WriteMode = "upsert",
        write_id: str | None = None,
        timeout: float | None = _WRITE_SECONDS,
        request_id: str | None = None,
    ) -> WriteResult:
        """Insert or replace points that are given one by one; see `upsert`.

        records: mappings with the keys `id` and `vector`, and perhaps `payload`. All other keys are
            attributes. If the index was built with `vectors_optional`, a record without `vector`,
            or with None, is a point without a vector.
        labels, categories, subtopics: as in `upsert`, with one row or number for each record.
        mode, write_id: as in `upsert`.
        """
        arguments = arguments_of_records(list(records))
        rows = RowArguments(**arguments, labels=labels, categories=categories, subtopics=subtopics)
        if not arguments["ids"]:
            return self._ask("Delete", writes.nothing(name, rows), timeout, request_id)
        exchange = writes.upsert(name, rows, mode, Conditions(None, write_id))
        return self._ask("Upsert", exchange, timeout, request_id)

    @one_result
    @spelled_out
    def delete(
        self,
        name: str,
        ids: IdsOf = None,
        *,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        if_sequence: int | None = None,
        write_id: str | None = None,
        timeout: float | None = _WRITE_SECONDS,
        request_id: str | None = None,
    ) -> WriteResult:
        """Delete points by their ids, by a filter, or those that both select.

        ids: one id or at most 100,000. Ids that no point has are ignored.
        filter: conditions as in `query`.
        if_sequence, write_id: as in `upsert`.

        The result has the number of points that were deleted. `delete_index` deletes a whole index.
        Raises `IndexNotFoundError`, `ConditionFailedError` and `StorageFullError`.
        """
        exchange = writes.delete(name, ids, filter, Conditions(if_sequence, write_id))
        return self._ask("Delete", exchange, timeout, request_id)

    @many_results
    @spelled_out
    def write_stream(
        self,
        name: str,
        writes: Iterable[Write] | AsyncIterable[Write],
        *,
        in_flight: int = 64,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> Iterator[WriteResult]:
        """Make many writes over one stream, and yield the result of each, in their order.

        writes: iterable of `Upsert` and `Delete`, each small enough for one message (4 MiB, 10,000
            rows). They are made in their order.
        in_flight: maximum number of writes that await results at the same time, at least 1.

        Writes that are in flight together are committed together. gRPC iterates over `writes` in
        another thread or, in `AsyncClient`, in another task.

        If a write fails, its error is raised in place of its result and the stream ends. Writes
        that were sent after it may have been made; so may all writes without a result if the
        stream breaks. Give each write a `write_id` to be able to send them again. The client does
        not repeat a stream by itself.
        """
        call = RpcCall("WriteStream", self._peer, timeout=timeout, request_id=request_id)
        pipeline = write_streams.WritePipeline(name, in_flight)
        return self._stack.run_iterator(calls.pipe(self._link(), call, pipeline, writes))

    @one_result
    @spelled_out
    def compact(
        self,
        name: str,
        *,
        vacuum: bool = False,
        progress: OnProgress = None,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> bool:
        """Merge the writes to an index into the arrays that searches read.

        Merges happen by themselves. Answers stay the same. Returns whether there was anything to
        merge or to remove.

        vacuum: also remove deleted and replaced points from the disk. All points are copied into a
            new generation; queries and writes go on meanwhile. The disk needs room for both
            generations.
        progress: called with a `divgrpc.types.Progress` during the call. If it raises, the call is
            cancelled. A vacuum then ends, and leaves the index as it was.
        timeout: seconds until the call fails. Default: no limit.

        Raises `IndexNotFoundError`, `BuildUnderWayError` during a build, `LimitExceededError` if
        the server makes its maximum number of generations, and `StorageFullError`.
        """
        request = writes_pb2.CompactRequest(index=index_name(name), vacuum=vacuum)
        return self._renew("Compact", request, progress, timeout, request_id)

    @one_result
    @spelled_out
    def retrain(
        self,
        name: str,
        *,
        progress: OnProgress = None,
        timeout: float | None = None,
        request_id: str | None = None,
    ) -> bool:
        """Build an index anew from its points.

        Build fits hash functions, cells and searches to the points that it has. When most points
        are new, others may suit them better. The result is a new generation, as `build` with the
        same parameters would make it of these points. Queries and writes go on meanwhile, and
        numbers of writes stay the same. The disk needs room for both generations. Returns False,
        and does nothing, if nothing was written since Build or no point is left.

        progress: called with a `divgrpc.types.Progress` during the call. If it raises, the call is
            cancelled.
        timeout: seconds until the call fails. Default: no limit.

        A call that fails or is interrupted leaves the index as it was. Raises `IndexNotFoundError`,
        `StorageFullError`, `LimitExceededError` if the server makes its maximum number of
        generations, and `BuildUnderWayError` during a build, a vacuum or another retraining.
        """
        request = writes_pb2.RetrainRequest(index=index_name(name))
        return self._renew("Retrain", request, progress, timeout, request_id)

    def _renew(
        self,
        method: str,
        request: writes_pb2.CompactRequest | writes_pb2.RetrainRequest,
        progress: OnProgress,
        timeout: float | None,
        request_id: str | None,
    ) -> bool:
        call = RpcCall(method, self._peer, timeout=timeout, request_id=request_id)
        return self._stack.run(calls.renew(self._link(), call, request, progress))
