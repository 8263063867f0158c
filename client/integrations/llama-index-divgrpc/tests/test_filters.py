"""Filters pass the nodes that LlamaIndex's own evaluation of filters passes."""

import random
from collections.abc import Callable, Iterator

import pytest
from angles import Angles, node
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index.core.vector_stores.utils import build_metadata_filter_fn

from llama_index.vector_stores.divgrpc import DivgrpcVectorStore

TYPES = {
    "year": "integer",
    "price": "float",
    "source": "keyword",
    "tags": ["keyword"],
    "day": "integer",
    "sold": "bool",
}
VALUES = {
    "year": [2000, 2003, 2006],
    "price": [0.5, 1.5, 2.5],
    "source": ["a", "b", ""],
    "tags": ["x", "y", "z"],
}
ORDERS = ["==", "!=", ">", ">=", "<", "<="]
OPERATORS = {
    "year": [*ORDERS, "in", "nin", "is_empty"],
    "price": [*ORDERS, "in", "nin", "is_empty"],
    "source": ["==", "!=", "in", "nin", "is_empty"],
    "tags": ["any", "all", "contains", "is_empty"],
}


def all_nodes() -> dict[str, TextNode]:
    """Return 30 nodes by their ids; some have no value of a name."""
    rng = random.Random(0)
    nodes = {}
    for row in range(30):
        metadata = {
            "year": rng.choice([*VALUES["year"], None]),
            "price": rng.choice([*VALUES["price"], None]),
            "source": rng.choice(VALUES["source"]),
            "tags": rng.sample(VALUES["tags"], rng.randint(0, 3)),
            "day": f"2026-01-{row + 1:02}",
            "sold": row % 3 == 0,
            "note": {"lines": [row]},
        }
        if row % 5 == 0:
            metadata = {"day": metadata["day"]}
        nodes[f"{row:02}"] = node(5 * row + row / 10, f"{row:02}", f"doc-{row % 4}", **metadata)
    return nodes


NODES = all_nodes()


@pytest.fixture(scope="module")
def store(target: str) -> Iterator[DivgrpcVectorStore]:
    """Return a store with 30 nodes, which no test writes to."""
    store = DivgrpcVectorStore(index="llama-filters", target=target, attributes=TYPES)
    store.add(list(NODES.values()))
    yield store
    store.clear()
    store.close()


def ids_passing(store: DivgrpcVectorStore, filters: MetadataFilters) -> list[str]:
    """Return the ids of the nodes that pass a filter; reads and queries must agree."""
    ids = sorted(node.node_id for node in store.get_nodes(filters=filters))
    query = VectorStoreQuery([1.0, 0.0], similarity_top_k=30, filters=filters)
    assert sorted(store.query(query).ids) == ids
    return ids


def names(condition: Callable[[dict[str, object]], object]) -> list[str]:
    """Return the ids of the nodes whose metadata meet a condition."""
    return [name for name, node in NODES.items() if condition(node.metadata)]


def one(key: str, operator: str, value: object) -> MetadataFilters:
    """Return a filter of one comparison."""
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def passes(filters: MetadataFilter | MetadataFilters, node: TextNode) -> bool:
    """Return whether a node passes, by LlamaIndex's function for each comparison."""
    if isinstance(filters, MetadataFilter):
        group = MetadataFilters(filters=[filters])
        return build_metadata_filter_fn(lambda _: node.metadata, group)(node.node_id)
    parts = [passes(part, node) for part in filters.filters]
    if filters.condition == FilterCondition.OR:
        return any(parts) or not parts
    return not any(parts) if filters.condition == FilterCondition.NOT else all(parts)


def random_filter(rng: random.Random, depth: int) -> MetadataFilter | MetadataFilters:
    """Return a random comparison, or a random group of up to three filters."""
    if depth and rng.random() < 0.6:
        parts = [random_filter(rng, depth - 1) for _ in range(rng.randint(0, 3))]
        return MetadataFilters(filters=parts, condition=rng.choice([*FilterCondition, None]))
    key = rng.choice(list(OPERATORS))
    operator = rng.choice(OPERATORS[key])
    value = rng.choice(VALUES[key])
    if operator in ("in", "nin", "any", "all"):
        # Under "all", LlamaIndex tells an empty list from a missing one if no value is demanded.
        value = rng.sample(VALUES[key], rng.randint(operator == "all", 3))
    elif operator == "is_empty":
        value = None
    return MetadataFilter(key=key, value=value, operator=operator)


