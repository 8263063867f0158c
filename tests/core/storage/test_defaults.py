"""Query defaults are set, stored with the index, read, and dropped with their generation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.errors import (
    BuildUnderWayError,
    IndexChangedError,
    IndexDamagedError,
    InvalidArgumentError,
)
from divgrpc.parameters import QueryOptions, QueryParameters, named_over_default, query_calls
from divgrpc.storage.generations import IndexFolder, staging, sweep
from divgrpc.types import QueryDefault
from support.data.served_index import random_points

DEFAULT = QueryDefault(
    diversity=0.8,
    selector="mmr",
    variant="corrected",
    rounding="top_k",
    search="exact",
    hash_limit=60,
    candidates_limit=30,
)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build(random_points(100), path=tmp_path / "kept")


def test_parameters_of_a_query_override_the_default(index: Index) -> None:
    index.set_default(DEFAULT)
    parameters = index.query(random_points(1)).parameters
    assert (parameters.diversity, parameters.selector, parameters.search) == (0.8, "mmr", "exact")
    assert (parameters.hash_limit, parameters.candidates_limit, parameters.k) == (60, 30, 10)
    result = index.query(random_points(1), diversity=0.3, search="scan", candidates_limit=40)
    parameters = result.parameters
    assert (parameters.diversity, parameters.selector, parameters.search) == (0.3, "mmr", "scan")
    assert (parameters.hash_limit, parameters.candidates_limit) == (60, 40)


@pytest.mark.parametrize(
    ("options", "hash_limit", "candidates_limit"),
    [
        ({}, 60, 30),
        ({"k": 30}, 60, 30),
        ({"k": 31}, 60, None),
        ({"k": np.int64(61)}, None, None),
        ({"epsilon": 0.5}, None, 30),
        ({"hash_limit": None}, None, 30),
        ({"hash_limit": 0, "k": 99}, 0, None),
    ],
)
def test_default_limits_that_conflict_with_a_query_are_ignored(
    options: dict[str, Any], hash_limit: int | None, candidates_limit: int | None
) -> None:
    """A default never makes a query invalid that would be valid without it."""
    parameters = named_over_default(options, DEFAULT)
    assert (parameters["hash_limit"], parameters["candidates_limit"]) == (
        hash_limit,
        candidates_limit,
    )
    assert named_over_default(options, None) == options


def test_the_default_is_stored_next_to_the_generation(index: Index, tmp_path: Path) -> None:
    """Every process that opens the index reads the default; no file of the generation changes."""
    folder = tmp_path / "kept"
    before = {path.name: path.read_bytes() for path in (folder / "1").iterdir()}
    stamp = IndexFolder(folder).pointer_stamp()
    index.set_default(DEFAULT)
    assert {path.name: path.read_bytes() for path in (folder / "1").iterdir()} == before
    assert IndexFolder(folder).pointer_stamp() != stamp
    assert sorted(path.name for path in folder.iterdir()) == ["1", "1.default.json", "CURRENT"]
    assert Index.open(folder).default == Index.open(folder / "1").default == DEFAULT
    assert IndexFolder(folder).read_info().query_default == DEFAULT
    index.set_default(replace(DEFAULT, hash_limit=None))
    assert Index.open(folder).info.query_default == replace(DEFAULT, hash_limit=None)
    index.set_default(None)
    assert Index.open(folder).default is index.default is None


def test_a_new_generation_has_no_default(index: Index, tmp_path: Path) -> None:
    """The old generation can no longer set a default."""
    index.set_default(DEFAULT)
    new_index = Index.build(random_points(100, seed=1), path=tmp_path / "kept", replace=True)
    assert new_index.default is None
    assert Index.open(tmp_path / "kept").default is None
    assert not list((tmp_path / "kept").glob("*.default.json"))
    with pytest.raises(IndexChangedError):
        index.set_default(DEFAULT)
    assert index.default == DEFAULT


def test_a_default_of_another_build_is_ignored(index: Index, tmp_path: Path) -> None:
    """A crash may leave the default of an earlier generation with the same number."""
    index.set_default(DEFAULT)
    text = (tmp_path / "kept" / "1.default.json").read_text()
    IndexFolder(tmp_path / "kept").delete()
    Index.build(random_points(100, seed=1), path=tmp_path / "kept")
    (tmp_path / "kept" / "1.default.json").write_text(text)
    assert Index.open(tmp_path / "kept").default is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("0.8", "0.9"),
        lambda text: text[:-9],
        lambda _: "[]",
        lambda _: json.dumps({"crc32": 0}),
        lambda text: text.replace("mmr", "nmr"),
    ],
)
def test_a_changed_default_file_is_damage(index: Index, tmp_path: Path, spoil: Any) -> None:  # noqa: ANN401  # a function
    index.set_default(DEFAULT)
    path = tmp_path / "kept" / "1.default.json"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(IndexDamagedError, match="default"):
        Index.open(tmp_path / "kept")


@pytest.mark.parametrize("thresholds", [{"embeding": 0.5}, {"embedding": float("inf")}])
def test_a_wrong_threshold_is_damage(
    thresholds: dict[str, float], index: Index, tmp_path: Path
) -> None:
    """A threshold must be finite and belong to a mode that exists."""
    text = json.dumps({"manifest": 0, "thresholds": thresholds, "crc32": 0})
    (tmp_path / "kept" / "1.default.json").write_text(text)
    with pytest.raises(IndexDamagedError, match="cannot be read"):
        Index.open(tmp_path / "kept")
    assert index.default is None


def test_left_over_default_files_are_swept(index: Index, tmp_path: Path) -> None:
    index.set_default(DEFAULT)
    for name in ("1.default.json.new", "7.default.json"):
        (tmp_path / "kept" / name).write_text("")
    sweep(tmp_path)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "1",
        "1.default.json",
        "CURRENT",
    ]


def test_no_default_is_set_during_a_build(index: Index, tmp_path: Path) -> None:
    """A default set during a build would be lost, because the new generation drops it."""
    with staging(tmp_path / "kept", replace=True), pytest.raises(BuildUnderWayError):
        index.set_default(DEFAULT)


def test_an_index_in_memory_has_a_default() -> None:
    index = Index.build(random_points(50))
    index.set_default(DEFAULT)
    assert index.query(random_points(1)).parameters.selector == "mmr"
    assert index.info.query_default == DEFAULT


def test_a_new_default_applies_to_calls_that_were_made_before() -> None:
    index, query = Index.build(random_points(50)), random_points(1)
    selectors = []
    for default in (None, DEFAULT, replace(DEFAULT, selector="greedy"), None):
        index.set_default(default)
        selectors.append(index.query(query, k=5).parameters.selector)
    assert selectors == ["greedy", "mmr", "greedy", "greedy"]


def test_repeated_calls_are_checked_by_type_too() -> None:
    """True and 1.0 equal 1, but only 1 is a number of results."""
    index, query = Index.build(random_points(50)), random_points(1)
    assert index.query(query, k=1).counts.tolist() == [1]
    for k in (True, [1], "1"):
        with pytest.raises(InvalidArgumentError):
            index.query(query, k=cast(int, k))
    assert index.query(query, k=cast(int, np.array(2))).counts.tolist() == [2]


def test_a_default_that_another_thread_sets_is_cached_for_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, query = Index.build(random_points(50)), random_points(1)

    def check(options: QueryOptions, default: QueryDefault | None) -> QueryParameters:
        index.set_default(DEFAULT)
        return check_options(options, default)

    check_options = query_calls._check_options
    monkeypatch.setattr(query_calls, "_check_options", check)
    assert index.query(query, k=3).parameters.selector == "greedy"
    index.set_default(None)
    assert index.query(query, k=3).parameters.selector == "greedy"
    index.set_default(DEFAULT)
    assert index.query(query, k=3).parameters.selector == "mmr"


def test_the_cache_of_parameters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_calls, "_CACHED_PARAMETERS_MAX", 3)
    index, query = Index.build(random_points(50)), random_points(1)
    for seed in range(10):
        assert index.query(query, seed=seed).parameters.seed == seed
        assert len(index._parameters._cached) <= 3
