"""What Query takes where its caller names nothing: set, kept, read, lost with its generation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.errors import BuildUnderWayError, IndexChangedError, IndexDamagedError
from divgrpc.parameters import named_over_default
from divgrpc.storage.generations import IndexFolder, staging, sweep
from divgrpc.types import QueryDefault
from support.served_index import random_points

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
    """Return an index in a folder."""
    return Index.build(random_points(100), path=tmp_path / "kept")


def test_what_is_named_goes_before(index: Index) -> None:
    """The default stands in for every parameter of its own that a query does not name."""
    index.set_default(DEFAULT)
    used = index.query(random_points(1)).parameters
    assert (used.diversity, used.selector, used.search) == (0.8, "mmr", "exact")
    assert (used.hash_limit, used.candidates_limit, used.k) == (60, 30, 10)
    named = index.query(random_points(1), diversity=0.3, search="scan", candidates_limit=40)
    used = named.parameters
    assert (used.diversity, used.selector, used.search) == (0.3, "mmr", "scan")
    assert (used.hash_limit, used.candidates_limit) == (60, 40)


@pytest.mark.parametrize(
    ("named", "hash_limit", "candidates_limit"),
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
def test_limits_give_way(
    named: dict[str, Any], hash_limit: int | None, candidates_limit: int | None
) -> None:
    """A default never makes an error of a query that is right without it."""
    told = named_over_default(named, DEFAULT)
    assert (told["hash_limit"], told["candidates_limit"]) == (hash_limit, candidates_limit)
    assert named_over_default(named, None) == named


def test_it_is_kept_beside_the_generation(index: Index, tmp_path: Path) -> None:
    """Whoever opens the index has it, and no file of the generation has changed."""
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


def test_a_new_generation_begins_without(index: Index, tmp_path: Path) -> None:
    """A rebuild drops the default and its file, and the old generation can set none any more."""
    index.set_default(DEFAULT)
    built = Index.build(random_points(100, seed=1), path=tmp_path / "kept", replace=True)
    assert built.default is None
    assert Index.open(tmp_path / "kept").default is None
    assert not list((tmp_path / "kept").glob("*.default.json"))
    with pytest.raises(IndexChangedError):
        index.set_default(DEFAULT)
    assert index.default == DEFAULT


def test_one_of_another_build_is_nobodys(index: Index, tmp_path: Path) -> None:
    """A default that a crash left, of a generation of the same number, is not taken."""
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
def test_damage_is_told(index: Index, tmp_path: Path, spoil: Any) -> None:  # noqa: ANN401  # a function
    """A changed digit is damage, not another answer."""
    index.set_default(DEFAULT)
    path = tmp_path / "kept" / "1.default.json"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(IndexDamagedError, match="default"):
        Index.open(tmp_path / "kept")


def test_leftovers_are_swept(index: Index, tmp_path: Path) -> None:
    index.set_default(DEFAULT)
    for name in ("1.default.json.new", "7.default.json"):
        (tmp_path / "kept" / name).write_text("")
    sweep(tmp_path)
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "1",
        "1.default.json",
        "CURRENT",
    ]


def test_a_build_under_way_comes_first(index: Index, tmp_path: Path) -> None:
    """While a build holds the index no default is set: it would be lost a moment later."""
    with staging(tmp_path / "kept", replace=True), pytest.raises(BuildUnderWayError):
        index.set_default(DEFAULT)


def test_memory_has_defaults_too() -> None:
    index = Index.build(random_points(50))
    index.set_default(DEFAULT)
    assert index.query(random_points(1)).parameters.selector == "mmr"
    assert index.info.query_default == DEFAULT
