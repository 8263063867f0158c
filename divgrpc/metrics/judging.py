"""Relevance judgements: which results are relevant, and which sub-topics they have.

Conventions of all metrics:
- An empty place (-1) counts as a wrong result.
- An id that occurs twice in a list counts only at its first place, because results are a set: the
  paper's Algorithm 1 collects points from several tables.
- A relevant point without a sub-topic (-1) counts as relevant, but adds no sub-topic.
- A query without any relevant point is refused, because all its results would be equally bad.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.types import IntArray

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_NONE: Final = -1
# Maximum category or sub-topic, because an index stores categories and sub-topics as int32.
_CATEGORY_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class PointCategories:
    """Categories and sub-topics of all n points; call `of` to create one.

    categories, subtopics: (n,) int64, negative for a point that has none.
    ids: (n,) int64, all different.
    order: (n,) int64, the row numbers sorted by id.
    ascending: (n,) int64, the sorted ids.
    """

    categories: IntArray
    subtopics: IntArray
    ids: IntArray
    order: IntArray
    ascending: IntArray

    @classmethod
    def of(
        cls,
        categories: npt.ArrayLike | None = None,
        subtopics: npt.ArrayLike | None = None,
        ids: npt.ArrayLike | None = None,
    ) -> Self:
        """Check the categories, sub-topics and ids of the points, and return `PointCategories`.

        categories, subtopics: (n,), negative for a point that has none. None means that
            no point has one.
        ids: (n,), all different and at least 0. None means 0 to n - 1.

        Raises `InvalidArgumentError`, with the name of the argument as the field, for arrays of
        different lengths, for invalid ids, and for categories or sub-topics above 2**31 - 1. If all
        three arguments are None, the field is ids.
        """
        arguments = {"categories": categories, "subtopics": subtopics, "ids": ids}
        columns = {name: _whole(a, name) for name, a in arguments.items() if a is not None}
        if not columns:
            raise InvalidArgumentError("ids", "labels must have categories, subtopics or ids")
        length = next(iter(columns.values())).size
        for name, array in columns.items():
            if array.shape != (length,):
                raise invalid(name, f"must have one number for each of {length} points")
            if name != "ids" and array.max(initial=0) > _CATEGORY_MAX:
                raise invalid(name, f"must be at most {_CATEGORY_MAX}")
        ids = columns.get("ids", np.arange(length))
        order = np.argsort(ids, kind="stable")
        ascending = ids[order]
        if (ascending[1:] == ascending[:-1]).any() or ids.min(initial=0) < 0:
            raise invalid("ids", "must differ and be from 0 up")
        default = np.full(length, _NONE)
        categories, subtopics = (columns.get(name, default) for name in ("categories", "subtopics"))
        return cls(categories, subtopics, ids, order, ascending)

    def rows(self, ids: IntArray, name: str = "ids") -> IntArray:
        """Return the row number of each id in `ids` (any shape), and -1 for an id of -1.

        Raises `InvalidArgumentError`, with the field `name`, for an id that no point has.
        """
        ids = _whole(ids, name)
        rows = np.full(ids.shape, _NONE)
        if len(self.ids):
            places = np.minimum(np.searchsorted(self.ascending, ids), len(self.ids) - 1)
            rows = np.where(self.ascending[places] == ids, self.order[places], _NONE)
        unknown = ids[(rows < 0) & (ids != _NONE)]
        if len(unknown):
            raise invalid(name, f"has {unknown[0]}, which is no labelled point")
        return rows


# The name of `PointCategories` in earlier releases.
Labels = PointCategories


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Judged results of nq queries, k places each. Integers are int64.

    relevant: (nq, k) bool, whether the result is relevant.
    subtopics: (nq, k), the sub-topic of each relevant result, -1 at all other places.
    categories: (nq, k), the category of each result, -1 for a result without a category. If
        relevance is given by lists of ids, 1 for relevant results and 0 for other results. In both
        cases, -1 for empty places and repeated ids.
    asked: (nq,), the category of each query, or 1 if relevance is given by lists of ids.
    relevant_total: (nq,), the number of relevant points of each query, at least 1.
    depths: (nq, k). Column j is the number of the query's sub-topics that have more than j relevant
        points. So column 0 is the number of all sub-topics of the query.
    found: (nq,), the number of distinct results.
    """

    relevant: Mask
    subtopics: IntArray
    categories: IntArray
    asked: IntArray
    relevant_total: IntArray
    depths: IntArray
    found: IntArray

    @property
    def k(self) -> int:
        """The number of places in a list, filled or empty."""
        return int(self.relevant.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Topics:
    """The relevant points of t topics, computed once to judge many results. Integers are int64.

    `of_categories` makes a topic from each category, and `of_relevant` makes a topic from each list
    of relevant ids.

    labels: categories and sub-topics of all n points.
    names: (t,) ascending, the category of each topic, or the number of its list.
    keys: topic * n + row for every point of every topic, in ascending order.
    totals: (t,), the number of points in each topic.
    pair_topics, pair_points: (p,), with an entry for each pair of a topic and one of its
        sub-topics. The entries are the number of the topic, and the number of points that the topic
        has in the sub-topic.
    lists: whether topics are lists of ids.
    """

    labels: PointCategories
    names: IntArray
    keys: IntArray
    totals: IntArray
    pair_topics: IntArray
    pair_points: IntArray
    lists: bool = False

    @classmethod
    def of_categories(cls, labels: PointCategories) -> Self:
        """Make a topic of each category in `labels`."""
        members = np.flatnonzero(labels.categories >= 0)
        names, topics = np.unique(labels.categories[members], return_inverse=True)
        return cls(labels, names, *_grouped(topics, members, labels, len(names)))

    @classmethod
    def of_relevant(cls, relevant: Sequence[npt.ArrayLike], labels: PointCategories) -> Self:
        """Make a topic from each list of ids in `relevant`.

        Raises `InvalidArgumentError`, with the field relevant, for an empty list, and for an id
        that no point has.
        """
        lists = [np.unique(_whole(ids, "relevant")) for ids in relevant]
        for number, ids in enumerate(lists):
            if not len(ids) or ids[0] < 0:
                raise invalid(
                    "relevant", f"must have ids from 0 up for every query, query {number} has none"
                )
        names = np.arange(len(lists))
        topics = np.repeat(names, [len(ids) for ids in lists])
        points = labels.rows(np.concatenate([*lists, np.empty(0, np.int64)]), "relevant")
        return cls(labels, names, *_grouped(topics, points, labels, len(names)), lists=True)

    @classmethod
    def of_counts(cls, categories: IntArray, subtopics: IntArray, counts: IntArray) -> Self:
        """Make a topic of each category from numbers of points.

        categories, subtopics: (p,), the sub-topics are -1 for none. A pair may occur several times.
        counts: (p,), the number of points of each pair.

        The topics have no labels; call `with_labels` before `judge`.
        """
        names, topics = np.unique(categories, return_inverse=True)
        valid, span = subtopics >= 0, subtopics.max(initial=0) + 1
        keys = topics[valid] * span + subtopics[valid]
        pairs, places = np.unique(keys, return_inverse=True)
        totals, pair_points = np.zeros(len(names), np.int64), np.zeros(len(pairs), np.int64)
        np.add.at(totals, topics, counts)
        np.add.at(pair_points, places, counts[valid])
        none = np.empty(0, np.int64)
        return cls(PointCategories.of(ids=none), names, none, totals, pairs // span, pair_points)

    def with_labels(self, labels: PointCategories) -> Self:
        """Return topics of `of_counts` that judge the points of `labels`."""
        if not len(labels.ids):
            # There are no results, whose categories are read nevertheless.
            labels = PointCategories.of([_NONE], [_NONE])
        topics = np.searchsorted(self.names, labels.categories)
        is_member = np.append(self.names, _NONE)[topics] == labels.categories
        rows = np.flatnonzero(is_member & (labels.categories >= 0))
        return replace(self, labels=labels, keys=np.sort(topics[rows] * len(labels.ids) + rows))

    def within(self, flags: Mask) -> Self:
        """Return the topics of categories without the points whose flag (n,) is not set."""
        labels = self.labels
        columns = {
            name: np.where(flags, getattr(labels, name), _NONE)
            for name in ("categories", "subtopics")
        }
        return self.of_categories(replace(labels, **columns))

    def numbers(self, asked: IntArray) -> IntArray:
        """Return the topic number (nq,) of each category (or number of a list) in `asked` (nq,).

        Raises `InvalidArgumentError`, with the field asked, for a category that no point has.
        """
        numbers = np.searchsorted(self.names, asked)
        unknown = asked[(np.append(self.names, _NONE)[numbers] != asked) | (asked < 0)]
        if len(unknown):
            raise InvalidArgumentError("asked", f"no point has the category {unknown.min()}")
        return numbers

    def judge(self, ids: IntArray, asked: IntArray) -> "Judged":
        """Judge the results of nq queries.

        ids: (nq, k) result ids, -1 for an empty place.
        asked: (nq,) the name of each query's topic.

        Raises `InvalidArgumentError`, with the field asked for a topic that does not exist, and
        with the field ids for an id that no point has.
        """
        topics, labels = self.numbers(asked), self.labels
        rows = labels.rows(ids)
        first = (rows >= 0) & (earlier_and_total(rows)[0] == 0)
        relevant = first & is_among(self.keys, topics[:, None] * len(labels.ids) + rows)
        categories = relevant if self.lists else labels.categories[rows]
        return Judged(
            relevant=relevant,
            subtopics=np.where(relevant, labels.subtopics[rows], _NONE),
            categories=np.where(first, categories, _NONE),
            asked=np.ones_like(asked) if self.lists else asked,
            relevant_total=self.totals[topics],
            depths=self.depths(topics, rows.shape[1]),
            found=first.sum(axis=1),
        )

    def depths(self, topics: IntArray, k: int) -> IntArray:
        """Return `Judged.depths` (nq, k) for queries with the topic numbers `topics` (nq,)."""
        distinct, places = np.unique(topics, return_inverse=True)
        mask = np.isin(self.pair_topics, distinct)
        points = np.minimum(self.pair_points[mask], k)
        keys = np.searchsorted(distinct, self.pair_topics[mask]) * (k + 1) + points
        exact_counts = np.bincount(keys, minlength=len(distinct) * (k + 1)).reshape(-1, k + 1)
        at_least = exact_counts[:, ::-1].cumsum(axis=1)[:, ::-1]
        return np.asarray(at_least[places, 1:])


def judge(ids: IntArray, asked: IntArray, labels: PointCategories) -> Judged:
    """Judge results by category; a point is relevant to a query of the same category.

    ids: (nq, k) result ids, -1 for an empty place.
    asked: (nq,) the category of each query.
    labels: categories and sub-topics of all points.

    Raises `InvalidArgumentError`, with the field asked for a category that no point has or a wrong
    number of categories, and with the field ids for an id that no point has.
    """
    names = _whole(asked, "asked")
    return Topics.of_categories(labels).judge(as_lists(ids, len(names), "asked"), names)


def judge_relevant(
    ids: IntArray, relevant: Sequence[npt.ArrayLike], labels: PointCategories
) -> Judged:
    """Judge results by lists of relevant ids.

    ids: (nq, k) result ids, -1 for an empty place.
    relevant: for each of the nq queries, a list of at least one relevant id.
    labels: sub-topics of all points.

    Raises `InvalidArgumentError`, with the field relevant, for an empty list, and with the field
    ids or relevant for an id that no point has.
    """
    ids = as_lists(ids, len(relevant), "relevant")
    topics = Topics.of_relevant(relevant, labels)
    return topics.judge(ids, topics.names)


def earlier_and_total(labels: IntArray) -> tuple[IntArray, IntArray]:
    """Count how often the label at each place of `labels` (nq, k) occurs in its row.

    Returns two int64 arrays (nq, k). The first counts the occurrences at earlier places. The second
    counts all occurrences in the row. Both are 0 at places with a negative label.
    """
    keys = labels - labels.min(initial=0)
    keys += np.arange(len(labels))[:, None] * (keys.max(initial=0) + 1)
    order = np.argsort(keys, axis=None, kind="stable")
    _, starts, counts = np.unique(keys.ravel()[order], return_index=True, return_counts=True)
    earlier, total = np.zeros((2, *labels.shape), np.int64)
    earlier.flat[order] = np.arange(keys.size) - np.repeat(starts, counts)
    total.flat[order] = np.repeat(counts, counts)
    return np.where(labels >= 0, earlier, 0), np.where(labels >= 0, total, 0)


def _grouped(
    topics: IntArray, points: IntArray, labels: PointCategories, count: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return `keys`, `totals`, `pair_topics` and `pair_points` of `Topics` with `count` topics.

    The point in row points[i] belongs to topic number topics[i].
    """
    subtopics = labels.subtopics[points]
    valid = subtopics >= 0
    span = subtopics.max(initial=0) + 1
    pairs, pair_points = np.unique(topics[valid] * span + subtopics[valid], return_counts=True)
    keys = np.sort(topics * len(labels.ids) + points)
    return keys, np.bincount(topics, minlength=count), pairs // span, pair_points


def is_among(keys: IntArray, values: IntArray) -> Mask:
    """Return a mask of the `values` (any shape) that occur in the ascending `keys`."""
    if not len(keys):
        return np.zeros(values.shape, np.bool_)
    places = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    return np.asarray(keys[places] == values)


def as_lists(ids: IntArray, queries: int, truth_field: str, ids_field: str = "ids") -> IntArray:
    """Return `ids` as an int64 array (queries, k).

    Raises `InvalidArgumentError`, with the field `ids_field`, unless `ids` has two dimensions, at
    least one column and an integer dtype. Raises `InvalidArgumentError`, with the field
    `truth_field`, if the number of rows is not `queries`.
    """
    lists = _whole(ids, ids_field)
    if lists.ndim != 2 or not lists.shape[1]:
        raise invalid(ids_field, "must be (queries, k) with k at least 1")
    if len(lists) != queries:
        raise invalid(truth_field, f"must have one entry for each of {len(lists)} rows")
    return lists


def _whole(numbers: npt.ArrayLike, name: str) -> IntArray:
    array = np.asarray(numbers)
    # numpy turns an empty list into an array of floats, so the dtype of an empty array is ignored.
    if array.dtype.kind not in "iu" and array.size:
        raise invalid(name, f"must be whole numbers, got {array.dtype}")
    return array.astype(np.int64)
