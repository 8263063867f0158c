"""The builder process: it reads an upload from a front, publishes a generation, and exits.

It builds an index, or it adds attributes to an index (`attributes`).

Rows are written to a staging folder as they arrive. If the caller leaves, the process exits
immediately. The supervisor notices the exit and removes the staging folder.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple, NoReturn, TypeAlias, TypedDict

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc.builder.builder import IndexBuilder
from divgrpc.builder.label_model import TrainLabels
from divgrpc.builder.point_writer import PointWriter
from divgrpc.errors import UnsupportedError, invalid
from divgrpc.parameters import check_index_name
from divgrpc.platforms import count_cores
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.storage.generations import IndexFolder, Staging, staging
from divgrpc.types import IndexInfo
from divgrpc.types.records import Attribute
from divgrpc.writes.vectorless import VectorlessPoints
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import attributes_pb2, index_pb2
from divgrpc_server.builder import attributes
from divgrpc_server.builder.labels import LabelUpload
from divgrpc_server.builder.shard_encoder import ShardEncoder
from divgrpc_server.builder.shard_trainer import ShardTrainer
from divgrpc_server.builder.shard_tuner import ShardTuner
from divgrpc_server.builder.shard_work import ShardWork
from divgrpc_server.builder.uploads import BuildUpload
from divgrpc_server.codec import points, requests, results
from divgrpc_server.codec.statuses import OutOfMemoryError, expected, explain
from divgrpc_server.ipc import control, job_calls, job_frames
from divgrpc_server.ipc.job_frames import Frame, StagedGeneration
from divgrpc_server.logging import logs
from divgrpc_server.monitoring.stages import counting_stages

_NO_SHARDS_WITHOUT_VECTOR: Final = UnsupportedError(
    "rows_without_vector", "rows_without_vector must be empty: shards have points with vectors only"
)
_Response: TypeAlias = index_pb2.BuildResponse | attributes_pb2.AddAttributesResponse


def build(link: socket.socket, process: control.Process, log: logs.Logger) -> IndexInfo:
    """Read the upload from `link`, publish the generation, and return its description."""
    upload = BuildUpload(link)
    header = upload.header()
    name = check_index_name(header.index)
    parameters = results.parse_build_parameters(header.parameters)
    declared = points.parse_declarations(header.declarations)
    expected_rows = header.expected_rows if header.HasField("expected_rows") else None
    with (
        staging(process.root / name, replace=header.replace) as stage,
        counting_stages(process.page, upload.report) as report,
    ):
        stage.on_whole = lambda folder: upload.offer(StagedGeneration(name, folder.name))
        upload.accept()
        with closing(LabelUpload(header, stage.folder)) as label_upload:
            for label_chunk in upload.label_chunks():
                label_upload.add(label_chunk)
            label_inputs = label_upload.inputs()
        division: _Division = {}
        if process.config.shards > 1:
            places = process.config.far_places
            work = ShardWork(link, name, places, log) if places else None
            division = _divide(stage, DividedBuild(stage, process.config.shards, declared), work)
        builder = IndexBuilder(
            stage, parameters, expected_rows=expected_rows, on_progress=report, labels=label_inputs,
            attributes=declared, **division,
        )  # fmt: skip
        vectorless = VectorlessPoints(stage, parameters, declared)
        rows, layout = 0, None
        for chunk in upload.chunks():
            if chunk.rows_without_vector and stage.divide is not None:
                raise _NO_SHARDS_WITHOUT_VECTOR
            layout = _append(builder, vectorless, chunk, layout, declared)
            rows += upload.rows_of(chunk)
        if expected_rows not in (None, rows):
            raise invalid("header.expected_rows", f"was {expected_rows}, and {rows} rows came")
        info = builder.build().manifest.info(name)
        return IndexFolder(process.root / name).read_info() if vectorless.has_any else info


class _Division(TypedDict, total=False):
    """The arguments of `IndexBuilder` for an index that is divided among shards."""

    points: PointWriter
    train_labels: TrainLabels


def _divide(stage: Staging, division: DividedBuild, work: ShardWork | None) -> _Division:
    """Divide an index among shards, and let shard servers work on it if they are elsewhere."""
    if work is None:
        return {"points": division}
    division.encode_in = partial(ShardEncoder, work, stage)
    division.tune_in = ShardTuner(work, stage)
    return {"points": division, "train_labels": ShardTrainer(work, stage)}


class _Layout(NamedTuple):
    """The properties that must be the same in all chunks of an upload."""

    kind: str | None
    cols: int


def _append(
    builder: IndexBuilder,
    vectorless: VectorlessPoints,
    chunk: index_pb2.BuildChunk,
    first: _Layout | None,
    declared: Sequence[Attribute],
) -> _Layout | None:
    """Append a chunk and return its layout; raise if the layout differs from `first`.

    A chunk in which no point has a vector has no layout, so `first` is returned.
    """
    absent = chunk.rows_without_vector
    vectors, layout = None, first
    if chunk.HasField("vectors") or not absent:
        vectors = requests.parse_vectors("vectors", chunk.vectors)
        layout = _Layout(chunk.vectors.WhichOneof("kind"), int(vectors.shape[1]))
        _check_layout(layout, first)
    count = len(absent) + (0 if vectors is None else len(vectors))
    if not count:
        _check_no_columns(chunk)
        return layout
    arguments = {
        "ids": points.chunk_ids(chunk),
        "categories": np.array(chunk.categories, np.int32) if chunk.categories else None,
        "subtopics": np.array(chunk.subtopics, np.int32) if chunk.subtopics else None,
        "labels": requests.parse_label_rows(chunk, count, "rows"),
        "columns": points.parse_columns(chunk.attributes, declared),
        "payloads": list(chunk.payloads) if chunk.payloads else None,
    }
    has_vector = points.parse_presence(absent, count)
    vectors, arguments = vectorless.take(vectors, has_vector, arguments)
    if vectors is not None and len(vectors):
        builder.append(vectors, **arguments)
    return layout


def _check_layout(layout: _Layout, first: _Layout | None) -> None:
    """Raise if the layout of a chunk differs from `first`.

    The core does not check it, because a chunk without rows is not passed to the core.
    """
    if first is not None and layout.kind != first.kind:
        raise invalid("vectors", f"must be {first.kind} in every chunk, got {layout.kind} ones")
    if first is not None and layout.cols != first.cols:
        raise invalid("vectors", f"must have {first.cols} columns, got {layout.cols}")


def _check_no_columns(chunk: index_pb2.BuildChunk) -> None:
    """Raise if a chunk without rows has ids or other columns."""
    for field in ("ids", "categories", "subtopics", "string_ids", "attributes", "payloads"):
        if count := len(getattr(chunk, field)):
            raise invalid(field, f"must be empty if no rows come, got {count}")
    if chunk.labels.ids:
        raise invalid("labels.ids", "must be empty if no rows come")


def serve(process: control.Process, log: logs.Logger) -> int:
    """Serve the one call of this process, and return the exit code.

    Without memory, this process may not be able to remove its files. With the exit code 1, the
    supervisor removes them.
    """
    code = 0

    def work(link: socket.socket) -> tuple[type[_Response], IndexInfo]:
        if job_frames.peek(link) == Frame.ATTRIBUTES:
            return attributes_pb2.AddAttributesResponse, attributes.add(link, process)
        return index_pb2.BuildResponse, build(link, process, log)

    def pack_result(result: tuple[type[_Response], IndexInfo]) -> bytes:
        response, info = result
        log.info("built", index=info.name, generation=info.generation, rows=info.rows)
        return response(done=to_message(info, index_pb2.IndexInfo)).SerializeToString()

    def pack_error(error: Exception, tag: str) -> bytes:
        nonlocal code
        code = int(isinstance(expected(error), OutOfMemoryError))
        payload: bytes = explain(error, tag, log).SerializeToString()
        return payload

    job_calls.serve_call(process, work, pack_result=pack_result, pack_error=pack_error)
    return code


def use_all_cores() -> None:
    """Let matrix products use all cores, which the fork server has limited to one."""
    threadpool_limits(count_cores(), user_api="blas")


def run_builder() -> NoReturn:
    """Run a builder process, which the supervisor has started."""
    process = control.enter()
    log = logs.configure(process.config, "builder", process.serial)
    use_all_cores()
    with logs.edge(log):
        code = serve(process, log)
    # Skip a normal exit, because unloading the compiler takes longer than a small build.
    os._exit(code)
