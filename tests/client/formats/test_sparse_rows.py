"""Reading sparse rows from svmlight files, labelled documents and .npz files of scipy."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.files import read_column, read_vectors
from divgrpc_client.formats.sparse_text import IndexBase, read_labelled, read_split
from divgrpc_protos.arrays import Csr
from support.checks.refusals import refused

WITH_HEADER = "3 4 5\n0,4 1:0.5 3:2\n 0:1\n2 \n"


def dense(rows: object) -> npt.NDArray[np.float32]:
    assert isinstance(rows, Csr)
    for start, stop in zip(rows.indptr, rows.indptr[1:], strict=False):
        assert (np.diff(rows.indices[start:stop].astype(int)) > 0).all()
    parts = (rows.data, rows.indices, rows.indptr)
    matrix = scipy.sparse.csr_array(parts, (len(rows.indptr) - 1, rows.cols))
    return np.asarray(matrix.toarray(), np.float32)


def written(folder: Path, text: str) -> Path:
    path = folder / "rows.svm"
    path.write_text(text)
    return path


@pytest.mark.parametrize("zero_based", [True, False])
def test_svmlight_is_read_as_scikit_learn_reads_it(tmp_path: Path, *, zero_based: bool) -> None:
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
    [("auto", None, [[1, 0, 2]]), ("0", None, [[0, 1, 0, 2]]), ("1", 5, [[1, 0, 2, 0, 0]])],
)
def test_the_number_of_the_first_column_may_be_given(
    tmp_path: Path, base: IndexBase, dims: int | None, expected: list[list[int]]
) -> None:
    path = written(tmp_path, "3 qid:7 1:1 3:2 # a comment\n")
    assert dense(read_vectors(path, base=base, dims=dims)).tolist() == expected


def test_rows_may_be_empty_and_lines_may_be_blank(tmp_path: Path) -> None:
    """A line with only a label is a row of zeros; blank lines and comments are skipped."""
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
    with refused("file", message):
        read_vectors(written(tmp_path, text))


def test_columns_come_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, "1 2:5 1:4\n")
    assert dense(read_vectors(path)).tolist() == [[4, 5]]


def test_a_column_0_where_columns_begin_at_1(tmp_path: Path) -> None:
    path = written(tmp_path, "1 1:1\n1 0:1 3:1\n")
    with pytest.raises(InvalidArgumentError, match="line 2: columns are to begin at 1"):
        read_vectors(path, base="1")
    with refused("dims", "4 columns, more than --dims 3"):
        read_vectors(path, dims=3)


@pytest.mark.parametrize("label", ["1,2", "x", "1.5", "nan", "1e400"])
def test_labels_read_as_categories_must_be_whole_numbers(tmp_path: Path, label: str) -> None:
    """Labels that are no whole numbers are an error only if they are read as categories."""
    path = written(tmp_path, f"1 1:1\n{label} 1:1\n")
    assert np.array_equal(dense(read_vectors(path)), [[1], [1]])
    with pytest.raises(InvalidArgumentError, match=r"line 2: label .* is no whole number"):
        read_column("labels", path)


def test_options_of_svmlight_are_for_svmlight(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.ones((2, 2)))
    for options, field in (({"base": "1"}, "index_base"), ({"dims": 3}, "dims")):
        with refused(field):
            read_vectors(tmp_path / "rows.npy", **options)
    with pytest.raises(InvalidArgumentError, match=r"only an \.npz"):
        read_vectors(written(tmp_path, "1 1:1\n"), "train")


def test_scipys_npz(tmp_path: Path) -> None:
    matrix = scipy.sparse.random(50, 30, 0.2, "csr", rng=np.random.default_rng(1))
    twice = scipy.sparse.csr_array(
        (np.array([1.0, 2, 4, 8]), np.array([3, 1, 3, 0]), np.array([0, 0, 3, 4, 4])), (4, 5)
    )
    for array in (matrix, scipy.sparse.csr_array(matrix), twice, scipy.sparse.csr_array((3, 4))):
        scipy.sparse.save_npz(tmp_path / "rows.npz", array)
        rows = dense(read_vectors(tmp_path / "rows.npz"))
        assert np.array_equal(rows, array.toarray().astype(np.float32))


def test_other_formats_of_scipy(tmp_path: Path) -> None:
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
    np.savez(tmp_path / "rows.npz", format=b"csr", shape=np.array([3, 3]), data=np.ones(3))
    with pytest.raises(InvalidArgumentError, match=r"rows\.npz"):
        read_vectors(tmp_path / "rows.npz")


def test_the_extreme_classification_format(tmp_path: Path) -> None:
    documents, labels = read_labelled(written(tmp_path, WITH_HEADER))
    assert dense(documents).tolist() == [[0, 0.5, 0, 2], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert dense(labels).tolist() == [[1, 0, 0, 0, 1], [0] * 5, [0, 0, 1, 0, 0]]


def test_sizes_without_a_header_are_inferred(tmp_path: Path) -> None:
    """Features count from 0 if a feature 0 occurs or if `base` says so."""
    path = written(tmp_path, WITH_HEADER.partition("\n")[2])
    documents, labels = read_labelled(path)
    assert (documents.cols, labels.cols) == (4, 5)
    wide, many = read_labelled(path, dims=9, label_count=7)
    assert (wide.cols, many.cols) == (9, 7)
    from_one = read_labelled(written(tmp_path, "0 2:1\n1 1:3\n"))[0]
    assert dense(from_one).tolist() == [[0, 1], [3, 0]]
    from_zero = read_labelled(written(tmp_path, "0 2:1\n1 1:3\n"), base="0")[0]
    assert dense(from_zero).tolist() == [[0, 0, 1], [0, 3, 0]]


def test_order_comments_and_query_ids_do_not_matter(tmp_path: Path) -> None:
    text = "# made by hand\r\n3,1 qid:7 5:1 2:2 # two\r\n\r\n1 , 0 1:1\r\n \r\n"
    documents, labels = read_labelled(written(tmp_path, text))
    assert dense(documents).tolist() == [[0, 2, 0, 0, 1], [1, 0, 0, 0, 0], [0] * 5]
    assert dense(labels).tolist() == [[0, 1, 0, 1], [1, 1, 0, 0], [0] * 4]


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    for text in ("", "0 0 0\n"):
        documents, labels = read_labelled(written(tmp_path, text))
        assert dense(documents).shape == dense(labels).shape == (0, 0)


@given(st.integers(0, 2**32), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=30)
def test_documents_are_read_as_scikit_learn_reads_them(
    tmp_path_factory: pytest.TempPathFactory, seed: int, zero_based: bool
) -> None:
    rng = np.random.default_rng(seed)
    matrix = scipy.sparse.random(30, 12, 0.3, "csr", np.float32, rng=rng)
    truth = rng.random((30, 6)) < 0.3
    truth[:, 2] |= ~truth.any(axis=1)
    path = tmp_path_factory.mktemp("files") / "rows.svm"
    dump_svmlight_file(matrix, truth.astype(int), str(path), zero_based=zero_based, multilabel=True)
    base: IndexBase = "0" if zero_based else "1"
    documents, labels = read_labelled(path, base=base, dims=12, label_count=6)
    expected, sets = load_svmlight_file(
        str(path), n_features=12, dtype=np.float32, multilabel=True, zero_based=zero_based
    )
    assert np.array_equal(dense(documents), expected.toarray())
    assert [np.flatnonzero(row).tolist() for row in dense(labels)] == [[*map(int, s)] for s in sets]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 3\n0 1:1\n0 0:1\n", "line 1 announces 1 documents, and there are 2"),
        ("1 2 3\n0 2:1\n", "line 2: there is no feature 2, line 1 announces 2"),
        ("1 2 3\n3 1:1\n", "line 2: there is no label 3, line 1 announces 3"),
        ("1 2 9999999999\n", "line 1: a number is greater"),
        ("0 1:1\n0 1:1 1:2\n", "line 2: a feature comes twice"),
        ("0 1:1\n5,5 1:1\n", "line 2: a label comes twice"),
        ("0 1:1\n0 1:x\n", "line 2: a number is malformed"),
        ("0 1:1\n0 1:nan\n", "line 2: a value is not finite"),
        ("0 1:1\n0 1:1e39\n", "line 2: a value is not finite"),
        ("0 1:1\n" + "7" * 5_000 + " 1:1\n", "line 2: a number is malformed or far too long"),
        ("1 2 " + "7" * 5_000 + "\n0 1:1\n", "line 1: a number is far too long"),
        ("0 1:1\n-1 1:1\n", "line 2 is not: label,label"),
        ("0 1:1\n0 1:1 7\n", "line 2 is not: label,label"),
        ("0 1:1\n0 99999999999999999999:1\n", "line 2: there is no feature"),
        ("0 1:1\n99999999999999999999 1:1\n", "line 2: there is no label"),
    ],
)
def test_invalid_documents_are_named_by_their_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        read_labelled(written(tmp_path, text))


def test_a_given_first_feature_is_checked(tmp_path: Path) -> None:
    """If features count from 1, feature 0 is an error, and the header's last feature is valid."""
    path = written(tmp_path, "2 3 1\n0 3:1\n0 0:1\n")
    with pytest.raises(InvalidArgumentError, match="line 3: features are to begin at 1"):
        read_labelled(path, base="1")
    with pytest.raises(InvalidArgumentError, match="line 2: there is no feature 3"):
        read_labelled(path)
    assert dense(read_labelled(written(tmp_path, "1 3 1\n0 3:1\n"), base="1")[0])[0, 2] == 1


@pytest.mark.parametrize(("field", "value"), [("dims", 3), ("label_count", 4)])
def test_dims_below_the_largest_column_are_refused(tmp_path: Path, field: str, value: int) -> None:
    with refused(field):
        read_labelled(written(tmp_path, WITH_HEADER), **{field: value})  # type: ignore[arg-type]


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        read_labelled(tmp_path / "nothing.txt")


def test_splits_are_columns_counted_from_one(tmp_path: Path) -> None:
    path = written(tmp_path, "3 1\n1 2\n\n2 3\n")
    assert read_split(path, 3).tolist() == [2, 0, 1]
    assert read_split(path, 3, column=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("1 2\n1\n", 1, "line 2 has 1 columns"),
        ("1\n0\n", 0, "line 2 must have a number from 1 to 3"),
        ("1\n4\n", 0, "line 2 must have a number from 1 to 3"),
        ("1\nx\n", 0, "line 2 must have a number from 1 to 3"),
        ("1\n2\n\n1\n", 0, "line 4 has document 1, as line 1 has"),
    ],
)
def test_wrong_splits_are_named_by_their_line(
    tmp_path: Path, text: str, column: int, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        read_split(written(tmp_path, text), 3, column)
