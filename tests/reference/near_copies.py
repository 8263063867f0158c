"""Slow reference implementation of whole answers, with near-copies collapsed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from divgrpc.types import EffectiveParameters
from reference.definitions import Floats, Points, apart, candidates, far, greedy, hashed, score
from reference.selectors import select


@dataclass(frozen=True)
class Answer:
    """The answer to one query row, with the hashed points and the candidates that led to it."""

    ids: list[int]
    scores: list[float]
    selection_scores: list[float]
    hashed_rows: list[int]
    candidates: list[int]
    probe_count: int
    copies: int = 0
    duplicates: int = 0


def copy_limit(points: Points, threshold: float) -> float:
    """Return the greatest value of `apart` for which two points are near-copies."""
    if points.metric == "euclidean":
        return threshold
    return (1 - threshold) * (2 if points.metric == "cosine" else 1) + 1e-6


def keep_different(points: Points, near: Sequence[int], limit: float) -> list[int]:
    """Return the candidates, nearest first, that are no near-copies of candidates kept before."""
    rows: list[int] = []
    for row in near:
        if all(apart(points, row, earlier_row) > limit for earlier_row in rows):
            rows.append(row)
    return rows


def copies_of(
    points: Points, near: Sequence[int], picks: Sequence[int], limit: float
) -> dict[int, list[int]]:
    """Return the near-copies of each pick; a candidate belongs to the first pick it resembles."""
    copies: dict[int, list[int]] = {pick: [] for pick in picks}
    for row in near:
        like = [pick for pick in picks if apart(points, row, pick) <= limit]
        if like and row not in copies:
            copies[like[0]].append(row)
    return copies


def select_different(
    points: Points, query: Floats, near: Sequence[int], parameters: EffectiveParameters
) -> tuple[list[tuple[int, float]], int, int, int]:
    """Return the picks with their values, the pool's size, the copies in it, and the fill-ups.

    `near` is the largest pool allowed. If too few candidates differ, the nearest near-copies fill
    up the answer, and the last returned number counts them.
    """
    assert parameters.duplicate_threshold is not None
    limit = copy_limit(points, parameters.duplicate_threshold)
    plain = is_plain(parameters)
    pool = min(parameters.candidates_limit or len(near), len(near))
    while True:
        distinct_rows = keep_different(points, near[:pool], limit)
        if plain:
            picks = [(row, far(points, query, row)) for row in distinct_rows[: parameters.k]]
        elif parameters.selector in {"greedy", "mmr"}:
            picks = greedy(points, query, distinct_rows, parameters, candidates=pool)
        else:
            picks = select(points, query, distinct_rows, parameters)
        pick_rows = [row for row, _ in picks]
        copies = sum(map(len, copies_of(points, near[:pool], pick_rows, limit).values()))
        if pool == len(near) or 4 * copies < pool:
            break
        pool = min(2 * pool, len(near))
    rest = [row for row in near[:pool] if row not in pick_rows][: parameters.k - len(pick_rows)]
    picks += [(row, far(points, query, row)) for row in rest]
    return picks, pool, copies, len(rest)


def is_plain(parameters: EffectiveParameters) -> bool:
    """Tell whether the selection depends on relevance alone."""
    is_printed = parameters.selector == "greedy" and parameters.variant == "printed"
    return parameters.selector == "nearest" or (parameters.diversity == 0 and not is_printed)


def answer(
    points: Points, query: Floats, parameters: EffectiveParameters, *, at_least: int = 0
) -> Answer:
    """Answer one query row from hashing to selection."""
    rows, probe_count = hashed(points, query, parameters, at_least=at_least)
    candidate_rows = candidates(points, query, rows, parameters)
    copies = duplicates = 0
    if parameters.duplicate_threshold is not None:
        widest = replace(parameters, candidates_limit=4 * parameters.candidates_limit)
        near = candidates(points, query, rows, widest)
        picks, pool, copies, duplicates = select_different(points, query, near, parameters)
        candidate_rows = near[:pool]
    elif is_plain(parameters):
        picks = [(row, far(points, query, row)) for row in candidate_rows[: parameters.k]]
    else:
        picks = select(points, query, candidate_rows, parameters)
    return Answer(
        ids=[int(points.ids[row]) for row, _ in picks],
        scores=[score(points, query, row) for row, _ in picks],
        selection_scores=[-value for _, value in picks],
        hashed_rows=rows,
        candidates=candidate_rows,
        probe_count=probe_count,
        copies=copies,
        duplicates=duplicates,
    )


def count_copies(
    points: Points, rows: Sequence[int], row: int, limit: float, error: float
) -> tuple[int, int]:
    """Return the least and the greatest number of points of `rows` that are near-copies of `row`.

    The two differ if distances differ from `limit` by at most `error`.
    """
    distances = [apart(points, row, other) for other in rows if other != row]
    return sum(d <= limit - error for d in distances), sum(d <= limit + error for d in distances)
