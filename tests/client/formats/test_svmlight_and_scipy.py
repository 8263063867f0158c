"""Reading sparse vectors from svmlight and from scipy's .npz, good and bad."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.files import read_column, read_vectors
from divgrpc_client.formats.sparse_text import IndexBase
from divgrpc_protos.arrays import Csr


def dense(rows: object) -> npt.NDArray[np.float32]:
    """Return what compressed rows stand for."""
    assert isinstance(rows, Csr)
    parts = (rows.data, rows.indices, rows.indptr)
    found: npt.NDArray[np.float32] = scipy.sparse.csr_array(
        parts, (len(rows.indptr) - 1, rows.cols)
    ).toarray()
    return found


def written(folder: Path, text: str) -> Path:
    """Write an svmlight file."""
    path = folder / "rows.svm"
    path.write_text(text)
    return path


@pytest.mark.parametrize("zero_based", [True, False])
def test_svmlight_is_read_as_scikit_learn_reads_it(tmp_path: Path, *, zero_based: bool) -> None:
    """Numbers, columns, labels and the guess of the first column are scikit-learn's."""
    rng = np.random.default_rng(0)
    matrix = scipy.sparse.random(200, 60, 0.1, "lil", np.float32, rng=rng)
    matrix[0, 0] = 0.5
    matrix = matrix.tocsr()
    path = tmp_path / "rows.svmlight"
    dump_svmlight_file(
        matrix, rng.integers(-1, 5, 200), str(path), zero_based=zero_based, comment="a file"
    )
    expected, labels = load_svmlight_file(str(path), dtype=np.float32)
    assert np.array_equal(dense(read_vectors(path)), expected.toarray())
    assert read_column("labels", path).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("base", "dims", "expected"),
    [
        ("auto", None, [[1, 0, 2]]),
        ("0", None, [[0, 1, 0, 2]]),
        ("1", 5, [[1, 0, 2, 0, 0]]),
    ],
)
def test_columns_begin_where_told(
    tmp_path: Path, base: IndexBase, dims: int | None, expected: list[list[int]]
) -> None:
    """The first column and the number of columns can be given, since the file has neither."""
    path = written(tmp_path, "3 qid:7 1:1 3:2 # a comment\n")
    assert dense(read_vectors(path, base=base, dims=dims)).tolist() == expected


