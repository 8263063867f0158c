"""What stands beside documents in files: names of labels, edges of a hierarchy."""

from pathlib import Path

import numpy as np
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.documents import read_edges
from divgrpc_client.formats.files import read_lines


def test_names_are_lines(tmp_path: Path) -> None:
    """Line feeds alone end a name; an empty line is an empty name."""
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
