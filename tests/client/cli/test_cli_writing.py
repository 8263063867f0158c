"""The commands upsert, delete and compact."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from divgrpc_client import Client
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
    assert again.json == {"name": index, "generation": 1, "sequence": 2, "rows": 10} | {
        "generation": again.json["generation"]
    }
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
    assert (wrong.code, "--ids reads them from a file" in wrong.err) == (2, True)


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
