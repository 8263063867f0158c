"""What callers send as the core takes it: queries and documents, and the rows of an upload.

Used by workers and builders; `divgrpc.vectors` brings the compiler with it. Errors name the field
as the .proto spells it, such as ``queries.sparse.indices``.
"""

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import (
    LIMITS,
    QueryParameters,
    check_index_name,
    check_one_dial,
    named_over_default,
)
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import Auto, QueryDefault
from divgrpc.vectors import Rows, SparseRows
from divgrpc_protos import arrays
from divgrpc_protos.v1 import predict_pb2, query_pb2, vectors_pb2
from divgrpc_server.codec.results import parse_matrix, word

_QUERY: Final = query_pb2.QueryRequest.DESCRIPTOR
_NUMBERS: Final = (
    "k",
    "diversity",
    "hash_limit",
    "epsilon",
    "candidates_limit",
    "max_distance",
    "seed",
    "n_probes",
    "duplicate_threshold",
    "list_collapsed",
    "keep_duplicates",
    "lose_at_most",
)
_WORDS: Final = ("selector", "variant", "search", "sampling", "rounding")
_ONE_DIAL: Final = (
    "diversity, diversity_auto and lose_at_most are three ways to set the dial: set one of them"
)

_PREDICT: Final = predict_pb2.PredictLabelsRequest.DESCRIPTOR
_PREDICT_NUMBERS: Final = (
    "top_k",
    "threshold",
    "diversity",
    "hash_limit",
    "candidates_limit",
    "neighbours",
    "seed",
)
_PREDICT_WORDS: Final = ("selector", "search", "mode", "vote")


class Query(NamedTuple):
    """A query as the core takes it; `named` are the parameters that its caller named."""

    name: str
    queries: Rows
    parameters: QueryParameters
    named: tuple[tuple[str, Any], ...]

    def over(self, default: QueryDefault | None) -> QueryParameters:
        """Return the parameters on an index that has a default for what is not named."""
        return self.parameters if default is None else _over(self.named, default)


def parse_query(request: query_pb2.QueryRequest) -> Query:
    """Return what a QueryRequest asks for.

    Raises `InvalidArgumentError` with the field named.
    """
    parameters, named = _parameters(
        (
            request.k if request.HasField("k") else None,
            _dial(request),
            request.hash_limit if request.HasField("hash_limit") else None,
            request.epsilon if request.HasField("epsilon") else None,
            request.candidates_limit if request.HasField("candidates_limit") else None,
            request.max_distance if request.HasField("max_distance") else None,
            request.seed if request.HasField("seed") else None,
            request.n_probes if request.HasField("n_probes") else None,
            request.duplicate_threshold if request.HasField("duplicate_threshold") else None,
            request.list_collapsed or None,
            request.keep_duplicates or None,
            request.lose_at_most if request.HasField("lose_at_most") else None,
        ),
        (request.selector, request.variant, request.search, request.sampling, request.rounding),
    )
    check_index_name(request.index)
    return Query(request.index, _asked_rows("queries", request.queries), parameters, named)


def _dial(request: query_pb2.QueryRequest) -> float | Auto | None:
    """Return the `diversity` of a request; raises where the request sets the dial twice."""
    if not request.diversity_auto:
        return request.diversity if request.HasField("diversity") else None
    if request.HasField("diversity") or request.HasField("lose_at_most"):
        raise InvalidArgumentError("diversity_auto", _ONE_DIAL)
    if request.selector == query_pb2.SELECTOR_NEAREST:
        raise InvalidArgumentError(
            "diversity_auto",
            "diversity_auto does not go with selector nearest, which has no dial",
        )
    return "auto"


class Prediction(NamedTuple):
    """Documents to label as the core takes them."""

    name: str
    documents: Rows
    parameters: PredictParameters


def parse_prediction(request: predict_pb2.PredictLabelsRequest) -> Prediction:
    """Return what a PredictLabelsRequest asks for; raises as `parse_query` does."""
    given = {name: getattr(request, name) for name in _PREDICT_NUMBERS if request.HasField(name)}
    for name in _PREDICT_WORDS:
        given[name] = word(_PREDICT, name, getattr(request, name))
    parameters = _predict_parameters(
        tuple((name, value) for name, value in given.items() if value is not None)
    )
    check_index_name(request.index)
    return Prediction(request.index, _asked_rows("documents", request.documents), parameters)


@lru_cache(maxsize=1024)
def _predict_parameters(named: tuple[tuple[str, Any], ...]) -> PredictParameters:
    return PredictParameters(**dict(named))


def _asked_rows(field: str, vectors: vectors_pb2.Vectors) -> Rows:
    rows = parse_vectors(field, vectors)
    if not len(rows):
        raise InvalidArgumentError(field, f"{field} must hold at least one row, got 0")
    if len(rows) > LIMITS["query_rows_max"]:
        raise InvalidArgumentError(
            field, f"{field} must hold at most {LIMITS['query_rows_max']} rows, got {len(rows)}"
        )
    return rows


# The same few settings come with nearly every call of a service, and checking them costs as much as
# parsing the message.
@lru_cache(maxsize=1024)
def _parameters(
    numbers: tuple[float | Auto | None, ...], choices: tuple[int, ...]
) -> tuple[QueryParameters, tuple[tuple[str, Any], ...]]:
    """Return the parameters, and those named; arguments are in the order of the tables of names."""
    given: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=True))
    for name, value in zip(_WORDS, choices, strict=True):
        given[name] = word(_QUERY, name, value)
    named = {name: value for name, value in given.items() if value is not None}
    check_one_dial(named)
    return QueryParameters(**named), tuple(named.items())


@lru_cache(maxsize=1024)
def _over(named: tuple[tuple[str, Any], ...], default: QueryDefault) -> QueryParameters:
    return QueryParameters(**named_over_default(dict(named), default))


def parse_vectors(field: str, vectors: vectors_pb2.Vectors) -> Rows:
    """Return the rows as (rows, d) float32 or as `SparseRows`; errors name the field below `field`.

    Sparse rows are never spread out: a message of 4 MiB may stand for gigabytes.
    """
    matrix = parse_matrix(field, vectors)
    if not isinstance(matrix, arrays.Csr):
        return matrix
    if matrix.cols > LIMITS["sparse_dims_max"]:
        raise InvalidArgumentError(
            f"{field}.sparse.cols",
            f"{field}.sparse.cols must be at most {LIMITS['sparse_dims_max']}, got {matrix.cols}",
        )
    # The kernels know writable arrays alone, and a message's bytes are not.
    return SparseRows(
        np.array(matrix.indptr, np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.float32),
        matrix.cols,
    )
