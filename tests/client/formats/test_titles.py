"""Titles of points, read from text files and JSON Lines."""

from pathlib import Path

import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.titles import read_titles


def test_titles_by_line_or_by_id(tmp_path: Path) -> None:
    """Titles belong to ids: each line starts with an id and a tab, or the line number is the id."""
    path = tmp_path / "titles.txt"
    path.write_text("zero\n\n2\ttwo")
    assert read_titles(path) == {0: "zero", 1: "", 2: "2\ttwo"}
    path.write_text("7\tseven\n3\tthree\tand more\n")
    assert read_titles(path) == {7: "seven", 3: "three\tand more"}
    path.write_text("a-7\tseven\n3\tthree\n")
    assert read_titles(path) == {"a-7": "seven", "3": "three"}
    path.write_text("\ufeffzero\r\none\u2028still one\n", newline="")
    assert read_titles(path) == {0: "zero", 1: "one\u2028still one"}
    path.write_text("")
    assert read_titles(path) == {}


def test_titles_in_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "titles.jsonl"
    path.write_text('{"id": "a", "title": "one\\ttwo", "more": 1}\n{"id": "b", "title": ""}\n')
    assert read_titles(path) == {"a": "one\ttwo", "b": ""}
    path.write_text('{"title": "zero"}\n{"title": "one"}\n')
    assert read_titles(path) == {0: "zero", 1: "one"}


@pytest.mark.parametrize(
    "line", ["", "no json", "[1]", "{}", '{"title": 1}', '{"id": true, "title": "x"}']
)
def test_the_line_at_fault_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "titles.jsonl"
    path.write_text('{"title": "zero"}\n' + line + '\n{"title": "two"}\n')
    with pytest.raises(InvalidArgumentError, match="line 2 must be a JSON object") as error:
        read_titles(path)
    assert error.value.field == "titles"
