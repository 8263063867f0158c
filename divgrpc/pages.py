"""Answers queries that continue: page after page, or after points that were already shown.

The pool of a page is the set of candidates that its results are picked from. The pages of a query
have the same pool for as long as nothing is written and the pool does not grow. It doubles when
half of it was shown, and when a page would have fewer than k results.
"""

from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any, Final
from zlib import crc32

import numpy as np
from scipy import sparse

from divgrpc.columns.ids import as_ids, as_integers, encode_texts, has_vectors, is_texts
from divgrpc.engine import Engine
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.kernels import pairwise, records
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.parameters.continuation import Continuation
from divgrpc.parameters.query import POOL_GROWTH
from divgrpc.parameters.warning_rules import (
    already_shown_unknown,
    index_changed,
    pages_end_early,
    pool_grown,
)
from divgrpc.search import kept_candidates
from divgrpc.search.arrays import Answers, no_answers
from divgrpc.search.dials import reason_words
from divgrpc.search.later_picks import Shown, choose_dial, pick_after
from divgrpc.search.page_tokens import FINGERPRINT_BYTES, PageToken, decode_token, encode_token
from divgrpc.search.passing import PassingRows
from divgrpc.search.plan import QueryPlan
from divgrpc.search.relaxation import CandidateSet
from divgrpc.search.results import joined
from divgrpc.search.selectors import Picks
from divgrpc.types import EffectiveParameters, IntArray, QueryResult, WarningInfo
from divgrpc.vectors import Rows, RowsLike, SparseRows, query_rows

# Parameters that do not decide which points are results.
_OF_OUTPUT: Final = frozenset(
    ("with_attributes", "with_payload", "list_collapsed", "explain", "with_report")
)
# Warnings of queries that pages do not have, because a page ends, or its pool grows, instead.
_NOT_OF_PAGES: Final = ("FEWER_THAN_K_FOUND", "FEWER_THAN_K_POINTS", "CANDIDATES_CROWDED")
# Indexes in memory have no names. About so many values of each array tell one from another.
_SAMPLE_SIZE: Final = 4_096
_OTHER_REQUEST: Final = (
    "page_token belongs to another request or index, or a default of the index was changed: repeat"
    " the request of page 1 with it (only"
    " min_sequence and what is returned beside ids, such as with_attributes, may differ)"
)


@dataclass(frozen=True, slots=True)
class _Pool:
    """The limits of a pool; `most` is the greatest `candidates_limit` that it may grow to."""

    candidates_limit: int
    hash_limit: int
    most: int

    def can_grow(self, available: int) -> bool:
        """Whether a larger pool may have further candidates, of `available` points."""
        return 0 < self.candidates_limit < min(self.most, available)

    def grown(self, factor: int = 2) -> "_Pool":
        """Return a pool of `factor` times the size, or of the greatest size."""
        candidates = max(self.candidates_limit, min(factor * self.candidates_limit, self.most))
        return _Pool(candidates, factor * self.hash_limit, self.most)


