"""The command attributes add, and the files that it reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc_client import Client
from divgrpc_client.cli import main
from support.processes.command_line import Run

ROWS = 5
ADD = "attributes add"


@pytest.fixture
def index(client: Client) -> str:
    """Build an index whose text ids mostly look like numbers."""
    ids = ["10", "11", "12", "a-1", "007"]
    client.build("shoes-extended", np.eye(ROWS), ids=ids, attributes={"b": ids}, replace=True)
    return "shoes-extended"


@pytest.fixture
def numbered_index(client: Client) -> str:
    client.build("shoes-numbered", np.eye(ROWS), replace=True)
    return "shoes-numbered"


def values(client: Client, index: str, ids: list[Any]) -> dict[str, tuple[Any, ...]]:
    attributes = dict(client.get(index, ids).attributes)
    attributes.pop("b", None)
    return attributes


def test_values_come_from_a_csv_file(run: Run, client: Client, index: str, tmp_path: Path) -> None:
    file = tmp_path / "seasons.csv"
    file.write_text("id,season,year,code,none\n12,autumn,2024,1,\n10,,2025,2,\n")
    generation = client.get_index(index).generation
    result = run(ADD, index, file, "--types", "code=keyword")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        f"{index}: generation {generation + 1}, serving; added season (keyword), year (integer), "
        "code (keyword), none (keyword)",
        "values of 2 of 5 points",
    ]
    assert values(client, index, ["10", "12", "007"]) == {
        "season": (None, "autumn", None),
        "year": (2025, 2024, None),
        "code": ("2", "1", None),
        "none": (None, None, None),
    }
    assert run("count", index, "--where", "year>2024").out == "1\n"


def test_values_without_ids_are_those_of_all_points(
    run: Run, client: Client, numbered_index: str, tmp_path: Path
) -> None:
    file = tmp_path / "years.csv"
    file.write_text("year\n1\n2\n3\n4\n5\n")
    result = run(ADD, numbered_index, file, "--types", "year=float", "--json")
    declared = [{"name": "year", "type": "float", "multi": False}]
    assert (result.code, result.json["attributes"]) == (0, declared)
    assert values(client, numbered_index, [4, 0]) == {"year": (5.0, 1.0)}
    file.write_text("more\n1\n2\n3\n4\n")
    wrong = run(ADD, numbered_index, file, "--json")
    assert (wrong.code, wrong.fields) == (1, ["attributes"])
    assert "one value for each of the 5 points" in wrong.error["message"]


def test_values_come_from_lines_of_json(
    run: Run, client: Client, index: str, tmp_path: Path
) -> None:
    file = tmp_path / "tags.jsonl"
    points = [
        {"id": "a-1", "attributes": {"tags": ["x", "y"]}, "payload": "ignored", "vector": [1]},
        {"id": "10", "attributes": {"new": True}},
        {"id": "11"},
    ]
    file.write_text("".join(json.dumps(point) + "\n" for point in points))
    result = run(ADD, index, file)
    assert result.code == 0
    assert "added tags (keyword, multi), new (bool)" in result.out
    assert values(client, index, ["a-1", "10", "11"]) == {
        "tags": (("x", "y"), (), ()),
        "new": (None, True, None),
    }
    (tmp_path / "all.ndjson").write_text("".join('{"attributes": {"n": 1}}\n' for _ in range(ROWS)))
    assert run(ADD, index, tmp_path / "all.ndjson").out.splitlines()[1] == "values of all 5 points"


def test_values_come_from_parquet(run: Run, client: Client, index: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="missing extra: pyarrow")
    pytest.importorskip("pyarrow.parquet", reason="missing extra: pyarrow")
    columns = {"id": ["12", "007"], "year": [2024, None], "vector": [[1.0], [2.0]]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "years.parquet")
    assert run(ADD, index, tmp_path / "years.parquet").code == 0
    assert values(client, index, ["007", "12"]) == {"year": (None, 2024)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("a.txt", "", ()), "must end in .csv or .jsonl or .ndjson or .parquet"),
        (("a.csv", "", ()), "must begin with a line of different names"),
        (("a.csv", "id\n10\n", ()), "has no attribute"),
        (("a.csv", "id,a\n", ()), "has no values"),
        (("a.csv", "id,a\n10,1,2\n", ()), "line 2 has 3 values, and the first line has 2"),
        (("a.csv", "id,a\n,1\n", ()), "line 2 has no id"),
        (("a.csv", "id,a b\n10,1\n", ()), "must have names"),
        (("a.csv", "id,a\n10,x\n", ("--types", "a=integer")), "must be integers, got 'x' in row 0"),
        (("a.csv", "id,a\n10,x\n", ("--types", "c=keyword")), "names 'c', and"),
        (("a.csv", "id,a\n10,x\n", ("--types", "a")), "--types must be NAME=TYPE"),
        (("a.csv", "id,a\n10,x\n", ("--types", "a=text")), "keyword, integer, float, bool, got"),
        (("a.jsonl", "{}\n", ()), "has no attribute"),
        (("a.jsonl", '{"attributes": 1}\n', ()), "line 1: `attributes` must be an object"),
        (("a.jsonl", '{"id": 1}\n{"id": "x"}\n', ()), "line 2: `id` must be a whole number"),
        (("a.jsonl", '{"season": 1}\n', ()), "put others into attributes"),
    ],
)
def test_wrong_files_are_refused(
    run: Run, index: str, tmp_path: Path, call: tuple[str, str, tuple[str]], words: str
) -> None:
    name, content, options = call
    (tmp_path / name).write_text(content)
    result = run(ADD, index, tmp_path / name, *options)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_the_server_refuses_what_the_index_does_not_take(
    run: Run, index: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    for content, words in (
        ("id,b\n10,x\n", "attributes.b exists in this index"),
        ("id,a\nabsent,1\n", "ids has 'absent', which is no id of the index"),
        ("id,a\n10,1\n10,2\n", "ids must be unique, '10' occurs twice"),
    ):
        file.write_text(content)
        result = run(ADD, index, file)
        assert (result.code, result.out) == (1, "")
        assert words in result.err
    missing = run(ADD, "nowhere", file)
    assert (missing.code, "no index 'nowhere'" in missing.err) == (1, True)
    absent = run(ADD, index, tmp_path / "absent.csv")
    assert (absent.code, "cannot be read" in absent.err) == (2, True)


def test_the_command_needs_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["attributes"])
    assert "COMMAND" in capsys.readouterr().err
