"""The class `Index`, the public interface to build, open and query an index."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MethodType
from typing import Any, Final, Self, Unpack, cast, get_type_hints

from divgrpc.builder.attributes import extend, values_for
from divgrpc.builder.builder import IndexBuilder, store_at
from divgrpc.builder.columns import columns_of_build
from divgrpc.columns.filters import as_filter
from divgrpc.columns.ids import as_ids
from divgrpc.columns.quotas import as_quotas, k_of_groups
from divgrpc.columns.values import columns_of
from divgrpc.diagnosis.survey import Survey
from divgrpc.engine import Engine
from divgrpc.errors import IndexChangedError, invalid
from divgrpc.labels.build_inputs import LabelInputs, Labelling, LabelModelLike
from divgrpc.pages import answer_continued
from divgrpc.parameters import (
    BuildParameters,
    LabelParameters,
    MetricWord,
    PredictOptions,
    PredictParameters,
    QueryOptions,
    QueryParameters,
    as_metric,
)
from divgrpc.parameters.checks import check_bool
from divgrpc.parameters.continuation import Continuation
from divgrpc.parameters.diagnose import DEFAULT_SAMPLE, DiagnoseParameters
from divgrpc.parameters.query_calls import CallParameters
from divgrpc.parameters.signatures import spell_out, spell_out_options
from divgrpc.parameters.suggestions import refuse_unknown, taken_by
from divgrpc.search.passing import PassingRows
from divgrpc.storage.generations import Generation, extending
from divgrpc.storage.writers import MemoryStore, Store
from divgrpc.types import (
    HashFamily,
    Hyperplanes,
    IndexInfo,
    LabelResult,
    Mode,
    OnInfeasible,
    Progress,
    QueryDefault,
    QueryResult,
    ZeroVectors,
)
from divgrpc.types.diagnosis import Diagnosis
from divgrpc.types.filters import FilterLike
from divgrpc.types.quotas import GroupBy, QuotasLike
from divgrpc.types.records import (
    AttributesLike,
    AttributeTypes,
    IdArray,
    IdsLike,
    IdsOf,
    NumbersLike,
    Parts,
    PayloadsLike,
    Records,
    ShownLike,
)
from divgrpc.vectors import LabelsLike, RowsLike
from divgrpc.writes.opening import open_engine
from divgrpc.writes.vectorless import VectorlessPoints

# Arguments of `Index.build` with one entry per row, except attributes.
_ROWS: Final = ("ids", "categories", "subtopics", "labels", "payloads")
_BUILD_FIELDS: Final = [field.name for field in fields(BuildParameters)]
_LABEL_DEFAULTS: Final = {field.name: field.default for field in fields(LabelParameters)}


class Index:
    """One generation of an index, in memory or memory-mapped from its folder.

    Create an index with `Index.build` or `Index.open`. Any thread may query the index.
    `len(index)` is the number of points.
    """

    def __init__(self, engine: Engine) -> None:
        """Wrap an engine. Users call `Index.build` or `Index.open` instead."""
        self._engine = engine
        self._parameters = CallParameters()

    @property
    def engine(self) -> Engine:
        """The engine that servers and evaluations use; its methods may change in any release."""
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
        ids: IdsLike = None,
        attributes: AttributesLike = None,
        attribute_types: AttributeTypes = None,
        payloads: PayloadsLike = None,
        categories: NumbersLike = None,
        subtopics: NumbersLike = None,
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
        vectors_optional: bool = False,
        labels: LabelsLike | None = None,
        path: Path | str | None = None,
        replace: bool = False,
        progress: Callable[[Progress], None] | None = None,
        **labelling: Unpack[Labelling],
    ) -> Self:
        """Build an index of the rows of `vectors`.

        vectors: (n, d) numbers: an array, nested lists, or a sparse matrix of scipy. They are
            converted to float32. Dense vectors have at most 65,536 columns, sparse vectors at most
            2**22. A single vector is refused; `x[None]` is a matrix of one row. With
            `vectors_optional`, None in a list or an array of vectors is a point without one; in a
            list, sparse vectors are matrices of one row.
        ids: (n,) unique integers of at least 0, or unique texts of at most 256 bytes, that identify
            the points in results. Default: 0 to n - 1.
        attributes: values of the points by the name of an attribute, such as {"brand": [...],
            "price": array}. Each has n values: texts, integers, floats, bools or times. None is a
            missing value. A list gives a point several values.
        attribute_types: types of some attributes: "keyword", "integer", "float" or "bool". Other
            types are found from the values.
        payloads: (n,) bytes or texts of at most 65,536 bytes, which `get` and queries return. None
            for a point without a payload.
        categories, subtopics: (n,) integers of the points, -1 for none. Evaluations use them to
            judge results. For sparse points, Build also uses categories to tune `auto` for dense
            queries.
        metric: "cosine", "euclidean" or "inner_product". "l2" means euclidean, "ip" and "dot" mean
            inner_product.
        hash_family: "lsh_div" (LSH-Div in the paper) hashes with random hyperplanes. "lsh_sdiv"
            (LSH-SDiv) hashes with random directions in the space of the principal components.
            "pca_hash" hashes with the principal components themselves. "cells" learns a partition
            by k-means. "auto" lets Build choose.
        hyperplanes: "orthogonal" draws random directions that are orthogonal in blocks (Ji et al.
            2012). "gaussian" draws independent directions.
        centred: subtract the mean of the points before hashing; not with inner_product.
        n_tables: number of hash tables, 1 to 256; not with cells. Default: chosen by Build.
        n_bits: number of bits of a bucket's key, 1 to 24; not with cells. Default: chosen by Build.
        n_components: number of principal components for lsh_sdiv, pca_hash and cells, at most d or,
            if d is above 8,192, at most 4,096. Default: chosen by Build.
        target_recall: the share of a query's true nearest points that its candidates should
            include, above 0 and at most 1. Build tunes searches to reach this share, and `auto`
            uses only searches that reach this share.
        zero_vectors: what to do under cosine with a vector of zeros, which has no direction.
            "reject" raises an error. "skip" leaves the vector out with a warning.
        vectors_optional: keep points without a vector, now and in later writes. `get`, `count`,
            `scroll` and filters find them, and queries do not. At least one point has a vector.
            Points without one need `path`.
        seed: seed of all random choices; the same seed and points give the same index.
        labels: (n, L) label sets, dense or sparse; point i has label j if labels[i, j] is not 0.
            The `PointLabels` that `get` and `scroll` return are label sets too.
        path: folder of the index; the last component is its name. None builds in memory.
        replace: if an index exists at `path`, replace it by a new generation. If false, an existing
            index raises `IndexExistsError`.
        progress: called with a `divgrpc.types.Progress` several times per stage.
        label_model: "leml" trains a model that predicts labels (Yu et al. 2014). A `LabelModel`, or
            a pair of factors (L, r) and (d, r), is used without training. Default: no model;
            `predict_labels` then has only the mode `neighbour_vote`.
        label_names: L names of at most 1,024 bytes each.
        hierarchy: (m, 2) edges, each a parent and a child. The nodes 0 to L - 1 are the labels.
        roots: the root nodes of the hierarchy. Default: all nodes without a parent.
        rank, regularisation, iterations, inner_iterations, tolerance: parameters of "leml", which
            `divgrpc.parameters.LabelParameters` describes.

        Raises `InvalidArgumentError` with the name of the argument as its `field`, and
        `UnsupportedError`. With `path`, it also raises `IndexExistsError`, `BuildUnderWayError` and
        `StorageFullError`.
        """
        values = {**locals(), "metric": as_metric(metric)}
        refuse_unknown("build", labelling, Labelling.__annotations__, taken_by(cls.build))
        parameters = BuildParameters(**{name: values[name] for name in _BUILD_FIELDS})
        plan = LabelInputs.from_keywords(seed, **labelling)
        columns = columns_of_build(vectors, attributes, attribute_types)
        with store_at(path, replace=replace) as (store, folder):
            builder = IndexBuilder(
                store, parameters, on_progress=progress, labels=plan, attributes=columns
            )
            vectorless = _append(builder, store, parameters, values | {"columns": columns})
            engine = Engine(builder.build(), folder.name if folder else "", folder)
        return cls.open(folder) if folder and vectorless.has_any else cls(engine)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an index from its folder.

        path: the folder of an index, to open its current generation, or the folder of one of its
            generations. The data directory of a server has one folder per index.

        If the index was written to, the result shows all writes so far, and none that follow.

        All checksums are verified. Raises `IndexNotFoundError`, `IndexDamagedError` and
        `OtherFormatError`.
        """
        return cls(open_engine(path))

    def add_attributes(
        self,
        attributes: Mapping[str, Any],
        *,
        ids: IdsOf = None,
        attribute_types: AttributeTypes = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> "Index":
        """Return this index with further attributes of its points.

        attributes: values by the name of an attribute that the index does not have, as for `build`:
            of the points with `ids`, or of all points in the order of their rows.
        ids: ids of m points, whose m values `attributes` has. Other points have no value.
        attribute_types: types of some attributes, as for `build`.
        progress: called with a `divgrpc.types.Progress` several times.

        The result is a new generation, which shares all other data with this one. Searches, answers
        and the `default` stay the same. If the index has a folder, the new generation becomes
        current there. This object keeps the old generation.

        Raises `InvalidArgumentError` with the field `ids`, `attributes` or `attributes.NAME`. With
        a folder, it also raises `IndexChangedError` if a newer generation is current,
        `BuildUnderWayError`, `StorageFullError`, `StorageInUseError` if the index is open for
        writing, and `UnsupportedError` if it was written to since it was built or has points
        without a vector: then use `Collection.add_attributes`.
        """
        engine = self._engine
        rows = len(as_ids(ids)) if ids is not None else engine.rows
        columns = columns_of(attributes, rows, attribute_types)
        with _next_generation(engine) as (store, generation):
            values = values_for(store, generation, columns, progress)
            values.append_all(columns, rows, ids)
            folder, extended = engine.folder, extend(store, generation, values, values.report)
            return Index(Engine(extended, folder.name if folder else "", folder))

    def query(
        self,
        queries: RowsLike | None = None,
        *,
        like: IdsOf = None,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        exclude_ids: IdsOf = None,
        quotas: QuotasLike = None,
        group_by: GroupBy | None = None,
        on_infeasible: OnInfeasible = "fail",
        already_shown: ShownLike = None,
        paged: bool = False,
        page_token: str | None = None,
        min_sequence: int = 0,
        **options: Unpack[QueryOptions],
    ) -> QueryResult:
        """Return `k` results for each row of `queries`, near the query and diverse.

        queries: (nq, d) numbers or one vector (d,), dense or sparse; at most 10,000 rows.
        like: ids of stored points, instead of `queries`. Each row of the result has points that are
            like one of these points, without the point itself.
        filter: conditions such as `Field("price") < 20`, which all results must pass, or a
            dictionary in the form of Qdrant's filters.
        exclude_ids: ids of points that are not returned, at most 100,000.
        quotas: bounds on the number of results that have each value of an attribute, such as
            `[Quota("brand", max_each=2)]`. Not with the selector `qp_relax`.
        group_by: results in groups with the same value of an attribute, such as
            `GroupBy("brand", groups=5, per_group=2)`. `k` is then groups times per_group. Not with
            `quotas`.
        on_infeasible: what to do if no `k` results meet the quotas. "fail" raises an error. "relax"
            returns results that miss them by as little as possible, with `quota_shortfalls`; no
            value has more results than its quota allows.
        already_shown: ids, or vectors (m, d), of at most 1,000 points that the user has seen.
            Results are neither these points nor their near-copies, and are picked to differ from
            them.
        paged: whether the result is page 1 of several. Its `next_page_token` is then the
            `page_token` of page 2. The query must have one row.
        page_token: the `next_page_token` of the page before, to get the next page of the same
            request. No point is on two pages, even if points are written between them.
        min_sequence: the result must show at least the write of this number.

        Parameters that a call leaves out are taken from the `default` of the index, if it is set.

        Raises `InvalidArgumentError` with the name of the argument as its `field`, and
        `ConditionFailedError` if the index has no write of the number `min_sequence`, or if no
        results meet the quotas.
        """
        # The engine of a collection changes with each write.
        engine = self._engine
        engine.check_sequence(min_sequence)
        check_bool(None, "paged", paged)
        limits = None
        if quotas is not None or group_by is not None or on_infeasible != "fail":
            limits = as_quotas(quotas, group_by, on_infeasible)
            options = k_of_groups(limits, options)
        parameters = self._parameters.of(options, engine.defaults.query)
        limits = engine.check_quotas(limits, parameters)
        passing = _passing(engine, filter, exclude_ids)
        if like is not None and queries is not None:
            raise invalid("like", "stands for the queries: give one of the two")
        if like is None and queries is None:
            raise invalid("queries", "must be given, or `like` with ids of points")
        if paged or page_token is not None or already_shown is not None:
            ids = _listed(exclude_ids, "exclude_ids"), _listed(like, "like")
            continuation = Continuation(paged, page_token, already_shown, as_filter(filter), *ids)
            continuation.check_quotas(limits)
            return answer_continued(engine, queries, parameters, passing, continuation)
        if queries is None:
            rows = engine.rows_like(_listed(like, "like"))
            return engine.answer_like(rows, parameters, passing, limits)
        return engine.answer(queries, parameters, passing, limits)

    def pages(
        self,
        queries: RowsLike | None = None,
        *,
        like: IdsOf = None,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        exclude_ids: IdsOf = None,
        already_shown: ShownLike = None,
        page_token: str | None = None,
        min_sequence: int = 0,
        **options: Unpack[QueryOptions],
    ) -> Iterator[QueryResult]:
        """Yield one page of `k` results after the other, until the last.

        queries, like: one query row, or one id of a stored point.
        page_token: the `next_page_token` of a page, to begin with the page after it.
        filter, exclude_ids, already_shown, min_sequence: as in `query`.

        No point is on two pages, even if points are written meanwhile. Raises the
        errors of `query`.
        """
        while True:
            page = self.query(
                queries,
                like=like,
                filter=filter,
                exclude_ids=exclude_ids,
                already_shown=already_shown,
                paged=True,
                page_token=page_token,
                min_sequence=min_sequence,
                **options,
            )
            if page.counts[0]:
                yield page
            page_token = page.next_page_token
            if not page_token:
                return

    def predict_labels(
        self,
        documents: RowsLike,
        *,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        **options: Unpack[PredictOptions],
    ) -> LabelResult:
        """Return at most `top_k` diverse labels for each row of `documents`.

        documents: (nq, d) numbers or one vector (d,), dense or sparse; at most 10,000 rows.
        filter: conditions that points must pass to vote, as in `query`. Only in the mode
            `neighbour_vote`.

        Raises `InvalidArgumentError` with the name of the argument as its `field`. Raises
        `UnfitIndexError` if the index lacks what the call needs: a label model for the mode
        `embedding`, labels of its points for `neighbour_vote`, or a hierarchy for the selector
        `hierarchy`.
        """
        named = ("documents", "filter")
        refuse_unknown("predict_labels", options, PredictOptions.__annotations__, named)
        parameters = PredictParameters(**options)
        engine = self._engine
        parameters = parameters.with_threshold(engine.defaults.thresholds)
        return engine.predict(documents, parameters, _passing(engine, filter))

    def get(
        self,
        ids: int | str | Sequence[int] | Sequence[str] | IdArray,
        *,
        with_vectors: bool = False,
        with_attributes: bool = True,
        with_payload: bool = True,
        with_labels: bool = False,
    ) -> Records:
        """Return the stored points with these ids, in the order of `ids`.

        ids: one id, or at most 10,000. Ids that no point has are left out of the result.
        with_vectors, with_attributes, with_payload: what to return. Under cosine, vectors have unit
            length.
        with_labels: return labels, categories and sub-topics, if the points of the index have some.

        Raises `InvalidArgumentError` for ids of another kind than the index has.
        """
        parts = Parts(with_vectors, with_attributes, with_payload, with_labels)
        engine = self._engine
        return engine.records(engine.find(as_ids(ids)), parts)

    def count(self, filter: FilterLike = None) -> int:  # noqa: A002  # the word that users expect
        """Return the number of points, or the number of points that pass a filter."""
        engine = self._engine
        passing = _passing(engine, filter)
        return engine.rows if passing is None else passing.count

    def scroll(
        self,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        *,
        with_vectors: bool = False,
        with_attributes: bool = True,
        with_payload: bool = True,
        with_labels: bool = False,
        page_size: int = 1_000,
    ) -> Iterator[Records]:
        """Yield all points that pass a filter, in pages of at most `page_size` points.

        Integer ids ascend. The order of text ids is fixed, but not alphabetical. The arguments are
        as in `get`.
        """
        if page_size < 1:
            raise invalid("page_size", f"must be at least 1, got {page_size}")
        parts = Parts(with_vectors, with_attributes, with_payload, with_labels)
        engine, key = self._engine, -1
        passing = _passing(engine, filter)
        while True:
            rows, keys = engine.following(key, page_size, passing)
            if not len(rows):
                return
            yield engine.records(rows, parts)
            key = int(keys[-1])

    def diagnose(
        self,
        *,
        attributes: str | Sequence[str] = (),
        sample: int = DEFAULT_SAMPLE,
        seed: int = 0,
        filter: FilterLike = None,  # noqa: A002  # the word that users expect
        progress: Callable[[Progress], None] | None = None,
    ) -> Diagnosis:
        """Return how much the points crowd, and what the defaults of `query` do about it.

        Near-copies of a sample of points are counted among all points, exactly. Some of the sampled
        points are then used as queries, as with `like`, to measure each default.

        attributes: names of attributes. Near-copies are also counted by their values, for the 20
            values that the most sampled points have.
        sample: number of points to sample, at most 10,000. With 2,500 points, the 95 % interval of
            a share reaches at most 2 % to each side. If there are no more points than that, shares
            are exact.
        seed: seed of the sample; the same seed gives the same sample.
        filter: conditions as in `query`. Points that do not pass do not count.
        progress: called with a `divgrpc.types.Progress` several times.

        The work takes all cores. Raises `InvalidArgumentError` with the name of the argument as its
        `field`, and `UnfitIndexError` if no point has a vector.
        """
        parameters = DiagnoseParameters(attributes=attributes, sample=sample, seed=seed)
        return Survey(self._engine, parameters, as_filter(filter)).run(progress)

    @property
    def info(self) -> IndexInfo:
        """The parameters of the index, and the values that Build chose and measured."""
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
        """Values for parameters that a `query` leaves out, None if no default is set."""
        return self._engine.defaults.query

    def set_default(self, default: QueryDefault | None) -> None:
        """Set values for the parameters that a `query` leaves out.

        default: the values; None removes them. If the index has a folder, the values are stored in
            the folder. Servers of the index then use them at once; other `Index` objects use them
            only if they are opened later.

        Raises `IndexChangedError` if a newer generation is current, and `BuildUnderWayError` during
        a build of the index.
        """
        self._engine.set_default(default)

    def set_threshold(self, threshold: float | None, mode: Mode = "embedding") -> None:
        """Set the threshold that `predict_labels` uses if a call sets no threshold.

        threshold: the minimum score of a label or, in the mode `neighbour_vote`, the minimum share
            of the votes; None removes the threshold. The threshold is stored like the values of
            `set_default`. `divgrpc.evaluation.label_running.choose_threshold` can choose one.
        mode: the mode of `predict_labels` that the threshold applies to.

        Raises the errors of `set_default`, `InvalidArgumentError` for an invalid threshold, and
        `UnfitIndexError` if the index has no labels.
        """
        self._engine.set_threshold(threshold, mode)


@contextlib.contextmanager
def _next_generation(engine: Engine) -> Iterator[tuple[Store, Generation]]:
    """Yield the store of the next generation of an index, and the generation of `engine`."""
    if engine.folder is None:
        yield MemoryStore(), Generation(engine.manifest, engine.arrays, engine.defaults)
        return
    with extending(engine.folder) as (store, generation):
        if generation.manifest != engine.manifest:
            raise IndexChangedError(f"index {engine.folder.name!r} was replaced meanwhile")
        yield store, generation


def _passing(
    engine: Engine, condition: FilterLike, exclude_ids: IdsOf = None
) -> PassingRows | None:
    """Return the points that pass a filter, or None if nothing is to be tested."""
    return engine.passing(as_filter(condition), _listed(exclude_ids, "exclude_ids"))


def _listed(ids: IdsOf, field: str) -> Any:  # noqa: ANN401  # a list or an array
    """Return ids as a list or an array; raises `InvalidArgumentError` with the field `field`."""
    return () if ids is None else as_ids(ids, field)


def _append(
    builder: IndexBuilder, store: Store, parameters: BuildParameters, values: dict[str, Any]
) -> VectorlessPoints:
    """Pass points to a builder, except those without a vector, which are returned.

    values: the arguments of `Index.build` by name, with the columns of the attributes.
    """
    vectorless = VectorlessPoints(store, parameters, values["columns"])
    rows = {name: values[name] for name in (*_ROWS, "columns")}
    vectorless.append_all(builder, values["vectors"], rows)
    return vectorless


_NAMES: Final = {
    RowsLike: "RowsLike",
    LabelsLike: "LabelsLike",
    IdsOf: "IdsLike",
    ShownLike: "ShownLike",
    FilterLike: "FilterLike",
    QuotasLike: "QuotasLike",
    IdsLike: "IdsLike",
    AttributesLike: "AttributesLike",
    PayloadsLike: "PayloadsLike",
    AttributeTypes: "AttributeTypes",
    NumbersLike: "NumbersLike",
    MetricWord: "Metric",
    LabelModelLike: "LabelModelLike",
}
_LABELLING: Final = [
    inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=_LABEL_DEFAULTS.get(name), annotation=kind
    )
    for name, kind in get_type_hints(Labelling).items()
]
spell_out(cast(MethodType, Index.build).__func__, _NAMES, _LABELLING)
spell_out(Index.add_attributes, _NAMES)
spell_out(Index.set_threshold, _NAMES)
spell_out(Index.count, _NAMES)
spell_out(Index.scroll, _NAMES)
spell_out(Index.diagnose, _NAMES)
spell_out_options(Index.query, (QueryParameters,), _NAMES)
spell_out_options(Index.pages, (QueryParameters,), _NAMES)
spell_out_options(Index.predict_labels, (PredictParameters,), _NAMES)