def test_rows_may_be_empty_and_lines_may_be_blank(tmp_path: Path) -> None:
    """A label alone is a row of zeros; blank lines and comments are no rows."""
    path = written(tmp_path, "# head\n\n1\n2 1:5e-1\n   \n+3.0   2:-1\n")
    assert dense(read_vectors(path)).tolist() == [[0, 0], [0.5, 0], [0, -1]]
    assert read_column("labels", path).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:1\n\n1 2:1 2:1\n", "line 3: a column comes twice"),
        ("1 1:1\n1 2:x\n", "line 2: a number is malformed"),
        ("1 1:1\n1 2:1e39\n", "line 2: a value is not finite"),
        ("1 1:1\n1 2:1:3\n", "line 2 is not: label"),
        ("1 1:1\n1 2 3\n", "line 2 is not: label"),
        ("1:1 2:3\n", "line 1 is not: label"),
        ("1 -1:1\n", "line 1 is not: label"),
        ("1 99999999999999999999:1\n", "line 1: there is no column 99999999999999999999"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    """The first wrong line of a file is named, blank lines counted."""
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        read_vectors(written(tmp_path, text))
    assert caught.value.field == "file"


def test_columns_come_in_any_order(tmp_path: Path) -> None:
    """They are sorted: some writers do not."""
    path = written(tmp_path, "1 2:5 1:4\n")
    assert dense(read_vectors(path)).tolist() == [[4, 5]]


def test_a_column_0_where_columns_begin_at_1(tmp_path: Path) -> None:
    """It is refused, and so are more columns than there are to be."""
    path = written(tmp_path, "1 1:1\n1 0:1 3:1\n")
    with pytest.raises(InvalidArgumentError, match="line 2: columns are to begin at 1"):
        read_vectors(path, base="1")
    with pytest.raises(InvalidArgumentError, match="4 columns, more than --dims 3") as caught:
        read_vectors(path, dims=3)
    assert caught.value.field == "dims"


@pytest.mark.parametrize("label", ["1,2", "x", "1.5", "nan", "1e400"])
def test_labels_are_whole_numbers_where_asked_for(tmp_path: Path, label: str) -> None:
    """Labels that cannot be categories are no fault until they are to be."""
    path = written(tmp_path, f"1 1:1\n{label} 1:1\n")
    assert np.array_equal(dense(read_vectors(path)), [[1], [1]])
    with pytest.raises(InvalidArgumentError, match=r"line 2: label .* is no whole number"):
        read_column("labels", path)


def test_options_of_svmlight_are_for_svmlight(tmp_path: Path) -> None:
    """A first column or a number of columns for another file is refused; so is a key for this."""
    np.save(tmp_path / "rows.npy", np.ones((2, 2)))
    for options, field in (({"base": "1"}, "index_base"), ({"dims": 3}, "dims")):
        with pytest.raises(InvalidArgumentError) as caught:
            read_vectors(tmp_path / "rows.npy", **options)
        assert caught.value.field == field
    with pytest.raises(InvalidArgumentError, match=r"only an \.npz"):
        read_vectors(written(tmp_path, "1 1:1\n"), "train")


def test_scipys_npz(tmp_path: Path) -> None:
    """What scipy saved is read whole, sorted and added up where it was not."""
    matrix = scipy.sparse.random(50, 30, 0.2, "csr", rng=np.random.default_rng(1))
    twice = scipy.sparse.csr_array(
        (np.array([1.0, 2, 4, 8]), np.array([3, 1, 3, 0]), np.array([0, 0, 3, 4, 4])), (4, 5)
    )
    for given in (matrix, scipy.sparse.csr_array(matrix), twice, scipy.sparse.csr_array((3, 4))):
        scipy.sparse.save_npz(tmp_path / "rows.npz", given)
        found = read_vectors(tmp_path / "rows.npz")
        assert np.array_equal(dense(found), given.toarray().astype(np.float32))
        assert isinstance(found, Csr)
        for start, stop in zip(found.indptr, found.indptr[1:], strict=False):
            assert (np.diff(found.indices[start:stop].astype(int)) > 0).all()


def test_other_formats_of_scipy(tmp_path: Path) -> None:
    """A matrix of another format is refused with what to do about it."""
    scipy.sparse.save_npz(tmp_path / "rows.npz", scipy.sparse.csc_array(np.eye(3)))
    with pytest.raises(InvalidArgumentError, match=r"format 'csc': save it after \.tocsr"):
        read_vectors(tmp_path / "rows.npz")


@pytest.mark.parametrize(
    "broken",
    [
        {"indptr": np.array([0, 2, 1, 3])},
        {"indptr": np.array([0, 1, 2])},
        {"indptr": np.array([0, 1, 2, 4])},
        {"indices": np.array([0, 1, 3])},
        {"indices": np.array([0, -1, 2])},
        {"indices": np.array([0.0, 1.0, 2.0])},
        {"data": np.ones(2)},
        {"data": np.ones(3) * 1j},
        {"shape": np.array([3])},
        {"shape": np.array([3, 2**31])},
    ],
    ids=str,
)
def test_a_broken_npz_of_scipys(tmp_path: Path, broken: dict[str, object]) -> None:
    """Arrays that do not fit one another are refused before anything is sent."""
    whole = {
        "format": b"csr",
        "shape": np.array([3, 3]),
        "indptr": np.array([0, 1, 2, 3]),
        "indices": np.array([0, 1, 2]),
        "data": np.ones(3),
    }
    np.savez(tmp_path / "rows.npz", **(whole | broken))  # type: ignore[arg-type]  # arrays all
    with pytest.raises(InvalidArgumentError, match="invalid CSR matrix"):
        read_vectors(tmp_path / "rows.npz")


def test_an_npz_of_scipys_without_its_arrays(tmp_path: Path) -> None:
    """A sparse format without its arrays is refused with the file's name."""
    np.savez(tmp_path / "rows.npz", format=b"csr", shape=np.array([3, 3]), data=np.ones(3))
    with pytest.raises(InvalidArgumentError, match=r"rows\.npz"):
        read_vectors(tmp_path / "rows.npz")
