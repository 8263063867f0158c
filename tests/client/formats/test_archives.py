"""Points as archives of numpy arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.errors import InvalidArgumentError
from divgrpc.types import IndexInfo
from divgrpc_client.formats.archives import ARCHIVE, archive_writer, is_archive, read_archive
from divgrpc_client.formats.files import read_vectors
from divgrpc_client.formats.json_lines import PointLines
from divgrpc_protos.arrays import Csr

ROWS = 7
VECTORS = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
ATTRIBUTES: dict[str, Any] = {
    "brand": ["a", None, "é", "", "a", "b", None],
    "n": [2**53 + 1, None, -3, 4, 5, 6, 7],
    "x": [0.1, None, 1e300, -0.0, 1.0, 2.0, 3.0],
    "sold": [True, False, None, True, True, False, False],
    "tags": [["x", "y"], [], ["z"], [], [], [], ["x"]],
}
PAYLOADS = [b"\xff\x00", None, b"", b"a", b"", "é".encode(), b"b"]


def written(index: Index, path: Path) -> PointLines:
    """Export an index and return what is read from the file."""
    with archive_writer(path, index.info) as write:
        for page in index.scroll(with_vectors=True, page_size=3):
            write(page)
    assert is_archive(path)
    return read_archive(path)


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_what_is_written_is_read(tmp_path: Path, texts: bool, is_sparse: bool) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    ids: list[Any] = [f"n{row} \N{SNOWMAN}" if texts else 10 * row for row in range(ROWS)]
    vectors = sparse.csr_array(VECTORS) if is_sparse else VECTORS
    index = Index.build(
        vectors, ids=ids, attributes=ATTRIBUTES, payloads=PAYLOADS, metric="euclidean"
    )
    path = tmp_path / "points.npz"
    points = written(index, path)
    assert points.ids is not None
    assert points.payloads is not None
    order = [ids.index(point_id) for point_id in points.ids]
    assert sorted(order) == list(range(ROWS))
    rows: Any = points.vectors
    if isinstance(rows, Csr):
        rows = sparse.csr_array((rows.data, rows.indices, rows.indptr), (ROWS, rows.cols)).toarray()
    assert rows.tobytes() == VECTORS[order].tobytes()
    for name, values in ATTRIBUTES.items():
        assert points.attributes[name] == [values[row] for row in order]
    assert points.payloads == [PAYLOADS[row] or None for row in order]
    again = Index.build(
        vectors if is_sparse else points.vectors,
        ids=points.ids,
        attributes=points.attributes,
        payloads=points.payloads,
        metric="euclidean",
    )
    copy = written(again, tmp_path / "copy.npz")
    assert copy.ids == points.ids
    assert (copy.attributes, copy.payloads) == (points.attributes, points.payloads)
    as_queries: Any = read_vectors(path)
    assert (as_queries.cols if is_sparse else as_queries.shape[1]) == 3


def test_an_archive_without_columns(tmp_path: Path) -> None:
    points = written(Index.build(VECTORS), tmp_path / "points.npz")
    assert (points.ids, points.attributes, points.payloads) == (list(range(ROWS)), {}, None)


def test_other_archives_are_not_archives_of_points(tmp_path: Path) -> None:
    for name in ("points.npz", "points.npy"):
        path = tmp_path / name
        np.savez(tmp_path / "points.npz", vectors=VECTORS)
        np.save(tmp_path / "points.npy", VECTORS)
        assert not is_archive(path)
    assert not is_archive(tmp_path / "absent.npz")
    assert ARCHIVE == ".npz"


SPARSE: dict[str, Any] = {"divgrpc": 1, "shape": [2, 3], "ids": [0, 1], "indptr": [0, 1, 2]}
SPARSE |= {"indices": [0, 2], "data": [1.0, 1.0]}
LABELLED: dict[str, Any] = {"divgrpc": 1, "vectors": VECTORS[:2], "ids": [0, 1], "label_count": 2}
LABELLED |= {"label_indptr": [0, 1, 2], "label_indices": [0, 1]}


def test_archives_of_the_tests_below_are_read_without_their_faults(tmp_path: Path) -> None:
    for arrays in (SPARSE, LABELLED):
        np.savez(tmp_path / "points.npz", **arrays)
        assert read_archive(tmp_path / "points.npz").ids == [0, 1]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"divgrpc": 2, "vectors": VECTORS}, "version 2"),
        ({"divgrpc": 1}, "shape"),
        ({"divgrpc": 1, "vectors": VECTORS}, "ids"),
        ({"divgrpc": 1, "vectors": VECTORS, "ids": np.array([1, 2], object)}, "pickle"),
        ({"divgrpc": 1, "vectors": VECTORS, "ids": np.frombuffer(b"[1", np.uint8)}, "delimiter"),
        (
            {"divgrpc": 1, "shape": [2, 3], "indptr": [0], "indices": [0], "data": [1.0]},
            "do not match",
        ),
        (SPARSE | {"indptr": [0, 3, 2]}, "sparse arrays do not match"),
        (SPARSE | {"indices": [0, 3]}, "sparse arrays do not match"),
        (SPARSE | {"data": [[1.0], [1.0]]}, "sparse arrays do not match"),
        (SPARSE | {"shape": [2, 2**32]}, "sparse arrays do not match"),
        *(
            (LABELLED | part, "arrays of its labels do not match")
            for part in (
                {"label_indptr": np.arange(2)},
                {"label_indptr": 2},
                {"label_indptr": [[0], [1], [2]]},
                {"label_indptr": [0.0, 1.0, 2.0]},
                {"label_indptr": [1, 1, 2]},
                {"label_indptr": [0, 3, 2]},
                {"label_indptr": [0, 1, 1]},
                {"label_indices": [0.5, 1]},
                {"label_indices": [-1, 1]},
                {"label_count": 1},
                {"label_count": 2**32},
            )
        ),
    ],
)
def test_a_faulty_archive_is_refused(tmp_path: Path, arrays: dict[str, Any], reason: str) -> None:
    path = tmp_path / "points.npz"
    np.savez(path, **arrays)
    with pytest.raises(InvalidArgumentError, match=reason) as raised:
        read_archive(path)
    assert raised.value.field == "file"


def test_a_writer_that_fails_writes_nothing(tmp_path: Path) -> None:
    info: IndexInfo = Index.build(VECTORS).info
    with pytest.raises(KeyError), archive_writer(tmp_path / "points.npz", info):
        raise KeyError("caller")
    assert not (tmp_path / "points.npz").exists()
