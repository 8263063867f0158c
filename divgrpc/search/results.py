"""Joins the results of the parts of a batch into one result."""

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import accumulate, chain
from typing import Any, TypeVar

import numpy as np

from divgrpc.parameters.warning_rules import crowded, too_few
from divgrpc.types import CountArray, LabelResult, QueryResult, QueryStats, Report, WarningInfo

ResultT = TypeVar("ResultT", QueryResult, LabelResult)


def joined(parts: Sequence[ResultT]) -> ResultT:
    """Join the results of consecutive parts of a batch into one result.

    There must be at least one part, and all parts must have the same generation and parameters.
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
    if isinstance(first, QueryResult):
        whole["explanations"] = tuple(chain.from_iterable(part.explanations for part in parts))
        whole["report"] = _joined_report([part.report for part in parts if part.report])
        whole["payloads"] = tuple(chain.from_iterable(part.payloads for part in parts))
        whole["attributes"] = {
            name: tuple(chain.from_iterable(part.attributes[name] for part in parts))
            for name in first.attributes
        }
        whole |= _quota_fields(parts)
    whole["coverage"] = min(part.coverage for part in parts)
    missing = {shard for part in parts for shard in part.missing_shards}
    whole["missing_shards"] = tuple(sorted(missing))
    if isinstance(first, LabelResult):
        whole["names"] = tuple(chain.from_iterable(part.names for part in parts))
        limit = ("top_k", first.parameters.top_k)
    else:
        limit = ("k", first.parameters.k)
    whole["warnings"] = _warnings(parts, whole["counts"], *limit, whole["stats"])
    return replace(first, **whole)


def _joined_report(parts: Sequence[Report]) -> Report | None:
    if not parts:
        return None
    whole: dict[str, Any] = {}
    for field in fields(Report):
        columns = [getattr(part, field.name) for part in parts]
        if isinstance(columns[0], np.ndarray):
            whole[field.name] = np.concatenate(columns)
        else:
            whole[field.name] = {
                name: np.concatenate([column[name] for column in columns]) for name in columns[0]
            }
    return Report(**whole)


def _quota_fields(parts: Sequence[QueryResult]) -> dict[str, Any]:
    """Return the joined groups and shortfalls."""
    rows = [0, *accumulate(len(part.counts) for part in parts)]
    fields: dict[str, Any] = {
        "quota_shortfalls": tuple(
            replace(lack, row=lack.row + first)
            for part, first in zip(parts, rows, strict=False)
            for lack in part.quota_shortfalls
        )
    }
    if len(parts[0].group_counts):
        sizes = np.concatenate([np.diff(part.group_offsets) for part in parts])
        fields["group_offsets"] = np.concatenate(([0], np.cumsum(sizes)))
        fields["group_values"] = tuple(chain.from_iterable(part.group_values for part in parts))
    return fields


def _warnings(
    parts: Sequence[ResultT], counts: CountArray, field: str, k: int, stats: QueryStats
) -> tuple[WarningInfo, ...]:
    warnings = {warning.code: warning for part in parts for warning in part.warnings}
    # Each part counted only its own query rows in the messages of `too_few` and `crowded`.
    short_rows = too_few(field, k, k, counts)
    for short in short_rows + crowded(k, counts, stats):
        if warnings.pop(short.code, None):
            warnings[short.code] = short
    return tuple(warnings.values())
