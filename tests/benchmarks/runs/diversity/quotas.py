"""Quotas: whether they are met, the value of the picks within them, and what they cost."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy import sparse

from benchmarks.harness.datasets import Manifold, documents, topics
from benchmarks.harness.runner import Output, Row, Table, show
from divgrpc import Field, GroupBy, HasId, Index, Quota
from divgrpc.errors import ConditionFailedError, InvalidArgumentError
from divgrpc.metrics import gap_closed, list_distances, objective
from divgrpc.types import FloatArray, IntArray, Selector
from reference.quotas import Instance

_SELECTORS: Final[tuple[Selector, ...]] = ("nearest", "greedy", "mmr", "rerank", "max_sum", "dpp")
# Instances whose points are in one index.
_TOGETHER: Final = 500
_K: Final = 10
_GAP_GOAL: Final = 0.97
_RATIO_GOAL: Final = 1.5
_TOPICS: Final = ("cifar100_dense256", "newsgroups20", "cifar100_7x5_bovw")
_DOCUMENTS: Final = ("bibtex", "delicious")
_SHOPS: Final = 1_000
_ROUNDS: Final = 3


def rows(small: bool) -> Iterator[Output]:  # as all parts have it
    """Yield the tables of this part."""
    count = 60 if small else 100_000
    yield Table(
        f"Feasibility of {count:,} random instances beside enumeration",
        {"goals": "k results if and only if there are any, 0 violations"},
    )
    yield _feasibility(count)
    yield Table(
        "Value of picks within quotas beside greedy over all points within them",
        {"goal": f"gap closed at least {_GAP_GOAL:g}"},
    )
    for collection in _collections(small=small):
        yield from _values(collection, 10 if small else 100)
    points = 5_000 if small else 1_000_000
    yield Table(
        f"Time of queries of {points:,} points beside a query without filter and quotas",
        {"goal": f"at most {_RATIO_GOAL:g} times with a quota and a filter"},
    )
    yield from _times(points, 10 if small else 300)


def _feasibility(count: int) -> Row:
    """Ask for the answers to instances, each by a filter on the points of one index."""
    rng, totals = np.random.default_rng(0), Counter[str]()
    for first in range(0, count, _TOGETHER):
        instances = [Instance.draw(rng) for _ in range(min(_TOGETHER, count - first))]
        index, starts = _index_of(instances, rng)
        for number, (instance, start) in enumerate(zip(instances, starts, strict=True)):
            selector = _SELECTORS[number % len(_SELECTORS)]
            totals += _outcome(index, instance, start, selector, rng)
        if count > _TOGETHER and first % (20 * _TOGETHER) == 0:
            show(f"{first:,} of {count:,} instances")
    return {
        name: totals[name]
        for name in ("instances", "feasible", "wrong", "violations", "not the least shortfall")
    }


def _index_of(instances: Sequence[Instance], rng: np.random.Generator) -> tuple[Index, list[int]]:
    """Return an index of the points of all instances, and the first id of each instance."""
    sizes = [instance.points for instance in instances]
    starts = np.cumsum([0, *sizes]).tolist()
    attributes: dict[str, list[Any]] = {}
    for kind in ("one", "several"):
        for number in range(3):
            empty: Any = None if kind == "one" else []
            attributes[f"{kind}{number}"] = [empty] * starts[-1]
    for instance, start in zip(instances, starts, strict=False):
        for quota, column in zip(
            instance.quotas, instance.columns(range(instance.points)), strict=True
        ):
            attributes[_name(quota, column)][start : start + instance.points] = column
    types: Any = dict.fromkeys(attributes, "keyword")
    vectors = rng.standard_normal((starts[-1], 2)).astype(np.float32)
    # Some points are exact copies of others.
    copies = rng.integers(0, starts[-1], starts[-1] // 5)
    vectors[copies] = vectors[copies - 1]
    index = Index.build(vectors, attributes=attributes, attribute_types=types, metric="euclidean")
    return index, starts[:-1]


def _name(quota: Quota, column: Sequence[Any]) -> str:
    """Return the attribute of an index that has the values of a column."""
    return f"{'several' if isinstance(column[0], list) else 'one'}{quota.attribute[1:]}"


def _bounded(quota: Quota, name: str) -> Quota:
    """Return a quota under another name; a call refuses rules and quotas without a bound."""
    rules: Any = quota.rules
    least = [rule if rule.max is not None else replace(rule, min=rule.min or 0) for rule in rules]
    most = quota.max_each if rules or quota.min_each else quota.max_each or _K
    return Quota(name, max_each=most, min_each=quota.min_each, rules=least)


def _outcome(
    index: Index, instance: Instance, start: int, selector: Selector, rng: np.random.Generator
) -> Counter[str]:
    """Return what is right and wrong with the answers to one instance."""
    columns = instance.columns(range(instance.points))
    quotas = [
        _bounded(quota, _name(quota, column))
        for quota, column in zip(instance.quotas, columns, strict=True)
    ]
    options: dict[str, Any] = {
        "k": instance.k,
        "quotas": quotas,
        "filter": HasId(tuple(range(start, start + instance.points))),
        "selector": selector,
        "diversity": float(rng.choice([0, 0.3, 1])),
        "candidates_limit": int(rng.choice([0, instance.k, instance.k + 1])),
        "keep_duplicates": bool(rng.random() < 0.5),
    }
    query, least = rng.standard_normal(2).astype(np.float32), instance.least_shortfall()
    totals = Counter({"instances": 1, "feasible": int(least == 0)})
    try:
        result = index.query(query, **options)
        picks = (result.ids[0, : result.counts[0]] - start).tolist()
        totals["wrong"] += least > 0 or len(set(picks)) < instance.k
        totals["violations"] += instance.shortfall(picks) != 0
    except (ConditionFailedError, InvalidArgumentError) as error:
        totals["wrong"] += least == 0
        if isinstance(error, InvalidArgumentError):
            # Quotas that contradict one another or k cannot be relaxed.
            if "contradict" not in str(error) and "at most k" not in str(error):
                raise
        else:
            result = index.query(query, **options, on_infeasible="relax")
            picks = (result.ids[0, : result.counts[0]] - start).tolist()
            shortfall = instance.shortfall(picks)
            totals["violations"] += shortfall is None
            totals["not the least shortfall"] += shortfall != least
    return totals


@dataclass(frozen=True, eq=False)
class _Collection:
    """Points of unit length with values, and queries.

    points: (n, d) dense, or csr_array. queries: (nq, d) dense rows.
    columns: values of each attribute, lists if points may have several.
    """

    name: str
    points: Any
    queries: FloatArray
    columns: dict[str, list[Any]]


def _collections(*, small: bool) -> Iterator[_Collection]:
    """Yield the real sets; the digits replace them if there are none."""
    rng = np.random.default_rng(1)
    columns: dict[str, list[Any]]
    for data in topics.load(_TOPICS[:1] if small else _TOPICS):
        columns = {
            "topic": [f"t{topic}" for topic in data.labels.subtopics],
            "source": _sources(data.points.shape[0], rng),
        }
        yield _Collection(data.name, _unit(data.points), _dense(_unit(data.pool)), columns)
    for split in () if small else documents.load(_DOCUMENTS):
        whole = split.with_features()
        labels = whole.labels.tocsr()
        names = [
            [f"l{label}" for label in labels.indices[first:last]]
            for first, last in zip(labels.indptr[:-1], labels.indptr[1:], strict=True)
        ]
        columns = {"topic": names, "source": _sources(len(names), rng)}
        points, queries = _unit(whole.documents), _unit(whole.test_documents)
        yield _Collection(whole.name, points, _dense(queries), columns)


def _sources(count: int, rng: np.random.Generator) -> list[Any]:
    sources: list[Any] = rng.choice(["own", "web", "ads"], count, p=[0.01, 0.6, 0.39]).tolist()
    return sources


def _values(collection: _Collection, count: int) -> Iterator[Row]:
    """Measure the value of picks within quotas on one attribute and on two."""
    topic, source = (
        Quota("topic", max_each=2),
        Quota("source", rules={"own": (1, 3), "ads": (2, 4)}),
    )
    index = Index.build(collection.points, attributes=collection.columns)
    order = np.random.default_rng(0).permutation(len(collection.queries))
    queries = collection.queries[order[:count]]
    for quotas in ([topic], [source], [topic, source]):
        membership = _Membership.of(quotas, collection.columns)
        # Dense queries of sparse points would be taken for hyperplanes.
        form = sparse.csr_array(queries) if sparse.issparse(collection.points) else queries
        result = index.query(form, k=_K, quotas=quotas, keep_duplicates=True)
        dial = result.parameters.diversity
        nearest, best = (
            np.array([membership.greedy(collection.points, query, at) for query in queries])
            for at in (0.0, dial)
        )
        values = [
            objective(list_distances(collection.points, queries, places), dial)
            for places in (result.ids.astype(np.int64), nearest, best)
        ]
        missed = sum(membership.misses(row) for row in result.ids.astype(np.int64))
        yield {
            "set": collection.name,
            "quotas on": " and ".join(quota.attribute for quota in quotas),
            "search": result.parameters.search,
            "J of nearest": float(np.mean(values[1])),
            "J of greedy": float(np.mean(values[2])),
            "J": float(np.mean(values[0])),
            "gap closed": gap_closed(*values),
            "goal": _GAP_GOAL,
            "missed": missed,
        }


@dataclass(frozen=True, eq=False)
class _Membership:
    """Quotas as bounds on the columns of a matrix.

    matrix: (n, v) csr_array of 0 and 1: which points count for which values.
    lows, highs: (v,). attributes: (v,) number of the attribute of each value.
    """

    matrix: Any
    lows: IntArray
    highs: IntArray
    attributes: IntArray

    @classmethod
    def of(cls, quotas: Sequence[Quota], columns: dict[str, list[Any]]) -> "_Membership":
        parts, lows, highs, attributes = [], list[int](), list[int](), list[int]()
        for number, quota in enumerate(quotas):
            lists = [v if isinstance(v, list) else [v] for v in columns[quota.attribute]]
            words = sorted({word for items in lists for word in items})
            places = {word: place for place, word in enumerate(words)}
            pairs = [(row, places[word]) for row, items in enumerate(lists) for word in items]
            at_rows, at_values = np.array(pairs).T
            shape = len(lists), len(words)
            parts.append(sparse.csr_array((np.ones(len(pairs)), (at_rows, at_values)), shape))
            rules: Any = {rule.value: rule for rule in quota.rules}
            for word in words:
                rule = rules.get(word)
                most = quota.max_each if rule is None else rule.max
                lows.append((rule.min if rule else 0) or 0)
                highs.append(_K if most is None else most)
                attributes.append(number)
        matrix = sparse.csr_array(sparse.hstack(parts))
        return cls(matrix, np.array(lows), np.array(highs), np.array(attributes))

    def greedy(self, points: Any, query: FloatArray, diversity: float) -> list[int]:  # noqa: ANN401  # dense or sparse
        """Return what greedy picks of all points within the quotas.

        A pick leaves each attribute enough places for its least bounds; nothing else decides.
        """
        near = np.float32(1 - diversity) * (points @ query)
        weight, counts = np.float32(2 * diversity / (_K - 1)), np.zeros(len(self.lows))
        picks: list[int] = []
        for step in range(_K):
            gains = np.where(self._allowed(counts, _K - step), near, -np.inf)
            gains[picks] = -np.inf
            pick = int(gains.argmax())
            picks.append(pick)
            counts += _dense(self.matrix[[pick]])[0]
            near -= weight * (points @ _dense(points[[pick]])[0])
        return picks

    def _allowed(self, counts: npt.NDArray[np.float64], left: int) -> npt.NDArray[np.bool_]:
        allowed: npt.NDArray[np.bool_] = self.matrix @ (counts >= self.highs).astype(float) == 0
        needs = np.maximum(self.lows - counts, 0)
        for attribute in np.unique(self.attributes):
            is_of_attribute = self.attributes == attribute
            if needs[is_of_attribute].sum() >= left:
                allowed &= self.matrix @ (is_of_attribute & (needs > 0)).astype(float) > 0
        return allowed

    def misses(self, picks: IntArray) -> bool:
        """Return whether picks miss a quota."""
        counts = _dense(self.matrix[picks]).sum(axis=0)
        return bool((counts < self.lows).any() or (counts > self.highs).any())


def _times(points: int, count: int) -> Iterator[Row]:
    """Measure single queries with quotas, a filter, or both, in turns with plain ones."""
    manifold, rng = Manifold.of(), np.random.default_rng(0)
    attributes = {
        "brand": [f"b{brand}" for brand in rng.integers(0, 50, points)],
        "shop": rng.integers(0, _SHOPS, points),
        "rare": np.where(rng.random(points) < 0.001, "own", "web").tolist(),
    }
    index = Index.build(manifold.points(points), attributes=attributes)
    most, least = Quota("brand", max_each=2), Quota("rare", rules={"own": (1, 3)})
    shop = Field("shop") == 7
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        f"filter of 1 in {_SHOPS:,}": {"filter": shop},
        "quota: at most": {"quotas": [most]},
        "quota: at most, and the filter": {"quotas": [most], "filter": shop},
        "quota: at least, rare value": {"quotas": [least]},
        "two quotas": {"quotas": [most, least]},
        "groups": {"group_by": GroupBy("brand", 5, 2)},
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(_ROUNDS):
        for query in manifold.queries(count):
            for name, options in cases.items():
                start = time.perf_counter()
                index.query(query, **options)
                times[name].append(1e6 * (time.perf_counter() - start))
    plain = median(times["plain"])
    for name, microseconds in times.items():
        middle = median(microseconds)
        yield {"query": name, "us": middle, "plain us": plain, "ratio": middle / plain}


def _unit(rows_: Any) -> Any:  # noqa: ANN401  # dense or sparse
    """Return rows of unit length."""
    if not sparse.issparse(rows_):
        lengths = np.linalg.norm(rows_, axis=1, keepdims=True)
        return (rows_ / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    lengths = np.sqrt(np.asarray(rows_.multiply(rows_).sum(axis=1)).ravel())
    scale = sparse.diags_array(1 / np.where(lengths > 0, lengths, 1))
    return sparse.csr_array(scale @ rows_, dtype=np.float32)


def _dense(rows_: Any) -> Any:  # noqa: ANN401  # dense or sparse
    return rows_.toarray() if sparse.issparse(rows_) else rows_
