"""Kernels of a search that are compiled before a query calls them."""

import inspect
from typing import Any, Final

import numba
import numpy as np

from divgrpc.arrays import read_only
from divgrpc.kernels import buckets, cells, code_scan, exact, greedy, inverted_lists, records
from divgrpc.kernels.batch import scan_batch, score_batch
from divgrpc.kernels.registers import record_of
from divgrpc.parameters import QueryParameters
from divgrpc.search.arrays import pack_queries
from divgrpc.search.memory import Memory
from divgrpc.search.plan import QueryPlan
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.selectors import ONE_BY_ONE, select

# Kernels that `query.answer` calls, those that it calls last first.
_CALLED_BY_ANSWER: Final = (
    greedy.pick,
    exact.score_rows,
    exact.score_all,
    exact.score_marked,
    exact.score_longest,
    inverted_lists.score_listed,
    code_scan.find_by_code,
    cells.find_in_cells,
    buckets.find_in_tables,
)


def compile_together(*, backwards: bool = False) -> None:
    """Compile the kernels that search rows together, which queries of a small index never call.

    A process that goes backwards and one that goes forwards meet in the middle.
    """
    register, queries = np.empty((0, 3), np.int64), pack_queries(np.empty((1, 1), np.float32))
    plan = QueryPlan.of(QueryParameters().resolve(4, "exact"), "cosine", 4).fields
    for kernel in (score_batch, scan_batch)[:: -1 if backwards else 1]:
        kernel.compile(tuple(map(numba.typeof, (register, register, plan, queries, 0, 1))))


def compile_beside() -> None:
    """Compile much of what `query.answer` needs: the part for a second process.

    The first process compiles it from the hash stage on, so this one begins at the other end.
    """
    index = record_of(records.Index, {}, {"d": 4, "m": 4})
    memory = Memory(4, 1, (4, 64))
    memory.fit_points(4)
    memory.fit_selection(4, 1)
    arguments = _arguments(index, memory.scratch)
    for kernel in _CALLED_BY_ANSWER:
        names = inspect.signature(kernel.py_func).parameters
        kernel.compile(tuple(numba.typeof(arguments[name]) for name in names))
    candidates = memory.scratch.candidates
    candidates.rows[:], candidates.distances[:] = np.arange(4), 1
    points = index.points._replace(vectors=read_only(np.eye(4, dtype=np.float32)))
    candidate_set = CandidateSet(points, *candidates, memory.scratch.selection)
    for selector in ONE_BY_ONE:
        parameters = QueryParameters(k=2, selector=selector).resolve(4, "exact")
        select(candidate_set, parameters, "cosine")


def _arguments(index: records.Index, scratch: records.Scratch) -> dict[str, Any]:
    """Return an argument of the right type for each parameter of those kernels, by its name."""
    one, distances = np.float32(1), scratch.candidates.distances
    numbers = ("count", "n_nearest", "n_scored", "stop")
    return dict.fromkeys(numbers, 0) | {
        **scratch._asdict(),
        **index._asdict(),
        **scratch.selection._asdict(),
        "bounds": index.length_bounds,
        "cell_scratch": scratch.cells,
        "columns": index.lists.rows,
        "distances": distances,
        "gains": distances,
        "margins": scratch.code.margins,
        "objective": records.Objective(1, one, 0, product=False, copy_limit=one),
        "plan": QueryPlan.of(QueryParameters().resolve(4, "tables"), "cosine", 4).kernel,
        "pool": records.Pool(0, 0, 0),
        "query": records.Query(scratch.selection.dense, 0, 0.0, product=False),
        "rows": scratch.candidates.rows,
        "signs": scratch.code.signs,
        "values": distances,
        "vectors": index.points.vectors,
    }
