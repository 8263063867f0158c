"""Builds: accepted and refused input, failures, warnings and progress."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest

from divgrpc.builder.builder import IndexBuilder
from divgrpc.errors import (
    BuildUnderWayError,
    IndexExistsError,
    InvalidArgumentError,
    LimitExceededError,
    StorageFullError,
)
from divgrpc.index import Index
from divgrpc.parameters import LIMITS, BuildParameters
from divgrpc.storage.generations import IndexFolder, staging
from divgrpc.storage.writers import MemoryStore
from divgrpc.types import FloatArray, Points, Progress
from support.checks.refusals import refused
from support.data.mixed_indexes import stored_as

NAN = float("nan")
INF = float("inf")


def normal(rows: int = 20, dims: int = 4, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((rows, dims)).astype(np.float32)


def spoiled(row: int, value: float, rows: int = 20) -> FloatArray:
    """Return valid vectors with one entry of one row replaced; 0 makes the whole row zero."""
    vectors = normal(rows)
    vectors[row, ... if value == 0 else 2] = value
    return vectors


def sequence(rows: int) -> npt.NDArray[np.int64]:
    return np.arange(rows)


# Builds that are refused.

# Ids may be texts, so words are refused only because they are equal.
_WORDS = {"ids": "'1' occurs twice", "categories": "whole", "subtopics": "whole"}
REFUSALS: list[tuple[str, dict[str, Any], str, str]] = [
    ("a zero vector", {"vectors": spoiled(19, 0)}, "vectors", "row 19 .*zero"),
    ("no rows", {"vectors": np.empty((0, 4))}, "vectors", "at least one row"),
    ("nothing", {"vectors": []}, "vectors", "vectors"),
    ("no columns", {"vectors": np.empty((5, 0))}, "vectors", "columns"),
    ("three axes", {"vectors": np.ones((2, 2, 2))}, "vectors", "axes"),
    ("words", {"vectors": [["a", "b"]]}, "vectors", "numbers"),
    ("complex numbers", {"vectors": np.ones((2, 2), complex)}, "vectors", "numbers"),
    ("ragged rows", {"vectors": [[1.0, 2.0], [1.0]]}, "vectors", "numbers"),
    ("no matrix", {"vectors": None}, "vectors", "numbers"),
    ("only zeros", {"vectors": np.zeros((3, 2)), "zero_vectors": "skip"}, "vectors", "at least"),
    ("too many columns", {"vectors": np.ones((1, 65_537))}, "vectors", "65536"),
    ("components above dims", {"n_components": 5}, "n_components", "4"),
    *[
        (f"{name} {fault}", {name: values}, name, pattern)
        for name in ("ids", "categories", "subtopics")
        for fault, values, pattern in (
            ("too few", sequence(19), "20"),
            ("too many", sequence(21), "20"),
            ("none", [], "20"),
            ("in a matrix", np.ones((20, 1), int), "20"),
            ("in parts", sequence(20) + 0.5, "whole"),
            ("NaN", np.full(20, NAN), "whole"),
            ("infinite", np.full(20, INF), "whole"),
            ("words", ["1"] * 20, _WORDS[name]),
            ("nothing at all", [None] * 20, "whole"),
            ("too large", np.full(20, 2**64 - 1, np.uint64), "whole|range"),
            ("below -1", np.full(20, -2), "least"),
        )
    ],
    ("equal ids", {"ids": [*range(19), 3]}, "ids", "3 occurs twice"),
    ("negative ids", {"ids": [*range(19), -1]}, "ids", "least 0"),
    ("ids above int64", {"ids": [*range(19), 2**63]}, "ids", "ids"),
    ("categories above int32", {"categories": sequence(20) + 2**31}, "categories", "range"),
]


@pytest.mark.parametrize(
    ("arguments", "field", "pattern"), [r[1:] for r in REFUSALS], ids=[r[0] for r in REFUSALS]
)
@pytest.mark.parametrize("has_folder", [False, True], ids=["in memory", "in a folder"])
def test_a_wrong_build_is_refused(
    tmp_path: Path, arguments: dict[str, Any], field: str, pattern: str, has_folder: bool
) -> None:
    """A refusal names the field, and the row if a row is at fault, and leaves no file behind."""
    path = tmp_path / "root" / "points" if has_folder else None
    with refused(field, pattern):
        Index.build(**{"vectors": normal()} | arguments, path=path)
    assert list((tmp_path / "root").rglob("*")) == []


def test_errors_name_the_row_of_the_whole_upload() -> None:
    builder = IndexBuilder(MemoryStore(), BuildParameters())
    builder.append(normal(30))
    with pytest.raises(InvalidArgumentError, match="row 34 "):
        builder.append(spoiled(4, NAN))
    with pytest.raises(InvalidArgumentError, match="row 9001 "):
        Index.build(spoiled(9001, INF, rows=10_000))


def test_every_block_has_the_same_columns_and_labels() -> None:
    builder = IndexBuilder(MemoryStore(), BuildParameters())
    builder.append(normal(), ids=sequence(20), subtopics=sequence(20))
    with refused("vectors", "4 columns"):
        builder.append(normal(dims=5), ids=sequence(20), subtopics=sequence(20))
    with refused("subtopics"):
        builder.append(normal(), ids=sequence(20))
    with refused("categories"):
        builder.append(normal(), ids=sequence(20), subtopics=sequence(20), categories=sequence(20))


def test_equal_ids_in_different_blocks_are_refused() -> None:
    builder = IndexBuilder(MemoryStore(), BuildParameters())
    builder.append(normal(), ids=sequence(20))
    builder.append(normal(), ids=sequence(20) + 19)
    with pytest.raises(InvalidArgumentError, match="19 occurs twice"):
        builder.build()


def test_more_rows_than_the_limit_are_refused() -> None:
    with pytest.raises(LimitExceededError):
        IndexBuilder(MemoryStore(), BuildParameters(), expected_rows=LIMITS["rows_max"] + 1)


@pytest.mark.parametrize("name", ["Upper", "-a", "a b", "a" * 64, "ä"])
def test_a_folder_that_cannot_be_an_index_is_refused(tmp_path: Path, name: str) -> None:
    """The folder's name becomes the index's name, so it must follow the rule for index names."""
    with refused("path"):
        Index.build(normal(), path=tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_building_over_an_index_requires_replace(tmp_path: Path) -> None:
    """If a replacement fails, the previous generation of the index stays unchanged."""
    path = tmp_path / "points"
    before = Index.build(normal(), path=path).query(normal(2)).ids.tolist()
    with pytest.raises(IndexExistsError):
        Index.build(normal(9), path=path)
    with pytest.raises(InvalidArgumentError):
        Index.build(spoiled(3, NAN), path=path, replace=True)
    with staging(path, replace=True), pytest.raises(BuildUnderWayError):
        Index.build(normal(9), path=path, replace=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["points"]
    assert Index.open(path).generation == 1
    assert Index.open(path).query(normal(2)).ids.tolist() == before
    Index.build(normal(9), path=path, replace=True)
    assert Index.open(path).rows == 9


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Limit the size of files that this process writes, to simulate a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("expected", [None, 40_000])
def test_a_full_disk_ends_a_build_and_leaves_nothing(tmp_path: Path, expected: int | None) -> None:
    """If the caller announces the number of rows, the build fails before it reads the first row."""
    path = tmp_path / "points"
    Index.build(normal(), path=path)
    before = sorted(tmp_path.rglob("*"))

    def build() -> None:
        with staging(path, replace=True) as stage:
            builder = IndexBuilder(stage, BuildParameters(), expected_rows=expected)
            for _ in range(40 if expected is None else 1):
                builder.append(normal(1000, 16))

    with files_of_at_most(2**20), pytest.raises(StorageFullError) as error_info:
        build()
    assert str(tmp_path) not in str(error_info.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert Index.open(path).rows == 20


def test_a_disk_that_fills_up_while_hashing_leaves_nothing(tmp_path: Path) -> None:
    with files_of_at_most(40_000), pytest.raises(StorageFullError):
        Index.build(normal(2000), path=tmp_path / "points")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", get_args(Points))
def test_zero_vectors_are_refused_or_skipped(kind: Points) -> None:
    vectors = normal(10)
    vectors[[0, 4, 9]] = 0
    with refused("vectors", "row 0 "):
        Index.build(stored_as(vectors, kind))
    index = Index.build(stored_as(vectors, kind), zero_vectors="skip")
    (warning,) = index.info.warnings
    assert (warning.code, warning.field) == ("ZERO_VECTORS_SKIPPED", "zero_vectors")
    assert warning.message.startswith("3 ")
    assert index.rows == 7
    result = index.query(vectors[[1, 2, 3, 5, 6, 7, 8]], k=1, search="exact")
    assert result.ids[:, 0].tolist() == [1, 2, 3, 5, 6, 7, 8]
    assert Index.build(normal(10), zero_vectors="skip").info.warnings == ()


def test_a_requested_search_that_misses_the_target_causes_a_warning() -> None:
    """The warning concerns only the requested search, because `auto` reaches the target."""
    spread = np.random.default_rng(0).standard_normal((4_000, 64))
    index = Index.build(spread, n_bits=10, target_recall=1.0)
    assert index.info.warnings == ()
    assert index.query(spread[:2]).warnings == ()
    (warning,) = index.query(spread[:2], search="tables").warnings
    assert (warning.code, warning.field) == ("TARGET_RECALL_MISSED", "search")
    assert index.query(spread[:2], search="tables", n_probes=100).warnings == ()
    easy = Index.build(spread, n_bits=10, target_recall=0.01)
    assert easy.query(spread[:2], search="tables").warnings == ()


def test_ids_and_categories_of_skipped_rows_are_skipped() -> None:
    vectors = normal(6)
    vectors[2] = 0
    topics: dict[str, Any] = {"categories": range(6), "subtopics": [-1, 1, 2, 3, -1, 5]}
    index = Index.build(vectors, ids=[60, 50, 40, 30, 20, 10], zero_vectors="skip", **topics)
    assert index.engine._arrays["ids"].tolist() == [60, 50, 30, 20, 10]
    assert index.engine._arrays["categories"].tolist() == [0, 1, 3, 4, 5]
    assert index.engine._arrays["subtopics"].tolist() == [-1, 1, 3, -1, 5]


def test_ids_may_be_any_integers_up_to_int64() -> None:
    ids = [2**63 - 1, 5, 0, 10**15]
    vectors = normal(4)
    vectors[3] = vectors[1] = vectors[0]
    index = Index.build(vectors, ids=ids)
    result = index.query(vectors[0], k=4, search="exact", selector="nearest")
    assert result.ids[0].tolist() == [5, 10**15, 2**63 - 1, 0]


def test_index_info_describes_the_index(tmp_path: Path) -> None:
    info = Index.build(normal(2000, 40), path=tmp_path / "a-name", subtopics=[3] * 2000).info
    assert (info.name, info.generation, info.rows, info.dims) == ("a-name", 1, 2000, 40)
    assert info.parameters["n_bits"] == 9
    assert info.parameters["n_tables"] == 10
    assert info.parameters["n_components"] == 40
    assert info.code_bits == 256
    assert info.n_probes >= 1
    assert (info.has_categories, info.has_subtopics) == (False, True)
    costs = {cost.search: cost for cost in info.search_costs}
    assert set(costs) == {"tables", "scan", "scan_hamming", "exact"}
    assert costs["exact"].recall == 1
    assert all(0 <= cost.recall <= 1 and cost.microseconds > 0 for cost in costs.values())
    assert info.auto_search in ("tables", "scan", "exact")
    assert costs[info.auto_search].recall >= 0.9
    shapes = {array.name: (array.dtype, array.shape) for array in info.arrays}
    assert shapes["vectors"] == ("float32", (2000, 40))
    assert shapes["codes"] == ("uint8", (63, 1024))
    assert shapes["table_rows"] == ("int32", (10, 2000))


@pytest.mark.parametrize(
    ("arguments", "choice_names"),
    [
        ({}, {"hash_family", "n_bits", "n_tables", "n_probes", "search"}),
        ({"hash_family": "lsh_div", "n_bits": 9}, {"n_tables", "n_probes", "search"}),
        (
            {"n_components": 3, "n_tables": 4, "hash_family": "lsh_sdiv"},
            {"n_bits", "n_probes", "search"},
        ),
        ({"hash_family": "cells"}, {"n_components", "cells", "n_probes", "search"}),
        ({"hash_family": "lsh_sdiv"}, {"n_components", "n_bits", "n_tables", "n_probes", "search"}),
    ],
)
def test_index_info_lists_choices_with_reasons(
    tmp_path: Path, arguments: dict[str, Any], choice_names: set[str]
) -> None:
    info = Index.build(normal(500, 12), path=tmp_path / "points", **arguments).info
    choices = {choice.parameter: choice for choice in info.choices}
    assert set(choices) == choice_names
    for name, choice in choices.items():
        assert len(choice.reason) > 8
        if name in info.parameters:
            assert choice.value == str(info.parameters[name])
    assert choices["n_probes"].value == str(info.n_probes)
    assert choices["search"].value == info.auto_search
    assert Index.open(tmp_path / "points").info.choices == info.choices


def test_a_build_reports_its_progress(tmp_path: Path) -> None:
    steps: list[Progress] = []
    Index.build(normal(20_000), path=tmp_path / "points", progress=steps.append)
    stages = list(dict.fromkeys(step.stage for step in steps))
    assert stages == ["receiving", "components", "hashing", "tables", "tuning", "writing"]
    for stage in stages:
        rows = [step.rows_done for step in steps if step.stage == stage]
        assert rows == sorted(rows)
    assert all(step.rows_done <= step.rows_total for step in steps if step.rows_total)
    assert all(step.seconds_left is None or step.seconds_left >= 0 for step in steps)
    assert len([step for step in steps if step.stage == "hashing"]) > 1


@pytest.mark.parametrize("has_folder", [False, True])
def test_an_exception_in_progress_ends_the_build(tmp_path: Path, has_folder: bool) -> None:
    def cancel(step: Progress) -> None:
        if step.stage == "tables":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.build(normal(), path=tmp_path / "points" if has_folder else None, progress=cancel)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("expected", [0, 1, 20, 500])
def test_an_announced_number_of_rows_may_be_wrong(tmp_path: Path, expected: int) -> None:
    """The announced number only reserves disk space and sets the total of the progress report."""
    with staging(tmp_path / "points", replace=False) as stage:
        builder = IndexBuilder(stage, BuildParameters(), expected_rows=expected)
        builder.append(normal())
        builder.build()
    generation = IndexFolder(tmp_path / "points").open()
    assert generation.manifest.rows == 20
    assert (tmp_path / "points" / "1" / "vectors.npy").stat().st_size == 128 + 20 * 4 * 4
