"""Conversion of ids, attributes and other parts of points from messages and to messages.

Errors name the field by its path in the .proto files.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from divgrpc.columns.values import MISSING, Column, check_attributes, unknown_attribute
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import FloatArray
from divgrpc.types.records import (
    Attribute,
    AttributeType,
    AttributeValue,
    IdKind,
    Parts,
    Records,
    Scalar,
    SparseVectors,
)
from divgrpc_protos import arrays
from divgrpc_protos.columns import FIELDS, WireColumn, decode_column, encode_column
from divgrpc_protos.records import UnknownWordError, fields_of, word_of
from divgrpc_protos.v1 import attributes_pb2, filters_pb2, index_pb2, points_pb2, vectors_pb2


def parse_declarations(declared: Iterable[points_pb2.Attribute]) -> tuple[Attribute, ...]:
    """Return the declarations of a build; raises `InvalidArgumentError`."""
    field = fields_of(points_pb2.Attribute)["type"]
    attributes = []
    for message in declared:
        try:
            kind: Any = word_of(field, message.type)
        except UnknownWordError:
            text = f"must have a type, {message.name!r:.80} has none"
            raise invalid("declarations", text) from None
        attributes.append(Attribute(message.name, kind, message.multi))
    try:
        return check_attributes(attributes)
    except InvalidArgumentError as error:
        text = str(error).removeprefix("attributes ")
        raise invalid("declarations", text) from None


def parse_columns(
    messages: Iterable[points_pb2.AttributeColumn], declared: Sequence[Attribute]
) -> dict[Attribute, Column]:
    """Return the columns of a chunk; raises `InvalidArgumentError`.

    The builder checks the numbers of the columns.
    """
    by_name = {attribute.name: attribute for attribute in declared}
    columns: dict[Attribute, Column] = {}
    for message in messages:
        attribute = by_name.get(message.name)
        if attribute is None:
            raise unknown_attribute(message.name, declared)
        field = f"attributes.{attribute.name}"
        if attribute in columns:
            raise invalid(field, "must come once in a chunk")
        try:
            column = decode_column(message)
        except ValueError as error:
            raise invalid(field, str(error)) from None
        if column.type not in ("", attribute.type):
            right, wrong = FIELDS[attribute.type][0], FIELDS[column.type][0]
            raise invalid(field, f"must have values in {right}, got {wrong}")
        values = column.values.astype(FIELDS[attribute.type][1])
        columns[attribute] = Column(values, column.ends, column.words)
    return columns


def chunk_ids(chunk: index_pb2.BuildChunk | attributes_pb2.AddAttributesChunk) -> Any:  # noqa: ANN401  # numbers, texts or None
    """Return the ids of the rows of a chunk; raises if it has ids of both kinds."""
    if chunk.ids and chunk.string_ids:
        raise invalid("string_ids", "must not come together with ids")
    if chunk.string_ids:
        return list(chunk.string_ids)
    return np.array(chunk.ids, np.int64) if chunk.ids else None


def parse_presence(places: Sequence[int], rows: int) -> npt.NDArray[np.bool_] | None:
    """Return (rows,) whether each row has a vector, or None if all have.

    places: the rows without a vector, ascending.

    Raises `InvalidArgumentError` with the field `rows_without_vector`.
    """
    if not places:
        return None
    numbers = np.array(places, np.int64)
    if (np.diff(numbers) <= 0).any() or numbers[-1] >= rows:
        raise invalid("rows_without_vector", f"must ascend and be below the {rows} rows")
    has_vector = np.ones(rows, np.bool_)
    has_vector[numbers] = False
    return has_vector


def parse_parts(message: points_pb2.Parts) -> Parts:
    """Return which parts of points a request asks for."""
    return Parts(
        message.vectors,
        message.attributes if message.HasField("attributes") else True,
        message.payload if message.HasField("payload") else True,
        message.labels,
    )


def requested_ids(request: points_pb2.GetRequest, kind: IdKind) -> list[int] | list[str]:
    """Return the ids of a request; raises unless they are of the kind `kind`."""
    if kind == "string":
        if request.ids:
            raise invalid("ids", "must be texts (string_ids), as the ids of this index are")
        return list(request.string_ids)
    if request.string_ids:
        raise invalid("string_ids", "must be integers (ids), as the ids of this index are")
    return list(request.ids)


def pack_records(records: Records, kind: IdKind) -> points_pb2.PointRecords:
    """Return stored points as a message."""
    message = points_pb2.PointRecords(
        attributes=pack_attributes(records.attributes),
        payloads=records.payloads,
        categories=_listed(records.categories),
        subtopics=_listed(records.subtopics),
    )
    if records.labels is not None:
        indptr, indices, label_count = records.labels
        message.labels.label_count = label_count
        message.labels.offsets.extend(indptr.tolist())
        message.labels.ids.extend(indices.tolist())
    field = message.string_ids if kind == "string" else message.ids
    field.extend(records.ids.tolist())
    vectors = records.vectors
    if records.has_vector is not None and vectors is not None:
        vectors = _present(vectors, records.has_vector)
        message.rows_without_vector.extend(np.flatnonzero(~records.has_vector).tolist())
    if vectors is not None:
        message.vectors.CopyFrom(_pack_vectors(vectors))
    return message


def _present(
    vectors: FloatArray | SparseVectors, has_vector: npt.NDArray[np.bool_]
) -> FloatArray | SparseVectors:
    """Return the vectors that are there; missing ones of sparse points have no values."""
    if not isinstance(vectors, SparseVectors):
        return vectors[has_vector]
    widths = np.diff(vectors.indptr)[has_vector]
    ends = np.concatenate(([0], np.cumsum(widths, dtype=np.int64)))
    return vectors._replace(indptr=ends)


def _listed(numbers: npt.NDArray[np.int32] | None) -> list[int]:
    return [] if numbers is None else numbers.tolist()


def pack_attributes(
    attributes: Mapping[str, Sequence[AttributeValue]],
) -> list[points_pb2.AttributeColumn]:
    """Return the values of attributes as messages."""
    return [encode_column(_wire_column(name, values)) for name, values in attributes.items()]


def _wire_column(name: str, values: Sequence[Any]) -> WireColumn:
    """Return values as a column, whose type follows from the first value."""
    ends = np.empty(0, np.int64)
    if any(isinstance(value, tuple) for value in values):
        ends = np.cumsum([len(value) for value in values])
        values = [item for value in values for item in value]
    first = next((value for value in values if value is not None), "")
    words: dict[str, int] = {}
    kind: str
    if isinstance(first, str):
        # A column without a single value is sent as one of missing keywords.
        kind = "keyword"
        numbers = [-1 if v is None else words.setdefault(v, len(words)) for v in values]
    else:
        kind = {bool: "bool", int: "integer", float: "float"}[type(first)]
        missing: Any = MISSING[cast("AttributeType", kind)]
        numbers = [missing if value is None else value for value in values]
    return WireColumn(name, kind, np.array(numbers, FIELDS[kind][1]), ends, tuple(words))


def pack_value(value: Scalar) -> filters_pb2.Value:
    """Return one value of an attribute as a message."""
    if isinstance(value, str):
        return filters_pb2.Value(keyword=value)
    if isinstance(value, bool):
        return filters_pb2.Value(boolean=value)
    if isinstance(value, int):
        return filters_pb2.Value(integer=value)
    return filters_pb2.Value(number=value)


def _pack_vectors(vectors: FloatArray | SparseVectors) -> vectors_pb2.Vectors:
    if isinstance(vectors, SparseVectors):
        indices = vectors.indices.astype(np.uint32)
        return arrays.encode(arrays.Csr(vectors.indptr, indices, vectors.values, vectors.dims))
    return arrays.encode(vectors)
