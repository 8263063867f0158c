"""The items of `write_stream`, and the state of one such call."""

from dataclasses import dataclass
from typing import TypeAlias

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import WriteMode, WriteResult
from divgrpc.types.filters import FilterLike
from divgrpc.types.records import (
    AttributesLike,
    AttributeTypes,
    IdsOf,
    NumbersLike,
    PayloadsLike,
)
from divgrpc_client.messages import writes
from divgrpc_client.messages.batches import MESSAGE_BYTES, Pipeline
from divgrpc_client.messages.labels import LabelsLike
from divgrpc_client.messages.requests import index_name
from divgrpc_client.messages.vectors import VectorsLike
from divgrpc_client.messages.writes import Conditions, RowArguments
from divgrpc_protos.v1 import writes_pb2


@dataclass(frozen=True, slots=True, eq=False)
class Upsert:
    """Points to insert or to replace, in a `write_stream`; the fields are as in `upsert`.

    The points must fit one message: 4 MiB, and at most 10,000 points. Without a `write_id`, the
    write has no name, and is made each time that it is sent.
    """

    ids: IdsOf
    vectors: VectorsLike | None = None
    attributes: AttributesLike = None
    attribute_types: AttributeTypes = None
    payloads: PayloadsLike = None
    mode: WriteMode = "upsert"
    if_sequence: int | None = None
    write_id: str | None = None
    labels: LabelsLike | None = None
    categories: NumbersLike = None
    subtopics: NumbersLike = None


@dataclass(frozen=True, slots=True, eq=False)
class Delete:
    """Points to delete, in a `write_stream`; the fields are as in `delete`.

    Without a `write_id`, the write has no name, and is made each time that it is sent.
    """

    ids: IdsOf = None
    filter: FilterLike = None
    if_sequence: int | None = None
    write_id: str | None = None


Write: TypeAlias = Upsert | Delete


class WritePipeline(Pipeline[Write, writes_pb2.WriteStreamRequest, WriteResult]):
    """The state of one call of `write_stream`."""

    def __init__(self, name: str, in_flight: int) -> None:
        super().__init__(in_flight)
        self._name = index_name(name)

    def message(self, number: int, item: Write) -> writes_pb2.WriteStreamRequest:
        """Return the message for a write; raises `InvalidArgumentError` as `upsert` and `delete`.

        Also raises it if the item is neither an `Upsert` nor a `Delete`.
        """
        if not isinstance(item, Upsert | Delete):
            raise invalid("writes", f"must be items of Upsert or Delete, got {item!r:.80}")
        writes.check_write_id(item.write_id)
        conditions = Conditions(item.if_sequence, item.write_id)
        if isinstance(item, Upsert):
            rows = RowArguments(**{name: getattr(item, name) for name in RowArguments._fields})
            upsert = writes.upsert_request(self._name, rows, item.mode, conditions)
            _check_size(upsert)
            return writes_pb2.WriteStreamRequest(correlation_id=number, upsert=upsert)
        delete = writes.delete_request(self._name, item.ids, item.filter, conditions)
        return writes_pb2.WriteStreamRequest(correlation_id=number, delete=delete)

    def result(self, answer: writes_pb2.WriteStreamResponse) -> WriteResult:
        """Return the result of a write."""
        response = answer.upsert if answer.HasField("upsert") else answer.delete
        return WriteResult(response.generation, response.sequence, response.rows)


def _check_size(upsert: writes_pb2.UpsertRequest) -> None:
    count = len(upsert.ids) or len(upsert.string_ids)
    if count > writes.ROWS_MAX or upsert.ByteSize() > MESSAGE_BYTES:
        rule = "an item of a stream must fit one message"
        raise InvalidArgumentError("ids", f"{rule}, got {count} rows; use upsert")
