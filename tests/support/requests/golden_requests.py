"""Requests of every method for `server/test_golden_wire.py`, on the indexes of `golden`.

Each request that changes an index uses a separate index, whose name begins with `a_`, so the order
of calls changes no answer. The recorded requests of ListIndexes start after the names that begin
with `a_`.
"""

from functools import partial
from typing import Any, Final

import numpy as np
from google.protobuf.message import Message

from core.storage.test_golden_families import labelling, points
from divgrpc_protos.v1 import (
    attributes_pb2,
    diagnose_pb2,
    evaluate_labels_pb2,
    evaluate_pb2,
    filters_pb2,
    index_pb2,
    labels_pb2,
    points_pb2,
    predict_pb2,
    query_pb2,
    vectors_pb2,
)

_QUERIED_NAMES: Final = ("lsh_div", "lsh_sdiv", "pca_hash", "cells", "sparse", "labels")
_FAMILIES: Final = (*_QUERIED_NAMES, "topics", "sparse_topics", "factors")
# The name of each served index, with the folder in `golden` of the index that it copies.
GOLDEN_NAMES: Final = {
    **{name: f"families/{name}" for name in _FAMILIES},
    "named": "named",
    "a_attributes": "named",
    "a_default": "families/topics",
    "a_deleted": "families/cells",
    "a_numbers": "families/topics",
    "a_thresholds": "families/labels",
    **dict.fromkeys(("a_upserted", "a_updated", "a_removed"), "named"),
    **dict.fromkeys(("a_inserted", "a_numbers_removed"), "families/cells"),
    **dict.fromkeys(("a_compacted", "a_retrained", "a_vacuumed"), "named"),
    **dict.fromkeys(("named_written", "a_streamed"), "named"),
    **dict.fromkeys(("a_labelled", "labels_written"), "families/labels"),
    "a_categorised": "families/topics",
}
# The indexes that are written to before they are served.
WRITTEN_NAMES: Final = ("a_compacted", "a_retrained", "a_vacuumed", "named_written")
_STORED_NAMES: Final = (*_FAMILIES, "named")
_DTYPES: Final = {"<f4": vectors_pb2.DTYPE_FLOAT32, "<f2": vectors_pb2.DTYPE_FLOAT16}
# For each name of a call: the method, and the requests of the call.
Calls = dict[str, tuple[str, list[Message]]]


def calls() -> Calls:
    """Return the recorded calls except writes, by name."""
    return {
        **_queries(),
        **_query_fields(),
        **_query_stream(),
        **_predictions(),
        **_evaluations(),
        **_label_evaluations(),
        **_builds(),
        **_named(),
        **_added_attributes(),
        **_lookups(),
    }


def dense(rows: int) -> vectors_pb2.Vectors:
    values = points()[:rows].ravel().tolist()
    return vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(rows=rows, cols=9, values=values))


def _raw(start: int, stop: int, dtype: str = "<f4") -> vectors_pb2.DenseMatrix:
    """Return points `start` to `stop` as bytes in float32 or float16."""
    data = points()[start:stop].astype(dtype).tobytes()
    return vectors_pb2.DenseMatrix(rows=stop - start, cols=9, data=data, dtype=_DTYPES[dtype])


def _sparse(dtype: str | None = None) -> vectors_pb2.CsrMatrix:
    """Return two sparse rows. If `dtype` is None, they are float32 and the field is unset."""
    return vectors_pb2.CsrMatrix(
        dtype=_DTYPES[dtype] if dtype else vectors_pb2.DTYPE_UNSPECIFIED,
        rows=2,
        cols=9,
        indptr=np.array([0, 2, 5], "<i8").tobytes(),
        indices=np.array([1, 7, 0, 3, 8], "<u4").tobytes(),
        data=np.array([0.5, -1, 2, 0.25, 1], dtype or "<f4").tobytes(),
    )


