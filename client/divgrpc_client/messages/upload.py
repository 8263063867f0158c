"""Checks the data of a build before the first byte is sent, and makes its messages.

This module does no I/O. Rows are cut, converted and copied one chunk at a time, so a memory-mapped
file of any size needs only the memory of one chunk.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from divgrpc.columns.ids import encode_texts, is_texts, plain
from divgrpc.columns.values import Column, check_row_bytes, columns_of
from divgrpc.columns.writer import check_payloads
from divgrpc.errors import invalid
from divgrpc.parameters import LIMITS
from divgrpc.types import IndexInfo, IntArray
from divgrpc.types.records import (
    Attribute,
    AttributesLike,
    AttributeTypes,
    IdsLike,
    NumbersLike,
    PayloadsLike,
)
from divgrpc_client.messages import requests, responses
from divgrpc_client.messages.labels import LabelUpload, label_upload
from divgrpc_client.messages.options import BuildOptions, OnProgress
from divgrpc_client.messages.vectors import PointVectors, VectorsLike, number_column, row_ends
from divgrpc_protos.arrays import Csr, encode_label_sets, take
from divgrpc_protos.columns import WireColumn, encode_column
from divgrpc_protos.records import from_message, to_message
from divgrpc_protos.v1 import attributes_pb2, index_pb2, points_pb2

Numbers: TypeAlias = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Upload:
    """The data of one build.

    header: the first message.
    vectors: the vectors of the rows.
    numbers: numbers of the rows by field, such as ids.
    label_data: the labels.
    texts: text ids, one per row, or none.
    attributes: values of attributes.
    attribute_bytes: (rows,) bytes that the attributes of each row take in a message, at most.
    payloads: payloads, one per row, or none.
    """

    header: index_pb2.BuildRequest
    vectors: PointVectors
    numbers: dict[str, Numbers]
    label_data: LabelUpload
    texts: Sequence[str]
    attributes: Mapping[Attribute, Column]
    attribute_bytes: IntArray
    payloads: Sequence[bytes]

    def chunks(self, chunk_bytes: int) -> Iterator[index_pb2.BuildRequest]:
        """Yield messages of about `chunk_bytes`: the label data, then the rows, then the commit."""
        for piece in self.label_data.chunks(chunk_bytes):
            yield index_pb2.BuildRequest(label_chunk=piece)
        start, sets = 0, self.label_data.sets
        # In each chunk, the vectors have at most `chunk_bytes`, and so have the labels.
        ends = self.vectors.ends(chunk_bytes)
        if sets is not None:
            ends = sorted({*ends, *row_ends(sets, chunk_bytes)})
        ends = sorted({*ends, *self._column_ends(chunk_bytes)})
        for stop in ends:
            chunk = index_pb2.BuildChunk(**self.vectors.fields(start, stop))
            if sets is not None:
                chunk.labels.CopyFrom(encode_label_sets(cast(Csr, take(sets, start, stop))))
            for name, column in self.numbers.items():
                getattr(chunk, name).extend(column[start:stop].tolist())
            chunk.string_ids.extend(self.texts[start:stop])
            chunk.payloads.extend(self.payloads[start:stop])
            for attribute, values in self.attributes.items():
                part = values.cut(start, stop, multi=attribute.multi)
                wire = WireColumn(attribute.name, attribute.type, *part)
                chunk.attributes.append(encode_column(wire))
            yield index_pb2.BuildRequest(chunk=chunk)
            start = stop
        yield index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=start))

    def _column_ends(self, chunk_bytes: int) -> Iterator[int]:
        """Return rows at which to cut, so that ids, attributes and payloads have `chunk_bytes`."""
        sizes = self.attribute_bytes.copy()
        for texts in (self.texts, self.payloads):
            if texts:
                # A character has at most four bytes.
                widths = (len(t) * (4 if isinstance(t, str) else 1) for t in texts)
                sizes += np.fromiter(widths, np.int64, len(texts))
        return column_ends(sizes, chunk_bytes)


def column_ends(sizes: IntArray, chunk_bytes: int) -> Iterator[int]:
    """Yield rows at which to cut, so that rows of `sizes` (rows,) have at most `chunk_bytes`.

    The last part ends after the last row, which is not yielded.
    """
    totals, stop = np.cumsum(sizes), 0
    while (
        stop < len(sizes) and totals[-1] - (start := totals[stop - 1] if stop else 0) > chunk_bytes
    ):
        stop = max(stop + 1, int(np.searchsorted(totals, start + chunk_bytes, side="right")))
        yield stop


class BuildEvents:
    """Handles the events of a build, or of AddAttributes, and stores its result in `info`.

    accept: called with the maximum size of a chunk when the server is ready for rows.
    progress: called with each `Progress` of the build.
    """

    def __init__(self, accept: Callable[[int], object], progress: OnProgress) -> None:
        self._accept = accept
        self._progress = progress
        self.info: IndexInfo | None = None

    def take(
        self, response: index_pb2.BuildResponse | attributes_pb2.AddAttributesResponse
    ) -> None:
        """Handle one event; raises whatever the caller's `progress` raises."""
        match response.WhichOneof("event"):
            case "accepted":
                self._accept(response.accepted.chunk_bytes or LIMITS["chunk_bytes"])
            case "progress" if self._progress is not None:
                self._progress(responses.progress(response.progress))
            case "done":
                self.info = from_message(response.done, IndexInfo)


class RowData(NamedTuple):
    """The arguments of a build with one entry per row, except vectors and labels."""

    ids: IdsLike = None
    attributes: AttributesLike = None
    attribute_types: AttributeTypes = None
    payloads: PayloadsLike = None
    categories: NumbersLike = None
    subtopics: NumbersLike = None


def upload(
    name: str,
    vectors: VectorsLike,
    options: BuildOptions,
    data: RowData,
    *,
    replace: bool,
    **labels: Any,  # noqa: ANN401  # the arguments of `label_upload`
) -> Upload:
    """Check the shapes and types of a build's data and return the upload.

    Raises `InvalidArgumentError` with the name of the argument. The server checks the numbers.
    """
    point_vectors = PointVectors.of("vectors", vectors)
    rows = point_vectors.rows
    ids = plain(data.ids)
    texts = _texts(ids, rows) if is_texts(ids) else []
    row_numbers = (
        ("ids", None if texts else ids, np.int64),
        ("categories", data.categories, np.int32),
        ("subtopics", data.subtopics, np.int32),
    )
    numbers = {
        name_of_field: number_column(name_of_field, values, rows, dtype)
        for name_of_field, values, dtype in row_numbers
        if values is not None
    }
    attributes = {} if data.attributes is None else data.attributes
    columns = columns_of(attributes, rows, data.attribute_types)
    attribute_bytes = check_row_bytes(columns, rows)
    stored_payloads = [] if data.payloads is None else check_payloads(data.payloads, rows)
    label_data = label_upload(rows, **labels)
    header = requests.build_header(
        name, options, replace=replace, expected_rows=rows, plan=label_data.plan
    )
    header.header.declarations.extend(to_message(a, points_pb2.Attribute) for a in columns)
    return Upload(
        header, point_vectors, numbers, label_data, texts, columns, attribute_bytes, stored_payloads
    )


def _texts(ids: Any, rows: int) -> list[str]:  # noqa: ANN401  # a sequence of texts
    if len(ids) != rows:
        raise invalid("ids", f"must have one entry per row, {rows}, got {len(ids)}")
    return [text.decode() for text in encode_texts(ids)]
