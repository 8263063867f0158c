"""Cross-validation: the h of a query has no part in the choice of the setting it is reported at."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from divgrpc.errors import invalid
from divgrpc.metrics import Values, mean
from divgrpc.types import IntArray

FOLDS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A choice among s settings, by their numbers.

    `by_fold` (folds,) int64: the setting that each fold is reported at, best for the other folds.
    `overall`: the best setting for all queries, for use on queries to come.
    """

    by_fold: IntArray
    overall: int

    def reported(self, values: Values, folds: IntArray) -> Values:
        """Return for each query the value (nq,) at its fold's setting; `values` are (s, nq)."""
        return np.asarray(values[self.by_fold[folds], np.arange(len(folds))])


class Choice(NamedTuple):
    """A choice by folds among `members`, numbers of settings.

    `overall` is the best setting for all queries, `by_fold` the setting that each fold is reported
    at, and `at` (nq,) int64 the setting that each query is reported at.
    """

    members: list[int]
    overall: int
    by_fold: tuple[int, ...]
    at: IntArray


def deal_folds(asked: IntArray, folds: int = FOLDS) -> IntArray:
    """Return the fold (nq,) int64 of each query.

    `asked` (nq,) are the categories of the queries, or the same number for all. Queries are dealt
    in turn, category by category and in their order, so that folds differ by one query at most, in
    all and within a category.
    Raises `InvalidArgumentError` for fewer than two folds and for more folds than queries.
    """
    keys = np.asarray(asked, np.int64)
    if not 2 <= folds <= len(keys):
        raise invalid(
            "folds", f"must be between 2 and the number of queries {len(keys)}, got {folds}"
        )
    fold_of_query = np.empty(len(keys), np.int64)
    fold_of_query[np.argsort(keys, kind="stable")] = np.arange(len(keys)) % folds
    return fold_of_query


def choose_by_folds(h: Values, folds: IntArray) -> Chosen:
    """Choose for each fold the setting with the greatest mean h on the other folds.

    `h` (s, nq) is the h of each query at each of s settings, NaN where it does not apply. `folds`
    (nq,) comes from `deal_folds`. Of equals the first setting is chosen, so order them by cost.
    Raises `InvalidArgumentError` without a setting, and if no h applies to a choice.
    """
    h = np.asarray(h, np.float64)
    if h.ndim != 2 or not len(h) or h.shape[1] != len(folds):
        raise invalid("h", f"must be (1 or more settings, {len(folds)})")
    count = int(np.max(folds, initial=-1)) + 1
    by_fold = np.array([_best(h[:, folds != fold]) for fold in range(count)], np.int64)
    return Chosen(by_fold, _best(h))


def choices_of(kinds: Sequence[Hashable], h: Values, folds: IntArray) -> Iterator[Choice]:
    """Yield a choice among the settings of each kind, kinds in the order of their first settings.

    `kinds` are those of s settings; `h` and `folds` are as in `choose_by_folds`.
    """
    by_kind: dict[Hashable, list[int]] = {}
    for number, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(number)
    for members in by_kind.values():
        choice = choose_by_folds(h[members], folds)
        by_fold = np.asarray(members)[choice.by_fold]
        yield Choice(members, members[choice.overall], tuple(by_fold.tolist()), by_fold[folds])


def _best(h: Values) -> int:
    means = np.array([mean(values) for values in h])
    if np.isnan(means).all():
        raise invalid("h", "does not apply to any of the queries")
    return int(np.nanargmax(means))
