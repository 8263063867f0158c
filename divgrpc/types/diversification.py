"""The result of `divgrpc.diversify`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from divgrpc.arrays import read_only
from divgrpc.types.parameters import DialReason, FloatArray, IntArray
from divgrpc.types.quotas import QuotaShortfall
from divgrpc.types.records import Scalar

ItemT = TypeVar("ItemT")
_NONE: Final = read_only(np.empty(0, np.int64))


class Pick(NamedTuple):
    """One pick of a stream.

    place: place of the pick among the candidates.
    score, selection_score: as in `Diversification`.
    """

    place: int
    score: float
    selection_score: float


class PlaceGroup(NamedTuple):
    """Picks that have the same value of an attribute.

    value: the value, None for candidates without one.
    places: (m,) int64 places of the picks among the candidates.
    """

    value: Scalar | None
    places: IntArray


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Diversification:
    """The m candidates that a selector picked, in the order of picking; m is `len(result)`.

    places: (m,) int64 places of the picks among the candidates, as the caller passed them.
    scores: (m,) float64 scores of the picks, as the caller passed them. With a query, they are the
        cosine, the inner product or the squared Euclidean distance. Without scores and query, 0.
    selection_scores: (m,) float32 values that the selector maximised at each pick.
    diversity: the dial that was used.
    dial_reason: why this dial was chosen, as in `QueryResult`; None unless the call had
        `diversity="auto"` or `lose_at_most`.
    duplicates: number of near-copies among the picks. They fill the last places if fewer than k
        candidates are distinct. With quotas, they are where a quota needs them.
    duality_gap: as in `QueryResult.duality_gaps`; None unless the selector is `qp_relax`.
    collapsed_places, collapsed_offsets: (c,) and (m + 1,) int64. The candidates
        `collapsed_places[collapsed_offsets[i] : collapsed_offsets[i + 1]]` are near-copies of pick
        i, best first. Both are empty without `duplicate_threshold`.
    group_values, group_offsets: values of the g groups, in the order of their first picks, and
        (g + 1,) int64. Group j has the picks from group_offsets[j] up to, but not including,
        group_offsets[j + 1]. Both are empty without `group_by`.
    quota_shortfalls: what the picks lack, if the call had `on_infeasible="relax"`.
    """

    places: IntArray
    scores: npt.NDArray[np.float64]
    selection_scores: FloatArray
    diversity: float
    dial_reason: DialReason | None = None
    duplicates: int = 0
    duality_gap: float | None = None
    collapsed_places: IntArray = field(default_factory=lambda: _NONE)
    collapsed_offsets: IntArray = field(default_factory=lambda: _NONE)
    group_values: tuple[Scalar | None, ...] = ()
    group_offsets: IntArray = field(default_factory=lambda: _NONE)
    quota_shortfalls: tuple[QuotaShortfall, ...] = ()

    def __len__(self) -> int:
        return len(self.places)

    def __repr__(self) -> str:
        picks = ", ".join(map(str, self.places[:10].tolist()))
        more = ", ..." if len(self) > 10 else ""
        dial = f"at diversity {self.diversity:g}"
        return f"Diversification: {len(self):,} picks {dial}: {picks}{more}"

    def collapsed(self, place: int) -> IntArray:
        """Return the places (c,) of the candidates that were collapsed into a pick.

        place: number of the pick, from 0. Raises `IndexError` if there is no such pick.

        The array is empty unless the call had `duplicate_threshold`.
        """
        if not 0 <= place < len(self):
            raise IndexError(f"place must be from 0 to {len(self) - 1}, got {place}")
        if not len(self.collapsed_offsets):
            return self.collapsed_places
        start, stop = self.collapsed_offsets[place : place + 2]
        return self.collapsed_places[start:stop]

    @property
    def groups(self) -> tuple[PlaceGroup, ...]:
        """The groups, in the order of their first picks; empty without `group_by`."""
        parts = np.split(self.places, self.group_offsets[1:-1]) if self.group_values else []
        return tuple(map(PlaceGroup, self.group_values, parts))

    def take(self, items: Sequence[ItemT]) -> list[ItemT]:
        """Return the items of the picks, in the order of picking; `items` has one per candidate."""
        return [items[place] for place in self.places.tolist()]
