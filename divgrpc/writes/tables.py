"""The hash tables of a layout without cells, and the rows that were written since.

The key of a row in a table is a range of bits of its code, so tables follow from codes. A merge
writes them anew. Until then, later rows are in chains beside them (`kernels.buckets.add_later`).
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import Array, read_only
from divgrpc.hashing.tables import create_tables
from divgrpc.kernels.buckets import add_later
from divgrpc.kernels.records import Cells
from divgrpc.kernels.registers import record_of
from divgrpc.parameters import BuildParameters
from divgrpc.search.arrays import NO_FILTER
from divgrpc.search.code_order import CodeOrder

# Maximum number of chains of all tables. A snapshot copies the heads of all chains, and a probe
# reads one chain.
_CHAINS_MAX: Final = 1 << 18
_NO_CELLS: Final = record_of(Cells, None, {})


def table_sizes(parameters: BuildParameters) -> tuple[int, int]:
    """Return the number of hash tables and the number of bits of their keys; (0, 0) with cells."""
    return parameters.n_tables or 0, parameters.n_bits or 0


def tables_of(codes: Array, rows: int, parameters: BuildParameters) -> dict[str, Array]:
    """Return hash tables of the first `rows` rows of `codes`, in memory.

    Layouts and generations of earlier versions may lack them.
    """
    arrays: dict[str, Array] = {}

    def create(name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
        arrays[name] = np.empty(shape, dtype)
        return arrays[name]

    create_tables(codes, np.ones(rows, np.bool_), table_sizes(parameters), create)
    return arrays


def room_for_later(rows: int, parameters: BuildParameters) -> dict[str, Array]:
    """Return room for the chains of `rows` rows; memory is used only for rows that are added."""
    return {"later_links": np.zeros((rows, 2 * table_sizes(parameters)[0]), np.int32)}


class Chains:
    """The rows that were written since a layout, by table and key. For one thread."""

    def __init__(self, arrays: dict[str, Array], parameters: BuildParameters) -> None:
        """Take the arrays of an open layout, in which no row was written."""
        n_tables, self._n_bits = table_sizes(parameters)
        chains = 1 << max(1, _CHAINS_MAX // max(1, n_tables)).bit_length() - 1
        self._heads = np.full(n_tables * chains, -1, np.int32)
        self._links: Array = arrays["later_links"]
        self._rows = 0
        # Later writes change `_heads`, so snapshots have a copy.
        self._order: CodeOrder = _ChainOrder(NO_FILTER.heads)
        self._is_copied = True

    def add(self, codes: npt.NDArray[np.uint8]) -> None:
        """Add rows with codes (m, bits / 8)."""
        add_later(read_only(codes), self._rows, self._n_bits, self._heads, self._links)
        self._rows += len(codes)
        self._is_copied = False

    def order(self) -> CodeOrder:
        """Return the order of the codes, with the rows that were added so far."""
        if not self._is_copied:
            self._order, self._is_copied = _ChainOrder(self._heads.copy()), True
        return self._order


class _ChainOrder(CodeOrder):
    """The order of codes by row, with the heads of the chains of later rows."""

    def __init__(self, heads: npt.NDArray[np.int32]) -> None:
        super().__init__(_NO_CELLS)
        self._heads = heads

    @property
    def heads(self) -> npt.NDArray[np.int32]:
        """The first row of each chain, or -1; empty if no row was added."""
        return self._heads
