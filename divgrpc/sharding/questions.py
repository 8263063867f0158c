"""Checks of questions to a shard, which kernels could not survive if they were malformed.

All functions raise `InvalidArgumentError` with the field `message`.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from divgrpc.arrays import Array
from divgrpc.errors import invalid
from divgrpc.kernels import shards
from divgrpc.search.memory import PROBES_MAX
from divgrpc.sharding import layouts
from divgrpc.sharding.layouts import CELLS, CELLS_BY_CODE, SCAN, TABLES

# What is wrong with a question, by the number of the fault in `kernels.shards`.
_FAULTS: Final = {
    shards.BAD_BASES: "must have a distance for each cell",
    shards.BAD_CELL: "has a cell that does not exist",
    shards.CELL_TWICE: "has a cell twice",
}
_KERNEL_ARRAYS: Final = ("margins", "cells", "bases", "dense", "values")


def check_numbers(numbers: list[int]) -> None:
    """Check the numbers of a `FIND_REQUEST`."""
    if len(numbers) != layouts.REQUEST_NUMBERS:
        raise invalid("message", f"must have {layouts.REQUEST_NUMBERS} numbers")
    # The seed, which may be negative, is the last number.
    has_limit = numbers[layouts.ROWS] or numbers[layouts.HOW] == layouts.TABLES
    if min(numbers[: layouts.SEED]) < 0 or not has_limit:
        raise invalid("message", "has a number that is negative, or asks for no point")
    check_probes(numbers[layouts.PROBES])


def check_probes(probes: int) -> None:
    """Check the number of buckets to probe."""
    if probes > PROBES_MAX:
        raise invalid("message", f"must ask for at most {PROBES_MAX} probes")


def check_search(arrays: Mapping[str, Array], rows: int, how: int, margins: int) -> None:
    """Check that a search by code, with so many margins, fits the arrays of a shard."""
    has_cells = "cell_starts" in arrays
    if margins != arrays["hyperplanes"].shape[1]:
        raise invalid("message", "must have a margin for each hyperplane")
    searches = (CELLS, CELLS_BY_CODE) if has_cells else (SCAN,)
    has_tables = "table_starts" in arrays or not rows
    if how not in searches and not (how == TABLES and has_tables and not has_cells):
        raise invalid("message", f"must ask for another search than {how}")


def check_arrays(request: Mapping[str, Array], n_cells: int) -> None:
    """Check the arrays of a `FIND_REQUEST` that kernels read."""
    fault = shards.find_fault(*(request[name] for name in _KERNEL_ARRAYS), n_cells)
    if fault == shards.NOT_FINITE:
        name = next(
            name
            for name in _KERNEL_ARRAYS
            if name != "cells" and not np.isfinite(request[name]).all()
        )
        raise invalid("message", f"has {name} that are not finite")
    if fault:
        raise invalid("message", _FAULTS[fault])
