"""Ids and attributes from CSV files."""

from pathlib import Path
from typing import Any

import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client.formats.column_files import read_columns


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_types_are_found(tmp_path: Path) -> None:
    lines = ("id,n,x,ok,word,none", "a,1,1,true,1,", '"b, c",,2.5,FALSE,"é ""x""",', "d,3,,,,", "")
    ids, columns = read_columns(written(tmp_path / "c.csv", "\n".join(lines)))
    assert ids == ["a", "b, c", "d"]
    expected: dict[str, list[Any]] = {
        "n": [1, None, 3],
        "x": [1.0, 2.5, None],
        "ok": [True, False, None],
        "word": ["1", 'é "x"', None],
        "none": [None, None, None],
    }
    assert columns == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-5", -5),
        ("0", 0),
        ("0.5", 0.5),
        ("-.5e3", -500.0),
        ("1e2", 100.0),
        ("007", "007"),
        ("1_000", "1_000"),
        ("nan", "nan"),
        ("1.", "1."),
        (" 1", " 1"),
        ("e5", "e5"),
        ("-", "-"),
    ],
)
def test_only_plain_numbers_are_numbers(tmp_path: Path, text: str, value: object) -> None:
    _, columns = read_columns(written(tmp_path / "c.csv", f"a\n{text}\n"))
    assert [(v, type(v)) for v in columns["a"]] == [(value, type(value))]


def test_ids_may_be_numbers_or_missing(tmp_path: Path) -> None:
    assert read_columns(written(tmp_path / "c.csv", "id\n7\n5\n")) == ([7, 5], {})
    assert read_columns(written(tmp_path / "c.csv", "a\nx\n")) == (None, {"a": ["x"]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must begin with a line of different names"),
        ("a,a\n1,2\n", "must begin with a line of different names"),
        ("a,b\n1,2\n3\n", "line 3 has 1 values, and the first line has 2"),
        ("id,a\nx,1\n,2\n", "line 3 has no id"),
        ('a\n"x', "cannot be read"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as error_info:
        read_columns(written(tmp_path / "c.csv", text))
    assert error_info.value.field == "columns"


def test_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"must be a \.csv file"):
        read_columns(tmp_path / "c.parquet")
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        read_columns(tmp_path / "absent.csv")
