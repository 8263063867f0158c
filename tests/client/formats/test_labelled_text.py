"""Reading documents with labels, good and bad."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.sparse_text import IndexBase, read_labelled, read_split
from divgrpc_protos.arrays import Csr

WITH_HEADER = "3 4 5\n0,4 1:0.5 3:2\n 0:1\n2 \n"


def dense(rows: Csr) -> npt.NDArray[np.float32]:
    """Return what compressed rows stand for."""
    assert all((np.diff(rows.indices[a:b].astype(int)) > 0).all() for a, b in spans(rows))
    shape = (len(rows.indptr) - 1, rows.cols)
    found: npt.NDArray[np.float32] = scipy.sparse.csr_array(
        (rows.data, rows.indices, rows.indptr), shape
    ).toarray()
    return found


def spans(rows: Csr) -> list[tuple[int, int]]:
    """Return where every row begins and ends."""
    return [*zip(rows.indptr[:-1].tolist(), rows.indptr[1:].tolist(), strict=True)]


def written(folder: Path, text: str) -> Path:
    """Write a text file."""
    path = folder / "documents.txt"
    path.write_text(text)
    return path


def test_the_extreme_classification_format(tmp_path: Path) -> None:
    """With a header sizes are what it says; a document may have no label, or no feature."""
    documents, labels = read_labelled(written(tmp_path, WITH_HEADER))
    assert dense(documents).tolist() == [[0, 0.5, 0, 2], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert dense(labels).tolist() == [[1, 0, 0, 0, 1], [0] * 5, [0, 0, 1, 0, 0]]


def test_without_a_header_sizes_are_those_seen(tmp_path: Path) -> None:
    """The greatest feature and label count, or what is told; feature 0 says where they begin."""
    path = written(tmp_path, WITH_HEADER.partition("\n")[2])
    documents, labels = read_labelled(path)
    assert (documents.cols, labels.cols) == (4, 5)
    wide, many = read_labelled(path, dims=9, label_count=7)
    assert (wide.cols, many.cols) == (9, 7)
    from_one = read_labelled(written(tmp_path, "0 2:1\n1 1:3\n"))[0]
    assert dense(from_one).tolist() == [[0, 1], [3, 0]]
    from_zero = read_labelled(written(tmp_path, "0 2:1\n1 1:3\n"), base="0")[0]
    assert dense(from_zero).tolist() == [[0, 0, 1], [0, 3, 0]]


def test_order_comments_and_queries_do_not_matter(tmp_path: Path) -> None:
    """Features and labels in any order, comments, query numbers, other line ends, empty lines."""
    text = "# made by hand\r\n3,1 qid:7 5:1 2:2 # two\r\n\r\n1 , 0 1:1\r\n \r\n"
    documents, labels = read_labelled(written(tmp_path, text))
    assert dense(documents).tolist() == [[0, 2, 0, 0, 1], [1, 0, 0, 0, 0], [0] * 5]
    assert dense(labels).tolist() == [[0, 1, 0, 1], [1, 1, 0, 0], [0] * 4]


def test_an_empty_file_has_nothing(tmp_path: Path) -> None:
    """No lines are no documents, and a header of zeros is a header."""
    for text in ("", "0 0 0\n"):
        documents, labels = read_labelled(written(tmp_path, text))
        assert dense(documents).shape == dense(labels).shape == (0, 0)


@given(st.integers(0, 2**32), st.booleans())
@settings(deadline=None, derandomize=True, max_examples=30)
def test_svmlight_is_read_as_scikit_learn_reads_it(
    tmp_path_factory: pytest.TempPathFactory, seed: int, zero_based: bool
) -> None:
    """Numbers and label sets are scikit-learn's, where every document has labels."""
    rng = np.random.default_rng(seed)
    matrix = scipy.sparse.random(30, 12, 0.3, "csr", np.float32, rng=rng)
    truth = rng.random((30, 6)) < 0.3
    truth[:, 2] |= ~truth.any(axis=1)
    path = tmp_path_factory.mktemp("files") / "rows.svm"
    dump_svmlight_file(matrix, truth.astype(int), str(path), zero_based=zero_based, multilabel=True)
    base: IndexBase = "0" if zero_based else "1"
    documents, labels = read_labelled(path, base=base, dims=12, label_count=6)
    theirs, sets = load_svmlight_file(
        str(path), n_features=12, dtype=np.float32, multilabel=True, zero_based=zero_based
    )
    assert np.array_equal(dense(documents), theirs.toarray())
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
def test_what_is_wrong_is_named_by_its_line(tmp_path: Path, text: str, message: str) -> None:
    """Counts that do not hold, ranges, repetitions, what is no number and what is no line."""
    with pytest.raises(InvalidArgumentError, match=message):
        read_labelled(written(tmp_path, text))


def test_a_first_column_that_is_told_is_kept_to(tmp_path: Path) -> None:
    """Counting from 1 a feature 0 is wrong, and the last feature of a header is right."""
    path = written(tmp_path, "2 3 1\n0 3:1\n0 0:1\n")
    with pytest.raises(InvalidArgumentError, match="line 3: features are to begin at 1"):
        read_labelled(path, base="1")
    with pytest.raises(InvalidArgumentError, match="line 2: there is no feature 3"):
        read_labelled(path)
    assert dense(read_labelled(written(tmp_path, "1 3 1\n0 3:1\n"), base="1")[0])[0, 2] == 1


@pytest.mark.parametrize(("field", "told"), [("dims", 3), ("label_count", 4)])
def test_fewer_columns_than_there_are_are_refused(tmp_path: Path, field: str, told: int) -> None:
    """What is told must hold what the file has; the field is named."""
    with pytest.raises(InvalidArgumentError) as caught:
        read_labelled(written(tmp_path, WITH_HEADER), **{field: told})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_no_file_is_an_error(tmp_path: Path) -> None:
    """What cannot be opened is said."""
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        read_labelled(tmp_path / "nothing.txt")


def test_splits_are_columns_counted_from_one(tmp_path: Path) -> None:
    """Each column is a split of its own, in its order."""
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
    """No such column, and no document of that number."""
    with pytest.raises(InvalidArgumentError, match=message):
        read_split(written(tmp_path, text), 3, column)
