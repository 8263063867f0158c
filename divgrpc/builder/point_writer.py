"""Where a build writes its points, and how it encodes them."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from divgrpc.build_rows import BuildRows
from divgrpc.builder.encoder import Encoding, encode_points
from divgrpc.builder.progress import Report
from divgrpc.columns.writer import ColumnWriter, RowStore, write_order
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.search.point_arrays import PointArrays
from divgrpc.storage.writers import Store
from divgrpc.types import IntArray
from divgrpc.vectors import Rows


class PointWriter(Protocol):
    """Writes the points of a build, and encodes them.

    rows_max: the maximum number of rows.
    """

    rows_max: int

    @property
    def rows(self) -> RowStore:
        """Takes the ids, labels and columns of the points that were appended last."""

    def begin(self, dims: int, rows: int, *, sparse: bool) -> None:
        """Begin to write points; `rows` is their expected number, 0 if it is not known.

        Raises `StorageFullError` if they do not fit.
        """

    def append(self, block: Rows, ids: IntArray | Sequence[bytes] | None) -> None:
        """Write the next points, with their ids or texts unless they are numbered."""

    def finish(self, columns: ColumnWriter | None, report: Report) -> None:
        """Write what depends on all rows, such as the order of their ids.

        columns: has written the columns, if there are any.

        Raises `InvalidArgumentError` if an id occurs twice.
        """

    def read(self) -> BuildRows:
        """Return all points, in the order of the upload."""

    def encode(
        self, store: Store, request: BuildParameters, points: BuildRows, report: Report, prefix: str
    ) -> Encoding:
        """Encode all points; see `divgrpc.builder.encoder.encode_points`."""


class WholePoints:
    """Writes all points to the store of the build."""

    rows_max = LIMITS["rows_max"]

    def __init__(self, store: Store) -> None:
        """Take the store."""
        self._store, self._has_integers = store, False

    @property
    def rows(self) -> RowStore:
        """See `PointWriter`."""
        return self._store

    def begin(self, dims: int, rows: int, *, sparse: bool) -> None:
        """See `PointWriter`."""
        self._points = PointArrays(self._store, dims, rows, sparse=sparse)

    def append(self, block: Rows, ids: IntArray | Sequence[bytes] | None) -> None:
        """See `PointWriter`."""
        self._has_integers = isinstance(ids, np.ndarray)
        self._points.append(block)

    def finish(self, columns: ColumnWriter | None, _report: Report) -> None:
        """See `PointWriter`."""
        if columns is not None:
            columns.finish(self._store)
        if self._has_integers:
            write_order(self._store, self._store.read("ids"))

    def read(self) -> Rows:
        """See `PointWriter`."""
        return self._points.read()

    def encode(
        self, store: Store, request: BuildParameters, points: BuildRows, report: Report, prefix: str
    ) -> Encoding:
        """See `PointWriter`."""
        return encode_points(store, request, points, report, prefix)