def query(index: str, **fields: Any) -> query_pb2.QueryRequest:  # noqa: ANN401  # a message's types
    fields.setdefault("queries", dense(2))
    return query_pb2.QueryRequest(index=index, **fields)


def _queries() -> Calls:
    queries = {name: query(name, k=4, list_collapsed=True) for name in _QUERIED_NAMES}
    queries["sparse with sparse rows"] = query(
        "sparse", queries=vectors_pb2.Vectors(sparse=_sparse()), diversity_auto=True
    )
    query_with_bound = query("cells", lose_at_most=0.1, hash_limit=40)
    calls: Calls = {f"query {name}": ("Query", [query]) for name, query in queries.items()}
    return {**calls, "query with a bound": ("Query", [query_with_bound])}


def _query_fields() -> Calls:
    """Return queries that set the fields that `_queries` leaves unset."""
    half = vectors_pb2.Vectors(dense=_raw(0, 2, "<f2"))
    half_sparse = vectors_pb2.Vectors(sparse=_sparse("<f2"))
    zero = vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(rows=1, cols=9, values=[0.0] * 9))
    every: dict[str, Any] = {
        "k": 3,
        "diversity": 0.4,
        "selector": query_pb2.SELECTOR_QP_RELAX,
        "variant": query_pb2.VARIANT_CORRECTED,
        "search": query_pb2.SEARCH_TABLES,
        "hash_limit": 50,
        "candidates_limit": 20,
        "max_distance": 3.5,
        "sampling": query_pb2.SAMPLING_NEAREST,
        "seed": 7,
        "rounding": query_pb2.ROUNDING_TOP_K,
        "n_probes": 12,
        "duplicate_threshold": 0.95,
        "list_collapsed": True,
    }
    queries = {
        "every field": query("lsh_sdiv", **every),
        "epsilon": query("pca_hash", k=2, epsilon=0.5, keep_duplicates=True, queries=half),
        "half precision": query("sparse", queries=half_sparse),
        "a stored default": query("topics", k=4),
        "few candidates": query("cells", k=5, hash_limit=5, candidates_limit=5),
        "explained": query("pca_hash", k=4, explain=True, with_report=True, diversity=0.9),
        "no distance": query("lsh_div", max_distance=1e-9),
        "all losses": query("lsh_sdiv", k=2, lose_at_most=1.0),
        "all points": query("lsh_sdiv", k=80, lose_at_most=0.5, hash_limit=0, candidates_limit=0),
        "equal scores": query("pca_hash", k=3, lose_at_most=0.5, queries=zero),
        **_query_words(),
    }
    return {f"query {name}": ("Query", [query]) for name, query in queries.items()}


def _query_words() -> dict[str, query_pb2.QueryRequest]:
    """Return queries that together have every selector, variant, search and sampling."""
    plain: dict[str, Any] = {"k": 5, "diversity": 0.5, "hash_limit": 30}
    queries = {}
    searches, samplings = query_pb2.Search.values()[1:], query_pb2.Sampling.values()[1:]
    for selector in query_pb2.Selector.values()[1:8]:
        search = searches[selector % len(searches)]
        sampling = samplings[selector % len(samplings)]
        queries[query_pb2.Selector.Name(selector)] = query(
            "lsh_div", selector=selector, search=search, sampling=sampling, **plain
        )
    for variant in query_pb2.Variant.values()[1:]:
        queries[query_pb2.Variant.Name(variant)] = query("lsh_sdiv", variant=variant, **plain)
    return queries


def _query_stream() -> Calls:
    """Return a stream of three queries, of which the server refuses one, and a withdrawal."""
    queries = [query("cells", k=2), query("nobody"), query("labels", k=3, diversity=0.0)]
    stream: list[Message] = [
        query_pb2.QueryStreamRequest(correlation_id=5 + number, query=query, time_limit_ms=60_000)
        for number, query in enumerate(queries)
    ]
    stream.append(query_pb2.QueryStreamRequest(correlation_id=99, withdraw=True))
    return {"query stream": ("QueryStream", stream)}


