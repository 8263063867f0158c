"""Results as lists of hits: their contents, their `repr` and their conversion to pandas."""

import builtins
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.types import (
    EffectiveLabelParameters,
    LabelResult,
    QueryResult,
    QueryStats,
)
from divgrpc.types.hits import Hit, LabelHit

PARAMETERS = QueryParameters(k=4, diversity=0.3, search="scan").resolve(10**6, "scan")
LABEL_PARAMETERS = EffectiveLabelParameters(
    top_k=4,
    threshold=None,
    mode="embedding",
    neighbours=0,
    vote="weighted",
    diversity=0.5,
    selector="mmr",
    search="exact",
    hash_limit=0,
    candidates_limit=0,
    seed=0,
)


def columns(counts: list[int], k: int = 4) -> dict[str, Any]:
    """Return columns with these numbers of hits, padded as the engine pads them."""
    rows, mask = len(counts), np.arange(k) < np.array(counts, int).reshape(-1, 1)
    numbers = np.arange(rows * k).reshape(rows, k)
    zeros = np.zeros(rows, np.uint32)
    return {
        "keys": np.where(mask, numbers, -1),
        "scores": np.where(mask, 1 - numbers / 1024, np.nan).astype(np.float32),
        "selection_scores": np.where(mask, numbers / 512, np.nan).astype(np.float32),
        "counts": np.array(counts, np.uint32),
        "generation": 1,
        "stats": QueryStats(*[zeros] * 6),
    }


def result(counts: list[int]) -> QueryResult:
    """Return a result with these numbers of hits, row by row."""
    fields = columns(counts)
    return QueryResult(ids=fields.pop("keys"), parameters=PARAMETERS, **fields)


def labels(counts: list[int], names: tuple[tuple[str, ...], ...] = ()) -> LabelResult:
    """Return a label result with these numbers of labels, document by document."""
    fields = columns(counts)
    return LabelResult(
        labels=fields.pop("keys"), parameters=LABEL_PARAMETERS, names=names, **fields
    )


@given(st.lists(st.integers(0, 4), max_size=6))
def test_rows_equal_the_columns_of_the_result(counts: list[int]) -> None:
    rows = result(counts)
    assert len(rows) == len(counts) == len(list(rows))
    for number, hits in enumerate(rows):
        assert hits == rows[number - len(rows)]
        assert len(hits) == counts[number]
        for place, hit in enumerate(hits):
            assert hit.id == rows.ids[number, place] >= 0
            assert hit.score == rows.scores[number, place]
            assert hit.selection_score == rows.selection_scores[number, place]
            assert hit.rank == place + 1


def test_rows_are_indexed_like_a_list() -> None:
    """Hits hold plain Python numbers, so that they can be written as JSON."""
    rows = result([1, 0, 2])
    assert rows[2] == (Hit(8, 1 - 8 / 1024, 1, 8 / 512), Hit(9, 1 - 9 / 1024, 2, 9 / 512))
    assert [type(value) for value in rows[0][0][:4]] == [int, float, int, float]
    assert rows[0][0][4:] == (None, None)
    assert rows[0:2] == [rows[0], rows[1]]
    assert rows[::-1] == list(rows)[::-1]
    assert rows[3:9] == []
    for row in (3, -4):
        with pytest.raises(IndexError, match=f"no row {row}: the result has 3 rows"):
            rows[row]


def test_labels_have_names_if_the_index_has_names() -> None:
    label_result = labels([1, 2], (("cats",), ("dogs", "birds")))
    assert [[hit.name for hit in row] for row in label_result] == [["cats"], ["dogs", "birds"]]
    assert label_result[1][1] == LabelHit(5, "birds", 1 - 5 / 1024, 2, 5 / 512)
    assert [hit.name for hit in labels([2])[0]] == [None, None]


