"""Makes the messages of writes, and joins their responses."""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.columns.ids import as_ids, encode_texts, is_texts
from divgrpc.columns.values import Column, check_row_bytes, columns_of
from divgrpc.columns.writer import check_payloads
from divgrpc.errors import invalid
from divgrpc.parameters.limits import LIMITS
from divgrpc.types import WriteMode, WriteResult
from divgrpc.types.filters import FilterLike
from divgrpc.types.records import (
    Attribute,
    AttributesLike,
    AttributeTypes,
    IdsOf,
    NumbersLike,
    PayloadsLike,
)
from divgrpc_client.messages.arguments import not_negative
from divgrpc_client.messages.batches import Exchange
from divgrpc_client.messages.filters import filter_fields
from divgrpc_client.messages.labels import LabelsLike, label_sets
from divgrpc_client.messages.requests import index_name
from divgrpc_client.messages.vectors import PointVectors, VectorsLike, number_column, whole_numbers
from divgrpc_protos.arrays import Csr, encode_label_sets, take
from divgrpc_protos.columns import WireColumn, encode_column
from divgrpc_protos.records import fields_of, number_of
from divgrpc_protos.v1 import filters_pb2, writes_pb2

# Maximum number of bytes of the parts of the rows in one message, each part counted alone.
_CHUNK_BYTES: Final = 1 << 20
# Maximum number of rows in one message.
ROWS_MAX: Final = 10_000
_ID_BYTES: Final = 12
# Maximum number of bytes of a label, a category or a sub-topic in a message.
_NUMBER_BYTES: Final = 10
_MODES: Final = get_args(WriteMode)

Response: TypeAlias = writes_pb2.UpsertResponse | writes_pb2.DeleteResponse
WriteExchange: TypeAlias = Exchange[Any, Response, WriteResult]


class Conditions(NamedTuple):
    """When a write is made: `if_sequence` as in the messages, and the name of the write."""

    if_sequence: int | None = None
    write_id: str | None = None

    def named(self) -> "Conditions":
        """Return the conditions with a random name if none is given."""
        return self._replace(write_id=self.write_id or secrets.token_hex(12))

    def fields(self, part: int = 0) -> dict[str, Any]:
        """Return the fields of message number `part` of a write.

        Raises `InvalidArgumentError` with the field `write_id` or `if_sequence`.
        """
        name = self.write_id or ""
        if not isinstance(name, str):
            raise invalid("write_id", f"must be a text, got {name!r:.80}")
        fields: dict[str, Any] = {"write_id": f"{name}:{part}" if part else name}
        if self.if_sequence is not None:
            fields["if_sequence"] = not_negative("if_sequence", self.if_sequence)
        return fields


_NO_CONDITIONS: Final = Conditions()


class RowArguments(NamedTuple):
    """The arguments of an upsert with one entry per row."""

    ids: IdsOf
    vectors: VectorsLike | None = None
    attributes: AttributesLike = None
    attribute_types: AttributeTypes = None
    payloads: PayloadsLike = None
    labels: LabelsLike | None = None
    categories: NumbersLike = None
    subtopics: NumbersLike = None


