"""Points of a build that another machine finds, and messages that do not fit them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc import build_rows
from divgrpc.build_rows import BuildRows, DividedRows, DividedSparseRows, block_rows
from divgrpc.builder.builder import IndexBuilder
from divgrpc.builder.nearest import NearestSearch, blocks_of, search_blocks
from divgrpc.errors import IndexNotFoundError, InvalidArgumentError
from divgrpc.parameters import BuildParameters
from divgrpc.sharding import staged_arrays
from divgrpc.sharding.divided_build import DividedBuild
from divgrpc.sharding.layouts import STAGED_SEARCH, STAGED_SEARCH_REPLY
from divgrpc.sharding.staged_build import StagedBuild, folder_of
from divgrpc.sharding.staged_finding import (
    BLOCKS_MAX,
    FIND,
    OFFER,
    StagedFinding,
    offered,
    pack_search,
    unpack_points,
)
from divgrpc.sharding.staged_shards import ShardFiles
from divgrpc.storage.generations import staging
from divgrpc.types import FloatArray, Metric
from divgrpc.vectors import Rows, SparseRows

SHARDS, STEP = 3, 16
DENSE = np.random.default_rng(5).standard_normal((300, 6)).astype(np.float32)
SPARSE = SparseRows.of(sparse.random_array((300, 9), density=0.9, format="csr", rng=5))
# Checks what is offered in a folder: the points of a build.
Check = Callable[[Path, DividedRows | DividedSparseRows], None]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_rows, "_BLOCK_ROWS_MAX", STEP)


def build(root: Path, points: Rows, check: Check, metric: Metric = "cosine") -> None:
    """Build an index of points on shards; `check` is called while its points are offered."""
    with staging(root / "points", replace=True) as stage:

        @contextmanager
        def tune_in(
            files: Sequence[ShardFiles],
            _shared: Collection[str],
            parameters: BuildParameters,
            points: BuildRows,
        ) -> Iterator[None]:
            assert isinstance(points, DividedRows | DividedSparseRows)
            with offered(stage, files, points.shape, parameters.metric, block_rows(points)):
                check(stage.folder, points)
            yield None

        division = DividedBuild(stage, SHARDS)
        division.tune_in = tune_in
        builder = IndexBuilder(stage, BuildParameters(metric=metric), points=division)
        builder.append(points)
        builder.build()


def message_for(
    folder: Path,
    points: DividedRows | DividedSparseRows,
    search: NearestSearch,
    rows: range,
    least: FloatArray,
) -> bytes:
    starts = np.array([block.start for block in blocks_of(rows, STEP)] + [rows.stop])
    return pack_search(folder.name, search, rows, points.bounds_of(starts), least)


@pytest.mark.parametrize("metric", ["cosine", "inner_product", "euclidean"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "crossed"])
def test_the_points_are_those_that_the_builder_finds(
    tmp_path: Path, kind: str, metric: Metric
) -> None:
    """A reply has the bytes of the builder, for each part of the rows and each least gain."""
    stored: Rows = DENSE if kind == "dense" else SPARSE
    queries: Rows = SPARSE[:7] if kind == "sparse" else np.eye(7, stored.shape[1], dtype=np.float32)

    def check(folder: Path, points: DividedRows | DividedSparseRows) -> None:
        staged, sizes = StagedBuild(folder), set()
        for angular in (False, True):
            search = NearestSearch(queries, 20, metric, angular)
            for rows in blocks_of(range(len(points)), BLOCKS_MAX * STEP):
                for least in (-np.inf, 0.3, 9.0):
                    leasts = np.full(7, least, np.float32)
                    message = message_for(folder, points, search, rows, leasts)
                    assert folder_of(FIND, message) == folder.name
                    part = unpack_points(staged.ask(FIND, message), search, rows, leasts)
                    expected = search_blocks(search, points, blocks_of(rows, STEP), leasts)
                    assert part.gains.tobytes() == expected.gains.tobytes()
                    assert part.rows.tolist() == expected.rows.tolist()
                    assert part.ends.tolist() == expected.ends.tolist()
                    sizes.add(len(part.rows))
        assert {0, 7 * 20} <= sizes

    build(tmp_path, stored, check, metric)


def test_an_offer_ends_with_its_block(tmp_path: Path) -> None:
    folders = []

    def check(folder: Path, _: object) -> None:
        assert StagedFinding(folder)
        folders.append(folder)
        (folder / OFFER).unlink()
        with pytest.raises(IndexNotFoundError, match="no build offers the points"):
            StagedBuild(folder).ask(FIND, b"")

    build(tmp_path, DENSE, check)
    assert len(folders) == 1
    assert [*tmp_path.rglob(OFFER)] == []


def _changes() -> dict[str, dict[str, Any]]:
    """Return changes of the columns of a message about the rows from 16 to 48, by the field."""
    dense = np.zeros((4, 6), np.float32)
    pointers = {"dense": None, "indptr": np.array([0, 1, 1, 1, 1]), "values": np.ones(1, "f4")}
    return {
        "rows": {"rows": np.array([16, 301])},
        "rows backwards": {"rows": np.array([48, 16])},
        "rows too many": {"rows": np.array([0, STEP * BLOCKS_MAX + 1])},
        "bounds none": {"bounds": None},
        "bounds of another number": {"bounds": np.zeros((3, SHARDS + 1), int)},
        "bounds negative": {"bounds": np.array([[-20, 0, 0], [-4, 0, 0], [12, 0, 0]])},
        "bounds beyond": {"bounds": np.array([[290, 0, 0], [306, 0, 0], [322, 0, 0]])},
        "bounds descending": {"bounds": np.array([[20, 0, 0], [10, 26, 0], [10, 42, 0]])},
        "bounds few": {"bounds": np.zeros((3, SHARDS), int)},
        "bounds elsewhere": {"bounds": np.array([[30, 0, 0], [46, 0, 0], [62, 0, 0]])},
        "queries of another width": {"dense": np.zeros((4, 5), np.float32)},
        "queries none": {"dense": None},
        "queries many": {"dense": np.zeros((1_025, 6), np.float32)},
        "queries unsorted": {**pointers, "indices": np.array([6], np.int32)},
        "least": {"least": np.zeros(3, np.float32)},
        "least not a number": {"least": np.full(4, np.nan, np.float32)},
        "numbers none": {"numbers": None},
        "numbers of no points": {"numbers": np.array([0, 0]), "dense": dense},
        "numbers of many points": {"numbers": np.array([10_001, 0])},
        "numbers of no answer": {"numbers": np.array([5, 2])},
    }


def test_messages_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Each error names its field; afterwards, the message itself is answered."""
    rows, least = range(16, 48), np.full(4, -np.inf, np.float32)
    search = NearestSearch(DENSE[:4].copy(), 5, "cosine")
    names = []

    def check(folder: Path, points: DividedRows | DividedSparseRows) -> None:
        staged = StagedFinding(folder)
        message = message_for(folder, points, search, rows, least)
        columns = {name: array.copy() for name, array in STAGED_SEARCH.unpack(message).items()}
        for name, change in _changes().items():
            arrays = {
                key: array for key, array in {**columns, **change}.items() if array is not None
            }
            with pytest.raises(InvalidArgumentError) as refusal:
                staged.answer(STAGED_SEARCH.pack(arrays))
            assert refusal.value.field.startswith(name.split()[0]), name
            names.append(name)
        for bad in (b"", b"?", message[:-8], STAGED_SEARCH_REPLY.pack({})):
            with pytest.raises(InvalidArgumentError):
                staged.answer(bad)
        part = unpack_points(staged.answer(message), search, rows, least)
        assert len(part.rows) == 4 * 5

    build(tmp_path, DENSE, check)
    assert len(names) == len(_changes())


def test_a_builder_of_another_version_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(folder: Path, _: object) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(staged_arrays, "VERSION", "0.0.9")
            with pytest.raises(IndexNotFoundError, match=r"of version .* this is 0\.0\.9"):
                StagedBuild(folder).ask(FIND, b"")

    build(tmp_path, DENSE, check)
