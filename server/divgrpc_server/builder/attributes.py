"""Serves an AddAttributes call, from the upload to the finished generation."""

import socket

from divgrpc.builder.attributes import AttributeAdder
from divgrpc.errors import invalid
from divgrpc.parameters import check_index_name
from divgrpc.storage.generations import extending
from divgrpc.types import IndexInfo
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
    expected_rows = header.expected_rows if header.HasField("expected_rows") else None
    with extending(process.root / name) as (stage, current):
        stage.on_whole = lambda folder: upload.offer(StagedGeneration(name, folder.name))
        adder = AttributeAdder(
            stage, current, declared, expected_rows=expected_rows, on_progress=upload.report
        )
        upload.accept()
        rows = 0
        for chunk in upload.chunks():
            columns = points.parse_columns(chunk.attributes, declared)
            count = upload.rows_of(chunk)
            if count:
                adder.append(columns, count, points.chunk_ids(chunk))
            rows += count
        if expected_rows not in (None, rows):
            raise invalid("header.expected_rows", f"was {expected_rows}, and {rows} rows came")
        generation = adder.build()
        return generation.manifest.info(name, generation.defaults)
