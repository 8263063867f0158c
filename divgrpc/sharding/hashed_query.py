"""A query whose margins and cells are known."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.types import FloatArray
from divgrpc.vectors import Rows


class HashedQuery(NamedTuple):
    """One query.

    row: the query, one row.
    margins: (B,) float32 margins; empty if the search does not compare codes.
    cells, bases: (m,) int32 and float32, the cells to read, and the distances of their centres.
    in_cells: number of points in these cells, or -1 if the search does not read cells.
    messages: the messages that have been made of it, by what they ask for.
    """

    row: Rows
    margins: FloatArray
    cells: npt.NDArray[np.int32]
    bases: FloatArray
    in_cells: int
    messages: dict[tuple[object, ...], bytes]
