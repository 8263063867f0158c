"""Checks the values of new attributes before the first byte is sent, and makes their messages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from divgrpc.columns.ids import as_ids, as_integers, encode_texts, is_texts, plain
from divgrpc.columns.values import Column, check_row_bytes, columns_of
from divgrpc.errors import invalid
from divgrpc.types import IntArray
from divgrpc.types.records import Attribute, AttributeTypes, IdsOf
from divgrpc_client.messages.requests import index_name
from divgrpc_client.messages.upload import column_ends
from divgrpc_protos.columns import WireColumn, encode_column
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import attributes_pb2, index_pb2, points_pb2

# Maximum number of bytes of an integer id in a message.
_ID_BYTES: Final = 10


@dataclass(frozen=True, slots=True)
class AttributeUpload:
    """The data of one AddAttributes call.

    header: the first message.
    numbers, texts: ids of the points, one per row; one of the two is empty, or both.
    columns: values of the new attributes.
    row_bytes: (rows,) bytes that each row takes in a message, at most.
    """

    header: attributes_pb2.AddAttributesRequest
    numbers: IntArray
    texts: Sequence[str]
    columns: Mapping[Attribute, Column]
    row_bytes: IntArray

    def chunks(self, chunk_bytes: int) -> Iterator[attributes_pb2.AddAttributesRequest]:
        """Yield messages of about `chunk_bytes`: the values, then the commit."""
        start, rows = 0, len(self.row_bytes)
        for stop in (*column_ends(self.row_bytes, chunk_bytes), rows):
            chunk = attributes_pb2.AddAttributesChunk(
                ids=self.numbers[start:stop].tolist(), string_ids=self.texts[start:stop]
            )
            for attribute, column in self.columns.items():
                part = column.cut(start, stop, multi=attribute.multi)
                wire = WireColumn(attribute.name, attribute.type, *part)
                chunk.attributes.append(encode_column(wire))
            yield attributes_pb2.AddAttributesRequest(chunk=chunk)
            start = stop
        commit = index_pb2.BuildCommit(rows=rows)
        yield attributes_pb2.AddAttributesRequest(commit=commit)


def attribute_upload(
    name: str, attributes: Mapping[str, Any], ids: IdsOf, types: AttributeTypes
) -> AttributeUpload:
    """Check the shapes and types of new attributes and return the upload.

    Raises `InvalidArgumentError` with the name of the argument. The server checks whether the index
    has the points, and whether it has the attributes already.
    """
    header = attributes_pb2.AddAttributesHeader(index=index_name(name))
    numbers, texts = np.empty(0, np.int64), list[str]()
    if ids is None:
        rows = _row_count(attributes)
    else:
        point_ids = as_ids(ids)
        rows = len(point_ids)
        if is_texts(point_ids):
            texts = [text.decode() for text in encode_texts(point_ids)]
        else:
            numbers = as_integers(point_ids, "ids")
        if not rows:
            raise invalid("ids", "must have at least one id")
    columns = columns_of(attributes, rows, types)
    if not columns:
        raise invalid("attributes", "must have at least one name")
    row_bytes = check_row_bytes(columns, rows)
    if texts:
        # A character has at most four bytes.
        row_bytes = row_bytes + 4 * np.fromiter(map(len, texts), np.int64, rows)
    header.declarations.extend(to_message(a, points_pb2.Attribute) for a in columns)
    header.expected_rows = rows
    request = attributes_pb2.AddAttributesRequest(header=header)
    return AttributeUpload(request, numbers, texts, columns, row_bytes + _ID_BYTES)


def _row_count(attributes: Mapping[str, Any]) -> int:
    """Return the number of values of the first attribute; 0 if `columns_of` will refuse it."""
    if not isinstance(attributes, Mapping):
        return 0
    for values in attributes.values():
        column = plain(values)
        return len(column) if hasattr(column, "__len__") else 0
    return 0
