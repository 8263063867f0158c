"""`Index`, the interface for users: build, open, query. `divgrpc.engine` does the work."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import MethodType
from typing import Final, Self, Unpack, cast, get_type_hints

import numpy.typing as npt

from divgrpc.builder.builder import IndexBuilder, store_at
from divgrpc.engine import Engine
from divgrpc.labels.build_inputs import LabelInputs, Labelling, LabelModelLike
from divgrpc.parameters import (
    BuildParameters,
    LabelParameters,
    MetricWord,
    PredictOptions,
    PredictParameters,
    QueryOptions,
    QueryParameters,
    as_metric,
    check_one_dial,
    named_over_default,
)
from divgrpc.parameters.signatures import spell_out, spell_out_options
from divgrpc.parameters.suggestions import refuse_unknown, taken_by
from divgrpc.types import (
    HashFamily,
    Hyperplanes,
    IndexInfo,
    LabelResult,
    Mode,
    Progress,
    QueryDefault,
    QueryResult,
    ZeroVectors,
)
from divgrpc.vectors import RowsLike

_BUILD_FIELDS: Final = [field.name for field in fields(BuildParameters)]
_LABEL_DEFAULTS: Final = {field.name: field.default for field in fields(LabelParameters)}


class Index:
    """One generation of an index, in memory or mapped from its folder.

    `Index.build` and `Index.open` make one. Any thread may query it. `len(index)` is the number of
    points.
    """

    def __init__(self, engine: Engine) -> None:
        """Wrap an engine. Users call `Index.build` or `Index.open` instead."""
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The engine, for servers and evaluations. Its methods may change in any release."""
        return self._engine

    def __len__(self) -> int:
        return self.rows

    def __repr__(self) -> str:
        return f"Index({self.info.summary})"

    @classmethod
    def build(
        cls,
        vectors: RowsLike,
        *,
        ids: npt.ArrayLike | None = None,
        categories: npt.ArrayLike | None = None,
        subtopics: npt.ArrayLike | None = None,
        metric: MetricWord = "cosine",
        hash_family: HashFamily = "auto",
        hyperplanes: Hyperplanes = "orthogonal",
        centred: bool = False,
        n_tables: int | None = None,
        n_bits: int | None = None,
        n_components: int | None = None,
        target_recall: float = 0.9,
        zero_vectors: ZeroVectors = "reject",
        seed: int = 0,
        labels: RowsLike | None = None,
        path: Path | str | None = None,
        replace: bool = False,
        progress: Callable[[Progress], None] | None = None,
        **labelling: Unpack[Labelling],
    ) -> Self:
        """Build an index of the rows of `vectors`.

        vectors: (n, d) numbers, converted to float32: an array, nested lists, or a sparse matrix of
            scipy. At most 65,536 dense columns, or 2**22 sparse ones. A single vector is refused;
            `x[None]` is a matrix of one row.
        ids: (n,) unique integers from 0 up, which results return. Default: 0 to n - 1.
        categories, subtopics: (n,) integers, -1 for none, by which evaluations judge results. For
            sparse points, categories also help `auto` to tune for dense queries.
        metric: "cosine", "euclidean" or "inner_product". "l2" means euclidean, "ip" and "dot" mean
            inner_product.
        hash_family: "lsh_div" hashes with random hyperplanes, "lsh_sdiv" with random directions
            inside the principal components, "pca_hash" with the components themselves. "cells"
            learns a partition by k-means. "auto" lets Build choose (paper: LSH-Div, LSH-SDiv).
        hyperplanes: random directions are "orthogonal" in blocks (Ji et al. 2012), or independent
            and "gaussian".
        centred: hash around the mean of the points; not with inner_product.
        n_tables: 1 to 256 tables of buckets; not with cells. Default: chosen by Build.
        n_bits: 1 to 24 bits in the key of a bucket; not with cells. Default: chosen by Build.
        n_components: number of principal components for lsh_sdiv, pca_hash and cells, at most d.
            Default: chosen by Build.
        target_recall: the share of the true nearest points, above 0 and at most 1, that the
            candidates of a query under `auto` must hold.
        zero_vectors: under cosine, "reject" raises an error for a vector of zeros, which has no
            direction; "skip" leaves it out with a warning.
        seed: seed of all random choices; the same seed and points give the same index.
        labels: (n, L), dense or sparse; a row has label j if column j is not 0.
        path: folder of the index, whose last part is its name. None builds in memory.
        replace: replace an index that exists at `path`, by a new generation.
        progress: called with a `divgrpc.types.Progress` several times per stage.
        label_model: "leml" trains a model that predicts labels (Yu et al. 2014); a pair of factors
            (L, r) and (d, r), or a `LabelModel`, is used as it is. Default: none, and labels are
            predicted by the votes of neighbours.
        label_names: L names of at most 1,024 bytes each.
        hierarchy: (m, 2) edges from parent to child; nodes below L are the labels.
        roots: the nodes at which the hierarchy begins. Default: the nodes without parents.
        rank, regularisation, iterations, inner_iterations, tolerance: parameters of "leml": see
            `divgrpc.parameters.LabelParameters`.

        Raises `InvalidArgumentError` with the field, and `UnsupportedError`; with `path` also
        `IndexExistsError`, `BuildUnderWayError` and `StorageFullError`.
        """
        values = {**locals(), "metric": as_metric(metric)}
        refuse_unknown("build", labelling, Labelling.__annotations__, taken_by(cls.build))
        parameters = BuildParameters(**{name: values[name] for name in _BUILD_FIELDS})
        plan = LabelInputs.from_keywords(seed, **labelling)
        with store_at(path, replace=replace) as (store, folder):
            builder = IndexBuilder(store, parameters, on_progress=progress, labels=plan)
            builder.append_all(
                vectors, ids=ids, categories=categories, subtopics=subtopics, labels=labels
            )
            engine = Engine(builder.build(), folder.name if folder else "", folder)
        return cls(engine)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an index from its folder.

        path: the folder of an index, which opens its current generation, or the folder of one
            generation. The data directory of a server has one folder per index.

        Every checksum is compared. Raises `IndexNotFoundError`, `IndexDamagedError` and
        `OtherFormatError`.
        """
        return cls(Engine.open(path))

    def query(self, queries: RowsLike, **options: Unpack[QueryOptions]) -> QueryResult:
        """Return `k` diverse results for each row of `queries`: near it, and unlike one another.

        queries: (nq, d) numbers or one vector (d,), dense or sparse; at most 10,000 rows.

        Parameters that are left out come from the `default` of the index, if it has one. Raises
        `InvalidArgumentError` with the field.
        """
        refuse_unknown("query", options, QueryOptions.__annotations__, ("queries",))
        check_one_dial(options)
        parameters = QueryParameters(**named_over_default(options, self.default))
        return self._engine.answer(queries, parameters)

    def predict_labels(self, documents: RowsLike, **options: Unpack[PredictOptions]) -> LabelResult:
        """Return at most `top_k` diverse labels for each row of `documents`.

        documents: (nq, d) numbers or one vector (d,), dense or sparse; at most 10,000 rows.

        Raises `InvalidArgumentError` with the field. Raises `UnfitIndexError` if the index has no
        label model, in the mode `neighbour_vote` no labels, or for the selector `hierarchy` no
        hierarchy.
        """
        refuse_unknown("predict_labels", options, PredictOptions.__annotations__, ("documents",))
        parameters = PredictParameters(**options)
        thresholds = self._engine.defaults.thresholds
        return self._engine.predict(documents, parameters.with_threshold(thresholds))

    @property
    def info(self) -> IndexInfo:
        """The description of the index: its parameters, and what Build chose and measured."""
        return self._engine.info

    @property
    def rows(self) -> int:
        """The number of points."""
        return self._engine.rows

    @property
    def dims(self) -> int:
        """The number of dimensions."""
        return self._engine.dims

    @property
    def generation(self) -> int:
        """The number of this generation."""
        return self._engine.generation

    @property
    def default(self) -> QueryDefault | None:
        """The parameters of `query` for callers that leave them out, None if there are none."""
        return self._engine.default

    def set_default(self, default: QueryDefault | None) -> None:
        """Set the parameters of `query` for callers that leave them out.

        default: the parameters; None removes them. An index in a folder stores them there, and
            every process that serves it uses them at once.

        Raises `IndexChangedError` if a newer generation is current, and `BuildUnderWayError`.
        """
        self._engine.set_default(default)

    def set_threshold(self, threshold: float | None, mode: Mode = "embedding") -> None:
        """Set the threshold of `predict_labels` for callers that leave it out.

        threshold: the least score, or share of the votes; None removes it. It is stored like the
            parameters of `set_default`. `divgrpc.evaluation.label_running` can choose it.
        mode: the mode of `predict_labels` that the threshold is for.

        Raises the errors of `set_default`, `InvalidArgumentError`, and `UnfitIndexError` if the
        index has no labels.
        """
        self._engine.set_threshold(threshold, mode)


_NAMES: Final = {RowsLike: "RowsLike", MetricWord: "Metric", LabelModelLike: "LabelModelLike"}
_LABELLING: Final = [
    inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=_LABEL_DEFAULTS.get(name), annotation=kind
    )
    for name, kind in get_type_hints(Labelling).items()
]
spell_out(cast(MethodType, Index.build).__func__, _NAMES, _LABELLING)
spell_out(Index.set_threshold, _NAMES)
spell_out_options(Index.query, (QueryParameters,), _NAMES)
spell_out_options(Index.predict_labels, (PredictParameters,), _NAMES)
