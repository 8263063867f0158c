"""The façade: build, open, query. The file to read first; `divgrpc.engine` does the work."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MethodType
from typing import Any, Final, Self, Unpack, cast, get_type_hints

import numpy.typing as npt

from divgrpc.build.builder import IndexBuilder
from divgrpc.engine import Engine
from divgrpc.labels.build_inputs import Labelling, LabelModelLike, LabelPlan
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
from divgrpc.storage.writers import store_at
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

_LABEL_DEFAULTS: Final = {field.name: field.default for field in fields(LabelParameters)}


def _of(table: Any, values: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401  # a dataclass
    """Return those values that are fields of a table of parameters."""
    return {name: values[name] for name in table.__dataclass_fields__}


class Index:
    """One generation of an index, in memory or mapped from its folder.

    Make one with `Index.build` or `Index.open`. Any thread may query it. `len(index)` is the number
    of its points. `index.info` has the parameters of the build, and what Build chose and measured.
    """

    def __init__(self, engine: Engine) -> None:
        """Take an engine; call `Index.build` or `Index.open` instead."""
        self._engine = engine

    @property
    def engine(self) -> Engine:
        """The engine, for servers and evaluations; its methods are no promise to users."""
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
        """Build an index of `vectors`.

        vectors: (n, d), anything numpy makes numbers of, or a sparse matrix of scipy's. A single
            vector is refused; `x[None]` makes a row of it.
        ids: (n,) unique whole numbers from 0 up, by which results name points. Default: 0 to n - 1.
        categories, subtopics: (n,) whole numbers, -1 for none, by which Evaluate judges results.
            For sparse points, categories also help `auto` tune for dense queries.
        metric: what nearness means. l2 means euclidean, ip and dot mean inner_product.
        hash_family: how space is cut into buckets or cells; auto lets Build choose.
        hyperplanes: how random directions are drawn.
        centred: hash around the mean of the points; not with inner_product.
        n_tables: 1 to 256 tables of buckets; not with cells. Default: chosen by Build.
        n_bits: 1 to 24 bits in the key of a bucket; not with cells. Default: chosen by Build.
        n_components: principal components to draw directions or learn cells in, at most d.
            Default: chosen by Build.
        target_recall: above 0 and at most 1, the share of the nearest that a query's candidates
            must hold under `auto`.
        zero_vectors: refuse or leave out vectors of zeros, which have no cosine.
        seed: of every random choice; the same seed and points give the same index.
        labels: (n, L), dense or sparse: a number other than 0 gives the row that label.
        path: the folder to keep the index in, whose name becomes the index's; None keeps it in
            memory.
        replace: with `path`, let a new generation take the place of an index that is there.
        progress: called with `divgrpc.types.Progress` as the build goes on.
        label_model: "leml" trains a model that predicts labels; or a pair of factors (L, r) and
            (d, r); or a `LabelModel`. Default: none, and neighbours vote.
        label_names: (L,) texts of at most 1,024 bytes.
        hierarchy: (m, 2) edges from parent to child; nodes below L are the labels.
        roots: the nodes where the hierarchy begins.
        rank, regularisation, iterations, inner_iterations, tolerance: how "leml" is trained, as in
            `divgrpc.parameters.LabelParameters`.

        Raises `InvalidArgumentError` with the field named, and `UnsupportedError`; with `path` also
        `IndexExistsError`, `BuildUnderWayError` and `StorageFullError`.
        """
        values = {**locals(), "metric": as_metric(metric)}
        refuse_unknown("build", labelling, Labelling.__annotations__, taken_by(cls.build))
        parameters = BuildParameters(**_of(BuildParameters, values))
        plan = LabelPlan.told(seed, **labelling)
        with store_at(path, replace=replace) as (store, folder):
            builder = IndexBuilder(store, parameters, on_progress=progress, labels=plan)
            builder.append_all(vectors, ids, categories, subtopics, labels)
            engine = Engine(builder.build(), folder.name if folder else "", folder)
        return cls(engine)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open the current generation in an index's folder, or the generation in its own folder.

        path: the folder that `build` was given, one below a server's data directory, or the folder
            of one generation in it.

        Every checksum is compared. Raises `IndexNotFoundError`, `IndexDamagedError`,
        `OtherFormatError`.
        """
        return cls(Engine.open(path))

    def query(self, queries: RowsLike, **options: Unpack[QueryOptions]) -> QueryResult:
        """Return `k` results for each row of `queries`, near it and different from one another.

        queries: (nq, dims) or one vector (dims,), dense or sparse, 10,000 rows at most.

        The index's `default`, if it has one, gives the parameters that the call leaves out. Raises
        `InvalidArgumentError` with the field named.
        """
        refuse_unknown("query", options, QueryOptions.__annotations__, ("queries",))
        check_one_dial(options)
        parameters = QueryParameters(**named_over_default(options, self.default))
        return self._engine.answer(queries, parameters)

    def predict_labels(self, documents: RowsLike, **options: Unpack[PredictOptions]) -> LabelResult:
        """Return `top_k` labels for each of `documents`, fitting and different from one another.

        documents: (nq, dims) or one vector (dims,), dense or sparse, 10,000 rows at most.

        Raises `InvalidArgumentError` with the field named, and `UnfitIndexError` if the index was
        built without a label model, in the mode `neighbour_vote` without labels, or for the
        selector `hierarchy` without a hierarchy.
        """
        refuse_unknown("predict_labels", options, PredictOptions.__annotations__, ("documents",))
        parameters = PredictParameters(**options)
        thresholds = self._engine.defaults.thresholds
        return self._engine.predict(documents, parameters.with_threshold(thresholds))

    @property
    def info(self) -> IndexInfo:
        """The parameters of the build, and what Build chose and measured."""
        return self._engine.info

    @property
    def rows(self) -> int:
        """How many points there are."""
        return self._engine.rows

    @property
    def dims(self) -> int:
        """How many dimensions they have."""
        return self._engine.dims

    @property
    def generation(self) -> int:
        """The number of this build."""
        return self._engine.generation

    @property
    def default(self) -> QueryDefault | None:
        """The parameters of `query` that stand where its caller names none."""
        return self._engine.default

    def set_default(self, default: QueryDefault | None) -> None:
        """Set what `query` takes on this generation where its caller names nothing.

        default: the parameters, or None to take them back. They are kept with an index that is in a
            folder, and whoever serves it there uses them at once.

        Raises `IndexChangedError` where another generation serves by now, and
        `BuildUnderWayError`.
        """
        self._engine.set_default(default)

    def set_threshold(self, threshold: float | None, mode: Mode = "embedding") -> None:
        """Set what `predict_labels` takes in a mode where its caller names no threshold.

        threshold: the least score, or share of the votes; None for none. It is kept as
            `set_default` keeps its parameters. `divgrpc.evaluation.label_thresholds` chooses one.
        mode: the mode that it is for.

        Raises what `set_default` raises, `InvalidArgumentError`, and `UnfitIndexError` where there
        are no labels.
        """
        self._engine.set_threshold(threshold, mode)


_NAMES: Final = {RowsLike: "RowsLike", MetricWord: "Metric", LabelModelLike: "LabelModelLike"}
_LABELLING: Final = [
    inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=_LABEL_DEFAULTS.get(name),
        annotation=kind,
    )
    for name, kind in get_type_hints(Labelling).items()
]
spell_out(cast(MethodType, Index.build).__func__, _NAMES, _LABELLING)
spell_out(Index.set_threshold, _NAMES)
spell_out_options(Index.query, (QueryParameters,), _NAMES)
spell_out_options(Index.predict_labels, (PredictParameters,), _NAMES)