def _predictions() -> Calls:
    votes = predict_pb2.PREDICTION_MODE_NEIGHBOUR_VOTE
    absent = filters_pb2.Condition(has_id=filters_pb2.HasId(ids=[0, 7, 14]))
    of_some = filters_pb2.Filter(must_not=[absent])
    several: dict[str, dict[str, Any]] = {
        "predict": {"index": "labels", "top_k": 3},
        "predict with every field of the embedding": {
            "index": "labels",
            "top_k": 2,
            "threshold": -0.5,
            "diversity": 0.2,
            "seed": 4,
            "selector": query_pb2.SELECTOR_MMR,
            "search": query_pb2.SEARCH_SCAN,
            "hash_limit": 6,
            "candidates_limit": 5,
            "mode": predict_pb2.PREDICTION_MODE_EMBEDDING,
        },
        "predict by votes": {"index": "labels", "mode": votes},
        "predict by votes of some": {"index": "labels", "mode": votes, "filter": of_some},
        "predict by plain votes": {
            "index": "labels",
            "mode": votes,
            "neighbours": 7,
            "vote": predict_pb2.VOTE_PLAIN,
            "top_k": 6,
            "selector": query_pb2.SELECTOR_HIERARCHY,
            "diversity": 0.3,
        },
        "predict by factors": {"index": "factors", "top_k": 6},
        "predict from two buckets": {
            "index": "labels",
            "mode": votes,
            "search": query_pb2.SEARCH_TABLES,
            "n_probes": 2,
        },
    }
    request = partial(predict_pb2.PredictLabelsRequest, documents=dense(2))
    return {name: ("PredictLabels", [request(**fields)]) for name, fields in several.items()}


def _evaluations() -> Calls:
    grid: dict[str, Any] = {
        "index": "a_default",
        "queries": dense(8),
        "categories": [0, 1, 2, 3] * 2,
        "selectors": [query_pb2.SELECTOR_NEAREST, query_pb2.SELECTOR_QP_RELAX],
        "variants": [query_pb2.VARIANT_CORRECTED],
        "searches": [query_pb2.SEARCH_TABLES],
        "limits": [evaluate_pb2.EvaluateLimits(hash_limit=40, candidates_limit=20)],
        "diversities": [0.4],
        "roundings": query_pb2.Rounding.values()[1:],
        "ks": [4],
        "seed": 3,
        "folds": 2,
        "set_default": True,
        "per_query": True,
        "keep_duplicates": True,
    }
    relevant = [evaluate_pb2.RelevantIds(ids=[553 - 7 * row, 0]) for row in range(3)]
    plain = evaluate_pb2.EvaluateRequest(
        index="sparse", queries=dense(3), relevant=relevant, diversities=[0.5], ks=[90], folds=0
    )
    return {
        "evaluate": ("Evaluate", [evaluate_pb2.EvaluateRequest(**grid)]),
        "evaluate relevant ids": ("Evaluate", [plain]),
        "evaluate searches": ("Evaluate", [_search_axes()]),
    }


def _search_axes() -> evaluate_pb2.EvaluateRequest:
    probes, epsilon = evaluate_pb2.EvaluateProbes, evaluate_pb2.EvaluateEpsilon
    return evaluate_pb2.EvaluateRequest(
        index="topics",
        queries=dense(8),
        categories=[0, 1, 2, 3] * 2,
        selectors=[query_pb2.SELECTOR_NEAREST],
        searches=[query_pb2.SEARCH_TABLES],
        ks=[4],
        folds=2,
        n_probes=[probes(), probes(n_probes=2)],
        samplings=query_pb2.Sampling.values()[1:],
        epsilons=[epsilon(), epsilon(epsilon=0.5)],
        groups=[0, 1, 2, 3, 4, 0, 1, 2],
    )


