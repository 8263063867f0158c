"""Kernels of a search that are compiled before a query calls them."""

import numba
import numpy as np

from divgrpc.kernels import buckets, candidates, exact, greedy, inverted_lists
from divgrpc.kernels.batch import nearest_together, scan_together
from divgrpc.parameters import QueryParameters
from divgrpc.search.arrays import as_queries, frozen, lay_out
from divgrpc.search.memory import Scratch
from divgrpc.search.plan import QueryPlan
from divgrpc.search.relaxation import Candidates
from divgrpc.search.selectors import ONE_BY_ONE, select


def compile_together(*, backwards: bool = False) -> None:
    """Compile the kernels that search rows together, which no small index calls.

    A process that begins at the last and one that begins at the first meet.
    """
    register, row = np.empty((0, 3), np.int64), np.empty((1, 1), np.float32)
    plan = QueryPlan.of(QueryParameters().resolve(4, "exact"), "cosine", 4).of_kernel
    compiled = [
        (nearest_together, (register, register, plan, as_queries(row), 0, 1)),
        (scan_together, (register, register, plan, 1)),
    ]
    for kernel, arguments in compiled[:: -1 if backwards else 1]:
        kernel.compile(tuple(map(numba.typeof, arguments)))


def compile_beside() -> None:
    """Compile much of what `answering.answer` needs: what a second process can do beside a first.

    The first compiles it from the hash stage on, so this one begins at the other end.
    """
    points, lists, (ids, inverses, bounds), hashing, tables, cells = lay_out({}, 4).values()
    wanted = QueryParameters().resolve(4, "tables")
    plan = QueryPlan.of(wanted, "cosine", 4).of_kernel
    memory = Scratch.empty(4, 4, 1, (4, 64))
    scratch, rows, costs, room = memory.as_tuple(), memory.rows, memory.distances, memory.selection
    target, marks, one, queries = room[1], room[3], np.float32(1), as_queries(memory.target)
    sums, code, projections = memory.sums, memory.code, memory.projections
    room_of_picks = (memory.picked, costs)
    picks = ((0, 0, 0), 0, one, 0, False, one, room, room_of_picks)
    for kernel, arguments in (
        (greedy.pick, (points, (ids, inverses, bounds), rows, costs, costs, *picks)),
        (exact.score_rows, (points, target, 0, 0.0, False, rows, 0, costs)),
        (exact.score_all, (points, target, 0, 0.0, False, costs)),
        (exact.score_marked, (points, target, marks, 0.0, False, rows, 0, costs)),
        (exact.score_longest, (points[0], target, 0, bounds, 0, costs)),
        (
            inverted_lists.score_listed,
            (points, lists, queries, 0, room, 0.0, False, 0, (rows, costs, sums)),
        ),
        (candidates.find_by_code, (hashing, plan, ids, 0, 0, scratch)),
        (candidates.find_cells, (hashing, cells, plan, ids, scratch)),
        (
            buckets.find_tables,
            (code, projections, tables, 0, 0, 0, False, ids, plan[11], scratch[6], rows),
        ),
    ):
        kernel.compile(tuple(map(numba.typeof, arguments)))
    rows[:], costs[:] = np.arange(4), 1
    vectors = frozen(np.eye(4, dtype=np.float32))
    among = Candidates((vectors, *points[1:]), inverses, rows, costs, room)
    for selector in ONE_BY_ONE:
        select(among, QueryParameters(k=2, selector=selector).resolve(4, "exact"), "cosine")
