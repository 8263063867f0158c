"""The points of a shard that searches hash before they score points.

Tuning measures how many of the nearest points are among them (`divgrpc.sharding.measuring`).
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.errors import invalid
from divgrpc.sharding import layouts, questions
from divgrpc.sharding.best_points import FoundPoints
from divgrpc.sharding.hashed_query import HashedQuery
from divgrpc.sharding.layouts import CELLS, CELLS_BY_CODE, SCAN
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.searcher import ShardSearcher

_NO_IDS: Final = np.empty(0, np.int64)
_NO_NUMBERS: Final = read_only(np.empty(0, np.float32))
# Arrays in which nothing is to be checked.
_EMPTY_ARRAYS: Final[dict[str, Array]] = {
    **dict.fromkeys(("margins", "bases", "dense", "values"), _NO_NUMBERS),
    "cells": read_only(np.empty(0, np.int32)),
}


class PointHasher:
    """Answers which points of a shard are hashed for queries; one thread may use it."""

    def __init__(self, searcher: ShardSearcher, arrays: Mapping[str, Array], rows: int) -> None:
        self._searcher, self._arrays, self._rows = searcher, arrays, rows
        self._n_cells = len(arrays.get("cell_centres", ()))

    def answer(self, message: Buffer) -> bytes:
        """Answer a `MEASURE_REQUEST`; raises `InvalidArgumentError` for one that does not fit."""
        request = layouts.MEASURE_REQUEST.unpack(message)
        numbers = request["numbers"].tolist()
        self._check(request, numbers)
        hits = [FoundPoints(_NO_IDS, _NO_NUMBERS)] * len(request["margins"])
        if self._rows:
            # Kernels need a point.
            how, limit = numbers[layouts.HOW], numbers[layouts.LIMIT]
            hits = [
                self._searcher.hash_points(
                    query, how, limit, probes=numbers[layouts.PROBES],
                    hamming=bool(numbers[layouts.HAMMING]), seed=numbers[layouts.MEASURE_SEED],
                )
                for query in _queries_of(request)
            ]  # fmt: skip
        ids, codes = zip(*hits, strict=True)
        sizes = [len(part) for part in ids]
        return layouts.MEASURE_REPLY.pack(
            {
                "ids": np.concatenate(ids),
                "codes": np.concatenate(codes),
                "ends": np.cumsum(sizes, dtype=np.int64),
            }
        )

    def _check(self, request: Mapping[str, Array], numbers: list[int]) -> None:
        if len(numbers) != layouts.MEASURE_NUMBERS:
            raise invalid("message", f"must have {layouts.MEASURE_NUMBERS} numbers")
        how, limit = numbers[layouts.HOW], numbers[layouts.LIMIT]
        has_limit = limit > 0 or how not in {CELLS_BY_CODE, SCAN}
        if min(numbers[: layouts.MEASURE_SEED]) < 0 or not has_limit:
            raise invalid("message", "has a number that is negative, or asks for no point")
        questions.check_probes(numbers[layouts.PROBES])
        margins, cells, ends = (request[name] for name in ("margins", "cells", "ends"))
        if not 1 <= len(margins) <= layouts.MEASURED_QUERIES_MAX:
            raise invalid("message", f"must have 1 to {layouts.MEASURED_QUERIES_MAX} queries")
        questions.check_search(self._arrays, self._rows, how, margins.shape[1])
        starts = np.concatenate(([0], ends))
        fits = len(ends) == (len(margins) if how in {CELLS, CELLS_BY_CODE} else 0)
        # Differences of ends could overflow.
        if not fits or starts[-1] != len(cells) or (starts[1:] < starts[:-1]).any():
            raise invalid("message", "must have the end of the cells of each query")
        if len(request["bases"]) != len(cells):
            raise invalid("message", "must have a distance for each cell")
        arrays = {**_EMPTY_ARRAYS, "margins": margins.reshape(-1)}
        questions.check_arrays(arrays, self._n_cells)
        for query in _queries_of(request) if len(cells) else ():
            arrays = {**_EMPTY_ARRAYS, "cells": query.cells, "bases": query.bases}
            questions.check_arrays(arrays, self._n_cells)


def _queries_of(request: Mapping[str, Array]) -> list[HashedQuery]:
    """Return the queries of a request, without their vectors."""
    margins, cells, bases = (request[name] for name in ("margins", "cells", "bases"))
    ends = request["ends"].tolist() or [0] * len(margins)
    return [
        HashedQuery(_NO_NUMBERS, row, cells[start:stop], bases[start:stop], -1, {})
        for row, (start, stop) in zip(margins, pairwise([0, *ends]), strict=True)
    ]