def label_sets(start: int, stop: int) -> points_pb2.LabelSets:
    rows = labelling()["labels"][start:stop]
    offsets = np.concatenate(([0], rows.sum(axis=1).cumsum()))
    ids = rows.nonzero()[1].tolist()
    return points_pb2.LabelSets(label_count=6, offsets=offsets.astype(int).tolist(), ids=ids)


def _label_evaluations() -> Calls:
    grid: dict[str, Any] = {
        "index": "a_thresholds",
        "documents": dense(8),
        "labels": label_sets(0, 8),
        "modes": predict_pb2.PredictionMode.values()[1:2],
        "selectors": [query_pb2.SELECTOR_GREEDY],
        "searches": [query_pb2.SEARCH_EXACT],
        "limits": [evaluate_pb2.EvaluateLimits(hash_limit=40, candidates_limit=20)],
        "thresholds": [evaluate_labels_pb2.EvaluateThreshold(threshold=0.2)],
        "diversities": [0.2, 0.8],
        "top_ks": [4],
        "neighbours": 6,
        "vote": predict_pb2.VOTE_PLAIN,
        "seed": 3,
        "folds": 2,
        "set_default": True,
        "per_document": True,
    }
    votes = evaluate_labels_pb2.EvaluateLabelsRequest(
        index="labels",
        documents=dense(3),
        labels=label_sets(0, 3),
        modes=[predict_pb2.PREDICTION_MODE_NEIGHBOUR_VOTE],
        selectors=[query_pb2.SELECTOR_HIERARCHY],
        thresholds=[evaluate_labels_pb2.EvaluateThreshold(threshold=0.9)],
        diversities=[0.3],
        folds=0,
    )
    return {
        "evaluate labels": ("EvaluateLabels", [evaluate_labels_pb2.EvaluateLabelsRequest(**grid)]),
        "evaluate labels by votes": ("EvaluateLabels", [votes]),
        "evaluate labels from buckets": ("EvaluateLabels", [_probe_axis()]),
    }


def _probe_axis() -> evaluate_labels_pb2.EvaluateLabelsRequest:
    return evaluate_labels_pb2.EvaluateLabelsRequest(
        index="labels",
        documents=dense(3),
        labels=label_sets(0, 3),
        modes=[predict_pb2.PREDICTION_MODE_NEIGHBOUR_VOTE],
        selectors=[query_pb2.SELECTOR_NEAREST],
        searches=[query_pb2.SEARCH_TABLES],
        n_probes=[evaluate_pb2.EvaluateProbes(), evaluate_pb2.EvaluateProbes(n_probes=2)],
        groups=[8, -9, 8],
        folds=0,
    )


def _label_chunk() -> labels_pb2.LabelChunk:
    rng = np.random.default_rng(25)
    factors, features = (
        vectors_pb2.DenseMatrix(rows=rows, cols=2, values=rng.standard_normal(2 * rows).tolist())
        for rows in (6, 9)
    )
    arguments = labelling()
    parents, children = arguments["hierarchy"].T.tolist()
    return labels_pb2.LabelChunk(
        label_factors=factors,
        feature_map=features,
        label_names=labels_pb2.LabelNames(values=arguments["label_names"]),
        hierarchy=labels_pb2.Hierarchy(parents=parents, children=children, roots=[6, 7]),
    )


def _columns(start: int, stop: int) -> dict[str, Any]:
    rows = np.arange(start, stop)
    return {
        "ids": (rows * 3).tolist(),
        "categories": (rows % 4 - 1).tolist(),
        "subtopics": (rows % 3).tolist(),
        "labels": label_sets(start, stop),
    }


