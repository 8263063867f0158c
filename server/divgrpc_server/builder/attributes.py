"""Serves an AddAttributes call, from the upload to the finished generation."""

import socket
from collections.abc import Sequence

from divgrpc.builder.attributes import AttributeValues, extend, values_for
from divgrpc.errors import IndexChangedError, UnsupportedError, invalid
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import extending
from divgrpc.types import IndexInfo
from divgrpc.types.records import Attribute
from divgrpc_protos.v1 import attributes_pb2
from divgrpc_server.builder.uploads import AttributeUpload
from divgrpc_server.codec import points
from divgrpc_server.ipc import control
from divgrpc_server.ipc.job_frames import StagedGeneration


def add(link: socket.socket, process: control.Process) -> IndexInfo:
    """Read the upload from `link`, publish the generation, and return its description."""
    upload = AttributeUpload(link)
    header = upload.header()
    name = check_index_name(header.index)
    declared = points.parse_declarations(header.declarations)
    try:
        with extending(process.root / name) as (stage, current):
            stage.on_whole = lambda folder: upload.offer(StagedGeneration(name, folder.name))
            values = values_for(stage, current, declared, upload.report)
            receive(upload, header, declared, values)
            generation = extend(stage, current, values, values.report)
    except UnsupportedError:
        # The front chose a builder before the first write.
        changed = f"index {name!r} was written to meanwhile: add the attributes again"
        raise IndexChangedError(changed) from None
    return generation.manifest.info(name, generation.defaults)


def receive(
    upload: AttributeUpload,
    header: attributes_pb2.AddAttributesHeader,
    declared: Sequence[Attribute],
    values: AttributeValues,
) -> None:
    """Pass the values of an upload to `values`; `header` is its first message.

    Raises `InvalidArgumentError` with the name of the field.
    """
    values.expected_rows = header.expected_rows
    upload.accept()
    rows = 0
    for chunk in upload.chunks():
        columns = points.parse_columns(chunk.attributes, declared)
        count = upload.rows_of(chunk)
        if count:
            values.append(columns, count, points.chunk_ids(chunk))
        rows += count
    if header.HasField("expected_rows") and rows != header.expected_rows:
        raise invalid("header.expected_rows", f"was {header.expected_rows}, and {rows} rows came")
