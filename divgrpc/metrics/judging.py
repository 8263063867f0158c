"""Results beside what is known of the points: which are relevant, and of which sub-topic.

Decided here for all metrics. A place that is not filled (-1) is a place with a wrong result. An id
that comes twice in a list counts at its first place: results are a set (Algorithm 1 collects R_q
from several tables). A relevant point without a sub-topic (-1) is relevant and adds nothing to what
is measured of sub-topics. Every query has a relevant point: one that has none is refused, for
whatever it gets would be as good.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.types import IntArray

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_NONE = -1
# Categories and sub-topics of an index are int32.
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """What is known of all n points that could have been found; `of` makes them.

    `categories` and `subtopics` (n,) int64, below 0 for none; `ids` (n,) int64, each once; `order`
    (n,) int64: where the ids stand that `ascending` (n,) int64 has in their order.
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
        """Take whole numbers, one for each point; None: no point has one, and ids 0, 1, 2, ...

        Raises `InvalidArgumentError`, with the field, where lengths differ, where an id comes twice
        or is below 0, where a category or sub-topic is above what an index takes (int32), and where
        nothing is given.
        """
        given = {
            name: _whole(array, name)
            for name, array in (("categories", categories), ("subtopics", subtopics), ("ids", ids))
            if array is not None
        }
        length = next((array.size for array in given.values()), None)
        if length is None:
            raise InvalidArgumentError("ids", "labels must have categories, subtopics or ids")
        for name, array in given.items():
            if array.shape != (length,):
                raise InvalidArgumentError(
                    name, f"{name} must have one number for each of {length} points"
                )
            if name != "ids" and array.max(initial=0) > _MOST:
                raise InvalidArgumentError(name, f"{name} must be at most {_MOST}")
        own = given.get("ids", np.arange(length))
        order = np.argsort(own, kind="stable")
        ascending = own[order]
        if (ascending[1:] == ascending[:-1]).any() or own.min(initial=0) < 0:
            raise InvalidArgumentError("ids", "ids must differ and be from 0 up")
        nothing = np.full(length, _NONE)
        categories, subtopics = (given.get(name, nothing) for name in ("categories", "subtopics"))
        return cls(categories, subtopics, own, order, ascending)

    def rows(self, ids: IntArray, name: str = "ids") -> IntArray:
        """Return the place among the n points of each id, -1 for -1; an unknown one is an error."""
        wanted = _whole(ids, name)
        found = np.full(wanted.shape, _NONE)
        if len(self.ids):
            at = np.minimum(np.searchsorted(self.ascending, wanted), len(self.ids) - 1)
            found = np.where(self.ascending[at] == wanted, self.order[at], _NONE)
        unknown = wanted[(found < 0) & (wanted != _NONE)]
        if len(unknown):
            raise InvalidArgumentError(name, f"{name} has {unknown[0]}, which is no labelled point")
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Results of nq queries, k places each, as the metrics see them.

    `relevant` (nq, k) bool; `subtopics` (nq, k) int64, of the relevant results, else -1;
    `categories` (nq, k) int64, what each result says the query is, -1 where it says nothing;
    `asked` (nq,) int64, what it is; `relevant_total` (nq,) int64, from 1 up: relevant points in
    all; `depths` (nq, k) int64: in column j how many of the query's sub-topics have more than j
    relevant points, so that column 0 counts its sub-topics; `found` (nq,) int64: places filled.
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
        """Places of a list, filled or not."""
        return int(self.relevant.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Topics:
    """The points that t topics hold: what queries can ask for, made once to judge many results.

    `of_categories` and `of_relevant` make them. `names` (t,) int64, ascending: the category of
    each, or the number of a list of relevant ids, where `lists` says so; `keys` int64, ascending:
    topic times n plus row, for every point of every topic; `totals` (t,) int64: points of each;
    `pair_topics` and `pair_points` int64: for every sub-topic of a topic the topic, and how many
    points.
    """

    labels: Labels
    names: IntArray
    keys: IntArray
    totals: IntArray
    pair_topics: IntArray
    pair_points: IntArray
    lists: bool = False

    @classmethod
    def of_categories(cls, labels: Labels) -> Self:
        """Make a topic of every category."""
        members = np.flatnonzero(labels.categories >= 0)
        names, topics = np.unique(labels.categories[members], return_inverse=True)
        return cls(labels, names, *_grouped(topics, members, labels, len(names)))

    @classmethod
    def of_relevant(cls, relevant: Sequence[npt.ArrayLike], labels: Labels) -> Self:
        """Make a topic of every list of ids.

        Raises `InvalidArgumentError` for a list without ids and for an id that no point has.
        """
        lists = [np.unique(_whole(each, "relevant")) for each in relevant]
        for number, each in enumerate(lists):
            if not len(each) or each[0] < 0:
                raise InvalidArgumentError(
                    "relevant", f"relevant must have ids from 0 up for every query, not so {number}"
                )
        names = np.arange(len(lists))
        topics = np.repeat(names, [len(each) for each in lists])
        points = labels.rows(np.concatenate([*lists, np.empty(0, np.int64)]), "relevant")
        return cls(labels, names, *_grouped(topics, points, labels, len(names)), lists=True)

    def numbers(self, asked: IntArray) -> IntArray:
        """Return the topic (nq,) of each query; a category that no point has is an error."""
        at = np.searchsorted(self.names, asked)
        known = np.append(self.names, _NONE)[at] == asked
        absent = asked[~known | (asked < 0)]
        if len(absent):
            raise InvalidArgumentError("asked", f"no point has the category {absent.min()}")
        return at

    def judge(self, ids: IntArray, asked: IntArray) -> "Judged":
        """Judge results `ids` (nq, k), -1 where there is none, of queries for `asked` (nq,)."""
        topics, labels = self.numbers(asked), self.labels
        rows = labels.rows(ids)
        first = (rows >= 0) & (earlier_and_total(rows)[0] == 0)
        relevant = first & is_among(self.keys, topics[:, None] * len(labels.ids) + rows)
        said = relevant if self.lists else labels.categories[rows]
        return Judged(
            relevant=relevant,
            subtopics=np.where(relevant, labels.subtopics[rows], _NONE),
            categories=np.where(first, said, _NONE),
            asked=np.ones_like(asked) if self.lists else asked,
            relevant_total=self.totals[topics],
            depths=self.depths(topics, rows.shape[1]),
            found=first.sum(axis=1),
        )

    def depths(self, topics: IntArray, k: int) -> IntArray:
        """Count (nq, k), for each query, its sub-topics with more than j points, j from 0."""
        own, places = np.unique(topics, return_inverse=True)
        among = np.isin(self.pair_topics, own)
        deep = np.minimum(self.pair_points[among], k)
        keys = np.searchsorted(own, self.pair_topics[among]) * (k + 1) + deep
        exactly = np.bincount(keys, minlength=len(own) * (k + 1)).reshape(-1, k + 1)
        at_least = exactly[:, ::-1].cumsum(axis=1)[:, ::-1]
        return np.asarray(at_least[places, 1:])


def judge(ids: IntArray, asked: IntArray, labels: Labels) -> Judged:
    """Judge results `ids` (nq, k), -1 where there is none, of queries for categories `asked` (nq,).

    A point of the category asked for is relevant. Raises `InvalidArgumentError`, with the field,
    for a category that no point has and for an id that is no labelled point.
    """
    asked = _whole(asked, "asked")
    return Topics.of_categories(labels).judge(lists(ids, len(asked), "asked"), asked)


def judge_relevant(ids: IntArray, relevant: Sequence[npt.ArrayLike], labels: Labels) -> Judged:
    """Judge results `ids` (nq, k) by the ids that are `relevant` to each of nq queries.

    A result says 1, it is what the query is, or 0, it is not. Raises `InvalidArgumentError`, with
    the field, for a query to which nothing is relevant and for an id that is no labelled point.
    """
    ids = lists(ids, len(relevant), "relevant")
    topics = Topics.of_relevant(relevant, labels)
    return topics.judge(ids, topics.names)


def earlier_and_total(labels: IntArray) -> tuple[IntArray, IntArray]:
    """Count for each place of `labels` (nq, k) its equals in the row: before it, and in all.

    Both are (nq, k) int64; a label below 0 has no equals, and 0 in both.
    """
    keys = labels - labels.min(initial=0)
    keys += np.arange(len(labels))[:, None] * (keys.max(initial=0) + 1)
    earlier, total = _among_equals(keys.ravel())
    real = labels >= 0
    return (
        np.where(real, earlier.reshape(labels.shape), 0),
        np.where(real, total.reshape(labels.shape), 0),
    )


def _grouped(
    topics: IntArray, points: IntArray, labels: Labels, count: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return keys, totals, and topics and points of the pairs, of points that belong to topics."""
    subtopics = labels.subtopics[points]
    real = subtopics >= 0
    span = subtopics.max(initial=0) + 1
    pairs, pair_points = np.unique(topics[real] * span + subtopics[real], return_counts=True)
    keys = np.sort(topics * len(labels.ids) + points)
    return keys, np.bincount(topics, minlength=count), pairs // span, pair_points


def is_among(keys: IntArray, wanted: IntArray) -> Mask:
    """Tell which of `wanted` is one of the ascending `keys`."""
    if not len(keys):
        return np.zeros(wanted.shape, np.bool_)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray(keys[at] == wanted)


def _among_equals(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Return for each of `keys` (m,) how many of its equals come before it, and are in all."""
    order = np.argsort(keys, kind="stable")
    _, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    earlier, total = np.empty_like(order), np.empty_like(order)
    earlier[order] = np.arange(len(keys)) - np.repeat(starts, counts)
    total[order] = np.repeat(counts, counts)
    return earlier, total


def lists(ids: IntArray, queries: int, name: str, own: str = "ids") -> IntArray:
    """Return `ids`, which errors call `own`, as (nq, k) int64, one row for each of `queries`.

    Raises `InvalidArgumentError` for `own` where it is no such lists, and for `name`, what the
    queries come with, where it is not as long.
    """
    found = _whole(ids, own)
    if found.ndim != 2 or not found.shape[1]:
        raise InvalidArgumentError(own, f"{own} must be (queries, k) with k at least 1")
    if len(found) != queries:
        raise InvalidArgumentError(
            name, f"{name} must have one entry for each of {len(found)} rows"
        )
    return found


def _whole(numbers: npt.ArrayLike, name: str) -> IntArray:
    array = np.asarray(numbers)
    # An empty list is one of floats to numpy.
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidArgumentError(name, f"{name} must be whole numbers, got {array.dtype}")
    return array.astype(np.int64)