def _build_parameters() -> index_pb2.BuildParameters:
    return index_pb2.BuildParameters(
        metric=index_pb2.METRIC_EUCLIDEAN,
        hash_family=index_pb2.HASH_FAMILY_LSH_DIV,
        hyperplanes=index_pb2.HYPERPLANES_GAUSSIAN,
        centred=True,
        n_tables=3,
        n_bits=8,
        n_components=9,
        target_recall=0.8,
        zero_vectors=index_pb2.ZERO_VECTORS_REJECT,
        seed=11,
    )


def _builds() -> Calls:
    plan = labels_pb2.LabelPlan(
        model=labels_pb2.LABEL_MODEL_FACTORS, offset=[0.5, -0.25], unit_rows=True
    )
    header: dict[str, Any] = {"parameters": _build_parameters(), "replace": True}
    chunks = [
        index_pb2.BuildChunk(vectors=vectors_pb2.Vectors(dense=_raw(*part)), **_columns(*part))
        for part in ((0, 30), (30, 80))
    ]
    stream: list[Message] = [
        index_pb2.BuildRequest(
            header=index_pb2.BuildHeader(index="a_built", labels=plan, expected_rows=80, **header)
        ),
        index_pb2.BuildRequest(label_chunk=_label_chunk()),
        *(index_pb2.BuildRequest(chunk=chunk) for chunk in chunks),
        index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=80)),
    ]
    once = index_pb2.BuildOnceRequest(
        index="a_built_once",
        vectors=dense(80),
        label_plan=plan,
        label_chunk=_label_chunk(),
        **header,
        **_columns(0, 80),
    )
    small = index_pb2.BuildOnceRequest(
        index="a_built_small",
        vectors=vectors_pb2.Vectors(sparse=_sparse()),
        parameters=index_pb2.BuildParameters(hash_family=index_pb2.HASH_FAMILY_AUTO),
    )
    return {
        "build": ("Build", stream),
        "build once": ("BuildOnce", [once]),
        "build two rows once": ("BuildOnce", [small]),
    }


def three() -> vectors_pb2.Vectors:
    """Return three vectors of five dimensions."""
    numbers = (np.arange(15) / 8).tolist()
    return vectors_pb2.Vectors(dense=vectors_pb2.DenseMatrix(rows=3, cols=5, values=numbers))


def _named() -> Calls:
    """Return builds with text ids, attributes and payloads, and calls that return them."""
    types = points_pb2.AttributeType.values()[1:]
    names = ("keyword", "integer", "float", "bool")
    declarations = [
        points_pb2.Attribute(name=name, type=kind) for name, kind in zip(names, types, strict=True)
    ]
    declarations.append(points_pb2.Attribute(name="tags", type=types[0], multi=True))
    column = points_pb2.AttributeColumn
    columns: dict[str, Any] = {
        "vectors": three(),
        "string_ids": ["x", "y", "z"],
        "payloads": [b"one", b"", b"three"],
        "attributes": [
            column(name="keyword", keywords=[1, -1, 0], words=["u", "v"]),
            column(name="integer", integers=[5, -(2**63), -5]),
            column(name="float", numbers=[0.5, -0.5, 2]),
            column(name="bool", flags=[0, 1, -1]),
            column(name="tags", keywords=[0, 1], words=["u", "v"], ends=[1, 1, 2]),
        ],
    }
    header = index_pb2.BuildHeader(index="a_named", declarations=declarations)
    stream: list[Message] = [
        index_pb2.BuildRequest(header=header),
        index_pb2.BuildRequest(chunk=index_pb2.BuildChunk(**columns)),
        index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=3)),
    ]
    once = index_pb2.BuildOnceRequest(index="a_named_once", declarations=declarations, **columns)
    return {
        "build with text ids": ("Build", stream),
        "build with text ids once": ("BuildOnce", [once]),
        **_named_queries(),
        **_readings(),
    }


