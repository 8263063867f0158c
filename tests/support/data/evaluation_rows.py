"""Rows of evaluations: synthetic rows for tests of reports, and a comparison of rows."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from divgrpc.evaluation import METRICS
from divgrpc.types import (
    EffectiveParameters,
    EvaluateLabelRow,
    EvaluateRow,
    Interval,
    Microseconds,
    Search,
    Selector,
)

DIVERSITIES = (0.1, 0.5, 0.9)


def made_rows(
    selectors: Sequence[Selector] = ("nearest", "greedy", "mmr"),
    searches: Sequence[Search] = ("exact", "tables"),
    ks: Sequence[int] = (10, 20),
    *,
    choices: bool = True,
) -> list[EvaluateRow]:
    """Return a row for each setting and, if `choices`, a choice per k, selector and search."""
    rows: list[EvaluateRow] = []
    choice_rows: list[EvaluateRow] = []
    for k in ks:
        for search in searches:
            for selector in selectors:
                dials = (0.0,) if selector == "nearest" else DIVERSITIES
                dial_rows = []
                for dial in dials:
                    dial_rows.append(made_row(len(rows), selector, search, k, dial))
                    rows.append(dial_rows[-1])
                choice_rows.append(
                    replace(dial_rows[-1], by_fold=(dial_rows[0].number,) * 5, on_front=False)
                )
    if choices:
        rows += [replace(row, number=len(rows) + n) for n, row in enumerate(choice_rows)]
    return rows


def made_row(
    number: int, selector: Selector, search: Search, k: int, diversity: float
) -> EvaluateRow:
    """Return a row with random metrics that depend only on `number`."""
    draws = np.random.default_rng(number).uniform(0.2, 0.9, len(METRICS))
    return EvaluateRow(
        number=number,
        generation=3,
        search=search,
        parameters=EffectiveParameters(
            k=k,
            diversity=diversity,
            selector=selector,
            variant="corrected",
            search=search,
            hash_limit=0 if search == "exact" else 800,
            candidates_limit=0 if search == "exact" else 200,
            max_distance=None,
            sampling="uniform",
            seed=0,
            rounding="exchange",
            n_probes=8 if search == "tables" else 0,
        ),
        metrics={
            name: Interval(value, value - 0.1, value + 0.1)
            for name, value in zip(METRICS, draws.tolist(), strict=True)
        },
        h_of_means=0.5,
        microseconds=Microseconds(*(20.0 * (number + 1) * factor for factor in (1, 1, 2, 3))),
        queries=40,
        empty=number % 2,
        short=number % 3,
        on_front=number % 4 == 0,
    )


def without_h(row: EvaluateRow) -> EvaluateRow:
    """Return the row with NaN for D and h, as if its queries found nothing relevant."""
    nan_metrics = dict.fromkeys(("normalised_entropy", "h_score"), Interval(*[math.nan] * 3))
    return replace(row, metrics={**row.metrics, **nan_metrics})


# Fields that are not compared: measured times, values that depend on times, and fields that are
# compared separately below.
_BY_RANK = ("precision_at", "recall_at", "ndcg_at", "propensity_scored_at", "coverage_at")
_WITH_NAN = ("h_of_means", "labels", *_BY_RANK)
_NOT_COMPARED = {"microseconds", "on_front", "metrics", "values", *_WITH_NAN}


def assert_same_rows(
    wire: Sequence[EvaluateRow | EvaluateLabelRow], core: Sequence[EvaluateRow | EvaluateLabelRow]
) -> None:
    """Compare all fields except measured times and values that depend on them."""
    assert len(wire) == len(core)
    for wire_row, core_row in zip(wire, core, strict=True):
        for name in {field.name for field in fields(wire_row)} - _NOT_COMPARED:
            assert getattr(wire_row, name) == getattr(core_row, name), name
        for name in ("metrics", "values"):
            columns, expected = getattr(wire_row, name), getattr(core_row, name)
            assert list(columns) == list(expected)
            for column in set(columns) - {"microseconds"}:
                np.testing.assert_array_equal(columns[column], expected[column])
        for name in _WITH_NAN:
            assert hasattr(wire_row, name) == hasattr(core_row, name)
            np.testing.assert_array_equal(getattr(wire_row, name, 0), getattr(core_row, name, 0))
        assert wire_row.microseconds.p50 > 0
