"""Reading vectors and columns from valid and invalid files."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats import files
from divgrpc_client.formats.files import Array, read_column

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)


def read_vectors(path: Path, key: str | None = None) -> Array:
    vectors = files.read_vectors(path, key)
    assert isinstance(vectors, np.ndarray)
    return vectors


@pytest.fixture
def npy(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.npy"
    np.save(path, VECTORS)
    return path


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, train=VECTORS, labels=np.arange(4))
    return path


def test_npy_is_mapped(npy: Path) -> None:
    vectors = read_vectors(npy)
    assert np.array_equal(vectors, VECTORS)
    assert isinstance(vectors.base, np.memmap) or isinstance(vectors, np.memmap)


def test_npz_gives_its_only_matrix(npz: Path) -> None:
    """If an .npz file has a single matrix, no key is needed; a key selects an array by name."""
    assert np.array_equal(read_vectors(npz), VECTORS)
    assert np.array_equal(read_vectors(npz, "train"), VECTORS)


def test_fvecs(tmp_path: Path) -> None:
    path = tmp_path / "base.fvecs"
    headers = np.full((4, 1), 3, "<i4")
    np.concatenate([headers, VECTORS.view("<i4")], axis=1).tofile(path)
    vectors = read_vectors(path)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, VECTORS)


def test_columns(npz: Path, npy: Path, tmp_path: Path) -> None:
    assert read_column("labels", npz).tolist() == [0, 1, 2, 3]
    np.save(tmp_path / "ids.npy", np.array([4, 5]))
    assert read_column(str(tmp_path / "ids.npy"), npz).tolist() == [4, 5]
    (tmp_path / "ids.txt").write_text("7\n8\n")
    assert read_column(str(tmp_path / "ids.txt"), npy).tolist() == [7, 8]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *((f"missing.{kind}", None, "No such file") for kind in ("npy", "npz", "fvecs")),
        *((f"empty.{kind}", b"", "cannot be read") for kind in ("npy", "npz", "fvecs")),
        ("text.npy", b"1 2 3\n", "cannot be read"),
        ("text.npz", b"1 2 3\n", "cannot be read"),
        ("vectors.csv", b"1,2\n", r"must be \.npy, \.npz"),
        ("short.fvecs", b"\x02\0\0\0" + bytes(7), "do not fill|cannot be read"),
        ("negative.fvecs", b"\xff\xff\xff\xff" + bytes(8), "rows of -1 dimensions"),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=message) as error_info:
        read_vectors(path)
    assert name in str(error_info.value)


def test_fvecs_rows_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "mixed.fvecs"
    path.write_bytes(b"".join(np.int32(d).tobytes() + bytes(4 * d) for d in (2, 2, 1, 3)))
    with pytest.raises(InvalidArgumentError, match="row 2 has 1 dimensions, not 2"):
        read_vectors(path)


def test_one_dimension_is_no_matrix(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.ones(3))
    with pytest.raises(InvalidArgumentError, match=r"shape \(3,\)"):
        read_vectors(tmp_path / "flat.npy")


def test_pickles_are_never_read(tmp_path: Path) -> None:
    for name in ("objects.npy", "objects.npz"):
        save = np.save if name.endswith("npy") else np.savez
        save(tmp_path / name, np.array([[object()]]), allow_pickle=True)
        with pytest.raises(InvalidArgumentError, match=name):
            read_vectors(tmp_path / name)


def test_ambiguous_archives_ask_for_a_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", train=VECTORS, test=VECTORS)
    with pytest.raises(InvalidArgumentError, match="train, test: name one with --key"):
        read_vectors(tmp_path / "two.npz")
    np.savez(tmp_path / "none.npz", labels=np.arange(3))
    with pytest.raises(InvalidArgumentError, match="0 two-dimensional"):
        read_vectors(tmp_path / "none.npz")


def test_unknown_keys(npz: Path, npy: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no array named 'test'"):
        read_vectors(npz, "test")
    with pytest.raises(InvalidArgumentError, match=r"only an \.npz"):
        read_vectors(npy, "train")


def test_an_unknown_key_is_named_beside_objects(tmp_path: Path) -> None:
    """An array that cannot be read does not hide that the key names none."""
    objects = np.array([object()])
    np.savez(tmp_path / "mixed.npz", train=VECTORS, objects=objects, allow_pickle=True)
    with pytest.raises(InvalidArgumentError, match="no array named 'zz'"):
        read_vectors(tmp_path / "mixed.npz", "zz")
    assert np.array_equal(read_vectors(tmp_path / "mixed.npz", "train"), VECTORS)


def test_matrices_of_an_archive_are_read_one_at_a_time(tmp_path: Path) -> None:
    matrix = np.zeros((1000, 250), np.float32)
    np.savez(tmp_path / "many.npz", *[matrix] * 8)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match="8 two-dimensional"):
            read_vectors(tmp_path / "many.npz")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * matrix.nbytes


@pytest.mark.parametrize("content", ["1\ntwo\n", "1.5\n"])
def test_columns_are_whole_numbers(tmp_path: Path, npy: Path, content: str) -> None:
    (tmp_path / "ids.txt").write_text(content)
    with pytest.raises(InvalidArgumentError, match="one whole number per line"):
        read_column(str(tmp_path / "ids.txt"), npy)
