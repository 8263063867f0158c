"""Warnings about answers: fewer results than were asked for, and near-copies among them."""

import numpy as np
import numpy.typing as npt

from divgrpc.types import CountArray, QueryStats, WarningInfo


def too_few(
    field: str, wanted: int, there: int, counts: npt.NDArray[np.uint32]
) -> tuple[WarningInfo, ...]:
    """Return what is said where fewer were found than `wanted`, the value of `field`.

    The index has as many as are `there`; `counts` (nq,) were found.
    """
    # Of a row or two numpy would take longer; nearly every call has enough.
    short = [count for count in counts.tolist() if count < wanted]
    if not short:
        return ()
    upper, things = field.upper(), "labels" if field == "top_k" else "points"
    if wanted > there:
        sentence = f"{field} is {wanted} and the index has {there} {things}"
        return (WarningInfo(f"FEWER_THAN_{upper}_{things.upper()}", sentence, field),)
    sentence = f"{len(short)} of {len(counts)} rows have fewer than {wanted} results"
    return (WarningInfo(f"FEWER_THAN_{upper}_FOUND", sentence, field),)


def crowded(k: int, counts: CountArray, stats: QueryStats) -> tuple[WarningInfo, ...]:
    """Return what is said where near-copies fill up, as fewer than `k` candidates differ.

    `counts` (nq,) results were found; where they are fewer than `k`, nothing was left out for a
    near-copy.
    """
    duplicates = stats.duplicates.tolist()
    # Nearly every call has none.
    if not any(duplicates):
        return ()
    rows = sum(
        copies > 0 and count == k for copies, count in zip(duplicates, counts.tolist(), strict=True)
    )
    if not rows:
        return ()
    sentence = (
        f"{rows} of {len(duplicates)} rows have fewer than k = {k} results that differ, and"
        " near-copies fill them up; a larger candidates_limit and hash_limit look further"
    )
    return (WarningInfo("CANDIDATES_CROWDED", sentence, "candidates_limit"),)
