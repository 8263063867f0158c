"""One setting over some queries: answered one at a time, timed, measured.

A piece of work is a pure function of an open index, queries, what is relevant to them, and a
setting: the same in process and in a server's workers, but for the times.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.metrics import ListDistances, Topics, Values, measure, objective
from divgrpc.metrics.distances import to_end
from divgrpc.parameters import QueryParameters
from divgrpc.types import EffectiveParameters, IntArray, QueryDefault

METRICS: Final = (
    "precision",
    "recall",
    "f_score",
    "average_precision",
    "reciprocal_rank",
    "one_call",
    "n_call",
    "majority_accuracy",
    "subtopic_recall",
    "normalised_entropy",
    "h_score",
    "alpha_ndcg",
    "err_ia",
    "query_distance",
    "ilad",
    "ilmd",
    "objective",
)
# What is known of every query at a setting: its metrics, its time, and how many results it has.
COLUMNS: Final = (*METRICS, "microseconds", "found")
H: Final = METRICS.index("h_score")

# A dense (nq, d) array, or sparse rows: what an index takes as queries, with a shape and slices.
Queries = Any


class Evaluable(Protocol):
    """As much of `divgrpc.engine.Engine` as an evaluation asks."""

    @property
    def default(self) -> QueryDefault | None:
        """What Query takes where its caller names nothing."""

    @property
    def topics(self) -> Topics:
        """The categories of the points."""

    @property
    def generation(self) -> int:
        """The number of this build."""

    @property
    def widest_row(self) -> int:
        """How many numbers a point stores at most."""

    def check_queries(self, queries: Queries) -> None:
        """Raise what is wrong with queries."""

    def resolve(self, parameters: QueryParameters, queries: Queries) -> EffectiveParameters:
        """Fill in the defaults; dense queries may be searched otherwise than sparse ones."""

    def answer_one_by_one(
        self, queries: Queries, parameters: QueryParameters
    ) -> tuple[IntArray, Values]:
        """Return ids (nq, k) and microseconds (nq,)."""

    def distances(self, queries: Queries, ids: IntArray) -> Generator[None, None, ListDistances]:
        """Measure the distances of result lists, step by step."""

    def set_default(self, default: QueryDefault | None) -> None:
        """Set what Query takes where its caller names nothing."""


class Indexed(Protocol):
    """As much of `divgrpc.Index` as that."""

    @property
    def engine(self) -> Evaluable:
        """What answers."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What nq queries ask for: `categories` (nq,) int64, or lists of `relevant` ids."""

    categories: IntArray | None = None
    relevant: tuple[IntArray, ...] | None = None

    @classmethod
    def of(
        cls,
        categories: npt.ArrayLike | None,
        relevant: Sequence[npt.ArrayLike] | None,
        queries: int,
    ) -> "Asked":
        """Take what a caller gave; raises `InvalidArgumentError` with the field."""
        if (categories is None) == (relevant is None):
            raise InvalidArgumentError(
                "categories" if relevant is None else "relevant",
                "queries need categories or relevant ids, one of the two",
            )
        lists = None if relevant is None else tuple(_whole(each, "relevant") for each in relevant)
        asked = cls(None if categories is None else _whole(categories, "categories"), lists)
        given = asked.categories if lists is None else lists
        if given is None or np.ndim(given[:1]) > 2 or len(given) != queries:
            field = "categories" if lists is None else "relevant"
            raise InvalidArgumentError(field, f"{field} must have one entry for each query")
        return asked

    def __getitem__(self, rows: slice) -> "Asked":
        """Return what consecutive queries ask for."""
        if self.relevant is not None:
            return Asked(relevant=self.relevant[rows])
        assert self.categories is not None  # noqa: S101  # one of the two is there
        return Asked(self.categories[rows])

    def numbers(self) -> IntArray:
        """Return what folds go by: the categories, or the same number for all."""
        if self.categories is not None:
            return self.categories
        return np.zeros(len(self.relevant or ()), np.int64)

    def topics(self, index: Evaluable) -> tuple[Topics, IntArray]:
        """Return topics and the name (nq,) of each query's; raises what is wrong with them."""
        if self.categories is not None:
            try:
                index.topics.numbers(self.categories)
            except InvalidArgumentError as error:
                raise InvalidArgumentError("categories", f"categories: {error}") from None
            return index.topics, self.categories
        topics = Topics.of_relevant(self.relevant or (), index.topics.labels)
        return topics, topics.names


class Piece:
    """A setting over a block of queries, to be answered some at a time."""

    def __init__(
        self, index: Evaluable, queries: Queries, asked: Asked, setting: QueryParameters
    ) -> None:
        self._index = index
        self._queries = queries
        self._asked = asked
        self._setting = setting
        self._ids: list[IntArray] = []
        self._microseconds: list[Values] = []
        self.done = 0

    @property
    def rows(self) -> int:
        """How many queries there are."""
        return int(self._queries.shape[0])

    def answer(self, stop: int) -> None:
        """Answer the queries up to `stop` that are not answered yet."""
        ids, times = self._index.answer_one_by_one(self._queries[self.done : stop], self._setting)
        self._ids.append(ids)
        self._microseconds.append(times)
        self.done = stop

    def measuring(self) -> Generator[None, None, Values]:
        """Return (len(COLUMNS), nq) float64, step by step: what is known of every query.

        All must be answered.
        """
        ids = np.concatenate(self._ids)
        topics, names = self._asked.topics(self._index)
        judged = topics.judge(ids, names)
        away = yield from self._index.distances(self._queries, ids)
        by_name = measure(judged) | {
            "query_distance": away.to_query,
            "ilad": away.mean,
            "ilmd": away.least,
            "objective": objective(away, self._setting.dial),
            "microseconds": np.concatenate(self._microseconds),
            "found": judged.found,
        }
        return np.stack([np.asarray(by_name[name], np.float64) for name in COLUMNS])

    def measured(self) -> Values:
        """Return what `measuring` returns."""
        return to_end(self.measuring())


def _whole(numbers: npt.ArrayLike, field: str) -> IntArray:
    array = np.asarray(numbers)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgumentError(field, f"{field} must be whole numbers, in one dimension")
    return array.astype(np.int64)