def _added_attributes() -> Calls:
    """Return calls that add attributes to points with text ids, and to points with numbers."""
    kinds = (points_pb2.ATTRIBUTE_TYPE_KEYWORD, points_pb2.ATTRIBUTE_TYPE_INTEGER)
    season, years = (
        points_pb2.Attribute(name=name, type=kind, multi=name == "years")
        for name, kind in zip(("season", "years"), kinds, strict=True)
    )
    seasons = points_pb2.AttributeColumn(name="season", keywords=[0, -1], words=["autumn"])
    numbers = points_pb2.AttributeColumn(name="years", integers=[1999, 2001], ends=[0, 2])
    columns = {"attributes": [seasons, numbers]}

    def addition(index: str, fields: dict[str, Any]) -> list[Message]:
        header = attributes_pb2.AddAttributesHeader(
            index=index, declarations=[season, years], expected_rows=2
        )
        chunk = attributes_pb2.AddAttributesChunk(**fields)
        request = attributes_pb2.AddAttributesRequest
        commit = index_pb2.BuildCommit(rows=2)
        return [request(header=header), request(chunk=chunk), request(commit=commit)]

    return {
        f"add attributes to points with {kind}": (
            "AddAttributes",
            addition(index, {**ids, **columns}),
        )
        for kind, index, ids in (
            ("text ids", "a_attributes", {"string_ids": ["n37", "n0"]}),
            ("numbers", "a_numbers", {"ids": [7, 14]}),
        )
    }


def _named_queries() -> Calls:
    columns: dict[str, Any] = {
        "with_attributes": True,
        "with_payload": True,
        "list_collapsed": True,
        "explain": True,
        "with_report": True,
        "diversity": 0.7,
    }
    of_texts = query("named", queries=three(), k=2, duplicate_threshold=6.0, **columns)
    relevant = [evaluate_pb2.RelevantIds(string_ids=["n0", "n37"]) for _ in range(3)]
    evaluation = evaluate_pb2.EvaluateRequest(
        index="named", queries=three(), relevant=relevant, diversities=[0.5], ks=[3], folds=0
    )
    evaluation_of_some = evaluate_pb2.EvaluateRequest(filter=a_filter())
    evaluation_of_some.MergeFrom(evaluation)
    like = query_pb2.QueryRequest(
        index="named", like_string_ids=["n0", "n37"], filter=a_filter(), k=2
    )
    excluded = query("named", queries=three(), exclude_string_ids=["n0", "absent"], k=2)
    of_numbers = query_pb2.QueryRequest(
        index="cells", like_ids=[7], exclude_ids=[14, 21], k=2, search=query_pb2.SEARCH_SCAN
    )
    return {
        "query text ids": ("Query", [of_texts]),
        "query like texts with a filter": ("Query", [like]),
        "query without some texts": ("Query", [excluded]),
        "query like a number": ("Query", [of_numbers]),
        **_pages(),
        "evaluate relevant texts": ("Evaluate", [evaluation]),
        "evaluate with a filter": ("Evaluate", [evaluation_of_some]),
        **_diagnoses(),
    }


def _diagnoses() -> Calls:
    some = diagnose_pb2.DiagnoseRequest(
        index="named_written",
        attributes=["brand", "price", "sold"],
        sample=20,
        seed=3,
        filter=a_filter(),
    )
    every = diagnose_pb2.DiagnoseRequest(index="cells")
    return {"diagnose some": ("Diagnose", [some]), "diagnose all": ("Diagnose", [every])}


# The token in the answer to "query page 1".
PAGE_TOKEN: Final = "AeU7Kh00DiYw9knjiQE_7GJN0vGp_AEAoAaAGQMJBwj3IA"  # noqa: S105  # no secret


