"""Evaluations as CSV and as tables: columns, figures that do not apply, and sizes."""

import csv
import io
import math
from dataclasses import replace

import pytest

from divgrpc.evaluation import METRICS
from divgrpc.types import EffectiveLabelParameters, EvaluateLabelRow, Interval, Microseconds
from divgrpc_client.formats import evaluation_tables, tables
from divgrpc_client.formats.evaluation_tables import Row
from support.data.evaluation_rows import made_rows, without_h

FIGURE, NO_FIGURE = Interval(0.5, 0.4, 0.6), Interval(*[math.nan] * 3)
LABEL_ROW = EvaluateLabelRow(
    number=0,
    generation=3,
    search="auto",
    parameters=EffectiveLabelParameters(
        top_k=2,
        threshold=None,
        mode="embedding",
        neighbours=0,
        vote="plain",
        diversity=0.1,
        selector="greedy",
        search="tables",
        hash_limit=800,
        candidates_limit=200,
        seed=7,
    ),
    goal="f_score",
    metrics={"precision": FIGURE, "h_score": NO_FIGURE},
    precision_at=(FIGURE, NO_FIGURE),
    recall_at=(FIGURE, FIGURE),
    ndcg_at=(FIGURE, FIGURE),
    propensity_scored_at=(),
    coverage_at=(0.25, math.nan),
    h_of_means=math.nan,
    microseconds=Microseconds(1.0, 2.0, 3.0, 4.0),
    documents=4,
    empty=0,
    short=1,
    scored=20.0,
    by_fold=(1, 2),
)
# A script may take columns by their places, so a new column goes to the end.
QUERY_HEADS = (
    "number generation search selector variant rounding k diversity hash_limit candidates_limit "
    "METRICS h_of_means microseconds_mean microseconds_p50 microseconds_p90 microseconds_p99 "
    "queries empty short on_front is_default by_fold max_distance sampling seed n_probes "
    "duplicate_threshold list_collapsed diversity_auto lose_at_most epsilon"
)
LABEL_HEADS = (
    "number generation search mode selector top_k threshold diversity hash_limit candidates_limit "
    "neighbours vote METRICS precision_at recall_at ndcg_at propensity_scored_at coverage_at "
    "h_of_means goal microseconds_mean microseconds_p50 microseconds_p90 microseconds_p99 "
    "documents empty short scored on_front is_default by_fold seed n_probes"
)


@pytest.mark.parametrize(
    ("row", "metrics", "heads"),
    [(made_rows()[0], METRICS, QUERY_HEADS), (LABEL_ROW, ("precision", "h_score"), LABEL_HEADS)],
    ids=["queries", "labels"],
)
def test_columns_of_csv_keep_their_order(
    capsys: pytest.CaptureFixture[str], row: Row, metrics: tuple[str, ...], heads: str
) -> None:
    evaluation_tables.show_csv([row])
    columns = " ".join(f"{name} {name}_low {name}_high" for name in metrics)
    expected = heads.replace("METRICS", columns).split()
    assert capsys.readouterr().out.splitlines()[0].split(",") == expected


def test_a_table_shows_parameters_of_the_search_that_vary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An exact search has no probes, which is no second value."""
    rows = made_rows(selectors=("nearest",), ks=(10,))
    assert evaluation_tables.varied(rows) == ()
    in_tables = rows[1]
    parameters = replace(in_tables.parameters, n_probes=20, sampling="nearest")
    more = replace(in_tables, number=5, epsilon=0.5, parameters=parameters)
    assert evaluation_tables.varied([*rows, more]) == ("epsilon", "probes", "sampling")
    evaluation_tables.show([*rows, more])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[3:9] == ["search", "limits", "epsilon", "probes", "sampling", "k"]
    expected = ["tables", "800/200", "0.5", "20", "nearest", "10"]
    assert expected in [line.split()[2:8] for line in lines]


def test_the_new_default_has_a_table_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    rows = made_rows(("greedy",), ("exact",), (10,))
    evaluation_tables.show([*rows, replace(rows[-1], number=4, is_default=True)])
    settings, choices, default = capsys.readouterr().out.split("\n\n")
    assert [part.count("greedy") for part in (settings, choices)] == [3, 1]
    assert "chosen anew for each fold" in default
    assert "the default for Query is now" not in default  # rows do not tell which limits are stored


def test_one_group_has_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = made_rows(("greedy",), ("exact",), (10,), choices=False)[:1]
    evaluation_tables.show([row])
    assert "no interval" not in capsys.readouterr().out
    h = row.metrics["h_score"].value
    evaluation_tables.show(
        [replace(row, metrics={**row.metrics, "h_score": Interval(h, math.nan, math.nan)})]
    )
    sentence = "one group of queries with h: no interval, and nothing is chosen by folds"
    assert sentence in capsys.readouterr().out
    evaluation_tables.show([without_h(row)])
    assert "no interval" not in capsys.readouterr().out


def test_figures_that_do_not_apply(capsys: pytest.CaptureFixture[str]) -> None:
    """Their cells are empty. In lists they are nan, so that other figures keep their places."""
    evaluation_tables.show_csv([LABEL_ROW])
    line = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [line[name] for name in ("h_score", "h_of_means", "propensity_scored_at")] == [""] * 3
    assert (line["precision_at"], line["coverage_at"]) == ("0.5 nan", "0.25 nan")
    assert line["by_fold"] == "1 2"
    evaluation_tables.show_csv([without_h(made_rows()[0])])
    line = next(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert line["h_score_low"] == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_500_000, "1.4 MiB")),
        *((3 * 2**30, "3.0 GiB"), (2**50, "1024.0 TiB")),
    ],
)
def test_sizes_have_binary_units(count: int, text: str) -> None:
    assert tables.size(count) == text
