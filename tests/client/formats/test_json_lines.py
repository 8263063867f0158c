"""Points survive a round trip through JSON Lines, and a wrong line is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc.types.records import Records, SparseVectors
from divgrpc_client.formats.files import read_vectors
from divgrpc_client.formats.json_lines import read_points, read_values, write_points
from divgrpc_protos.arrays import Csr


def written(path: Path, *lines: object) -> Path:
    """Write a line of JSON for each object, or a text as it is."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_points_are_read(tmp_path: Path) -> None:
    points = read_points(
        written(
            tmp_path / "points.jsonl",
            {"id": "a", "vector": [1, 0.5], "attributes": {"brand": "x"}, "payload": {"t": "é"}},
            "",
            {"id": "b", "vector": [0, 1], "attributes": {"tags": ["u"]}, "payload": "plain"},
            {"id": "c", "vector": [1, 1], "payload_base64": "AP8="},
            {"id": "d", "vector": [2, 1]},
        )
    )
    assert points.ids == ["a", "b", "c", "d"]
    assert isinstance(points.vectors, np.ndarray)
    assert points.vectors.tolist() == [[1, 0.5], [0, 1], [1, 1], [2, 1]]
    assert points.attributes == {
        "brand": ["x", None, None, None],
        "tags": [None, ["u"], None, None],
    }
    assert list(points.attributes) == ["brand", "tags"]
    assert points.payloads == ['{"t":"é"}'.encode(), b"plain", b"\x00\xff", None]


def test_vectors_alone_suffice(tmp_path: Path) -> None:
    path = written(tmp_path / "points.ndjson", {"vector": [1, 2]}, {"vector": [3, 4]})
    points = read_points(path)
    assert (points.ids, points.attributes, points.payloads) == (None, {}, None)
    vectors = read_vectors(path)
    assert isinstance(vectors, np.ndarray)
    assert vectors.tolist() == [[1, 2], [3, 4]]


_PAYLOADS = st.one_of(
    st.binary(max_size=20),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists).map(
        lambda value: json.dumps(value).encode()
    ),
)


@given(st.lists(_PAYLOADS, min_size=1, max_size=5), st.booleans())
def test_what_is_written_is_read(payloads: list[bytes], is_sparse: bool) -> None:
    rng = np.random.default_rng(len(payloads))
    count = len(payloads)
    dense = rng.normal(size=(count, 3)).astype(np.float32)
    vectors: Any = dense
    if is_sparse:
        indices = np.tile(np.arange(3, dtype=np.int32), count)
        vectors = SparseVectors(np.arange(count + 1) * 3, indices, dense.ravel(), 3)
    attributes: dict[str, Any] = {
        "n": tuple(range(count)),
        "tags": (("x",),) * count,
        "none": (None,) * count,
    }
    ids = np.array([f"id {row} \N{SNOWMAN}" for row in range(count)], object)
    records = Records(ids, vectors, attributes, tuple(payloads))
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "points.jsonl"
        path.write_text("".join(write_points(records)), encoding="utf-8")
        points = read_points(path)
    assert points.ids == ids.tolist()
    numbers = points.vectors
    assert numbers is not None
    values = numbers.data if isinstance(numbers, Csr) else numbers.ravel()
    assert values.tobytes() == dense.tobytes()
    assert points.attributes == {"n": list(range(count)), "tags": [["x"]] * count}
    assert (points.payloads or [None] * count) == [payload or None for payload in payloads]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: is no JSON"),
        ("[1]", "line 2: must be an object"),
        ({"vector": [1, 2], "vektor": 1}, "line 2: has 'vektor'; the keys .* into attributes"),
        ({"payload": "b"}, "line 2: `vector` must be a list of numbers"),
        ({"vector": "x"}, "line 2: `vector` must be a list of numbers"),
        ({"vector": []}, "line 2: `vector` must be a list of numbers"),
        ({"vector": [[1]]}, "line 2: `vector` must be a list of numbers"),
        ({"vector": ["1", "2"]}, "line 2: `vector` must be a list of numbers"),
        ({"vector": [True, False]}, "line 2: `vector` must be a list of numbers"),
        ({"vector": {"indices": [0]}}, "line 2: a sparse `vector` must have"),
        ({"vector": {"indices": [1, 0], "values": [1, 2], "dims": 2}}, "must ascend"),
        ({"vector": {"indices": [2], "values": [1], "dims": 2}}, "must ascend"),
        ({"vector": {"indices": [0, 1], "values": [1], "dims": 2}}, "must ascend"),
        ({"vector": [1, 2], "attributes": [1]}, "line 2: `attributes` must be an object"),
        ({"vector": [1, 2], "payload_base64": "?"}, "line 2: `payload_base64` must be"),
        ({"vector": [1, 2], "id": "b"}, "line 2: `id` must be left out, as in the first point"),
        ({"vector": [1, 2], "id": 0.5}, "line 2: `id` must be a text or a whole number"),
        ({"vector": [1, 2, 3]}, "line 2: `vector` has 3 dimensions, and the first has 2"),
        (
            {"vector": {"indices": [0], "values": [1], "dims": 2}},
            "line 2: all vectors must be dense",
        ),
        ({"vector": {"indices": [0.5], "values": [1], "dims": 2}}, "line 2: a sparse `vector`"),
        ({"vector": {"indices": [0], "values": ["1"], "dims": 2}}, "line 2: a sparse `vector`"),
        ({"vector": {"indices": [0], "values": [1], "dims": 2.5}}, "line 2: a sparse `vector`"),
        ({"vector": {"indices": [0], "values": [1], "dims": 1e10}}, "line 2: a sparse `vector`"),
        ({"vector": [1, 2], "payload": 1, "payload_base64": "AA=="}, "line 2: must have `payload`"),
        ({"vector": [1, 2], "labels": 3}, "line 2: `labels` must be a list of whole numbers"),
        ({"vector": [1, 2], "labels": [-1]}, "line 2: `labels` must be a list of whole numbers"),
        ({"vector": [1, 2], "labels": [True]}, "line 2: `labels` must be a list of whole numbers"),
        ({"vector": [1, 2], "labels": [2**22]}, "line 2: `labels` must be .* from 0 to 4194303"),
        (
            {"vector": [1, 2], "label_count": 0},
            "line 2: `label_count` must be .* from 1 to 4194304$",
        ),
        ({"vector": [1, 2], "label_count": 2**22 + 1}, "line 2: `label_count` must be"),
        ({"vector": [1, 2], "category": "x"}, "line 2: `category` must be a whole number"),
        ({"vector": [1, 2], "category": -2}, "line 2: `category` must be a whole number"),
        ({"vector": [1, 2], "subtopic": 2**31}, "line 2: `subtopic` must be a whole number"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, words: str) -> None:
    path = written(tmp_path / "points.jsonl", {"vector": [1, 2]}, line)
    with pytest.raises(InvalidArgumentError, match=words) as error_info:
        read_points(path)
    assert error_info.value.field == "file"
    assert str(path) in str(error_info.value)