@pytest.mark.parametrize("key", list(OPERATORS))
def test_each_operator_passes_what_llamaindex_passes(store: DivgrpcVectorStore, key: str) -> None:
    for operator in OPERATORS[key]:
        for value in VALUES[key]:
            operand = [value] if operator in ("in", "nin", "any", "all") else value
            filters = one(key, operator, operand)
            expected = [name for name, node in NODES.items() if passes(filters, node)]
            assert ids_passing(store, filters) == expected, (key, operator, value)


def test_random_nested_filters_pass_what_llamaindex_passes(store: DivgrpcVectorStore) -> None:
    rng = random.Random(1)
    sizes = set()
    for _ in range(200):
        filters = random_filter(rng, depth=3)
        if isinstance(filters, MetadataFilter):
            filters = MetadataFilters(filters=[filters])
        expected = [name for name, node in NODES.items() if passes(filters, node)]
        assert ids_passing(store, filters) == expected, filters
        sizes.add(len(expected))
    assert {0, 30} < sizes
    assert len(sizes) > 10


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (one("day", ">", "2026-01-28"), ["28", "29"]),
        (one("day", "==", "2026-01-28"), ["27"]),
        (one("tags", "==", "x"), names(lambda metadata: "x" in metadata.get("tags", []))),
        (one("sold", "==", 1), names(lambda metadata: metadata.get("sold"))),
        (one("sold", "in", [0, 1]), names(lambda metadata: "sold" in metadata)),
        (one("year", "==", None), names(lambda metadata: metadata.get("year") is None)),
        (one("ref_doc_id", "==", "doc-3"), [f"{row:02}" for row in range(3, 30, 4)]),
        (MetadataFilters(filters=[]), list(NODES)),
    ],
)
def test_filters_beyond_those_of_llamaindex(
    store: DivgrpcVectorStore, filters: MetadataFilters, expected: list[str]
) -> None:
    """Times have an order, one of several values may be equal, and 1 is true."""
    assert ids_passing(store, filters) == expected


@pytest.mark.parametrize("operator", list(FilterOperator))
def test_an_operator_works_or_is_refused(store: DivgrpcVectorStore, operator: str) -> None:
    value = ["x"] if operator in ("in", "nin", "any", "all") else "x"
    if operator in ("text_match", "text_match_insensitive"):
        with pytest.raises(ValueError, match=f"'{operator.value}' is not among the operators =="):
            store.get_nodes(filters=one("source", operator, value))
    elif operator in (">", ">=", "<", "<="):
        with pytest.raises(ValueError, match="cannot order values of 'tags'"):
            store.get_nodes(filters=one("tags", operator, value))
    else:
        store.get_nodes(filters=one("tags", operator, value))


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (one("note", "==", 3), "'note', but the index declares day, price, ref_doc_id, sold"),
        (one("year", "==", "2003"), "'year' is of type integer, got '2003'"),
        (one("year", ">", None), "'year' is of type integer, got None"),
        (one("sold", "==", 2), "'sold' is of type bool, got 2"),
        (one("source", ">", "a"), "cannot order values of 'source'"),
        (one("source", "contains", "a"), 'declare {\'source\': \\["keyword"\\]}, or use "in"'),
        (one("year", "in", 2003), "'in' needs a list, got 2003"),
        (one("year", "==", [2003]), "'==' needs one value, got \\[2003\\]"),
    ],
)
def test_filters_that_cannot_be_applied_are_refused(
    store: DivgrpcVectorStore, filters: MetadataFilters, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        store.query(VectorStoreQuery([1.0, 0.0], filters=filters))


def test_a_filter_on_a_store_without_index_must_be_valid_too(target: str) -> None:
    empty = DivgrpcVectorStore(index="llama-none", target=target, attributes={"year": "integer"})
    assert empty.get_nodes(filters=one("year", "==", 3)) == []
    with pytest.raises(ValueError, match="declares ref_doc_id, year"):
        empty.get_nodes(filters=one("month", "==", 3))
    empty.close()


def test_ids_of_nodes_and_documents_restrict_queries(store: DivgrpcVectorStore) -> None:
    query = VectorStoreQuery(Angles().get_query_embedding("0"), similarity_top_k=30)
    query.doc_ids = ["doc-0", "doc-1", "missing"]
    assert store.query(query).ids == [f"{row:02}" for row in range(30) if row % 4 < 2]
    query.node_ids = ["08", "05", "07", "missing"]
    assert store.query(query).ids == ["05", "08"]
    query.filters = one("day", ">", "2026-01-06")
    assert store.query(query).ids == ["08"]
    query.doc_ids = query.node_ids = []
    assert len(store.query(query).ids) == 24
    assert [item.node_id for item in store.get_nodes(["08", "02"], query.filters)] == ["08"]
