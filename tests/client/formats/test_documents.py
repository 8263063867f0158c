"""Files that accompany documents: names of labels, and edges of a hierarchy."""

from pathlib import Path

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.documents import Documents, read_edges
from divgrpc_client.formats.files import read_lines


def test_rows_of_a_range_are_not_copied() -> None:
    """A range of rows is a view, because a memory-mapped file may be larger than memory."""
    rows = np.arange(12.0).reshape(4, 3)
    documents = Documents(Path("rows.npy"), rows, rows, np.arange(4))
    part = documents.taken(range(1, 3))
    assert np.shares_memory(part.rows, rows)
    assert part.numbers.tolist() == [1, 2]
    split = documents.taken(np.array([3, 0]))
    for matrix in (split.rows, split.labels):
        assert isinstance(matrix, np.ndarray)
        assert np.array_equal(matrix, rows[[3, 0]])


def test_each_line_is_a_name(tmp_path: Path) -> None:
    """Only a line feed ends a name, and an empty line is an empty name."""
    path = tmp_path / "names.txt"
    path.write_text("a\u2028b\nc\x0cd\n\ne\n", encoding="utf-8")
    assert read_lines("label_names", path) == ["a\u2028b", "c\x0cd", "", "e"]


def test_edges_are_pairs_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "edges.txt"
    path.write_text("9 1  # told\n\n9,2\n")
    assert np.array_equal(read_edges(path), [[9, 1], [9, 2]])


@pytest.mark.parametrize("line", ["1", "1 2 3", "1 x", "-1 2", "1 " + "9" * 30, "1 " + "9" * 5_000])
def test_a_faulty_edge_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "edges.txt"
    path.write_text(f"9 1\n{line}\n")
    with pytest.raises(InvalidArgumentError, match="line 2 is not: parent child"):
        read_edges(path)