def test_repr_of_a_result_has_a_few_lines() -> None:
    lines = repr(result([4] * 9_000)).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("QueryResult: 9,000 rows, 36,000 hits;")
    assert lines[-1] == "  ..."
    assert repr(result([3, 0])) == (
        "QueryResult: 2 rows, 3 hits; greedy at diversity 0.3, scan search\n"
        "  [0] 0 (1), 1 (0.999), 2 (0.998)\n"
        "  [1] no hits"
    )
    assert repr(labels([1], (("cats",),))) == (
        "LabelResult: 1 row, 1 hits; mmr at diversity 0.5, exact search\n  [0] 0 'cats' (1)"
    )


@pytest.mark.parametrize(
    ("dial", "words"),
    [
        ({"diversity_auto": True}, "greedy at diversity auto (0.25 to 0.5), scan search"),
        ({"lose_at_most": 0.05}, "greedy at diversity by lose_at_most 0.05 (0.25 to 0.5), scan"),
    ],
)
def test_diversities_of_rows_print_as_a_range(dial: dict[str, Any], words: str) -> None:
    """If rows have their own diversities, `repr` shows the requested one and the range."""
    parameters = replace(PARAMETERS, diversity=0.0, **dial)
    three = replace(result([2, 2, 2]), parameters=parameters)
    assert words in repr(replace(three, diversities=np.array([0.5, 0.25, 0.375])))
    assert words.replace("0.25 to 0.5", "0.5") in repr(replace(three, diversities=np.full(3, 0.5)))
    empty_result = replace(result([]), parameters=parameters)
    assert words.replace(" (0.25 to 0.5)", "") in repr(empty_result)


def test_repr_of_statistics_shows_ranges() -> None:
    numbers = np.array([200, 1_000], np.uint32)
    stats = QueryStats(numbers, numbers, numbers, numbers, numbers // 200, np.zeros(2, np.uint32))
    assert repr(stats) == (
        "QueryStats: 2 rows; points_hashed 200 to 1,000, buckets_probed 200 to 1,000, "
        "points_scored 200 to 1,000, candidates 200 to 1,000, collapsed 1 to 5, duplicates 0"
    )
    assert repr(result([]).stats) == "QueryStats: 0 rows"


def test_repr_of_index_info_is_short(tmp_path: Path) -> None:
    info = Index.build(np.eye(12), path=tmp_path / "points", hash_family="lsh_div").info
    size = sum(array.bytes for array in info.arrays)
    assert repr(info) == (
        "IndexInfo: 'points', generation 1, 12 points x 12 dims, cosine, lsh_div\n"
        f"  auto search {info.auto_search}, duplicate_threshold {info.duplicate_threshold:.9g}, "
        f"{size:,} bytes in {len(info.arrays)} arrays"
    )


class StandIn(ModuleType):
    """A stand-in for pandas with the functions that `to_pandas` calls."""

    @staticmethod
    def DataFrame(lines: list[tuple[object, ...]], columns: list[str]) -> Any:  # noqa: ANN401, N802  # as pandas spells it
        """Return the arguments."""
        return lines, columns


def test_to_pandas_has_one_row_per_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", StandIn("pandas"))
    frame: Any = result([1, 0, 1]).to_pandas()
    assert frame == (
        [(0, 0, 1.0, 1, 0.0), (2, 8, 1 - 8 / 1024, 1, 8 / 512)],
        ["row", "id", "score", "rank", "selection_score"],
    )
    frame = labels([1]).to_pandas()
    assert frame == (
        [(0, 0, None, 1.0, 1, 0.0)],
        ["row", "label", "name", "score", "rank", "selection_score"],
    )


def test_to_pandas_returns_a_data_frame() -> None:
    pytest.importorskip("pandas", reason="missing extra: pandas")
    frame = result([2, 1]).to_pandas()
    assert frame.shape == (3, 5)
    assert frame["rank"].tolist() == [1, 2, 1]


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:  # noqa: ANN401  # as the builtin
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
        result([1]).to_pandas()
