"""Results beside what is known of the points: which are relevant, and of which sub-topic.

Decided here for all metrics. A place that is not filled (-1) is a place with a wrong result. An id
that comes twice in a list counts at its first place: results are a set (Algorithm 1 collects R_q
from several tables). A relevant point without a sub-topic (-1) is relevant and adds nothing to what
is measured of sub-topics. Every query has a relevant point: one that has none is refused, for
whatever it gets would be as good.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    `categories` and `subtopics` (n,) int64, below 0 for none; `ids` (n,) int64, each once.
    """

    categories: IntArray
    subtopics: IntArray
    ids: IntArray

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
        if len(np.unique(own)) < length or own.min(initial=0) < 0:
            raise InvalidArgumentError("ids", "ids must differ and be from 0 up")
        nothing = np.full(length, _NONE)
        return cls(given.get("categories", nothing), given.get("subtopics", nothing), own)

    def rows(self, ids: IntArray, name: str = "ids") -> IntArray:
        """Return the place among the n points of each id, -1 for -1; an unknown one is an error."""
        own, wanted = self.ids, _whole(ids, name)
        if not len(own):
            found = np.full(wanted.shape, _NONE)
        else:
            order = np.argsort(own, kind="stable")
            at = np.minimum(np.searchsorted(own, wanted, sorter=order), len(own) - 1)
            found = np.where(own[order[at]] == wanted, order[at], _NONE)
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


def judge(ids: IntArray, asked: IntArray, labels: Labels) -> Judged:
    """Judge results `ids` (nq, k), -1 where there is none, of queries for categories `asked` (nq,).

    A point of the category asked for is relevant. Raises `InvalidArgumentError`, with the field,
    for a category that no point has and for an id that is no labelled point.
    """
    asked = _whole(asked, "asked")
    ids = _lists(ids, len(asked), "asked")
    own = labels.categories
    categories, topics = np.unique(asked, return_inverse=True)
    absent = categories[~np.isin(categories, own) | (categories < 0)]
    if len(absent):
        raise InvalidArgumentError("asked", f"no point has the category {absent[0]}")
    members = np.flatnonzero(np.isin(own, categories))
    rows = labels.rows(ids)
    said = np.where(rows >= 0, own[rows], _NONE)
    of_topic = np.searchsorted(categories, own[members])
    return _judged(rows, topics, asked, said, labels=labels, members=(of_topic, members))


def judge_relevant(ids: IntArray, relevant: Sequence[npt.ArrayLike], labels: Labels) -> Judged:
    """Judge results `ids` (nq, k) by the ids that are `relevant` to each of nq queries.

    A result says 1, it is what the query is, or 0, it is not. Raises `InvalidArgumentError`, with
    the field, for a query to which nothing is relevant and for an id that is no labelled point.
    """
    ids = _lists(ids, len(relevant), "relevant")
    lists = [np.unique(_whole(each, "relevant")) for each in relevant]
    for number, each in enumerate(lists):
        if not len(each) or each[0] < 0:
            raise InvalidArgumentError(
                "relevant", f"relevant must have ids from 0 up for every query, not so {number}"
            )
    topics = np.arange(len(lists))
    of_topic = np.repeat(topics, [len(each) for each in lists])
    members = labels.rows(np.concatenate([*lists, np.empty(0, np.int64)]), "relevant")
    rows, ones = labels.rows(ids), np.ones(len(lists), np.int64)
    judged = _judged(rows, topics, ones, rows, labels=labels, members=(of_topic, members))
    said = np.where(judged.categories >= 0, judged.relevant, _NONE)
    return replace(judged, categories=said)


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


def _judged(
    rows: IntArray,
    topics: IntArray,
    asked: IntArray,
    said: IntArray,
    *,
    labels: Labels,
    members: tuple[IntArray, IntArray],
) -> Judged:
    """Judge results by the pairs of a topic and a point, `members`, that belong together."""
    of_topic, points = members
    subtopics, n = labels.subtopics, len(labels.ids)
    first = (rows >= 0) & (earlier_and_total(rows)[0] == 0)
    relevant = first & np.isin(topics[:, None] * n + rows, of_topic * n + points)
    return Judged(
        relevant=relevant,
        subtopics=np.where(relevant, subtopics[rows], _NONE),
        categories=np.where(first, said, _NONE),
        asked=asked,
        relevant_total=np.bincount(of_topic, minlength=topics.max(initial=-1) + 1)[topics],
        depths=_depths(of_topic, subtopics[points], rows.shape[1], topics),
        found=first.sum(axis=1),
    )


def _depths(of_topic: IntArray, subtopics: IntArray, k: int, topics: IntArray) -> IntArray:
    """Count for each topic the sub-topics with more than j points, j in 0 to k - 1."""
    real = subtopics >= 0
    of_topic, subtopics = of_topic[real], subtopics[real]
    earlier = _among_equals(of_topic * (subtopics.max(initial=0) + 1) + subtopics)[0]
    near = earlier < k
    depths = np.bincount(
        of_topic[near] * k + earlier[near], minlength=(topics.max(initial=-1) + 1) * k
    )
    return depths.reshape(-1, k)[topics]


def _among_equals(keys: IntArray) -> tuple[IntArray, IntArray]:
    """Return for each of `keys` (m,) how many of its equals come before it, and are in all."""
    order = np.argsort(keys, kind="stable")
    _, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    earlier, total = np.empty_like(order), np.empty_like(order)
    earlier[order] = np.arange(len(keys)) - np.repeat(starts, counts)
    total[order] = np.repeat(counts, counts)
    return earlier, total


def _lists(ids: IntArray, queries: int, name: str) -> IntArray:
    lists = _whole(ids, "ids")
    if lists.ndim != 2 or not lists.shape[1]:
        raise InvalidArgumentError("ids", "ids must be (queries, k) with k at least 1")
    if len(lists) != queries:
        raise InvalidArgumentError(
            name, f"{name} must have one entry for each of {len(lists)} rows"
        )
    return lists


def _whole(numbers: npt.ArrayLike, name: str) -> IntArray:
    array = np.asarray(numbers)
    # An empty list is one of floats to numpy.
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidArgumentError(name, f"{name} must be whole numbers, got {array.dtype}")
    return array.astype(np.int64)
