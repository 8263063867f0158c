"""Prints results as JSON, one document per command, with null in place of NaN and infinity."""

import dataclasses
import json
import math
import sys
from typing import Any

import numpy as np

from divgrpc.types import LabelResult, QueryResult
from divgrpc_client.formats.json_lines import payload_value


def show(value: object) -> None:
    """Print a result."""
    sys.stdout.write(json.dumps(plain(value)) + "\n")


def show_or_write(value: object, text: str, *, as_json: bool) -> None:
    """Print a result as JSON or, unless `as_json`, a line of text about it."""
    if as_json:
        show(value)
    else:
        sys.stdout.write(f"{text}\n")


def plain(value: Any) -> Any:  # noqa: ANN401  # whatever a result holds
    """Return a value ready for JSON, with None for NaN and infinity, and lists for arrays."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_result(result: QueryResult | LabelResult, rows: range, *, has_pages: bool = False) -> None:
    """Print a result without padding; `rows` are the numbers of its rows in the file.

    `has_pages`: whether to print the token of the next page, which is empty after the last page.
    """
    names = ("points_passing", "sequence", "next_page_token", "report")
    passing, sequence, token, report = (getattr(result, name, None) for name in names)
    shortfalls = getattr(result, "quota_shortfalls", ())
    show(
        {
            "generation": result.generation,
            **({} if sequence is None else {"sequence": sequence}),
            "parameters": result.parameters,
            "warnings": result.warnings,
            **({} if passing is None else {"points_passing": passing}),
            **({"quota_shortfalls": shortfalls} if shortfalls else {}),
            **_partial_fields(result),
            **({"next_page_token": token} if has_pages else {}),
            "results": [{"row": row} | _entries(result, at) for at, row in enumerate(rows)],
            **({} if report is None else {"report": report}),
        }
    )


def _partial_fields(result: QueryResult | LabelResult) -> dict[str, object]:
    """Return what a result says about missing shards, if there were any."""
    if not result.missing_shards:
        return {}
    return {"coverage": result.coverage, "missing_shards": result.missing_shards}


def _entries(result: QueryResult | LabelResult, at: int) -> dict[str, object]:
    """Return the fields of row `at` of a result, with optional columns only if present."""
    count = int(result.counts[at])
    entries: dict[str, object] = {}
    if isinstance(result, LabelResult):
        entries["labels"] = result.labels[at, :count]
        if result.names:
            entries["names"] = result.names[at]
    else:
        entries["ids"] = result.ids[at, :count]
        if len(result.collapsed_offsets):
            entries["collapsed_ids"] = [result.collapsed(at, place) for place in range(count)]
        hits = result[at]
        if result.attributes:
            entries["attributes"] = [hit.attributes for hit in hits]
        if result.payloads:
            entries["payloads"] = [payload_value(hit.payload or b"") for hit in hits]
        if result.explanations:
            entries["explanation"] = result.explanations[at]
        if len(result.group_counts):
            entries["groups"] = [
                {"value": group.value, "size": len(group.hits)} for group in result.groups(at)
            ]
        for name, column in (
            ("duality_gap", result.duality_gaps),
            ("diversity", result.diversities),
            ("dial_reason", result.dial_reasons),
        ):
            if len(column):
                entries[name] = column[at]
    stats = {f.name: getattr(result.stats, f.name)[at] for f in dataclasses.fields(result.stats)}
    scores, selection_scores = result.scores[at, :count], result.selection_scores[at, :count]
    return entries | {"scores": scores, "selection_scores": selection_scores} | stats
