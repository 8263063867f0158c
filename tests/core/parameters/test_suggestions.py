"""Errors that suggest a fix: unknown parameters, names of other libraries, arrays of objects."""

import string
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc import types
from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import Grid
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.index import Index
from divgrpc.parameters import (
    BuildParameters,
    LabelParameters,
    QueryParameters,
    as_metric,
    suggestions,
)
from divgrpc.parameters.predict import PredictParameters
from divgrpc.parameters.suggestions import METRIC_ALIASES, UnknownParameterError

TABLES: list[Any] = [
    BuildParameters,
    QueryParameters,
    LabelParameters,
    PredictParameters,
    Grid,
    LabelGrid,
]
POINTS = np.eye(4, dtype=np.float32)


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(POINTS, hash_family="lsh_div")


def fault(call: Callable[..., object], **arguments: object) -> InvalidArgumentError:
    with pytest.raises(InvalidArgumentError) as error_info:
        call(**arguments)
    return error_info.value


@pytest.mark.parametrize("table", TABLES)
@given(st.text(string.ascii_lowercase + "_", min_size=1, max_size=20))
def test_unknown_parameters_are_refused(table: Any, name: str) -> None:  # noqa: ANN401  # a dataclass
    if name in table.__dataclass_fields__:
        return
    error = fault(table, **{name: 1})
    assert isinstance(error, UnknownParameterError)
    assert isinstance(error, TypeError)
    assert error.field == name
    assert f"{table.__name__}() got an unexpected keyword argument {name!r}" in str(error)


@pytest.mark.parametrize("table", TABLES)
def test_a_missing_letter_suggests_the_parameter(table: Any) -> None:  # noqa: ANN401  # a dataclass
    for name in (field for field in table.__dataclass_fields__ if len(field) > 5):
        error = fault(table, **{name[:-2] + name[-1]: 1})
        assert str(error).endswith(f": did you mean {name}?")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("lambda_mult", "use diversity = 1 - lambda_mult"),
        ("fetch_k", "use candidates_limit"),
        ("top_k", "use k"),
        ("limit", "use k"),
        ("n_results", "use k"),
        ("num_results", "use k"),
        ("strategy", "use selector"),
        ("ef", "use hash_limit"),
        ("nprobe", "use n_probes"),
        ("searh", "did you mean search?"),
    ],
)
def test_parameters_of_other_libraries_suggest_those_of_divgrpc(
    index: Index, name: str, advice: str
) -> None:
    assert advice in str(fault(QueryParameters, **{name: 1}))
    assert advice in str(fault(index.query, queries=POINTS[0], **{name: 1}))
    assert "use top_k" in str(fault(index.predict_labels, documents=POINTS, k=3))
    assert "use filter" in str(fault(index.query, queries=POINTS[0], where=1))


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("metirc", 1, "did you mean metric?"),
        ("space", 1, "use metric"),
        ("label_modle", 1, "did you mean label_model?"),
        ("overwrite", 1, "use replace"),
        ("idz", 1, "did you mean ids?"),
        ("metric", "angular", ": use cosine"),
        ("metric", "cos", ": use cosine"),
        ("metric", "COSINE", ": did you mean cosine?"),
        ("metric", "dot product", ": use inner_product"),
        ("metric", "sqeuclidean", ": use euclidean"),
        ("metric", "manhattan", "one of cosine, euclidean, inner_product, got 'manhattan'"),
    ],
)
def test_a_build_suggests_parameters_and_metrics(name: str, value: object, advice: str) -> None:
    assert advice in str(fault(Index.build, vectors=POINTS, **{name: value}))


def test_errors_name_the_method_called(index: Index) -> None:
    for call, arguments in (
        (Index.build, {"vectors": POINTS}),
        (index.query, {"queries": POINTS}),
        (index.predict_labels, {"documents": POINTS}),
    ):
        message = str(fault(call, qqq=1, **arguments))
        assert message.startswith(f"{call.__name__}() got an unexpected keyword argument 'qqq'")


