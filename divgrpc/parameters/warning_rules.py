"""Warnings about answers: fewer results than were asked for, and near-copies among them."""

import numpy as np
import numpy.typing as npt

from divgrpc.types import CountArray, QueryStats, WarningInfo


def limits_equal_k(
    k: int, hash_limit: int | None, candidates_limit: int | None
) -> tuple[WarningInfo, ...]:
    """Return what is said of limits that leave a selector nothing to choose from."""
    # Nearly every call has none.
    if k not in (hash_limit, candidates_limit):
        return ()
    return tuple(
        WarningInfo(
            f"{field.upper()}_EQUALS_K",
            f"{field} equals k, so the selector has nothing to choose from",
            field,
        )
        for field, value in (("hash_limit", hash_limit), ("candidates_limit", candidates_limit))
        if value == k
    )


def too_few(
    field: str, requested: int, there: int, counts: npt.NDArray[np.uint32]
) -> tuple[WarningInfo, ...]:
    """Return what is said where fewer were found than `wanted`, the value of `field`.

    The index has as many as are `there`; `counts` (nq,) were found.
    """
    # Of a row or two numpy would take longer; nearly every call has enough.
    short = [count for count in counts.tolist() if count < requested]
    if not short:
        return ()
    upper, things = field.upper(), "labels" if field == "top_k" else "points"
    if requested > there:
        sentence = f"{field} is {requested} and the index has {there} {things}"
        return (WarningInfo(f"FEWER_THAN_{upper}_{things.upper()}", sentence, field),)
    sentence = f"{len(short)} of {len(counts)} rows have fewer than {requested} results"
    return (WarningInfo(f"FEWER_THAN_{upper}_FOUND", sentence, field),)


def crowded(k: int, counts: CountArray, stats: QueryStats) -> tuple[WarningInfo, ...]:
    """Return what is said where near-copies crowd the candidates.

    That is where near-copies fill up, as fewer than `k` candidates differ, or where half of the
    candidates are near-copies of results. `counts` (nq,) results were found; where they are fewer
    than `k`, nothing was left out for a near-copy.
    """
    duplicates = stats.duplicates.tolist()
    columns = zip(
        duplicates,
        stats.collapsed.tolist(),
        stats.candidates.tolist(),
        counts.tolist(),
        strict=True,
    )
    filled = halved = 0
    for fillers, copies, candidates, count in columns:
        if count == k:
            filled += fillers > 0
            halved += not fillers and 0 < candidates <= 2 * copies
    if not filled and not halved:
        return ()
    if filled:
        trouble = f"{filled} of {len(duplicates)} rows have fewer than k = {k} results that differ,"
        trouble += " and near-copies fill them up"
    else:
        trouble = f"half of the candidates of {halved} of {len(duplicates)} rows are near-copies of"
        trouble += " results"
    cure = (
        "a larger candidates_limit and hash_limit look further; where these points are no copies,"
        " name another duplicate_threshold, or keep_duplicates"
    )
    return (WarningInfo("CANDIDATES_CROWDED", f"{trouble}; {cure}", "candidates_limit"),)


def not_collapsed(field: str, most: int) -> WarningInfo:
    """Return what is said where there are too many candidates to find near-copies among them."""
    sentence = (
        f"near-copies are not collapsed among more than {most} candidates by this selector: a"
        " smaller candidates_limit collapses them"
    )
    return WarningInfo("NEAR_COPIES_KEPT", sentence, field)
