"""The best of the points that a search has found, on one shard or on several."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from divgrpc.kernels import replies
from divgrpc.kernels.records import Merge
from divgrpc.kernels.registers import record_of, register
from divgrpc.search.plan import QueryPlan
from divgrpc.types import FloatArray, IntArray

# Number of points that `BestPoints` has room for at first.
_ROOM_POINTS: Final = 1 << 12
# Room for more points (36 MiB) is not kept.
_ROOM_POINTS_MAX: Final = 1 << 20


class FoundPoints(NamedTuple):
    """Points that a search has found.

    ids: (m,) int64.
    codes: (m,) float32 distances by code; empty if the search did not compare codes.
    """

    ids: IntArray
    codes: FloatArray


class BestPoints:
    """Keeps those points that come first in the order of a search; one thread may use it."""

    def __init__(self) -> None:
        self._fit(_ROOM_POINTS)

    def _fit(self, points: int) -> None:
        # The register has the addresses of these arrays.
        self._merge = record_of(Merge, None, {"r": points})
        self._register = register(self._merge)

    def keep(
        self, plan: QueryPlan, rule: int, parts: Sequence[FoundPoints], most: int
    ) -> tuple[IntArray, list[int]]:
        """Return the ids of the best points, as many as the plan hashes.

        rule: BY_ESTIMATE, BY_SCORE or BY_PROBE of `kernels.replies`. With BY_PROBE, parts have no
            codes.
        most: the number of points that each part was asked for. A part with so many may have more.

        Also returns the numbers of the parts that may lack some of the best points.
        """
        counts, limit = [len(part.ids) for part in parts], plan.kernel.hash_limit
        sizes = np.zeros((len(parts), replies.SIZES), np.int64)
        sizes[:, replies.POINTS] = sizes[:, replies.TOTAL] = counts
        sizes[sizes[:, replies.POINTS] == most, replies.TOTAL] = limit
        count = sum(counts)
        if not 0 < limit < count:
            is_short = sizes[:, replies.POINTS] < sizes[:, replies.TOTAL]
            return np.concatenate([part.ids for part in parts]), np.flatnonzero(is_short).tolist()
        if count > len(self._merge.ids):
            self._fit(2 * count)
        start = 0
        for number, (ids, codes) in enumerate(parts):
            stop = start + len(ids)
            self._merge.ids[start:stop], self._merge.owners[start:stop] = ids, number
            self._merge.codes[start : start + len(codes)] = codes
            start = stop
        best_ids = np.empty(limit, np.int64)
        scratch = (np.empty(limit, kind) for kind in (np.float32, np.int32, np.int32))
        # All points are those of the first probe.
        replies.select_candidates(
            self._register, count, plan.fields, rule, 1, limit, limit, 0, sizes,
            (best_ids, *scratch),
        )  # fmt: skip
        if len(self._merge.ids) > _ROOM_POINTS_MAX:
            self._fit(_ROOM_POINTS)
        return best_ids, np.flatnonzero(sizes[:, replies.IS_SHORT]).tolist()
