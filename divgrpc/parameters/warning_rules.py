"""Warnings about parameters and results that are valid but may be unexpected."""

from divgrpc.types import CountArray, QueryStats, WarningInfo


def too_few(
    field: str, limit: int, available: int, counts: CountArray, *, filtered: bool = False
) -> tuple[WarningInfo, ...]:
    """Return a warning if some rows have fewer than `limit` results.

    field: the parameter that sets `limit`, k or top_k.
    available: number of points or labels that the index has.
    counts: (nq,) number of results of each row.
    filtered: whether `available` counts the points that pass a filter.
    """
    # Use a list, because it is faster than numpy for one or two rows.
    short = [count for count in counts.tolist() if count < limit]
    if not short:
        return ()
    upper, noun = field.upper(), "labels" if field == "top_k" else "points"
    if limit > available:
        sentence = f"{field} is {limit} and the index has {available} {noun}"
        if filtered:
            sentence = f"{field} is {limit} and {available} {noun} pass the filter"
        return (WarningInfo(f"FEWER_THAN_{upper}_{noun.upper()}", sentence, field),)
    sentence = f"{len(short)} of {len(counts)} rows have fewer than {limit} results"
    return (WarningInfo(f"FEWER_THAN_{upper}_FOUND", sentence, field),)


def crowded(k: int, counts: CountArray, stats: QueryStats) -> tuple[WarningInfo, ...]:
    """Return a warning if many candidates of some rows are near-copies.

    The warning is about rows whose results include near-copies, because the row has fewer than `k`
    distinct candidates. If there are none, it is about rows in which at least half of the
    candidates are near-copies of results. Rows with fewer than `k` results do not count. `counts`
    (nq,) is the number of results of each row.
    """
    columns = (counts, stats.duplicates, stats.collapsed, stats.candidates)
    filled_rows = half_rows = 0
    for count, fillers, copies, candidates in zip(*(c.tolist() for c in columns), strict=True):
        if count == k:
            filled_rows += fillers > 0
            half_rows += not fillers and 0 < candidates <= 2 * copies
    if not filled_rows and not half_rows:
        return ()
    rows = f"{filled_rows or half_rows} of {len(counts)} rows"
    cause = f"half of the candidates of {rows} are near-copies of results"
    if filled_rows:
        cause = f"{rows} have fewer than k = {k} results that differ, and near-copies fill them up"
    remedy = (
        "a larger candidates_limit and hash_limit look further; where these points are no copies,"
        " name another duplicate_threshold, or keep_duplicates"
    )
    return (WarningInfo("CANDIDATES_CROWDED", f"{cause}; {remedy}", "candidates_limit"),)


def absent_columns(*, no_attributes: bool, no_payloads: bool) -> tuple[WarningInfo, ...]:
    """Warn that a query asks for attributes or payloads, which no point of the index has."""
    warnings: tuple[WarningInfo, ...] = ()
    if no_attributes:
        sentence = "the index has no attributes: give attributes to Build"
        warnings += (WarningInfo("NO_ATTRIBUTES", sentence, "with_attributes"),)
    if no_payloads:
        sentence = "the index has no payloads: give payloads to Build"
        warnings += (WarningInfo("NO_PAYLOADS", sentence, "with_payload"),)
    return warnings


def stale_label_model() -> WarningInfo:
    """Return the warning that points were written after the label model was trained."""
    sentence = (
        "points were written or deleted since the label model was trained: a retraining trains it"
        " anew, and the mode neighbour_vote uses all points"
    )
    return WarningInfo("LABEL_MODEL_STALE", sentence, "mode")


def not_collapsed(most: int) -> WarningInfo:
    """Return the warning that near-copies were not collapsed, because of too many candidates.

    `most` is the maximum number of candidates that this selector can compare with one another.
    """
    sentence = (
        f"near-copies are not collapsed among more than {most} candidates by this selector: a"
        " smaller candidates_limit collapses them"
    )
    return WarningInfo("NEAR_COPIES_KEPT", sentence, "candidates_limit")


def pool_grown(size: int) -> WarningInfo:
    """Return the warning that a page has a greater pool than the page before."""
    sentence = (
        f"the pool has grown to {size} candidates, because the pages have shown much of it: from"
        " here on, the pages may differ from one long list"
    )
    return WarningInfo("PAGE_POOL_GROWN", sentence, "page_token")


def index_changed(before: tuple[int, int], now: tuple[int, int], deleted: int) -> WarningInfo:
    """Return the warning that the index has changed since page 1.

    before, now: generation and number of the last write. `deleted`: number of points that were
    shown and have been deleted since.
    """
    versions = [
        f"write {sequence} of generation {generation}" for generation, sequence in (before, now)
    ]
    sentence = (
        f"the index has changed since page 1, from {versions[0]} to {versions[1]}; {deleted} of the"
        " points shown were deleted since, and stay left out if they are written again"
    )
    return WarningInfo("CURSOR_MOVED", sentence, "page_token")


def pages_end_early(size: int, unit: str) -> WarningInfo:
    """Return the warning that the pages end although other points could follow."""
    sentence = (
        f"the pages end at {size} {unit}, the most that this query can handle: keep_duplicates or a"
        " filter may show further points"
    )
    return WarningInfo("PAGES_END_EARLY", sentence, "page_token")


def already_shown_unknown(unknown: int, ids: int) -> WarningInfo:
    """Return the warning that some ids of `already_shown` are those of no point."""
    sentence = f"{unknown} of {ids} ids are no ids of the index, and have no effect"
    return WarningInfo("ALREADY_SHOWN_UNKNOWN", sentence, "already_shown")