def test_labels_and_topics_are_read(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"labels": [3, 0, 3], "category": 7},
        {"labels": None, "category": None, "subtopic": 2},
        {},
    ]
    path = tmp_path / "points.jsonl"
    annotations = read_points(
        written(path, *({"vector": [1]} | line for line in lines))
    ).annotations
    assert annotations["categories"] == [7, -1, -1]
    assert annotations["subtopics"] == [-1, 2, -1]
    labels = annotations["labels"]
    assert (labels.indptr.tolist(), labels.indices.tolist()) == ([0, 2, 2, 2], [0, 3])
    assert (labels.data.tolist(), labels.cols) == ([1, 1], 4)
    lines[2]["label_count"] = 9
    annotations = read_points(
        written(path, *({"vector": [1]} | line for line in lines))
    ).annotations
    assert annotations["labels"].cols == 9
    assert read_points(written(path, {"vector": [1]})).annotations == {}
    assert read_points(written(path, {"vector": [1], "category": 2})).annotations == {
        "categories": [2]
    }
    assert read_points(written(path, {"vector": [1], "label_count": 2})).annotations == {}
    assert read_values(written(path, {"id": 1, "labels": [3]})) == ([1], {})


def test_numbers_of_labels_that_differ_are_refused(tmp_path: Path) -> None:
    path, first = tmp_path / "points.jsonl", {"vector": [1], "label_count": 3}
    for line, words in (
        ({"vector": [1], "label_count": 4}, "line 2: .* like that of the points before, 3"),
        (
            {"vector": [1], "labels": [3]},
            "points.jsonl line 2: `labels` must be below `label_count`, 3, got 3",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match=words) as fault:
            read_points(written(path, first, line))
        assert fault.value.field == "file"


def test_all_points_may_lack_vectors(tmp_path: Path) -> None:
    lines = ({"id": n, "attributes": {"n": n or None}, "payload": None} for n in range(2))
    points = read_points(written(tmp_path / "points.jsonl", *lines), needs_vectors=False)
    assert (points.vectors, points.ids, points.payloads) == (None, [0, 1], [None, None])
    assert points.attributes == {"n": [None, 1]}


WITHOUT = {"id": 1, "attributes": {"n": 1}}


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"vector": [1]}, {}, "line 2: has no `vector`, and .* into different files"),
        ({}, {"vector": [1]}, "line 2: has a `vector`, and .* into different files"),
        ({}, {"attributes": {}}, "line 2: without vectors, all .* null removes a value"),
        ({}, {"payload": "b"}, "line 2: without vectors, all .* null removes a value"),
        ({}, {"attributes": 1}, "line 2: "),
        ({}, {"labels": [1]}, "line 2: without vectors, all .* null removes a value"),
        ({"category": 1}, {}, "line 2: without vectors, all .* null removes a value"),
    ],
)
def test_points_without_vectors_are_alike(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], words: str
) -> None:
    path = written(tmp_path / "points.jsonl", WITHOUT | first, WITHOUT | second)
    with pytest.raises(InvalidArgumentError, match=words):
        read_points(path, needs_vectors=False)


@pytest.mark.parametrize(("first", "second"), [("a", 5), (5, "a"), ("a", None)])
def test_ids_are_of_one_kind(tmp_path: Path, first: object, second: object) -> None:
    lines = ({"vector": [1], "id": point_id} for point_id in (first, second))
    with pytest.raises(InvalidArgumentError, match="line 2: `id` must be"):
        read_points(written(tmp_path / "points.jsonl", *lines))


@pytest.mark.parametrize("payload", [b"[NaN]", b"Infinity", b"[" * 3000])
def test_a_payload_that_is_no_json_is_a_text(payload: bytes) -> None:
    (line,) = write_points(Records(np.array([1]), payloads=(payload,)))
    assert json.loads(line) == {"id": 1, "payload": payload.decode()}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(InvalidArgumentError, match="cannot be read"):
            read_points(path)
    with pytest.raises(InvalidArgumentError, match="has no points"):
        read_points(written(tmp_path / "empty.jsonl"))
