"""The commands upsert, delete, compact and retrain."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.errors import InvalidArgumentError
from divgrpc.types.records import SparseVectors
from divgrpc_client import Client
from divgrpc_client.cli import writing
from support.processes.command_line import Run

ROWS = 30
VECTORS = np.random.default_rng(2).normal(size=(ROWS + 10, 4)).astype(np.float32)


@pytest.fixture
def index(client: Client) -> str:
    columns: dict[str, Any] = {
        "ids": [f"shoe-{row}" for row in range(ROWS)],
        "attributes": {"brand": ["a", "b"] * (ROWS // 2), "price": np.arange(ROWS) / 2},
        "payloads": [b"old"] * ROWS,
    }
    client.build("cli-shoes", VECTORS[:ROWS], replace=True, **columns)
    return "cli-shoes"


def written_to(path: Path, rows: range) -> Path:
    """Write points to a file of JSON Lines."""
    points = [
        {
            "id": f"shoe-{row}",
            "vector": VECTORS[row].tolist(),
            "attributes": {"price": row},
            "payload": {"row": row},
        }
        for row in rows
    ]
    path.write_text("".join(json.dumps(point) + "\n" for point in points))
    return path


def test_points_of_a_file_are_written(run: Run, client: Client, index: str, tmp_path: Path) -> None:
    file = written_to(tmp_path / "new.jsonl", range(ROWS - 5, ROWS + 5))
    assert run("upsert", index, file).out == "10 points written, write 1\n"
    assert client.count(index) == ROWS + 5
    (record,) = client.get(index, f"shoe-{ROWS + 1}")
    assert (record.attributes, json.loads(record.payload)) == (
        {"brand": None, "price": ROWS + 1},
        {"row": ROWS + 1},
    )
    again = run("upsert", index, file, "--json")
    generation = client.get_index(index).generation
    assert again.json == {"name": index, "generation": generation, "sequence": 2, "rows": 10}
    refusal = run("upsert", index, file, "--mode", "insert_only")
    assert (refusal.code, f"id 'shoe-{ROWS - 5}' exists already" in refusal.err) == (1, True)


def test_vectors_of_a_file_need_ids(run: Run, client: Client, index: str, tmp_path: Path) -> None:
    vectors, ids, columns = (tmp_path / name for name in ("v.npy", "ids.txt", "columns.csv"))
    np.save(vectors, VECTORS[:2])
    ids.write_text("shoe-1\nboot-1\n")
    assert run("upsert", index, vectors, "--ids", ids).code == 0
    assert [record.id for record in client.get(index, ["boot-1"])] == ["boot-1"]
    columns.write_text("id,brand\n17,c\n18,\n")
    assert run("upsert", index, vectors, "--columns", columns).code == 0
    assert client.get(index, ["17"])[0].attributes["brand"] == "c"
    wrong = run("upsert", index, vectors)
    assert (wrong.code, "name a file of ids with --ids" in wrong.err) == (2, True)


def lines(path: Path, *points: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(point) + "\n" for point in points))
    return path


def test_points_without_vectors_keep_them(
    run: Run, client: Client, index: str, tmp_path: Path
) -> None:
    """What the file leaves out is kept; null removes a value."""
    before = client.get(index, ["shoe-3", "shoe-4"], with_vectors=True)
    changes = ({"id": f"shoe-{n}", "attributes": {"price": p}} for n, p in ((3, 7), (4, None)))
    file = lines(tmp_path / "prices.jsonl", *changes)
    assert run("upsert", index, file, "--mode", "update_only").out == "2 points written, write 1\n"
    after = client.get(index, ["shoe-3", "shoe-4"], with_vectors=True)
    for old, new in zip(before, after, strict=True):
        assert isinstance(old.vector, np.ndarray)
        assert isinstance(new.vector, np.ndarray)
        assert np.array_equal(old.vector, new.vector)
    assert [record.attributes for record in after] == [
        {"brand": "b", "price": 7},
        {"brand": "a", "price": None},
    ]
    assert {record.payload for record in after} == {b"old"}
    run("upsert", index, lines(file, {"id": "shoe-3", "payload": None}))
    (record,) = client.get(index, "shoe-3")
    assert (record.payload, record.attributes["price"]) == (b"", 7)
    absent = run("upsert", index, lines(file, {"id": "boot-9"}), "--json")
    assert (absent.code, "boot-9" in absent.error["message"]) == (1, True)


def test_a_write_is_made_on_a_condition_and_once(run: Run, index: str, tmp_path: Path) -> None:
    file = written_to(tmp_path / "new.jsonl", range(3))
    assert run("upsert", index, file, "--if-sequence", 0, "--write-id", "first").code == 0
    again = run("upsert", index, file, "--write-id", "first", "--json").json
    assert (again["sequence"], again["rows"]) == (1, 3)
    refusal = run("delete", index, "shoe-1", "--if-sequence", 0, "--json")
    assert (refusal.code, refusal.error["reason"]) == (1, "CONDITION_FAILED")
    for _ in range(2):
        gone = run("delete", index, "shoe-1", "--if-sequence", 1, "--write-id", "second")
        assert gone.out == "1 point deleted, write 2\n"


def test_parts_of_a_file_have_names_of_their_own() -> None:
    assert [writing._name_of("may", start) for start in (0, 1_000)] == ["may", "may:1000"]
    assert writing._name_of(None, 1_000) is None


def test_a_name_that_is_too_long_for_the_last_rows_writes_nothing(
    run: Run, client: Client, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_ROWS_AT_A_TIME", 5)
    file = written_to(tmp_path / "new.jsonl", range(ROWS, ROWS + 10))
    refusal = run("upsert", index, file, "--write-id", "x" * 127)
    assert (refusal.code, "at most 128 bytes" in refusal.err) == (2, True)
    ids = [f"boot-{row}" for row in range(10_001)]
    vectors = np.ones((len(ids), 4), np.float32)
    with pytest.raises(InvalidArgumentError, match="suffix ':1'"):
        client.upsert(index, ids, vectors, write_id="x" * 127)
    assert client.count(index) == ROWS
    assert run("upsert", index, file, "--write-id", "x" * 126).code == 0


def test_a_query_shows_the_last_write(run: Run, index: str) -> None:
    query = ("query", index, "--like", "shoe-2")
    assert run(*query, "--json").json["sequence"] == 0
    assert "write" not in run(*query).out
    run("delete", index, "shoe-1")
    assert run(*query, "--json", "--min-sequence", 1).json["sequence"] == 1
    assert ", write 1" in run(*query).out
    refusal = run(*query, "--min-sequence", 2, "--json")
    assert (refusal.code, refusal.error["reason"]) == (1, "CONDITION_FAILED")


def test_points_are_deleted(run: Run, client: Client, index: str) -> None:
    assert run("delete", index, "shoe-1", "absent").out == "1 point deleted, write 1\n"
    assert run("delete", index, "--where", "price<5", "--json").json["rows"] == 9
    both = run("delete", index, "shoe-20", "shoe-21", "--where", "brand=a")
    assert (both.out, client.count(index)) == ("1 point deleted, write 3\n", ROWS - 11)
    wrong = run("delete", index)
    assert (wrong.code, "ids are required, or conditions" in wrong.err) == (2, True)


def test_writes_are_merged(run: Run, index: str) -> None:
    assert run("compact", index).out == f"{index}: nothing to merge\n"
    run("delete", index, "shoe-1")
    assert run("compact", index, "--json").json == {"name": index, "merged": True}
    assert "1 write" in run("info", index).out
    assert run("compact", index, "--vacuum").out == f"{index}: merged\n"
    assert run("compact", index, "--vacuum").out == f"{index}: nothing to merge\n"
    assert run("retrain", index).out == f"{index}: retrained\n"
    assert run("retrain", index, "--json").json == {"name": index, "retrained": True}


LABELS = np.array([[1, 0, 0], [0, 1, 1]])


@pytest.fixture
def annotated_index(client: Client) -> str:
    """Build an index with labels, categories and sub-topics."""
    numbers = np.arange(ROWS)
    annotations: dict[str, Any] = {
        "labels": LABELS[numbers % 2],
        "categories": numbers % 4,
        "subtopics": numbers % 3,
    }
    client.build("cli-papers", VECTORS[:ROWS], replace=True, **annotations)
    return "cli-papers"


def best_label(client: Client, index: str, row: int) -> int:
    """Return the label of the point that is nearest to a vector."""
    options: Any = {"mode": "neighbour_vote", "neighbours": 1, "top_k": 1}
    return int(client.predict_labels(index, VECTORS[row : row + 1], **options).labels[0, 0])


def test_labels_and_topics_of_files_are_written(
    run: Run, client: Client, annotated_index: str, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("v.npz", "y.npy", "c.txt", "ids.txt")}
    ids = np.array([ROWS, ROWS + 1])
    np.savez(files["v.npz"], v=VECTORS[ROWS : ROWS + 2], id=ids, t=np.array([7, -1]))
    np.save(files["y.npy"], np.array([[0, 0, 1], [1, 0, 0]]))
    files["c.txt"].write_text("8\n8\n")
    topics = ("--categories", files["c.txt"], "--subtopics", "t")
    words = ("upsert", annotated_index, files["v.npz"], "--key", "v", "--ids", "id")
    written = run(*words, "--labels", files["y.npy"], *topics)
    assert written.out == "2 points written, write 1\n"
    assert [best_label(client, annotated_index, ROWS + row) for row in range(2)] == [2, 0]
    # A category without points would be refused.
    options: Any = {"folds": 0, "searches": ["exact"], "selectors": ["nearest"], "ks": [2]}
    (row,) = client.evaluate(annotated_index, VECTORS[ROWS : ROWS + 1], [8], **options)
    assert row.metrics["recall"].value >= 0.5

    np.save(files["y.npy"], np.eye(2))
    wrong = run(*words, "--labels", files["y.npy"])
    assert (wrong.code, "labels must have 3 columns, one per label" in wrong.err) == (1, True)
    files["c.txt"].write_text("8\n")
    wrong = run(*words, *topics)
    assert (wrong.code, "categories must have one row per id, 2, got 1" in wrong.err) == (2, True)
    wrong = run("upsert", annotated_index, "--ids", files["ids.txt"])
    assert (wrong.code, "set either FILE or --features" in wrong.err) == (2, True)


def test_labels_of_points_without_vectors_are_written(
    run: Run, client: Client, annotated_index: str, tmp_path: Path
) -> None:
    file, labels = lines(tmp_path / "p.jsonl", {"id": 3}, {"id": 4}), tmp_path / "y.npy"
    np.save(labels, np.array([[0, 0, 1], [0, 0, 1]]))
    assert best_label(client, annotated_index, 4) == 0
    assert run("upsert", annotated_index, file, "--labels", labels).code == 0
    assert [best_label(client, annotated_index, row) for row in (3, 4)] == [2, 2]
    shown = run("predict", annotated_index, file_of(tmp_path / "d.npy"))
    assert shown.code == 1  # the index has no label model


def file_of(path: Path) -> Path:
    np.save(path, VECTORS[:2])
    return path


def test_files_of_sparse_points_are_written(run: Run, client: Client, tmp_path: Path) -> None:
    """The points are read as divgrpc build reads them."""
    rng, name = np.random.default_rng(4), "cli-news"
    points = sparse.random_array((203, 900), density=0.02, format="csr", dtype=np.float32, rng=rng)
    client.build(name, points[:200], replace=True)
    rows = points[200:]
    ids, archive, text = (tmp_path / file for file in ("ids.txt", "points.npz", "points.svm"))
    ids.write_text("1\n2\n1000\n")
    sparse.save_npz(archive, sparse.csr_matrix(rows))
    assert run("upsert", name, archive, "--ids", ids).out == "3 points written, write 1\n"
    lines = [
        "0 " + " ".join(f"{column}:{value:.9g}" for column, value in zip(
            rows[[row]].indices, rows[[row]].data, strict=True
        ))
        for row in range(3)
    ]  # fmt: skip
    text.write_text("\n".join(lines) + "\n")
    # The file does not have the last columns, which it could not know of.
    options = ("--index-base", "0")
    assert run("upsert", name, text, "--ids", ids, *options).out == "3 points written, write 2\n"
    written = client.get(name, [1, 2, 1000], with_vectors=True).vectors
    exported = tmp_path / "exported.jsonl"
    assert run("export", name, exported).code == 0
    assert run("upsert", name, exported).code == 0
    again = client.get(name, [1, 2, 1000], with_vectors=True).vectors
    for vectors in (written, again):
        assert isinstance(vectors, SparseVectors)
        matrix = sparse.csr_array((vectors.values, vectors.indices, vectors.indptr), rows.shape)
        lengths = np.sqrt((rows.toarray() ** 2).sum(axis=1, keepdims=True))
        np.testing.assert_allclose(matrix.toarray(), rows.toarray() / lengths, rtol=1e-5)
    assert client.count(name) == 201