class _Rows(NamedTuple):
    """The rows of an upsert, checked."""

    ids: Sequence[int]
    texts: Sequence[str]
    vectors: PointVectors
    columns: Mapping[Attribute, Column]
    payloads: Sequence[bytes]
    labels: Csr | None
    numbers: Mapping[str, npt.NDArray[np.integer]]

    def fields(self, start: int, stop: int) -> dict[str, Any]:
        """Return the fields of the message with rows `start` to `stop` - 1."""
        attributes = [
            encode_column(WireColumn(a.name, a.type, *column.cut(start, stop, multi=a.multi)))
            for a, column in self.columns.items()
        ]
        labels = None
        if self.labels is not None:
            labels = encode_label_sets(cast(Csr, take(self.labels, start, stop)))
        return {
            **{name: column[start:stop].tolist() for name, column in self.numbers.items()},
            "labels": labels,
            "ids": self.ids[start:stop],
            "string_ids": self.texts[start:stop],
            "attributes": attributes,
            "payloads": self.payloads[start:stop],
        } | self.vectors.fields(start, stop)

    def ends(self) -> list[int]:
        """Return the rows at which to cut, so that messages are not too large."""
        rows = len(self.ids) or len(self.texts)
        sizes = np.full(rows, _ID_BYTES) + check_row_bytes(self.columns, rows)
        for parts in (self.texts, self.payloads):
            if parts:
                sizes += np.fromiter((4 * len(part) for part in parts), np.int64, rows)
        sizes += _NUMBER_BYTES * len(self.numbers)
        if self.labels is not None:
            sizes += _NUMBER_BYTES * (1 + np.diff(self.labels.indptr))
        ends = set(range(ROWS_MAX, rows, ROWS_MAX)) | {rows}
        ends |= set(self.vectors.ends(_CHUNK_BYTES))
        totals = np.cumsum(sizes)
        groups = totals // _CHUNK_BYTES
        ends |= set((np.flatnonzero(np.diff(groups)) + 1).tolist())
        return sorted(ends)


def upsert(
    name: str, row_arguments: RowArguments, mode: WriteMode, conditions: Conditions
) -> WriteExchange:
    """Return the exchange of an upsert; raises `InvalidArgumentError` with the argument's name."""
    rows = _rows_of(row_arguments)
    fields: dict[str, Any] = {"index": index_name(name), "mode": _mode(mode)}
    ends = rows.ends()
    if len(ends) > 1 and conditions.if_sequence is not None:
        raise invalid("if_sequence", "needs all rows in one message: send fewer rows")
    check_write_id(conditions.write_id, len(ends))
    starts = [0, *ends[:-1]]

    def messages() -> Iterator[writes_pb2.UpsertRequest]:
        # A random name must be the same for all messages of this write.
        named_conditions = conditions.named()
        for part, (start, stop) in enumerate(zip(starts, ends, strict=True)):
            yield writes_pb2.UpsertRequest(
                **fields, **rows.fields(start, stop), **named_conditions.fields(part)
            )

    return _send_all(messages())


def nothing(name: str, no_rows: RowArguments) -> WriteExchange:
    """Return the exchange of an upsert of no records; its result has the last write.

    A deletion of no point is no write. Raises `InvalidArgumentError` if there are annotations.
    """
    for field in ("labels", "categories", "subtopics"):
        values: Any = getattr(no_rows, field)
        if field == "labels" and not isinstance(values, list | None):
            label_sets(values, 0, "record")
        elif values is not None and len(values):
            raise invalid(field, f"must have one row per record, 0, got {len(values)}")
    return _send_all(iter((delete_request(name, []),)))


def delete(name: str, ids: IdsOf, condition: FilterLike, conditions: Conditions) -> WriteExchange:
    """Return the exchange of a deletion; raises `InvalidArgumentError` with the argument's name."""
    return _send_all(iter((delete_request(name, ids, condition, conditions.named()),)))


def delete_request(
    name: str,
    ids: IdsOf,
    condition: FilterLike = None,
    conditions: Conditions = _NO_CONDITIONS,
) -> writes_pb2.DeleteRequest:
    """Return the message of a deletion by ids, by a filter `condition`, or by both.

    Without a `write_id` in `conditions`, the deletion is made each time that it is sent. Raises
    `InvalidArgumentError` with the argument's name.
    """
    fields = filter_fields(condition)
    if condition is not None and not fields:
        raise invalid("filter", "must have a condition: the points that pass it are deleted")
    if ids is None and not fields:
        raise invalid("ids", "must be given if there is no filter")
    numbers, texts = _ids(ids) if ids is not None else ([], [])
    request = writes_pb2.DeleteRequest(
        index=index_name(name), ids=numbers, string_ids=texts, **fields, **conditions.fields()
    )
    if ids is not None and not (numbers or texts):
        # An empty list selects nothing, with or without a filter.
        request.filter.CopyFrom(_nothing())
    return request


