"""Results as JSON, one document per command; NaN, which JSON lacks, is never in them."""

import dataclasses
import json
import sys

import numpy as np

from divgrpc.types import LabelResult, QueryResult


def show(value: object) -> None:
    """Print a result."""
    sys.stdout.write(json.dumps(value, default=_plain) + "\n")


def show_result(result: QueryResult, rows: range) -> None:
    """Print the results of some rows of a file; a row has as many entries as were found."""
    show(
        {
            "generation": result.generation,
            "parameters": result.parameters,
            "warnings": result.warnings,
            "results": [_row(result, position, row) for position, row in enumerate(rows)],
        }
    )


def show_labels(result: LabelResult, rows: range) -> None:
    """Print the labels of some documents of a file, as `show_result` does."""
    show(
        {
            "generation": result.generation,
            "parameters": result.parameters,
            "warnings": result.warnings,
            "results": [
                {
                    "row": row,
                    "labels": result.labels[position, : result.counts[position]],
                    **({"names": result.names[position]} if result.names else {}),
                    **_found(result, position),
                }
                for position, row in enumerate(rows)
            ],
        }
    )


def _found(result: QueryResult | LabelResult, position: int) -> dict[str, object]:
    count = int(result.counts[position])
    stats = result.stats
    return {
        "scores": result.scores[position, :count],
        "selection_scores": result.selection_scores[position, :count],
        **{field.name: getattr(stats, field.name)[position] for field in dataclasses.fields(stats)},
    }


def _row(result: QueryResult, position: int, row: int) -> dict[str, object]:
    return {
        "row": row,
        "ids": result.ids[position, : result.counts[position]],
        **_found(result, position),
        **_copies(result, position),
        **({"duality_gap": result.duality_gaps[position]} if len(result.duality_gaps) else {}),
        **_dial(result, position),
    }


def _copies(result: QueryResult, position: int) -> dict[str, object]:
    """Return the near-copies of each result of a row, where the query asked for them."""
    if not len(result.collapsed_offsets):
        return {}
    places = range(int(result.counts[position]))
    return {"collapsed_ids": [result.collapsed(position, place) for place in places]}


def _dial(result: QueryResult, position: int) -> dict[str, object]:
    if not len(result.diversities):
        return {}
    return {
        "diversity": result.diversities[position],
        "dial_reason": result.dial_reasons[position],
    }


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} is no JSON")
