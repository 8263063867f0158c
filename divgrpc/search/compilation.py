"""Kernels of a search that are compiled before a query calls them."""

from typing import Any

import numba
import numpy as np

from divgrpc.arrays import read_only
from divgrpc.kernels import buckets, cells, code_scan, exact, greedy, inverted_lists, records
from divgrpc.kernels.batch import scan_batch, score_batch
from divgrpc.parameters import QueryParameters
from divgrpc.search.arrays import pack_queries, record_of
from divgrpc.search.memory import Memory
from divgrpc.search.plan import QueryPlan
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import ONE_BY_ONE, select


def compile_together(*, backwards: bool = False) -> None:
    """Compile the kernels that search rows together, which queries of a small index never call.

    A process that goes backwards and one that goes forwards meet in the middle.
    """
    register, queries = np.empty((0, 3), np.int64), pack_queries(np.empty((1, 1), np.float32))
    plan = QueryPlan.of(QueryParameters().resolve(4, "exact"), "cosine", 4).packed
    for kernel in (score_batch, scan_batch)[:: -1 if backwards else 1]:
        kernel.compile(tuple(map(numba.typeof, (register, register, plan, queries, 0, 1))))


def compile_beside() -> None:
    """Compile much of what `query.answer` needs: the part for a second process.

    The first process compiles it from the hash stage on, so this one begins at the other end.
    """
    index = record_of(records.Index, {}, 4)
    plan = QueryPlan.of(QueryParameters().resolve(4, "tables"), "cosine", 4).kernel
    memory = Memory(4, 1, (4, 64))
    memory.fit_points(4)
    memory.fit_selection(4, 1)
    scratch = memory.scratch
    candidates = scratch.candidates
    rows, distances = candidates.rows, candidates.distances
    for kernel, arguments in _calls_of_answer(index, plan, scratch):
        kernel.compile(tuple(map(numba.typeof, arguments)))
    rows[:], distances[:] = np.arange(4), 1
    vectors = read_only(np.eye(4, dtype=np.float32))
    chosen = CandidateSet(
        index.points._replace(vectors=vectors), rows, distances, scratch.selection
    )
    for selector in ONE_BY_ONE:
        select(chosen, QueryParameters(k=2, selector=selector).resolve(4, "exact"), "cosine")


def _calls_of_answer(
    index: records.Index, plan: records.Plan, scratch: records.Scratch
) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return kernels that `query.answer` calls, with arguments of the types that it passes."""
    points, lists, hashing = index.points, index.lists, index.hashing
    candidates, code, selection = scratch.candidates, scratch.code, scratch.selection
    rows, distances, one = candidates.rows, candidates.distances, np.float32(1)
    query = records.Query(selection.dense, 0, 0.0, product=False)
    objective = records.Objective(1, one, 0, product=False, copy_limit=one)
    pool = records.Pool(0, 0, 0)
    return [
        (
            greedy.pick,
            (
                *(points, index.ids, candidates, scratch.costs, pool, objective, selection),
                *(scratch.picked, distances),
            ),
        ),
        (exact.score_rows, (points, query, rows, 0, distances)),
        (exact.score_all, (points, query, distances)),
        (exact.score_marked, (points, query, selection.marks, rows, 0, distances)),
        (exact.score_longest, (points.vectors, query, index.length_bounds, 0, distances)),
        (
            inverted_lists.score_listed,
            (points, lists, lists.rows, distances, query, 0, selection, candidates, scratch.sums),
        ),
        (
            code_scan.find_by_code,
            (hashing, plan, index.ids, 0, 0, candidates, code, scratch.scan),
        ),
        (
            cells.find_in_cells,
            (hashing, index.cells, plan, index.ids, candidates, code, scratch.scan, scratch.cells),
        ),
        (
            buckets.find_in_tables,
            (code.signs, code.margins, index.tables, plan, index.ids, scratch.probes, rows),
        ),
    ]
