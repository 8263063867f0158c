"""The commands get, count, scroll and export, and builds from JSON Lines."""

import json
from pathlib import Path

import numpy as np
import pytest

from divgrpc_client import Client
from support.processes.command_line import Run

ROWS = 45


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write points with text ids, attributes and payloads."""
    vectors = np.random.default_rng(2).normal(size=(ROWS, 4)).astype(np.float32)
    points = [
        {
            "id": f"shoe-{row}",
            "vector": vectors[row].tolist(),
            "attributes": {"brand": f"b{row % 3}", "tags": ["x", "y"][: row % 3]},
            "payload": {"title": f"Shoe [{row}]"},
        }
        for row in range(ROWS)
    ]
    path = tmp_path_factory.mktemp("points") / "shoes.jsonl"
    path.write_text("".join(json.dumps(point) + "\n" for point in points))
    return path


@pytest.fixture(scope="module")
def index(client: Client, file: Path) -> str:
    from divgrpc_client.formats.json_lines import read_points

    points = read_points(file)
    columns = {"ids": points.ids, "attributes": points.attributes, "payloads": points.payloads}
    client.build("shoes", points.vectors, replace=True, metric="euclidean", **columns)  # type: ignore[arg-type]
    return "shoes"


def test_an_archive_is_exported_and_built(run: Run, index: str, tmp_path: Path) -> None:
    archive, copy, again = (tmp_path / name for name in ("a.npz", "copy.jsonl", "again.jsonl"))
    assert run("export", index, archive).out == f"{ROWS} points of {index} in {archive}\n"
    assert run("build", "from-archive", archive, "--metric", "l2", "--replace").code == 0
    assert run("export", index, copy).code == run("export", "from-archive", again).code == 0
    assert copy.read_bytes() == again.read_bytes()
    assert run("query", index, archive, "--rows", "0:2", "-k", "3").code == 0
    wrong = run("build", "from-archive", archive, "--key", "nothing", "--replace")
    assert (wrong.code, "--key is not for a file such as" in wrong.err) == (2, True)


def test_a_file_is_built_exported_and_built_again(run: Run, file: Path, tmp_path: Path) -> None:
    build = run("build", "shoes-1", file, "--metric", "l2", "--replace", "--json")
    assert (build.code, build.json["id_kind"], build.json["has_payloads"]) == (0, "string", True)
    copy = tmp_path / "copy.jsonl"
    export = run("export", "shoes-1", copy)
    assert (export.code, export.out) == (0, f"{ROWS} points of shoes-1 in {copy}\n")
    assert not list(tmp_path.glob(".*"))
    assert run("build", "shoes-2", copy, "--metric", "l2", "--replace").code == 0
    again = tmp_path / "again.jsonl"
    assert run("export", "shoes-2", again, "--json").json["count"] == ROWS
    assert copy.read_bytes() == again.read_bytes()
    points = [json.loads(line) for line in copy.read_text().splitlines()]
    assert points[0].keys() == {"id", "vector", "attributes", "payload"}
    assert sorted(point["id"] for point in points) == sorted(f"shoe-{i}" for i in range(ROWS))
    refused = run("export", "shoes-1", copy)
    assert (refused.code, "--overwrite replaces it" in refused.err) == (2, True)
    assert run("export", "shoes-1", copy, "--overwrite").code == 0
    refused = run("export", "shoes-1", copy.parent / "absent" / "copy.jsonl")
    assert (refused.code, "in a folder that exists" in refused.err) == (2, True)
    wrong = run("export", "shoes-1", tmp_path / "points.csv")
    assert (wrong.code, ".jsonl" in wrong.err) == (2, True)


def test_get_shows_points(run: Run, index: str) -> None:
    result = run("get", index, "shoe-7", "shoe-1")
    head, *lines = result.out.splitlines()
    assert (result.code, head.split()) == (0, ["id", "brand", "tags", "payload"])
    assert lines[0].split() == ["shoe-7", "b1", "x", '{"title":"Shoe', '[7]"}']
    points = run("get", index, "shoe-7", "--with-vectors", "--json").json
    assert points["attributes"] == {"brand": "b1", "tags": ["x"]}
    assert len(points["vector"]) == 4
    assert run("get", index, "shoe-7", "--with-vectors").out.split()[4] == "vector"


def test_get_names_absent_ids(run: Run, index: str) -> None:
    result = run("get", index, "shoe-7", "boot-1")
    assert (result.code, "no point has the id boot-1" in result.err) == (1, True)
    assert "shoe-7" in result.out


def test_only_absent_ids_show_no_table(run: Run, index: str) -> None:
    result = run("get", index, "boot-1")
    assert (result.code, result.out) == (1, "")


def test_options_of_other_files_are_refused(run: Run, file: Path) -> None:
    for option in (("--key", "x"), ("--dims", "3"), ("--index-base", "1")):
        result = run("build", "shoes-3", file, *option)
        assert (result.code, "is not for a file such as" in result.err) == (2, True)


def test_integer_ids(run: Run, client: Client) -> None:
    client.build("numbers", np.eye(5), ids=[5, 4, 3, 2, 1], replace=True)
    assert run("get", "numbers", "3", "--json").json == {"id": 3}
    wrong = run("get", "numbers", "x")
    assert (wrong.code, "must be integers in this index" in wrong.err) == (2, True)


def test_count_and_scroll(run: Run, index: str) -> None:
    assert run("count", index).out == f"{ROWS}\n"
    assert run("count", index, "--json").json == {"name": index, "count": ROWS}
    assert len(run("scroll", index).out.splitlines()) == 21
    lines = run("scroll", index, "--limit", "30", "--json").out.splitlines()
    assert len({json.loads(line)["id"] for line in lines}) == 30
    assert len(run("scroll", index, "--limit", "99").out.splitlines()) == ROWS + 1
    assert run("scroll", index, "--limit", "0").code == 2


def test_queries_show_columns(run: Run, index: str, file: Path) -> None:
    ask = ("query", index, file, "--rows", "7", "-k", "2", "--with-attributes", "--with-payload")
    head, first, *_ = run(*ask).out.splitlines()
    assert head.split() == ["row", "rank", "id", "score", "copies", "brand", "tags", "payload"]
    assert first.split()[2:] == ["shoe-7", "0.0000", "0", "b1", "x", '{"title":"Shoe', '[7]"}']
    row = run(*ask, "--json").json["results"][0]
    assert row["ids"][0] == "shoe-7"
    assert row["attributes"][0] == {"brand": "b1", "tags": ["x"]}
    assert row["payloads"][0] == {"title": "Shoe [7]"}


def test_info_shows_columns(run: Run, index: str) -> None:
    text = "text ids, with payloads, attributes brand (keyword), tags (keyword, multi)"
    assert text in run("info", index).out


def test_ids_from_a_text_file(run: Run, client: Client, tmp_path: Path) -> None:
    np.save(tmp_path / "three.npy", np.eye(3))
    ids = tmp_path / "ids.txt"
    for text, expected in (("a\nb c\n7\n", ["a", "b c", "7"]), ("9\n8\n7\n", [9, 8, 7])):
        ids.write_text(text)
        build = run("build", "lines", tmp_path / "three.npy", "--ids", ids, "--replace")
        assert build.code == 0
        assert client.get("lines", expected).ids.tolist() == expected


def test_columns_from_a_csv_file(run: Run, client: Client, tmp_path: Path) -> None:
    np.save(tmp_path / "three.npy", np.eye(3))
    (tmp_path / "three.csv").write_text("id,brand,none\na,x,\nb,,\nc,y,\n")
    command = ("build", "three", tmp_path / "three.npy", "--columns", tmp_path / "three.csv")
    assert run(*command, "--replace").code == 0
    records = client.get("three", ["c", "b"])
    assert records.attributes == {"brand": ("y", None), "none": (None, None)}
    (tmp_path / "three.csv").write_text("id\na\nb\n")
    wrong = run(*command, "--replace")
    assert (wrong.code, "one entry per row, 3, got 2" in wrong.err) == (2, True)
