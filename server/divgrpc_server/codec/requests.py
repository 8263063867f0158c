"""Conversion of requests to the core's types: queries, documents, and the rows of an upload.

Workers, builders and evaluators use this module. Fronts do not, because it imports
`divgrpc.vectors`, which loads Numba. Errors name the field by its path in the .proto files, such as
``queries.sparse.indices``.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from divgrpc.columns.quotas import k_of_groups
from divgrpc.columns.values import Column
from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters import (
    LIMITS,
    DiversifyParameters,
    QueryParameters,
    check_index_name,
    check_one_dial,
    named_over_default,
)
from divgrpc.parameters.continuation import Continuation
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import Metric, QueryDefault
from divgrpc.types.filters import Filter
from divgrpc.types.quotas import Quotas
from divgrpc.types.records import Attribute
from divgrpc.vectors import Rows, SparseRows
from divgrpc_protos import arrays
from divgrpc_protos.records import fields_of, plain_value
from divgrpc_protos.v1 import (
    diversify_pb2,
    index_pb2,
    predict_pb2,
    query_pb2,
    vectors_pb2,
    writes_pb2,
)
from divgrpc_server.codec.filters import parse_filter, parse_ids
from divgrpc_server.codec.quotas import parse_quotas, parse_values
from divgrpc_server.codec.results import parse_label_sets

# The names and values of the fields that a request sets.
Options = tuple[tuple[str, Any], ...]

_NO_PARAMETERS: Final = frozenset(
    (
        *("index", "queries", "documents", "filter", "exclude_ids", "exclude_string_ids"),
        *("like_ids", "like_string_ids", "min_sequence", "paged", "page_token"),
        *("already_shown_ids", "already_shown_string_ids", "already_shown"),
        *("quotas", "group_by", "on_infeasible", "allow_partial"),
    )
)
# The fields of a DiversifyRequest that are no parameters.
_CANDIDATES: Final = frozenset(
    (
        *("vectors", "index", "ids", "string_ids", "scores", "query"),
        *("attributes", "quotas", "group_by", "on_infeasible"),
    )
)
_NO_CANDIDATES: Final = diversify_pb2.DiversifyRequest()
_ONE_DIAL: Final = (
    "diversity, diversity_auto and lose_at_most are three ways to set the dial: set one of them"
)


class Query(NamedTuple):
    """A parsed query.

    name: name of the index.
    queries: the rows to answer; None if `like` has ids.
    parameters, options: all parameters, and those that the request sets.
    filter: conditions that all results must pass, or None.
    exclude_ids: ids of points that are not returned.
    like: ids of points whose vectors are the queries.
    paged, page_token, already_shown: as in `Continuation`.
    quotas: what the results must meet, or None.
    allow_partial: whether the answer may lack the points of shards that are missing.
    """

    name: str
    queries: Rows | None
    parameters: QueryParameters
    options: Options
    filter: Filter | None = None
    exclude_ids: Sequence[int] | Sequence[str] = ()
    like: Sequence[int] | Sequence[str] = ()
    min_sequence: int = 0
    paged: bool = False
    page_token: str | None = None
    already_shown: Rows | list[int] | list[str] | None = None
    quotas: Quotas | None = None
    allow_partial: bool = False

    @property
    def may_lack(self) -> bool:
        """Whether the answer may lack missing shards; not if the query needs stored points."""
        names_points = isinstance(self.already_shown, list) or self.page_token is not None
        return self.allow_partial and not self.like and not names_points

    @property
    def continuation(self) -> Continuation | None:
        """How the query continues; None for an ordinary query."""
        if not self.paged and self.page_token is None and self.already_shown is None:
            return None
        identity = (self.filter, self.exclude_ids, self.like)
        return Continuation(self.paged, self.page_token, self.already_shown, *identity)

    def over(self, default: QueryDefault | None) -> QueryParameters:
        """Return the parameters; `default` supplies those that the request leaves out."""
        return self.parameters if default is None else _over(self.options, default)


class Diversification(NamedTuple):
    """A parsed diversification: its candidates, and how to pick from them.

    name: name of the index that has the points `ids`, "" if there are `vectors`.
    scores, query: what relevance is computed from, or None.
    options: the parameters that the request sets.
    quotas: what the picks must meet, or None.
    columns: values of the candidates for quotas, if they are no points of an index.
    """

    name: str
    ids: Sequence[int] | Sequence[str]
    vectors: Rows
    scores: npt.NDArray[np.float64] | None
    query: Rows | None
    parameters: DiversifyParameters
    options: Options
    quotas: Quotas | None = None
    columns: Mapping[Attribute, Column] = MappingProxyType({})

    def over(self, metric: Metric) -> "Diversification":
        """Return the same with the metric of an index."""
        parameters, _ = _diversify_parameters((*self.options, ("metric", metric)))
        return self._replace(parameters=parameters)


class Prediction(NamedTuple):
    """Parsed documents, and the parameters of the prediction; `allow_partial` as in `Query`."""

    name: str
    documents: Rows
    parameters: PredictParameters
    filter: Filter | None = None
    allow_partial: bool = False


def parse_query(request: query_pb2.QueryRequest) -> Query:
    """Return a QueryRequest as a `Query`.

    Raises `InvalidArgumentError`, which names the field.
    """
    quotas, set_fields = parse_quotas(request), _set_fields(request)
    set_fields = _with_k(set_fields, quotas)
    parameters, options = _query_parameters(set_fields)
    check_index_name(request.index)
    like = parse_ids("like", request.like_ids, request.like_string_ids)
    if like and request.HasField("queries"):
        raise invalid("like", "stands for the queries: give one of the two")
    return Query(
        request.index,
        None if like else _parse_rows("queries", request.queries),
        parameters,
        options,
        parse_filter(request.filter) if request.HasField("filter") else None,
        parse_ids("exclude_ids", request.exclude_ids, request.exclude_string_ids),
        like,
        request.min_sequence,
        request.paged,
        request.page_token if request.HasField("page_token") else None,
        _parse_shown(request),
        quotas,
        request.allow_partial,
    )


def parse_diversification(request: diversify_pb2.DiversifyRequest) -> Diversification:
    """Return a DiversifyRequest as a `Diversification`; raises the same errors as `parse_query`."""
    set_fields = request.ListFields()
    fields = tuple([(f.name, value) for f, value in set_fields if f.name not in _CANDIDATES])
    quotas = parse_quotas(request)
    parameters, options = _diversify_parameters(_with_k(_as_words(fields), quotas))
    if quotas is None and request.attributes:
        raise invalid("attributes", "go with quotas or group_by: set one of them too")
    ids = parse_ids("ids", request.ids, request.string_ids)
    vectors: Rows = np.empty((0, 0), np.float32)
    query = None
    if request.HasField("vectors"):
        if request.index or ids:
            raise invalid("vectors", "stand for an index and ids: give one of the two")
        vectors = parse_vectors("vectors", request.vectors)
        if request.HasField("query"):
            query = parse_vectors("query", request.query)
    elif request.index:
        check_index_name(request.index)
        for name in ("metric", "query", "attributes"):
            if getattr(request, name) != getattr(_NO_CANDIDATES, name):
                raise invalid(name, "goes with vectors, not with the points of an index")
    else:
        raise invalid("vectors", "must be given, or an index with ids of points")
    scores = np.array(request.scores, np.float64) if request.scores else None
    columns = parse_values(request.attributes)
    return Diversification(
        request.index, ids, vectors, scores, query, parameters, options, quotas, columns
    )


def _with_k(options: Options, quotas: Quotas | None) -> Options:
    """Return the options of a call with the `k` of its groups, if it has any."""
    if quotas is None:
        return options
    by_name: Any = dict(options)
    return tuple(k_of_groups(quotas, by_name).items())


def _parse_shown(request: query_pb2.QueryRequest) -> Rows | list[int] | list[str] | None:
    """Return the vectors or the ids of points that were shown before, or None."""
    ids = parse_ids("already_shown", request.already_shown_ids, request.already_shown_string_ids)
    if request.HasField("already_shown"):
        if ids:
            raise invalid("already_shown", "must be ids or vectors, not both")
        return parse_vectors("already_shown", request.already_shown)
    return ids or None


def parse_prediction(request: predict_pb2.PredictLabelsRequest) -> Prediction:
    """Return a PredictLabelsRequest as a `Prediction`; raises the same errors as `parse_query`."""
    parameters = _predict_parameters(_set_fields(request))
    check_index_name(request.index)
    condition = parse_filter(request.filter) if request.HasField("filter") else None
    documents = _parse_rows("documents", request.documents)
    allow_partial = request.allow_partial
    return Prediction(request.index, documents, parameters, condition, allow_partial)


def _set_fields(request: Message) -> Options:
    """Return the parameters that a request sets."""
    set_fields = request.ListFields()
    return tuple([(f.name, value) for f, value in set_fields if f.name not in _NO_PARAMETERS])


# Cached because most calls to a server repeat the same few sets of parameters, and checking them
# takes as long as parsing the message.
@lru_cache(maxsize=1024)
def _query_parameters(fields: Options) -> tuple[QueryParameters, Options]:
    """Return all parameters, and the options that the request sets.

    A bool field with the value false counts as unset.
    """
    values = _with_words(query_pb2.QueryRequest, fields)
    options = {name: value for name, value in values.items() if value is not False}
    if options.pop("diversity_auto", False):
        _check_auto(options)
        options["diversity"] = "auto"
    check_one_dial(options)
    return QueryParameters(**options), tuple(options.items())


@lru_cache(maxsize=1024)
def _as_words(fields: Options) -> Options:
    return tuple(_with_words(diversify_pb2.DiversifyRequest, fields).items())


@lru_cache(maxsize=1024)
def _diversify_parameters(fields: Options) -> tuple[DiversifyParameters, Options]:
    """Return all parameters, and the options that the request sets, as `_query_parameters` does."""
    options = {name: value for name, value in fields if value is not False}
    if options.pop("diversity_auto", False):
        _check_auto(options)
        options["diversity"] = "auto"
    check_one_dial(options)
    return DiversifyParameters(**options), tuple(options.items())


@lru_cache(maxsize=1024)
def _predict_parameters(fields: Options) -> PredictParameters:
    return PredictParameters(**_with_words(predict_pb2.PredictLabelsRequest, fields))


@lru_cache(maxsize=1024)
def _over(options: Options, default: QueryDefault) -> QueryParameters:
    return QueryParameters(**named_over_default(dict(options), default))


def _with_words(kind: type[Message], fields: Options) -> dict[str, Any]:
    """Return the fields with enum numbers replaced by strings; raises `UnknownWordError`."""
    types = fields_of(kind)
    return {name: plain_value(types[name], value) for name, value in fields}


def _check_auto(options: Mapping[str, object]) -> None:
    """Raise if the request combines `diversity_auto` with another dial or with selector nearest."""
    if "diversity" in options or "lose_at_most" in options:
        raise InvalidArgumentError("diversity_auto", _ONE_DIAL)
    if options.get("selector") == "nearest":
        raise invalid("diversity_auto", "does not go with selector nearest, which has no dial")


def _parse_rows(field: str, vectors: vectors_pb2.Vectors) -> Rows:
    rows = parse_vectors(field, vectors)
    if not len(rows):
        raise invalid(field, "must hold at least one row, got 0")
    if len(rows) > LIMITS["query_rows_max"]:
        raise invalid(field, f"must hold at most {LIMITS['query_rows_max']} rows, got {len(rows)}")
    return rows


def parse_label_rows(
    message: index_pb2.BuildChunk | writes_pb2.UpsertRequest, rows: int, noun: str
) -> SparseRows | None:
    """Return the labels of the `rows` rows of a message, or None if it has no labels.

    `noun` is the word for the rows in errors. Raises `InvalidArgumentError`, which names the
    invalid field of `labels`.
    """
    if not message.HasField("labels"):
        return None
    sets = parse_label_sets(message.labels, rows, noun)
    return SparseRows(sets.indptr, sets.indices.astype(np.int32), sets.data, sets.cols)


def parse_vectors(field: str, vectors: vectors_pb2.Vectors) -> Rows:
    """Return the rows as a (rows, dims) float32 array or as `SparseRows`.

    Sparse rows are not converted to dense rows, because a message of 4 MiB can represent gigabytes
    of zeros. `field` is the name of the rows in error messages.
    """
    try:
        matrix = arrays.decode(vectors)
    except arrays.MatrixError as error:
        path = f"{field}.{error.field}" if error.field else field
        raise InvalidArgumentError(path, f"{field}: {error}") from None
    if not isinstance(matrix, arrays.Csr):
        return matrix
    if matrix.cols > LIMITS["sparse_dims_max"]:
        most = LIMITS["sparse_dims_max"]
        raise invalid(f"{field}.sparse.cols", f"must be at most {most}, got {matrix.cols}")
    # Copy the arrays, because the bytes of a message are read-only and the kernels are compiled for
    # writable arrays.
    return SparseRows(
        np.array(matrix.indptr, np.int64),
        matrix.indices.astype(np.int32),
        matrix.data.astype(np.float32),
        matrix.cols,
    )
