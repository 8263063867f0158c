"""Checks the data of a build before the first byte is sent, and makes its messages.

This module does no I/O. Rows are cut, converted and copied one chunk at a time, so a memory-mapped
file of any size needs only the memory of one chunk.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.parameters import LIMITS
from divgrpc.types import IndexInfo, Progress
from divgrpc_client.messages import requests, responses
from divgrpc_client.messages.labels import LabelUpload, label_upload
from divgrpc_client.messages.options import BuildOptions
from divgrpc_client.messages.vectors import VectorsLike, as_matrix, encode, row_ends, whole_numbers
from divgrpc_protos.arrays import Csr, Matrix, encode_label_sets, row_count, take
from divgrpc_protos.records import from_message
from divgrpc_protos.v1 import index_pb2

Column: TypeAlias = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Upload:
    """The data of one build: the header, the rows, their ids and other columns, and labels."""

    header: index_pb2.BuildRequest
    vectors: Matrix
    columns: dict[str, Column]
    label_data: LabelUpload

    def chunks(self, chunk_bytes: int) -> Iterator[index_pb2.BuildRequest]:
        """Yield messages of about `chunk_bytes`: the label data, then the rows, then the commit."""
        for piece in self.label_data.chunks(chunk_bytes):
            yield index_pb2.BuildRequest(label_chunk=piece)
        start, sets = 0, self.label_data.sets
        # In each chunk, the vectors have at most `chunk_bytes`, and so have the labels.
        ends = row_ends(self.vectors, chunk_bytes)
        if sets is not None:
            ends = sorted({*ends, *row_ends(sets, chunk_bytes)})
        for stop in ends:
            chunk = index_pb2.BuildChunk(vectors=encode(self.vectors, start, stop))
            if sets is not None:
                chunk.labels.CopyFrom(encode_label_sets(cast(Csr, take(sets, start, stop))))
            for name, column in self.columns.items():
                getattr(chunk, name).extend(column[start:stop].tolist())
            yield index_pb2.BuildRequest(chunk=chunk)
            start = stop
        yield index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=start))


class BuildEvents:
    """Handles the events of a build and stores its result in `info`.

    accept: called with the maximum size of a chunk when the server is ready for rows.
    progress: called with each `Progress` of the build.
    """

    def __init__(
        self, accept: Callable[[int], object], progress: Callable[[Progress], object] | None
    ) -> None:
        self._accept = accept
        self._progress = progress
        self.info: IndexInfo | None = None

    def take(self, response: index_pb2.BuildResponse) -> None:
        """Handle one event; raises whatever the caller's `progress` raises."""
        match response.WhichOneof("event"):
            case "accepted":
                self._accept(response.accepted.chunk_bytes or LIMITS["chunk_bytes"])
            case "progress" if self._progress is not None:
                self._progress(responses.progress(response.progress))
            case "done":
                self.info = from_message(response.done, IndexInfo)


def upload(
    name: str,
    vectors: VectorsLike,
    options: BuildOptions,
    *,
    ids: npt.ArrayLike | None,
    categories: npt.ArrayLike | None,
    subtopics: npt.ArrayLike | None,
    replace: bool,
    **labels: Any,  # noqa: ANN401  # the arguments of `label_upload`
) -> Upload:
    """Check the shapes and types of a build's data and return the upload.

    Raises `InvalidArgumentError` with the name of the argument. The server checks the numbers.
    """
    matrix = as_matrix("vectors", vectors)
    rows = row_count(matrix)
    row_numbers = (
        ("ids", ids, np.int64),
        ("categories", categories, np.int32),
        ("subtopics", subtopics, np.int32),
    )
    columns = {
        field: _column(field, values, rows, dtype)
        for field, values, dtype in row_numbers
        if values is not None
    }
    label_data = label_upload(rows, **labels)
    header = requests.build_header(
        name, options, replace=replace, expected_rows=rows, plan=label_data.plan
    )
    return Upload(header, matrix, columns, label_data)


def _column(field: str, values: npt.ArrayLike, rows: int, dtype: type[np.integer]) -> Column:
    shape = np.shape(values)
    if shape != (rows,):
        raise invalid(field, f"must have one number per row, shape ({rows},), got {shape}")
    return whole_numbers(field, values, dtype)
