"""Points without a vector in files: build, export, build again, upsert."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.processes.command_line import Run

ROWS = 40


def write(path: Path, points: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(point) + "\n" for point in points))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write points, of which every fifth one has null as its vector, and the next one lacks it."""
    vectors = np.random.default_rng(2).normal(size=(ROWS, 4)).astype(np.float32)
    points: list[dict[str, Any]] = []
    for row in range(ROWS):
        point: dict[str, Any] = {
            "id": f"p{row}",
            "attributes": {"row": row},
            "payload": f"text {row}",
        }
        if row % 5 != 2:
            point["vector"] = None if row % 5 == 1 else vectors[row].tolist()
        points.append(point)
    return write(tmp_path / "points.jsonl", points)


def lines(path: Path) -> dict[str, Any]:
    points = map(json.loads, path.read_text().splitlines())
    return {point["id"]: point for point in points}


def test_a_file_is_built_exported_and_built_again(run: Run, file: Path, tmp_path: Path) -> None:
    options = ("--metric", "l2", "--vectors-optional", "--replace", "--json")
    build = run("build", "some-vectors", file, *options)
    assert (build.code, build.json["rows"], build.json["rows_without_vector"]) == (0, ROWS, 16)
    assert "16 points without a vector" in run("info", "some-vectors").out
    copy, again, archive = (tmp_path / name for name in ("copy.jsonl", "again.jsonl", "copy.npz"))
    assert run("export", "some-vectors", copy).code == 0
    assert {name for name, point in lines(copy).items() if point["vector"] is None} == {
        f"p{row}" for row in range(ROWS) if row % 5 in {1, 2}
    }
    assert run("export", "some-vectors", archive).code == 0
    for source in (copy, archive):
        assert run("build", "some-vectors-again", source, *options).code == 0
        assert run("export", "some-vectors-again", again, "--overwrite").code == 0
        assert again.read_bytes() == copy.read_bytes()
    assert run("count", "some-vectors", "--where", "row<5").out.strip() == "5"
    assert run("get", "some-vectors", "p1", "--with-vectors", "--json").code == 0
    like = run("query", "some-vectors", "--like", "p1")
    assert (like.code != 0, "a point without a vector" in like.err) == (True, True)


def as_sparse(point: dict[str, Any], row: int) -> dict[str, Any]:
    vector = {"indices": [row % 7, 7 + row % 3], "values": [1.5, row / 4 + 1], "dims": 12}
    return point | {
        "vector": None if row % 5 in {1, 2} else vector,
        "labels": [row % 4],
        "label_count": 5,
        "category": row % 3 - 1,
    }


def test_sparse_points_with_labels(run: Run, file: Path, tmp_path: Path) -> None:
    points = [as_sparse(point, row) for row, point in enumerate(lines(file).values())]
    source = write(tmp_path / "sparse.jsonl", points)
    options = ("--metric", "l2", "--vectors-optional", "--replace", "--json")
    build = run("build", "sparse-vectors", source, *options)
    assert (build.code, build.json["rows"], build.json["rows_without_vector"]) == (0, ROWS, 16)
    copy, again, archive = (tmp_path / name for name in ("copy.jsonl", "again.jsonl", "copy.npz"))
    assert run("export", "sparse-vectors", copy).code == 0
    assert lines(copy) == {point["id"]: point for point in points}
    assert run("export", "sparse-vectors", archive).code == 0
    for exported in (copy, archive):
        assert run("build", "sparse-again", exported, *options).code == 0
        assert run("export", "sparse-again", again, "--overwrite").code == 0
        assert again.read_bytes() == copy.read_bytes()
    changed = [points[0] | {"vector": None}, points[1] | {"vector": points[0]["vector"]}]
    assert run("upsert", "sparse-again", write(tmp_path / "some.jsonl", changed)).code == 0
    assert run("upsert", "sparse-again", archive).code == 0
    assert run("export", "sparse-again", again, "--overwrite").code == 0
    assert lines(again) == lines(copy)
    model = run("build", "sparse-model", source, *options, "--label-model", "leml", "--rank", "2")
    assert model.code == 0, model.err
    assert run("get", "sparse-model", "p1", "--with-labels", "--json").code == 0


def test_a_file_without_points_is_refused(run: Run, file: Path, tmp_path: Path) -> None:
    assert run("build", "no-points", file, "--vectors-optional", "--replace").code == 0
    archive = tmp_path / "none.npz"
    assert run("export", "no-points", archive, "--where", "row>1000").code == 0
    refused = run("upsert", "no-points", archive)
    assert (refused.code, "has no points, so there is nothing to write" in refused.err) == (2, True)


def test_upserts(run: Run, file: Path, tmp_path: Path) -> None:
    build = run("build", "upserted-vectors", file, "--vectors-optional", "--replace")
    assert build.code == 0, build.err
    some: list[dict[str, Any]] = [
        {"id": "p0", "vector": None, "attributes": {"row": 1}},
        {"id": "p1", "vector": [1, 2, 3, 4], "attributes": {"row": 2}},
        {"id": "new", "vector": None},
    ]
    assert run("upsert", "upserted-vectors", write(tmp_path / "some.jsonl", some)).code == 0
    updates: list[dict[str, Any]] = [
        {"id": name, "attributes": {"row": 7}} for name in ("p1", "newer")
    ]
    assert run("upsert", "upserted-vectors", write(tmp_path / "kept.jsonl", updates)).code == 0
    copy = tmp_path / "copy.jsonl"
    assert run("export", "upserted-vectors", copy).code == 0
    points = lines(copy)
    has_vector = {n: points[n]["vector"] is not None for n in ("p0", "p1", "p2", "new", "newer")}
    assert has_vector == {"p0": False, "p1": True, "p2": False, "new": False, "newer": False}
    assert points["p1"]["attributes"] == points["newer"]["attributes"] == {"row": 7}
    mixed = write(tmp_path / "mixed.jsonl", [{"id": "a"}, {"id": "b", "vector": None}])
    refused = run("upsert", "upserted-vectors", mixed)
    assert (refused.code, "line 2: has a `vector`, and the first" in refused.err) == (2, True)


def test_without_the_option_such_points_are_refused(run: Run, file: Path, tmp_path: Path) -> None:
    refused = run("build", "refused-vectors", file, "--replace")
    assert refused.code == 2
    assert "line 2: `vector` must be a list of numbers" in refused.err
    assert "--vectors-optional" in refused.err
    split = write(tmp_path / "split.txt", [])
    some = run("build", "x", file, "--vectors-optional", "--split", split)
    assert (some.code, "does not go with points without a vector" in some.err) == (2, True)