@dataclass(frozen=True, slots=True, eq=False)
class _Start:
    """What is known when a page begins.

    parameters: those of the request, with the dial that page 1 chose.
    pool: the pool of the page before, or of page 1.
    token: the token of the page before, or one without keys for page 1.
    shown: (s,) rows of the points that earlier pages have shown and that still exist.
    """

    parameters: QueryParameters
    pool: _Pool
    token: PageToken
    shown: IntArray
    warnings: tuple[WarningInfo, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Outcome:
    """The picks of one page.

    has_more: whether the pool has further candidates to pick.
    dial: the dial that the query chose for itself; None if the request sets it.
    """

    pool: _Pool
    parameters: EffectiveParameters
    answers: Answers
    has_more: bool
    dial: float | None


def answer_continued(
    engine: Engine,
    queries: RowsLike | None,
    parameters: QueryParameters,
    passing: PassingRows | None,
    continuation: Continuation,
) -> QueryResult:
    """Answer `queries`, or the points in `continuation.like`, after what was shown before.

    passing: the points that pass the filter and have none of the excluded ids; None for all.

    Raises the errors of `Index.query`.
    """
    if queries is None:
        rows = engine.rows_like(continuation.like)
        call = _Call(engine, parameters, passing, continuation)
        continuation.check_rows("like", len(rows))
        return joined(engine.answer_each(call.answer_like, rows))
    matrix = query_rows("queries", queries, engine.dims, engine.searcher.metric)
    if not 1 <= len(matrix) <= LIMITS["query_rows_max"]:
        most = LIMITS["query_rows_max"]
        raise invalid("queries", f"must have 1 to {most} rows, got {len(matrix)}")
    call = _Call(engine, parameters, passing, continuation)
    continuation.check_rows("queries", len(matrix))
    return joined(engine.answer_each(call.answer_row, matrix))


class _Call:
    """What all rows of a call have in common."""

    def __init__(
        self,
        engine: Engine,
        parameters: QueryParameters,
        passing: PassingRows | None,
        continuation: Continuation,
    ) -> None:
        if parameters.selector == "qp_relax":
            sentence = (
                "qp_relax chooses all results together and cannot take account of points shown"
                " before: choose another selector, or leave points out by exclude_ids"
            )
            raise InvalidArgumentError("selector", sentence)
        self._engine, self._parameters, self._continuation = engine, parameters, continuation
        self._is_paged = continuation.paged or continuation.page_token is not None
        self._token: PageToken | None = None
        if continuation.page_token is not None:
            self._token = decode_token(continuation.page_token)
        self._warnings: tuple[WarningInfo, ...] = ()
        self._vectors: Rows | None = None
        self._rows = np.empty(0, np.int64)
        self._find_shown(continuation.already_shown)
        self._passing = engine.without(passing, self._rows) if len(self._rows) else passing

    def _find_shown(self, shown: Any) -> None:  # noqa: ANN401  # ids or vectors, of any form
        """Find the points of `already_shown`."""
        if shown is None:
            return
        engine, field = self._engine, "already_shown"
        if has_vectors(shown):
            if self._parameters.explain:
                raise invalid("explain", "does not go with vectors in already_shown: give ids")
            self._vectors = query_rows(field, shown, engine.dims, engine.searcher.metric)
            _check_count(len(self._vectors))
            if isinstance(self._vectors, SparseRows) != engine.has_sparse_points:
                self._vectors = _other_form(self._vectors)
            return
        ids = as_ids(shown, field)
        _check_count(len(ids))
        rows = engine.rows_of_ids(ids, field)
        unknown = int(np.count_nonzero(rows < 0))
        if unknown:
            self._warnings += (already_shown_unknown(unknown, len(ids)),)
        rows = rows[rows >= 0]
        self._rows = rows[np.sort(np.unique(rows, return_index=True)[1])]

    def answer_row(self, query: Rows) -> QueryResult:
        """Answer one query row, scaled for the metric."""
        return self._answer(query, self._passing, dense=not isinstance(query, SparseRows))

    def answer_like(self, row: IntArray) -> QueryResult:
        """Answer with the vector of the point in `row` (1,), which is not among the results."""
        engine = self._engine
        query = query_rows("like", engine.vectors_at(row), engine.dims, engine.searcher.metric)
        passing = engine.without(self._passing, row)
        return self._answer(query, passing, dense=False)

    def _answer(self, query: Rows, passing: PassingRows | None, *, dense: bool) -> QueryResult:
        """Answer one query row; `dense` is as for `Engine.plan`."""
        engine = self._engine
        searched = engine.searched(passing)
        fingerprint = self._fingerprint(query) if self._is_paged else b""
        if self._token is not None and self._token.fingerprint != fingerprint:
            raise InvalidArgumentError("page_token", _OTHER_REQUEST)
        start = self._start(searched, dense=dense)
        outcome = self._pick(query, searched, start, dense=dense)
        available = engine.rows_searched if searched is None else searched.count
        warnings = self._warnings + start.warnings
        if outcome.pool.candidates_limit > start.pool.candidates_limit and self._is_paged:
            warnings += (pool_grown(outcome.pool.candidates_limit),)
        next_page = ""
        if self._is_paged:
            next_page, more_warnings = self._next(start, outcome, fingerprint, available)
            warnings += more_warnings
        result = engine.result(
            outcome.answers, outcome.parameters, self._parameters, warnings, _count(searched)
        )
        if start.token.dial is not None:
            result = self._with_dial(result, start.token)
        if self._is_paged:
            kept = tuple(w for w in result.warnings if w.code not in _NOT_OF_PAGES)
            result = replace(result, next_page_token=next_page, warnings=kept)
        return result

    def _with_dial(self, result: QueryResult, token: PageToken) -> QueryResult:
        """Return the result of a later page with the dial that page 1 chose, and its parameters."""
        asked, parameters = self._parameters, result.parameters
        return replace(
            result,
            diversities=np.array([token.dial], np.float64),
            dial_reasons=reason_words(np.array([token.reason], np.uint8)),
            parameters=replace(
                parameters,
                diversity=0.0,
                diversity_auto=asked.diversity == "auto",
                lose_at_most=asked.lose_at_most,
            ),
        )

    def _start(self, searched: PassingRows | None, *, dense: bool) -> _Start:
        engine, token, parameters = self._engine, self._token, self._parameters
        plan = engine.plan(parameters, dense=dense, passing=_count(searched))
        if token is None:
            first, threshold = plan.parameters, plan.parameters.duplicate_threshold
            pool = self._pool(first.candidates_limit, first.hash_limit, threshold)
            if self._is_paged and not parameters.has_limit:
                pool = pool.grown(POOL_GROWTH)
            token = PageToken(
                b"", engine.generation, engine.sequence, pool.candidates_limit, pool.hash_limit,
                np.empty(0, np.int64), threshold,
            )  # fmt: skip
            return _Start(parameters, pool, token, np.empty(0, np.int64), plan.warnings)
        if token.dial is not None:
            parameters = replace(parameters, diversity=token.dial, lose_at_most=None)
        pool = self._pool(token.candidates_limit, token.hash_limit, token.threshold)
        rows = engine.rows_of_keys(token.keys)
        warnings = plan.warnings
        before, now = (token.generation, token.sequence), (engine.generation, engine.sequence)
        if before != now:
            warnings += (index_changed(before, now, int(np.count_nonzero(rows < 0))),)
        return _Start(parameters, pool, token, rows[rows >= 0], warnings)

    def _pool(self, candidates_limit: int, hash_limit: int, threshold: float | None) -> _Pool:
        most = candidates_limit
        if not self._parameters.has_limit:
            most = self._most_candidates(copies=threshold is not None)
        return _Pool(candidates_limit, hash_limit, most)

    def _most_candidates(self, *, copies: bool, shown: int = 0) -> int:
        """Return the maximum number of candidates if the request sets no limits.

        copies: whether near-copies are looked for among them. `shown`: number of points that were
        shown before.
        """
        engine, parameters = self._engine, self._parameters
        most = parameters.most_candidates(engine.widest_row, shown)
        mean_width = -(-engine.manifest.nonzeros // max(1, engine.rows_searched))
        return min(most, parameters.most_compared(mean_width)) if copies else most

    def _pick(
        self, query: Rows, searched: PassingRows | None, start: _Start, *, dense: bool
    ) -> _Outcome:
        """Find candidates and pick from them; double the pool as often as necessary."""
        engine, pool = self._engine, start.pool
        available = engine.rows_searched if searched is None else searched.count
        while 2 * len(start.token.keys) >= pool.candidates_limit and pool.can_grow(available):
            pool = pool.grown()
        shown = Shown(
            engine.rows_to_compare(np.concatenate((self._rows, start.shown))),
            self._vectors,
            engine.searcher.number if engine.searcher.has_lasting_rows else None,
        )
        while True:
            limited = replace(
                start.parameters,
                candidates_limit=pool.candidates_limit,
                hash_limit=pool.hash_limit,
                epsilon=None,
                duplicate_threshold=None,
                keep_duplicates=True,
            )
            plan = engine.plan_candidates(
                limited, start.token.threshold, dense=dense, passing=_count(searched)
            )
            outcome = self._pick_from(pool, query, searched, plan, shown)
            count = int(outcome.answers.counts[0])
            if count == plan.parameters.k or not pool.can_grow(available):
                return outcome
            pool = pool.grown()

    def _pick_from(
        self, pool: _Pool, query: Rows, searched: PassingRows | None, plan: QueryPlan, shown: Shown
    ) -> _Outcome:
        """Pick from the candidates that a plan finds."""
        searcher, parameters = self._engine.searcher, plan.parameters
        open_rows = self._engine.open_rows(searched)
        if open_rows is not None and not open_rows.count:
            return _Outcome(pool, parameters, no_answers(1, parameters), False, None)
        candidates, single = self._find(query, plan, open_rows)
        rule = (searcher.metric, plan.copy_limit, shown)
        dial = None
        if not parameters.has_fixed_dial:
            if parameters.lose_at_most is not None:
                single.dials[0], single.reasons[0] = choose_dial(candidates, parameters, *rule)
            dial = float(single.dials[0])
        fixed = parameters
        if dial is not None:
            fixed = replace(parameters, diversity=dial, diversity_auto=False, lose_at_most=None)
        picks, has_more = pick_after(candidates, fixed, *rule)
        copies = _count_copies(candidates, picks, plan.copy_limit)
        single.stats[records.POOL_SIZE :, 0] = len(candidates), copies, 0
        searcher.put_picks(plan, candidates, picks, single, shown=shown.rows)
        return _Outcome(pool, parameters, single, has_more, dial)

    def _find(
        self, query: Rows, plan: QueryPlan, open_rows: PassingRows | None
    ) -> tuple[CandidateSet, Answers]:
        """Return the candidates that a plan finds, and the answer without results."""
        engine = self._engine
        if not (self._is_paged and engine.searcher.has_lasting_rows):
            return engine.searcher.find_candidates(query, plan, open_rows)
        # A plan follows from its parameters, the search that the call names, and the points.
        key = (
            engine.searcher.number, engine.generation, engine.sequence, plan.parameters,
            self._parameters.search, blake2b(_bytes_of_rows(query)).digest(),
        )  # fmt: skip
        return kept_candidates.KEPT.find(key, engine.searcher, query, plan, open_rows)

    def _next(
        self, start: _Start, outcome: _Outcome, fingerprint: bytes, available: int
    ) -> tuple[str, tuple[WarningInfo, ...]]:
        """Return the token of the next page, or "" and perhaps a warning if there is none."""
        answers, pool, parameters = outcome.answers, outcome.pool, self._parameters
        ids = answers.ids[0, : int(answers.counts[0])]
        keys = np.concatenate((start.token.keys, self._engine.keys_of_results(ids)))
        if not outcome.has_more and not pool.can_grow(available):
            is_whole = parameters.has_limit or pool.candidates_limit >= available
            return "", () if is_whole else (pages_end_early(pool.candidates_limit, "candidates"),)
        picks = len(keys) + parameters.k
        most = self._most_candidates(copies=False, shown=len(keys))
        if picks > LIMITS["page_points_max"] or min(pool.candidates_limit, available) > most:
            return "", (pages_end_early(len(keys), "points shown"),)
        token = replace(
            start.token,
            fingerprint=fingerprint,
            candidates_limit=pool.candidates_limit,
            hash_limit=pool.hash_limit,
            keys=keys,
            dial=start.token.dial if outcome.dial is None else outcome.dial,
            reason=int(answers.reasons[0]) if outcome.dial is not None else start.token.reason,
        )
        return encode_token(token), ()

    def _fingerprint(self, query: Rows) -> bytes:
        """Return bytes that differ for requests with different results."""
        engine, continuation = self._engine, self._continuation
        digest = blake2b(digest_size=FINGERPRINT_BYTES)
        values = {
            field.name: getattr(self._parameters, field.name)
            for field in fields(self._parameters)
            if field.name not in _OF_OUTPUT
        }
        like = _bytes_of_ids(continuation.like, "like")
        parts = [
            _identity(engine),
            repr((values, continuation.filter)).encode(),
            _bytes_of_ids(continuation.exclude_ids, "exclude_ids"),
            _bytes_of_ids(self._rows_given(), "already_shown"),
            b"" if self._vectors is None else _bytes_of_rows(self._vectors),
            # The vector of a stored point may be replaced between two pages.
            like or _bytes_of_rows(query),
        ]
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def _rows_given(self) -> Any:  # noqa: ANN401  # ids of any form
        shown = self._continuation.already_shown
        return () if shown is None or self._vectors is not None else as_ids(shown, "already_shown")


def _identity(engine: Engine) -> bytes:
    """Return bytes that tell an index from others, in all its generations."""
    manifest = engine.manifest
    words = (engine.name, engine.dims, manifest.parameters.metric, manifest.id_kind)
    if engine.name:
        return repr(words).encode()
    sums = [
        crc32(array.ravel()[:: max(1, array.size // _SAMPLE_SIZE)].tobytes())
        for array in engine.arrays.values()
    ]
    return repr((*words, engine.rows, sums)).encode()


def _count(passing: PassingRows | None) -> int | None:
    return None if passing is None else passing.count


def _check_count(count: int) -> None:
    most = LIMITS["already_shown_max"]
    if count > most:
        raise invalid("already_shown", f"must be at most {most} points, got {count}")


def _other_form(rows: Rows) -> Rows:
    """Return dense rows as sparse rows, and sparse rows as dense rows."""
    if isinstance(rows, SparseRows):
        return np.ascontiguousarray(rows.matrix.toarray())
    return SparseRows.of(sparse.csr_array(rows))


def _count_copies(candidates: CandidateSet, picks: Picks, copy_limit: float) -> int:
    """Return the number of candidates that are near-copies of picks."""
    if copy_limit < 0:
        return 0
    owners = np.empty(len(candidates), np.int64)
    copies: int = pairwise.assign_copies(
        candidates.points, candidates.rows, len(candidates), picks.places, len(picks.places),
        np.float32(copy_limit), owners,
    )  # fmt: skip
    return copies


def _bytes_of_rows(rows: Rows) -> bytes:
    if isinstance(rows, SparseRows):
        parts = (rows.indptr, rows.indices, rows.values)
        return b"sparse" + b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    return np.ascontiguousarray(rows).tobytes()


def _bytes_of_ids(ids: Any, field: str) -> bytes:  # noqa: ANN401  # ids of any form
    if is_texts(ids):
        return b"".join(b"%d:%s" % (len(text), text) for text in encode_texts(ids, field))
    return as_integers(ids, field).tobytes()
