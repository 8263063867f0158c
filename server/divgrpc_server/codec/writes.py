"""Conversion of write requests from messages.

Errors name the field by its path in the .proto files.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from divgrpc.columns.values import MISSING_INTEGER, Column, as_lists
from divgrpc.errors import invalid
from divgrpc.storage.manifest import Manifest
from divgrpc.types import WriteMode
from divgrpc.types.records import Attribute
from divgrpc.writes.annotation_arguments import AnnotationArguments
from divgrpc.writes.requests import Delete, Upsert, check_write_id
from divgrpc_protos.records import fields_of, word_of
from divgrpc_protos.v1 import points_pb2, writes_pb2
from divgrpc_server.codec import filters, points, requests


def parse_upsert(message: writes_pb2.UpsertRequest, manifest: Manifest) -> Upsert:
    """Return the upsert of a request to an index; raises `InvalidArgumentError`."""
    vectors: Any = None
    if message.HasField("vectors"):
        vectors = requests.parse_vectors("vectors", message.vectors)
    mode: WriteMode = "upsert"
    if message.mode:
        word = word_of(fields_of(writes_pb2.UpsertRequest)["mode"], message.mode)
        mode = cast(WriteMode, word)
    ids = _ids(message, manifest)
    if message.payloads and len(message.payloads) != len(ids):
        count = len(message.payloads)
        raise invalid("payloads", f"must have one entry per id, {len(ids)}, got {count}")
    has_vector = points.parse_presence(message.rows_without_vector, len(ids))
    return Upsert(
        ids=ids,
        vectors=vectors,
        columns=_columns(message.attributes, manifest.attributes),
        payloads=list(message.payloads) if message.payloads else None,
        mode=mode,
        if_sequence=message.if_sequence if message.HasField("if_sequence") else None,
        write_id=check_write_id(message.write_id),
        annotations=AnnotationArguments(
            requests.parse_label_rows(message, len(ids), "ids"),
            list(message.categories) or None,
            list(message.subtopics) or None,
        ),
        has_vector=has_vector,
    )


def _columns(
    messages: Iterable[points_pb2.AttributeColumn], declared: Iterable[Attribute]
) -> dict[Attribute, Column]:
    """Return columns; raises `InvalidArgumentError`.

    A caller need not know the declarations. Integers are taken for numbers, and one value per point
    for an attribute that may have several.
    """
    by_name: Mapping[str, Attribute] = {attribute.name: attribute for attribute in declared}
    typed_messages = [_with_numbers(message, by_name.get(message.name)) for message in messages]
    scalar_names = {
        message.name
        for message in typed_messages
        if message.name in by_name and by_name[message.name].multi and not message.ends
    }
    declarations = tuple(
        Attribute(a.name, a.type) if a.name in scalar_names else a for a in by_name.values()
    )
    columns = points.parse_columns(typed_messages, declarations)
    return {
        by_name[attribute.name]: as_lists(attribute, column)
        if attribute.name in scalar_names
        else column
        for attribute, column in columns.items()
    }


def _with_numbers(
    message: points_pb2.AttributeColumn, attribute: Attribute | None
) -> points_pb2.AttributeColumn:
    """Return a column with integers as numbers, if the attribute has numbers."""
    if attribute is None or attribute.type != "float" or not message.integers:
        return message
    values = np.array(message.integers, np.int64)
    numbers = np.where(values == MISSING_INTEGER, np.nan, values).tolist()
    return points_pb2.AttributeColumn(name=message.name, numbers=numbers, ends=message.ends)


def parse_delete(message: writes_pb2.DeleteRequest, manifest: Manifest) -> Delete:
    """Return the deletion of a request to an index; raises `InvalidArgumentError`."""
    ids = _ids(message, manifest)
    condition = filters.parse_filter(message.filter)
    if message.HasField("filter") and condition is None:
        raise invalid("filter", "must have a condition: the points that pass it are deleted")
    if not ids and condition is None:
        raise invalid("ids", "must be given if there is no filter")
    return Delete(
        ids=ids or None,
        condition=condition,
        if_sequence=message.if_sequence if message.HasField("if_sequence") else None,
        write_id=check_write_id(message.write_id),
    )


def _ids(
    message: writes_pb2.UpsertRequest | writes_pb2.DeleteRequest, manifest: Manifest
) -> list[int] | list[str]:
    """Return the ids of a request; raises unless they are of the kind of the index."""
    if manifest.id_kind == "string" and message.ids:
        raise invalid("ids", "must be texts (string_ids), as the ids of this index are")
    if manifest.id_kind == "int64" and message.string_ids:
        raise invalid("string_ids", "must be integers (ids), as the ids of this index are")
    return list(message.string_ids) if manifest.id_kind == "string" else list(message.ids)
