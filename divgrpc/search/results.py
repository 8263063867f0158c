"""One result from those of its parts: whoever cuts a batch into pieces puts it together again."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from divgrpc.parameters.warning_rules import crowded, too_few
from divgrpc.types import CountArray, LabelResult, QueryResult, QueryStats, WarningInfo

ResultT = TypeVar("ResultT", QueryResult, LabelResult)


def joined(parts: Sequence[ResultT]) -> ResultT:
    """Return the result of the rows of all parts, at least one, as if they had been asked at once.

    All must be of one generation and of the same parameters.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    stats = {
        field.name: np.concatenate([getattr(part.stats, field.name) for part in parts])
        for field in fields(QueryStats)
    }
    whole: dict[str, Any] = {"stats": QueryStats(**stats)}
    for field in fields(first):
        columns = [getattr(part, field.name) for part in parts]
        if isinstance(columns[0], np.ndarray):
            whole[field.name] = np.concatenate(columns)
    if isinstance(first, QueryResult) and len(first.collapsed_offsets):
        lengths = [np.diff(part.collapsed_offsets) for part in parts]
        whole["collapsed_offsets"] = np.concatenate(([0], np.cumsum(np.concatenate(lengths))))
    if isinstance(first, LabelResult):
        whole["names"] = tuple(chain.from_iterable(part.names for part in parts))
        asked = ("top_k", first.parameters.top_k)
    else:
        asked = ("k", first.parameters.k)
    whole["warnings"] = _warnings(parts, whole["counts"], *asked, whole["stats"])
    return replace(first, **whole)


def _warnings(
    parts: Sequence[ResultT], counts: CountArray, field: str, wanted: int, stats: QueryStats
) -> tuple[WarningInfo, ...]:
    found = {warning.code: warning for part in parts for warning in part.warnings}
    # These count rows, and each part counted its own.
    short_rows = too_few(field, wanted, wanted, counts)
    for short in short_rows + crowded(wanted, counts, stats):
        if found.pop(short.code, None):
            found[short.code] = short
    return tuple(found.values())
