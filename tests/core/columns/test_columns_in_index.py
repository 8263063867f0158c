"""Indexes store ids, attributes and payloads, and return them with results and by id."""

import json
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from divgrpc.columns.values import columns_of
from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import Grid, evaluate
from divgrpc.index import Index
from divgrpc.types.records import Attribute, Parts, Record, Records, SparseVectors

# More than one block of the builder.
ROWS, DIMS = 8_500, 6
VECTORS = np.random.default_rng(4).normal(size=(ROWS, DIMS)).astype(np.float32)
NAMES = [f"n-{7919 * row % ROWS}" for row in range(ROWS)]
ATTRIBUTES: dict[str, Any] = {
    "brand": [None if row % 5 == 0 else f"b{row % 3}" for row in range(ROWS)],
    "price": np.arange(ROWS) / 4,
    "tags": [["x", "y", "z"][: row % 4] for row in range(ROWS)],
}
PAYLOADS = [json.dumps({"row": row}) if row % 3 else None for row in range(ROWS)]
BUILD: dict[str, Any] = {"hash_family": "lsh_div", "n_tables": 2}


@pytest.fixture(scope="module", params=["memory", "files"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("named") / "named" if request.param == "files" else None
    columns: dict[str, Any] = {"attributes": ATTRIBUTES, "payloads": PAYLOADS}
    index = Index.build(VECTORS, ids=NAMES, path=path, **columns, **BUILD)
    return index if path is None else Index.open(path)


def expected_record(row: int) -> tuple[str, dict[str, Any], bytes]:
    values = {name: column[row] for name, column in ATTRIBUTES.items()}
    return NAMES[row], values | {"tags": tuple(values["tags"])}, (PAYLOADS[row] or "").encode()


def test_results_have_names_attributes_and_payloads(index: Index) -> None:
    plain = Index.build(VECTORS, **BUILD).query(VECTORS[:40], k=7)
    result = index.query(VECTORS[:40], k=7, with_attributes=True, with_payload=True)
    # The points are ids_of_pages by their vectors, so the same rows are ids_of_pages.
    assert result.ids.tolist() == [[NAMES[row] for row in rows] for rows in plain.ids]
    for rows, hits in zip(plain.ids, result, strict=True):
        records = [(hit.id, hit.attributes, hit.payload) for hit in hits]
        assert records == [expected_record(row) for row in rows]
    assert "n-0 (1)" in repr(result)


def test_results_without_columns_have_none(index: Index) -> None:
    result = index.query(VECTORS[0], k=2)
    assert (result.attributes, result.payloads) == ({}, ())
    assert (result[0][0].attributes, result[0][0].payload) == (None, None)


def test_columns_that_no_point_has_give_warnings() -> None:
    plain = Index.build(VECTORS[:20])
    result = plain.query(VECTORS[0], k=2, with_attributes=True, with_payload=True)
    assert [warning.code for warning in result.warnings] == ["NO_ATTRIBUTES", "NO_PAYLOADS"]
    assert [warning.field for warning in result.warnings] == ["with_attributes", "with_payload"]


def test_short_rows_are_padded(index: Index) -> None:
    query = np.stack([VECTORS[0], -VECTORS[0]])
    result = index.query(query, k=3, max_distance=1e-9, with_payload=True, with_attributes=True)
    assert result.ids.tolist() == [[NAMES[0], "", ""], ["", "", ""]]
    assert [len(row) for row in result] == [1, 0]
    assert result.payloads == (b"",)
    assert result[0][0].attributes == expected_record(0)[1]


def test_an_index_of_one_point_has_padding() -> None:
    index = Index.build(VECTORS[:1], ids=["only"], payloads=[b"x"])
    result = index.query(VECTORS[0], k=3, with_payload=True)
    assert result.ids.tolist() == [["only", "", ""]]
    assert result.payloads == (b"x",)
    assert index.get(result.ids[0, 0]).payloads == (b"x",)


def test_distances_of_results_with_text_ids() -> None:
    texts, numbers = (Index.build(VECTORS[:30], ids=ids) for ids in (NAMES[:30], None))
    measured = [
        index.engine.distances(VECTORS[:4], index.query(VECTORS[:4], k=3).ids)
        for index in (texts, numbers)
    ]
    np.testing.assert_array_equal(measured[0].to_query, measured[1].to_query)
    np.testing.assert_array_equal(measured[0].mean, measured[1].mean)


def test_attributes_must_have_room_in_a_message() -> None:
    words = [[f"{i:04}" + "x" * 1_000 for i in range(1_000)], [], []]
    Index.build(VECTORS[:3], attributes={"a": words})
    columns = {"a": words, "b": words[::-1], "c": words}
    with pytest.raises(InvalidArgumentError, match="at most 1048576 bytes per row, row 0 takes"):
        Index.build(VECTORS[:3], attributes=columns)


def test_many_different_keywords_are_cut_by_block() -> None:
    words = [f"w{row}" for row in range(ROWS)]
    index = Index.build(VECTORS, attributes={"a": words}, **BUILD)
    assert index.get([8_300, 5]).attributes["a"] == ("w8300", "w5")


def test_collapsed_near_copies_have_names() -> None:
    vectors = np.repeat(VECTORS[:30], 3, axis=0)
    names = [f"{row}-{copy}" for row in range(30) for copy in range(3)]
    result = Index.build(vectors, ids=names).query(vectors[:3], k=2, list_collapsed=True)
    for row in range(3):
        copies = [str(result.ids[row, 0]), *result.collapsed(row, 0).tolist()]
        assert sorted(copies) == ["0-0", "0-1", "0-2"]


@pytest.mark.parametrize("part", [1, 7])
def test_parts_of_a_batch_are_joined(index: Index, part: int) -> None:
    from divgrpc.search.results import joined

    options: dict[str, Any] = {"k": 3, "with_attributes": True, "with_payload": True}
    whole = index.query(VECTORS[:20], **options)
    parts = [index.query(VECTORS[i : i + part][: 20 - i], **options) for i in range(0, 20, part)]
    together = joined(parts)
    assert list(together) == list(whole)


def test_get_returns_points_in_the_order_of_ids(index: Index) -> None:
    names = [NAMES[8_400], "absent", NAMES[3], NAMES[3]]
    records = index.get(names, with_vectors=True)
    assert [(r.id, r.attributes, r.payload) for r in records] == [
        expected_record(row) for row in (8_400, 3, 3)
    ]
    unit = VECTORS[[8_400, 3, 3]]
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    assert isinstance(records.vectors, np.ndarray)
    np.testing.assert_allclose(records.vectors, unit, rtol=1e-6)
    assert records.generation == index.generation
    few = index.get(NAMES[5], with_attributes=False, with_payload=False)
    assert few[0] == Record(NAMES[5], None, {}, b"")
    assert len(index.get([])) == 0


def test_scroll_returns_every_point_once(index: Index) -> None:
    pages = list(index.scroll(page_size=4_000))
    assert [len(page) for page in pages] == [4_000, 4_000, 500]
    records = {record.id: record for page in pages for record in page}
    assert len(records) == ROWS == index.count()
    for row in (0, 77, ROWS - 1):
        assert records[NAMES[row]][2:4] == expected_record(row)[1:]
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        next(index.scroll(page_size=0))


def test_info_describes_the_columns(index: Index) -> None:
    info = index.info
    assert (info.id_kind, info.has_payloads) == ("string", True)
    assert info.attributes == (
        Attribute("brand", "keyword"),
        Attribute("price", "float"),
        Attribute("tags", "keyword", multi=True),
    )


def test_integer_ids_ascend_in_a_scroll() -> None:
    ids = np.random.default_rng(1).permutation(300) * 10
    index = Index.build(VECTORS[:300], ids=ids)
    ids_of_pages = [int(i) for page in index.scroll(page_size=7) for i in page.ids]
    assert ids_of_pages == sorted(ids.tolist())
    assert index.get([10, 11, 0]).ids.tolist() == [10, 0]
    assert index.info.id_kind == "int64"


def test_sparse_points_and_skipped_rows() -> None:
    dense = VECTORS[:50].copy()
    dense[dense < 0.5] = 0
    dense[[4, 9]] = 0
    names, prices = NAMES[:50], list(range(50))
    index = Index.build(
        sparse.csr_array(dense),
        ids=names,
        zero_vectors="skip",
        attributes={"price": prices, "tags": [[str(i)] * (i % 3) for i in range(50)]},
        payloads=[str(i) for i in range(50)],
        metric="cosine",
    )
    nonzero = [row for row in range(50) if dense[row].any()]
    assert {r.id for page in index.scroll() for r in page} == {names[row] for row in nonzero}
    records = index.get([names[row] for row in nonzero], with_vectors=True)
    assert records.attributes["price"] == tuple(nonzero)
    assert records.attributes["tags"] == tuple((str(row),) * (row % 3) for row in nonzero)
    assert records.payloads == tuple(str(row).encode() for row in nonzero)
    assert isinstance(records.vectors, SparseVectors)
    vector = records[1].vector
    assert vector is not None
    np.testing.assert_array_equal(vector.indices, np.flatnonzero(dense[nonzero[1]]))  # type: ignore[union-attr]
    assert index.query(sparse.csr_array(dense[:1]), k=1).ids[0, 0] == names[0]


def test_neighbours_vote_by_rows() -> None:
    labels = np.eye(4)[np.arange(60) % 4]
    numbers = Index.build(VECTORS[:60], labels=labels)
    texts = Index.build(VECTORS[:60], labels=labels, ids=NAMES[:60])
    options: dict[str, Any] = {"mode": "neighbour_vote", "top_k": 2}
    expected = numbers.predict_labels(VECTORS[60:70], **options)
    result = texts.predict_labels(VECTORS[60:70], **options)
    np.testing.assert_array_equal(result.scores, expected.scores)


def test_relevant_points_have_text_ids() -> None:
    subtopics = np.arange(60) % 3
    numbers = Index.build(VECTORS[:60], subtopics=subtopics)
    texts = Index.build(VECTORS[:60], subtopics=subtopics, ids=NAMES[:60])
    relevant = [[row, row + 10, row + 20] for row in range(10)]
    names = [[NAMES[row] for row in rows] for rows in relevant]
    grid = Grid(ks=(5,), diversities=(0.2,))
    expected = evaluate(numbers, VECTORS[60:70], grid=grid, relevant=relevant)
    rows = evaluate(texts, VECTORS[60:70], grid=grid, relevant=names)
    assert [row.metrics for row in rows] == [row.metrics for row in expected]
    for wrong_ids, words in (
        ([["absent"]] * 10, "has 'absent', which is no id"),
        ([[1]] * 10, "must be texts"),
    ):
        with pytest.raises(InvalidArgumentError, match=words) as error_info:
            evaluate(texts, VECTORS[60:70], grid=grid, relevant=wrong_ids)
        assert error_info.value.field == "relevant"
    with pytest.raises(InvalidArgumentError, match="must be integers"):
        evaluate(numbers, VECTORS[60:70], grid=grid, relevant=names)


def test_ties_do_not_depend_on_the_order_of_texts() -> None:
    vectors = np.repeat(VECTORS[:1], 40, axis=0)
    order = np.random.default_rng(3).permutation(40)
    first = Index.build(vectors, ids=NAMES[:40])
    second = Index.build(vectors, ids=[NAMES[row] for row in order])
    options: dict[str, Any] = {"k": 5, "selector": "nearest"}
    assert first.query(vectors[0], **options).ids.tolist() == (
        second.query(vectors[0], **options).ids.tolist()
    )


@pytest.mark.parametrize(
    ("columns", "field", "words"),
    [
        ({"ids": ["a"] * 3}, "ids", "'a' occurs twice"),
        ({"ids": ["a", "b"]}, "ids", "one entry per row, 3, got 2"),
        ({"ids": ["a", "b", 3]}, "ids", "all texts or all integers"),
        ({"payloads": [b"a"]}, "payloads", "one entry per row, 3, got 1"),
        ({"payloads": [b"a", 5, None]}, "payloads", "bytes, texts or None, got int"),
        ({"payloads": [{}, None, None]}, "payloads", "got dict: json.dumps makes a text"),
        ({"payloads": "abc"}, "payloads", "a list"),
        ({"payloads": [b"x" * 65_537, None, None]}, "payloads", "at most 65536 bytes"),
        ({"attributes": {"a": [1]}}, "attributes.a", "one value per row, 3, got 1"),
        ({"attributes": {"a b": [1] * 3}}, "attributes", "must have names"),
        ({"attribute_types": {"a": "bool"}}, "attribute_types", "not in attributes"),
    ],
)
def test_wrong_columns_are_refused(columns: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as error_info:
        Index.build(VECTORS[:3], **columns)
    assert error_info.value.field == field


def test_get_refuses_wrong_ids(index: Index) -> None:
    with pytest.raises(InvalidArgumentError, match="must be texts"):
        index.get(5)
    with pytest.raises(InvalidArgumentError, match="at most 10000, got 10001"):
        index.get(["a"] * 10_001)


def test_records_show_themselves() -> None:
    records = Records(np.arange(7), attributes={"a": (1,) * 7})
    assert repr(records) == "Records: 7 of a; 0, 1, 2, 3, 4, ..."
    assert [record.id for record in records[2:4]] == [2, 3]
    assert records[-1].id == 6
    with pytest.raises(IndexError):
        records[7]
    records = Records(
        np.arange(1), vectors=np.eye(1, dtype=np.float32), categories=np.ones(1, "i4")
    )
    assert repr(records) == "Records: 1 of vector, category; 0"


def test_a_table_has_a_column_per_attribute(index: Index) -> None:
    pandas = pytest.importorskip("pandas", reason="missing extra: pandas")
    result = index.query(VECTORS[:2], k=2, with_attributes=True, with_payload=True)
    table = result.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns)[-4:] == ["brand", "price", "tags", "payload"]
    assert table["id"].tolist() == [hit.id for row in result for hit in row]
    clash = Index.build(VECTORS[:3], attributes={"score": ["x"] * 3})
    columns = list(clash.query(VECTORS[0], k=1, with_attributes=True).to_pandas().columns)
    assert columns[-1] == "attributes.score"


def test_sizes_of_rows_are_those_of_their_columns(index: Index) -> None:
    """The size is known before reading, and equals the size that Build checked."""
    rows = np.array([3, 0, 8_400, 7, 7])
    columns = columns_of(ATTRIBUTES, ROWS)
    expected = sum(c.bytes_of_rows(multi=a.multi)[rows] for a, c in columns.items())
    size = index.engine.bytes_of_rows
    of_ids, of_attributes = (
        size(rows, Parts(attributes=has_attributes, payload=False))
        for has_attributes in (False, True)
    )
    np.testing.assert_array_equal(of_attributes - of_ids, expected)
    payloads = size(rows, Parts()) - of_attributes
    assert (payloads >= [len((PAYLOADS[row] or "").encode()) for row in rows]).all()