def _pages() -> Calls:
    """Return page 1 and page 2 of a query, and queries after points that were shown."""
    first = query_pb2.QueryRequest(index="cells", like_ids=[7], k=3, paged=True)
    second = query_pb2.QueryRequest(index="cells", like_ids=[7], k=3, page_token=PAGE_TOKEN)
    after_ids = query("cells", k=2, already_shown_ids=[14, 21, 5])
    after_texts = query("named", queries=three(), k=2, already_shown_string_ids=["n0", "absent"])
    after_vectors = query("cells", k=2)
    after_vectors.already_shown.CopyFrom(after_vectors.queries)
    return {
        "query page 1": ("Query", [first]),
        "query page 2": ("Query", [second]),
        "query after shown numbers": ("Query", [after_ids]),
        "query after shown texts": ("Query", [after_texts]),
        "query after shown vectors": ("Query", [after_vectors]),
    }


def a_filter() -> filters_pb2.Filter:
    """Return a filter with every kind of condition and of value."""
    value = filters_pb2.Value
    brands = filters_pb2.Values(values=[value(keyword="b1"), value(keyword="b2")])
    sold = filters_pb2.Values(values=[value(boolean=True)])
    least, most = value(integer=0), value(number=6.5)
    cheap = filters_pb2.Range(gte=least, gt=value(number=-0.5), lt=most, lte=value(integer=6))
    fields = [
        filters_pb2.FieldCondition(attribute="brand", any_of=brands),
        filters_pb2.FieldCondition(attribute="price", range=cheap),
        filters_pb2.FieldCondition(attribute="tags", exists=True),
        filters_pb2.FieldCondition(attribute="sold", any_of=sold),
    ]
    brand, price, tags, is_sold = (filters_pb2.Condition(field=field) for field in fields)
    some = filters_pb2.Condition(has_id=filters_pb2.HasId(string_ids=["n0", "n37", "n5"]))
    inner = filters_pb2.Condition(filter=filters_pb2.Filter(must=[tags], must_not=[is_sold]))
    return filters_pb2.Filter(should=[brand, price, some], must_not=[inner])


def _readings() -> Calls:
    get, scroll = points_pb2.GetRequest, points_pb2.ScrollRequest
    parts = points_pb2.Parts(vectors=True, attributes=True, payload=True)
    several = {
        "get texts": get(index="named", string_ids=["n37", "absent"], parts=parts),
        "get numbers": get(index="sparse", ids=[7, 14], parts=points_pb2.Parts(vectors=True)),
        "get ids alone": get(
            index="named",
            string_ids=["n0"],
            parts=points_pb2.Parts(attributes=False, payload=False),
        ),
        "get labels": get(index="labels", ids=[7, 3], parts=points_pb2.Parts(labels=True)),
        "get topics": get(index="topics", ids=[7, 3], parts=points_pb2.Parts(labels=True)),
    }
    page = scroll(index="named", page_size=3, parts=parts)
    rest = scroll(index="cells", page_token="476")  # noqa: S106  # no secret
    return {
        **{name: ("Get", [request]) for name, request in several.items()},
        "count": ("Count", [points_pb2.CountRequest(index="named")]),
        "count with a filter": (
            "Count",
            [points_pb2.CountRequest(index="named", filter=a_filter())],
        ),
        "scroll with a filter": ("Scroll", [scroll(index="named", filter=a_filter())]),
        "scroll": ("Scroll", [page]),
        "scroll the rest": ("Scroll", [rest]),
    }


def _lookups() -> Calls:
    calls: Calls = {
        f"describe {name}": ("GetIndex", [index_pb2.GetIndexRequest(index=name)])
        for name in _STORED_NAMES
    }
    page = index_pb2.ListIndexesRequest(page_size=2, page_token="cells")  # noqa: S106  # no secret
    rest = index_pb2.ListIndexesRequest(page_token="pca_hash")  # noqa: S106  # no secret
    return {
        **calls,
        "list a page": ("ListIndexes", [page]),
        "list the last page": ("ListIndexes", [rest]),
        "delete": ("DeleteIndex", [index_pb2.DeleteIndexRequest(index="a_deleted")]),
        "describe the server": ("GetServerInfo", [index_pb2.GetServerInfoRequest()]),
    }