def upsert_request(
    name: str,
    row_arguments: RowArguments,
    mode: WriteMode = "upsert",
    conditions: Conditions = _NO_CONDITIONS,
) -> writes_pb2.UpsertRequest:
    """Return an upsert as one message, however large it is.

    Without a `write_id` in `conditions`, the upsert is made each time that it is sent. Raises
    `InvalidArgumentError` with the argument's name.
    """
    rows = _rows_of(row_arguments)
    count = len(rows.ids) or len(rows.texts)
    return writes_pb2.UpsertRequest(
        index=index_name(name), mode=_mode(mode), **rows.fields(0, count), **conditions.fields()
    )


def _mode(mode: WriteMode) -> Any:  # noqa: ANN401  # an enum of protobuf
    if mode not in _MODES:
        raise invalid("mode", f"must be one of {', '.join(_MODES)}, got {mode!r:.80}")
    return number_of(fields_of(writes_pb2.UpsertRequest)["mode"], mode)


def check_write_id(write_id: object, parts: int = 1) -> None:
    """Raise `InvalidArgumentError` unless all messages of a write can have its name."""
    if not isinstance(write_id, str):
        return
    most = LIMITS["write_id_bytes_max"]
    suffix = f":{parts - 1}" if parts > 1 else ""
    if len((write_id + suffix).encode(errors="replace")) > most:
        rows = f" with the suffix {suffix!r} of the last rows" if suffix else ""
        raise invalid("write_id", f"must be at most {most} bytes{rows}, got {write_id!r:.80}")


def _nothing() -> filters_pb2.Filter:
    """Return a filter that no point passes."""
    no_id = filters_pb2.Condition(has_id=filters_pb2.HasId())
    return filters_pb2.Filter(must=[no_id])


def _send_all(messages: Iterator[Any]) -> WriteExchange:
    """Send messages one at a time; return the last sequence number and the sum of the rows."""
    result, rows = WriteResult(0, 0, 0), 0
    for message in messages:
        answer = yield message
        rows += answer.rows
        result = WriteResult(answer.generation, answer.sequence, rows)
    return result


def _rows_of(arguments: RowArguments) -> _Rows:
    numbers, texts = _ids(arguments.ids)
    count = len(numbers) or len(texts)
    if not count:
        raise invalid("ids", "must have at least one id")
    attributes, payloads = arguments.attributes, arguments.payloads
    vectors = PointVectors(None)
    if arguments.vectors is not None:
        vectors = PointVectors.of("vectors", arguments.vectors)
        if vectors.rows != count:
            raise invalid("vectors", f"must have one row per id, {count}, got {vectors.rows}")
    columns: Mapping[Attribute, Column] = {}
    if attributes is not None:
        columns = columns_of(attributes, count, arguments.attribute_types)
    return _Rows(
        ids=numbers,
        texts=texts,
        vectors=vectors,
        columns=columns,
        payloads=[] if payloads is None else check_payloads(payloads, count),
        labels=None if arguments.labels is None else label_sets(arguments.labels, count, "id"),
        numbers={
            name: number_column(name, values, count, np.int32)
            for name in ("categories", "subtopics")
            if (values := getattr(arguments, name)) is not None
        },
    )


def _ids(ids: Any) -> tuple[list[int], list[str]]:  # noqa: ANN401  # one id or several
    """Return integer ids and text ids, one of them empty."""
    id_list = as_ids(ids)
    if is_texts(id_list):
        return [], [text.decode() for text in encode_texts(id_list)]
    return whole_numbers("ids", id_list, np.int64).tolist(), []
