"""Labels, categories and sub-topics in files that export writes and build and upsert read."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc_client import Client
from support.processes.command_line import Run

ROWS, DIMS, LABELS = 60, 6, 5
VECTORS = np.random.default_rng(3).normal(size=(ROWS, DIMS)).astype(np.float32)
SETS = np.random.default_rng(4).random((ROWS, LABELS)) < 0.4
# No point has the last label.
SETS[:, -1] = False
ANNOTATIONS: dict[str, Any] = {
    "labels": SETS,
    "categories": np.arange(ROWS) % 4 - 1,
    "subtopics": np.arange(ROWS) % 3 - 1,
}
VOTES: dict[str, Any] = {"mode": "neighbour_vote", "search": "exact", "top_k": 3}
SUFFIXES = (".jsonl", ".npz", ".parquet")
_NUMBERS = itertools.count()


def rows_of(vectors: Any, kind: str) -> Any:  # noqa: ANN401  # dense or sparse
    """Return vectors, sparse ones without their small numbers."""
    if kind == "dense":
        return vectors
    return sparse.csr_array(np.where(np.abs(vectors) > 0.5, vectors, 0) + np.eye(1, DIMS))


def written(client: Client, kind: str, kinds: tuple[str, ...] = tuple(ANNOTATIONS)) -> str:
    """Build an index with text ids, and write to it."""
    name = f"label-files-{next(_NUMBERS)}"
    columns = {key: ANNOTATIONS[key] for key in kinds}
    ids = [f"p{row}" for row in range(ROWS)]
    options: Any = {"metric": "inner_product", "attributes": {"row": range(ROWS)}, **columns}
    client.build(name, rows_of(VECTORS, kind), ids=ids, **options)
    later = {key: values[10:20] for key, values in columns.items()}
    new = rows_of(VECTORS[:10] + 1, kind)
    client.upsert(name, [f"p{row}" for row in range(55, 65)], new, **later)
    client.upsert(name, ["p5", "p6"], rows_of(VECTORS[7:9], kind))
    client.upsert(name, ["p7"], **{key: values[:1] for key, values in columns.items()})
    client.delete(name, [f"p{row}" for row in range(20, 30)])
    return name


def annotations_in(client: Client, name: str) -> dict[Any, Any]:
    pages = client.scroll(name, with_labels=True)
    return {record.id: record[4:] for page in pages for record in page}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_an_export_is_built_and_exported_again(
    run: Run, client: Client, tmp_path: Path, kind: str, suffix: str
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="missing extra: pyarrow")
        if kind == "sparse":
            pytest.skip("sparse points are exported as JSON Lines and .npz only")
    name = written(client, kind)
    file, again = (tmp_path / f"{stem}{suffix}" for stem in ("points", "again"))
    export = run("export", name, file)
    assert (export.code, export.err) == (0, "")
    build = run("build", f"{name}-copy", file, "--metric", "ip", "--json")
    assert build.code == 0, build.err
    assert build.json["labels"]["label_count"] == LABELS
    assert run("export", f"{name}-copy", again).code == 0
    assert again.read_bytes() == file.read_bytes()
    annotations = annotations_in(client, f"{name}-copy")
    assert annotations == annotations_in(client, name)
    assert annotations["p5"] == ((), -1, -1)
    assert annotations["p64"] == (tuple(np.flatnonzero(SETS[19]).tolist()), 2, 0)
    queries = rows_of(VECTORS[:9], kind)
    votes, expected = (client.predict_labels(n, queries, **VOTES) for n in (f"{name}-copy", name))
    assert votes.labels.tolist() == expected.labels.tolist()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kinds", [("labels",), ("categories",), ("subtopics",), ()])
def test_a_file_has_what_the_index_has(
    run: Run, client: Client, tmp_path: Path, kinds: tuple[str, ...], suffix: str
) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="missing extra: pyarrow")
    name = written(client, "dense", kinds)
    file, again = (tmp_path / f"{stem}{suffix}" for stem in ("points", "again"))
    assert run("export", name, file).code == 0
    build = run("build", f"{name}-copy", file, "--metric", "ip", "--json").json
    assert bool(build["labels"]) == ("labels" in kinds)
    assert build["has_categories"] == ("categories" in kinds)
    assert build["has_subtopics"] == ("subtopics" in kinds)
    assert run("export", f"{name}-copy", again).code == 0
    assert again.read_bytes() == file.read_bytes()


def test_what_is_not_exported_is_named(run: Run, client: Client, tmp_path: Path) -> None:
    names = [*"abcde"]
    options: Any = {"label_model": "leml", "label_names": names, "hierarchy": [(5, 0), (5, 1)]}
    client.build("label-files-model", VECTORS, labels=SETS, **options)
    export = run("export", "label-files-model", tmp_path / "points.jsonl")
    parts = "the label model, names of labels, the hierarchy of labels"
    assert (export.code, export.err) == (0, f"divgrpc: not exported: {parts}\n")


def test_points_are_shown_with_labels(run: Run, client: Client) -> None:
    name = written(client, "dense")
    head, line = run("get", name, "p64", "--with-labels").out.splitlines()
    assert head.split() == ["id", "row", "labels", "category", "subtopic"]
    labels = np.flatnonzero(SETS[19]).tolist()
    assert line.split() == ["p64", *", ".join(map(str, labels)).split(), "2", "0"]
    point = run("get", name, "p64", "--with-labels", "--json").json
    expected = {"id": "p64", "labels": labels, "label_count": LABELS, "category": 2, "subtopic": 0}
    assert point == expected
    assert run("get", name, "p64", "--json").json == {"id": "p64"}
    shown = run("scroll", name, "--with-labels", "--json", "--limit", "3").out.splitlines()
    assert all("labels" in json.loads(line) for line in shown)


def test_an_export_is_written_to_another_index(run: Run, client: Client, tmp_path: Path) -> None:
    name = written(client, "dense")
    other = f"{name}-other"
    columns: Any = {key: values[:3] for key, values in ANNOTATIONS.items()}
    columns |= {"ids": ["a", "b", "c"], "attributes": {"row": [1, 2, 3]}}
    client.build(other, VECTORS[:3], metric="inner_product", **columns)
    assert run("export", name, tmp_path / "points.npz").code == 0
    assert run("upsert", other, tmp_path / "points.npz").code == 0
    annotations = annotations_in(client, other)
    assert {i: annotations[i] for i in annotations if i not in {*"abc"}} == annotations_in(
        client, name
    )
    file = tmp_path / "changes.jsonl"
    file.write_text('{"id": "a", "labels": [3, 1]}\n{"id": "b", "labels": null}\n')
    changed = run("upsert", other, file)
    assert changed.code == 0, changed.err
    file.write_text('{"id": "b", "category": 7}\n')
    assert run("upsert", other, file).code == 0
    after = annotations_in(client, other)
    assert after["a"] == ((1, 3), -1, -1)
    assert after["b"] == ((), 7, 0)
    file.write_text('{"id": "a", "labels": []}\n')
    assert run("upsert", other, file).code == 0
    assert annotations_in(client, other)["a"] == ((), -1, -1)
    file.write_text('{"id": "b", "labels": [5]}\n')
    refused = run("upsert", other, file)
    assert refused.code == 1
    assert "labels must have 5 columns, one per label, got 6" in refused.err


def test_a_build_needs_the_number_of_labels(run: Run, client: Client, tmp_path: Path) -> None:
    file, name = tmp_path / "points.jsonl", f"label-files-{next(_NUMBERS)}"
    lines = '{"vector": [1, 2], "labels": []}\n{"vector": [2, 1]}\n'
    file.write_text(lines)
    refused = run("build", name, file)
    assert (refused.code, "give label_count, or leave out labels" in refused.err) == (2, True)
    file.write_text(lines + '{"vector": [1, 1], "label_count": 2}\n')
    assert run("build", name, file).code == 0
    assert annotations_in(client, name) == dict.fromkeys(range(3), ((), None, None))


def test_points_with_labels_are_no_matrix_of_labels(run: Run, tmp_path: Path) -> None:
    points = tmp_path / "points.jsonl"
    points.write_text('{"id": "a", "vector": [1, 2], "labels": [1]}\n')
    for verb in ("build", "upsert"):
        refused = run(verb, "label-files-absent", points, "--labels", points)
        assert refused.code == 2
        assert f"{points} has points with labels" in refused.err


def test_features_are_no_file_of_whole_points(run: Run, client: Client, tmp_path: Path) -> None:
    """Such a build would lose ids, attributes and labels."""
    points = tmp_path / "points.npz"
    assert run("export", written(client, "dense"), points).code == 0
    refused = run("build", "label-files-absent", "--features", points)
    assert (refused.code, f"name {points} as FILE" in refused.err) == (2, True)


def test_options_replace_what_a_file_has(run: Run, client: Client, tmp_path: Path) -> None:
    name = written(client, "dense")
    points = tmp_path / "points.jsonl"
    assert run("export", name, points).code == 0
    count = client.count(name)
    np.save(tmp_path / "nines.npy", np.full(count, 9))
    np.save(tmp_path / "sets.npy", np.eye(1, 3, 2).repeat(count, axis=0))
    options = ("--categories", tmp_path / "nines.npy", "--labels", tmp_path / "sets.npy")
    build = run("build", f"{name}-nines", points, "--metric", "ip", *options)
    assert build.code == 0, build.err
    nines = annotations_in(client, f"{name}-nines")
    subtopics = {i: values[2] for i, values in annotations_in(client, name).items()}
    assert nines == {i: ((2,), 9, subtopic) for i, subtopic in subtopics.items()}
    assert run("upsert", f"{name}-nines", points, *options).code == 0
    assert annotations_in(client, f"{name}-nines") == nines
