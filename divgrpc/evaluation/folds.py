"""Cross-validation of settings.

The figures reported for a query are those at a setting that was chosen on other queries. Otherwise,
the reported h would be too high.
"""

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.metrics import Values, mean
from divgrpc.metrics.comparing import check_groups
from divgrpc.types import IntArray

FOLDS: Final = 5
# For each fold, `winners_of` merges the other folds into at most this many folds. Otherwise, the
# time would grow with the square of the number of folds, and there can be as many folds as queries.
_INNER_FOLDS_MAX: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """A choice among s settings, which are identified by their numbers.

    by_fold: (folds,) int64, for each fold the setting that is best on the other folds. Reports use
        the values of the fold's queries at this setting.
    overall: the best setting on all queries, for use on future queries.
    """

    by_fold: IntArray
    overall: int

    def reported(self, values: Values, folds: IntArray) -> Values:
        """Return the value of each query at the setting of its fold, (nq,).

        `values` (s, nq) are the values at every setting, and `folds` (nq,) the fold of each query.
        """
        return np.asarray(values[self.by_fold[folds], np.arange(len(folds))])


class Choice(NamedTuple):
    """A choice by cross-validation among some of the settings.

    members: the numbers of these settings.
    overall: the best of them on all queries.
    by_fold: the setting whose values are reported for each fold.
    at: (nq,) int64, the setting whose values are reported for each query.
    """

    members: list[int]
    overall: int
    by_fold: tuple[int, ...]
    at: IntArray


def deal_folds(
    groups: npt.ArrayLike, folds: int = FOLDS, counted: npt.ArrayLike | None = None
) -> IntArray:
    """Return the fold (nq,) int64 of each query, so that a group lies wholly in one fold.

    groups: (nq,) whole numbers, the group of each query.
    folds: number of folds, 2 to the number of groups.
    counted: (nq,) bool, the queries to divide evenly among the folds first; by default all.

    Groups are dealt in descending order of their counted queries, then of all their queries. Each
    group goes to the fold with the fewest counted queries so far. Among such folds, the one with
    the fewest queries takes the group.

    Raises `InvalidArgumentError` with the field groups, or with the field folds for fewer than two
    folds and for more folds than groups.
    """
    numbers = np.asarray(groups)
    check_groups(numbers, len(numbers))
    _, group_of_query, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    if not 2 <= folds <= len(sizes):
        raise invalid(
            "folds", f"must be between 2 and the number of groups {len(sizes)}, got {folds}"
        )
    weights = sizes if counted is None else np.bincount(group_of_query, np.asarray(counted))
    fold_of_group = np.empty(len(sizes), np.int64)
    loads = [(0.0, 0, fold) for fold in range(folds)]
    for group in np.lexsort((-sizes, -weights)).tolist():
        weight, size, fold = loads[0]
        fold_of_group[group] = fold
        heapq.heapreplace(loads, (weight + weights[group], size + sizes[group], fold))
    return fold_of_group[group_of_query]


def choose_by_folds(h: Values, folds: IntArray) -> Chosen:
    """Choose for each fold, and overall, the setting with the greatest mean h.

    h: (s, nq), the h of each query at each of s settings, NaN for queries without an h. Among
        equally good settings the first is chosen, so order settings by cost.
    folds: (nq,), the fold of each query, from `deal_folds`.

    The setting for a fold is chosen on the other folds. Raises `InvalidArgumentError` if `h` has no
    settings or another shape, or if no query outside a fold has an h.
    """
    h = np.asarray(h, np.float64)
    if h.ndim != 2 or not len(h) or h.shape[1] != len(folds):
        raise invalid("h", f"must be (1 or more settings, {len(folds)})")
    count = int(np.max(folds, initial=-1)) + 1
    by_fold = np.array([_best(h[:, folds != fold]) for fold in range(count)], np.int64)
    return Chosen(by_fold, _best(h))


def choices_of(kinds: Sequence[Hashable], h: Values, folds: IntArray) -> Iterator[Choice]:
    """Yield a choice among the settings of each kind.

    `kinds` has the kind of each of s settings. Settings of one kind compete. Choices are in the
    order in which their kinds first occur in `kinds`. `h` and `folds` are as in `choose_by_folds`.
    """
    by_kind: dict[Hashable, list[int]] = {}
    for number, kind in enumerate(kinds):
        by_kind.setdefault(kind, []).append(number)
    for members in by_kind.values():
        choice = choose_by_folds(h[members], folds)
        by_fold = np.asarray(members)[choice.by_fold]
        yield Choice(members, members[choice.overall], tuple(by_fold.tolist()), by_fold[folds])


def winners_of(
    kinds: Sequence[Hashable], races: Sequence[Hashable], h: Values, folds: IntArray
) -> Iterator[Choice]:
    """Yield the best choice among the settings of each race, reported by nested folds.

    kinds, races: the kind and the race of each of s settings. A race is a set of settings among
        which one default is chosen. Races are in the order in which they first occur.
    h, folds: as in `choose_by_folds`; every fold must have queries with an h.

    The best of several choices looks better than it is, even if each choice was made by folds.
    Therefore, all choices are made again for each fold, on the other folds alone. The fold is
    reported at the overall setting of the choice that is best on the other folds. With only two
    folds, each fold is reported at the setting with the greatest mean on the other fold. More than
    ten other folds are merged into ten.

    Varma and Simon, "Bias in error estimation when using cross-validation for model selection", BMC
    Bioinformatics 7 (2006).
    """
    for race in dict.fromkeys(races):
        members = [number for number, name in enumerate(races) if name == race]
        member_kinds, member_h = [kinds[number] for number in members], h[members]
        overall = _winner(member_kinds, member_h, folds)
        by_fold = []
        for fold in range(int(folds.max()) + 1):
            is_outside = folds != fold
            inner = folds[is_outside]
            if len(np.unique(inner)) > _INNER_FOLDS_MAX:
                inner = inner % _INNER_FOLDS_MAX
            by_fold.append(members[_winner(member_kinds, member_h[:, is_outside], inner)])
        yield Choice(members, members[overall], tuple(by_fold), np.array(by_fold)[folds])


def _winner(kinds: Sequence[Hashable], h: Values, folds: IntArray) -> int:
    """Return the overall setting of the choice with the greatest mean by folds.

    With a single fold, return the setting with the greatest mean.
    """
    if (folds == folds[0]).all():
        return _best(h)
    choices = list(choices_of(kinds, h, folds))
    means = [mean(h[choice.at, np.arange(h.shape[1])]) for choice in choices]
    return choices[int(np.argmax(means))].overall


def _best(h: Values) -> int:
    means = np.array([mean(values) for values in h])
    if np.isnan(means).all():
        raise invalid("h", "does not apply to any of the queries")
    return int(np.nanargmax(means))