@pytest.mark.parametrize("name", suggestions.BUILD_ONLY)
def test_a_query_refuses_parameters_of_a_build(index: Index, name: str) -> None:
    of_build, of_query = BuildParameters.__dataclass_fields__, QueryParameters.__dataclass_fields__
    assert set(suggestions.BUILD_ONLY) == set(of_build) - set(of_query)
    message = str(fault(index.query, queries=POINTS, **{name: 1}))
    assert message.endswith(f": {name} is set when an index is built, for all its queries")


def test_every_suggestion_is_an_existing_parameter_or_value() -> None:
    names = {name for table in TABLES for name in table.__dataclass_fields__}
    names |= {"replace", "progress", "filter", "exclude_ids", "like"}
    for foreign, words in suggestions._PARAMETERS.items():
        assert set(words) <= names, foreign
    assert {parameter for parameter, _ in suggestions._SENTENCES.values()} <= names
    kinds = {"hash_family": "HashFamily"}
    for field, table in suggestions._VALUES.items():
        choices = get_args(getattr(types, kinds.get(field, field.title())))
        assert set(table.values()) <= set(choices)
        assert not set(table) & set(choices)


@pytest.mark.parametrize(
    ("field", "word", "advice"),
    [
        ("selector", "MMR", ": did you mean mmr?"),
        ("selector", "greedi", ": did you mean greedy?"),
        ("selector", "similarity", ": use nearest"),
        ("search", "brute-force", ": use exact"),
        ("search", 3, "got 3"),
        ("search", "brute_force", ": use exact"),
        ("search", "flat", ": use exact"),
        ("search", "hnsw", ": use auto"),
        ("search", "HNSW", ": use auto"),
        ("search", "ivf", ": use tables"),
        ("variant", "paper", ": use printed"),
        ("variant", "xyzzy", "got 'xyzzy'"),
    ],
)
def test_unknown_values_suggest_the_closest_value(field: str, word: object, advice: str) -> None:
    error = fault(QueryParameters, **{field: word})
    assert error.field == field
    assert str(error).endswith(advice)


@pytest.mark.parametrize(("word", "metric"), METRIC_ALIASES.items())
def test_metric_aliases_are_accepted(word: Any, metric: str) -> None:  # noqa: ANN401  # words of MetricWord
    assert as_metric(word) == as_metric(word.upper()) == metric
    assert BuildParameters(metric=word.upper()).metric == metric
    assert BuildParameters(metric=word).metric == metric
    new_index = Index.build(POINTS, metric=word, hash_family="lsh_div")
    assert new_index.info.parameters["metric"] == metric


def test_input_that_is_no_matrix_gets_advice(index: Index) -> None:
    """A single vector is valid as a query, but not as points."""
    column: Any = np.empty(4, object)
    column[:] = list(POINTS)
    assert "np.stack(column)" in str(fault(Index.build, vectors=column))
    assert "np.stack(column)" in str(fault(index.query, queries=column))
    assert (index.query(np.stack(column), k=1).ids[:, 0] == np.arange(4)).all()
    column[2] = None
    assert "got a column of arrays with None in row 2" in str(fault(index.query, queries=column))
    ragged = [[1, 2, 3, 4], [1, 2, 3]]
    rows: list[tuple[Any, str]] = [
        ([*POINTS[:2].tolist(), None], "row 2 is None"),
        (ragged, "its rows differ in length: row 1 has 3 numbers, and row 0 has 4"),
        ([[1, 2, 3, 4], [1, 2, "x", 4]], "row 1 has 'x', which is no number"),
        (np.array([[1, 2, 3, 4], [None] * 4], object), "row 1 has None, which is no number"),
        (np.array([np.ones(4), np.ones(3)], object), "row 1 has 3 numbers, and row 0 has 4"),
    ]
    for matrix, words in rows:
        assert words in str(fault(index.query, queries=matrix))
    for no_column in (["a", "b"], np.array([{}, {}]), [[1, 2], [3]], []):
        assert "np.stack" not in str(fault(Index.build, vectors=no_column))
    for vector in (POINTS[2], POINTS[2].tolist(), POINTS[2].astype(np.float64)):
        error = fault(Index.build, vectors=vector)
        assert error.field == "vectors"
        assert "a single vector of 4 numbers; vectors[None] is a matrix of one row" in str(error)
        assert index.query(vector, k=1).ids.tolist() == [[2]]
