"""Results as rows of hits.

A result stores rectangular arrays, one row per query, padded with -1 or NaN. The classes of this
module give access to a result row by row, as tuples of hits. These tuples have no padding, so a
caller who looks up the id of a hit never sees the -1 of an empty place.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt

from divgrpc.types.records import AttributeValue, IdArray, Scalar

if TYPE_CHECKING:
    from pandas import DataFrame

    from divgrpc.types import EffectiveLabelParameters, EffectiveParameters

# Maximum number of rows, and of hits in each row, that `repr` shows.
_ROWS_SHOWN: Final = 3
_HITS_SHOWN: Final = 5


class Hit(NamedTuple):
    """One point of a result.

    id: id of the point, an integer or a text.
    score: cosine, inner product or squared Euclidean distance, depending on the metric.
    rank: place in the order of selection, from 1 up.
    selection_score: value that the selector maximised; its scale depends on the selector.
    attributes: values by the name of the attribute; None unless the query had `with_attributes`.
    payload: bytes that were stored with the point; None unless the query had `with_payload`.
    """

    id: int | str
    score: float
    rank: int
    selection_score: float
    attributes: Mapping[str, AttributeValue] | None = None
    payload: bytes | None = None


class HitGroup(NamedTuple):
    """The results of a row that have the same value of the attribute of `group_by`.

    value: the value; None for points without a value.
    hits: the results, in the order of selection.
    """

    value: Scalar | None
    hits: tuple[Hit, ...]


class LabelHit(NamedTuple):
    """One label of a document.

    label: number of the label.
    name: name of the label, None if the index has no label names.
    score: inner product of the label's factor and the embedded document. In the mode
        `neighbour_vote`, share of the votes.
    rank, selection_score: as in `Hit`.
    """

    label: int
    name: str | None
    score: float
    rank: int
    selection_score: float


HitT = TypeVar("HitT", bound=Hit | LabelHit)


class HitRows(ABC, Generic[HitT]):
    """A result as a sequence of rows, one for each query. A row is a tuple of hits.

    A result without rows has length 0 and is therefore false in a condition.
    """

    __slots__ = ()
    _hit_fields: ClassVar[tuple[str, ...]]

    scores: npt.NDArray[np.float32]
    selection_scores: npt.NDArray[np.float32]
    counts: npt.NDArray[np.uint32]
    if TYPE_CHECKING:
        parameters: EffectiveParameters | EffectiveLabelParameters

    @abstractmethod
    def _hits(self, row: int) -> tuple[HitT, ...]:
        """Return the hits of a row; `row` is not negative."""

    @property
    def dial(self) -> str:
        """The dial (value of `diversity`) of all rows, as text for `repr`."""
        return f"diversity {self.parameters.diversity:g}"

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, row: int) -> tuple[HitT, ...]: ...
    @overload
    def __getitem__(self, row: slice) -> list[tuple[HitT, ...]]: ...
    def __getitem__(self, row: int | slice) -> tuple[HitT, ...] | list[tuple[HitT, ...]]:
        """Return the hits of one row in the order of selection, or a list of rows for a slice.

        Negative numbers count from the last row. Raises `IndexError` if the row does not exist.
        """
        if isinstance(row, slice):
            return [self._hits(number) for number in range(len(self))[row]]
        try:
            number = range(len(self))[row]
        except IndexError:
            message = f"there is no row {row}: the result has {rows_of(len(self))}"
            raise IndexError(message) from None
        return self._hits(number)

    def __iter__(self) -> Iterator[tuple[HitT, ...]]:
        return (self._hits(row) for row in range(len(self)))

    def __repr__(self) -> str:
        parameters = self.parameters
        lines = [
            f"{type(self).__name__}: {rows_of(len(self))}, {int(self.counts.sum()):,} hits; "
            f"{parameters.selector} at {self.dial}, {parameters.search} search"
        ]
        for row in range(min(len(self), _ROWS_SHOWN)):
            words = [f"{_key(hit)} ({hit.score:.4g})" for hit in self[row][:_HITS_SHOWN]]
            if self.counts[row] > _HITS_SHOWN:
                words.append("...")
            lines.append(f"  [{row}] {', '.join(words) or 'no hits'}")
        if len(self) > _ROWS_SHOWN:
            lines.append("  ...")
        return "\n".join(lines)

    def to_pandas(self) -> "DataFrame":
        """Return a table with a line for each hit.

        Its columns are `row`, the number of the query, and the fields of the hit. Attributes have a
        column each, which is `attributes.NAME` if another column has the name. Raises
        `ModuleNotFoundError` if pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            message = "to_pandas needs pandas, which divgrpc does not bring: pip install pandas"
            raise ModuleNotFoundError(message, name="pandas") from error
        width = len(self._hit_fields)
        lines = [(row, *hit[:width]) for row, hits in enumerate(self) for hit in hits]
        table = pd.DataFrame(lines, columns=["row", *self._hit_fields])
        for name, values in self._columns_of_hits().items():
            table[name] = values
        return table

    def _columns_of_hits(self) -> dict[str, Sequence[Any]]:
        """Return further columns of the table that `to_pandas` returns, one value per hit."""
        return {}

    def _cut(self, row: int, keys: npt.NDArray[Any]) -> list[list[Any]]:
        """Return the keys (ids or labels) and both kinds of scores of a row without padding."""
        columns = (keys, self.scores, self.selection_scores)
        return [column[row, : self.counts[row]].tolist() for column in columns]


class PointHitRows(HitRows[Hit]):
    """The rows of a query result."""

    __slots__ = ()
    _hit_fields = Hit._fields[:4]

    ids: IdArray
    diversities: npt.NDArray[np.float64]
    attributes: Mapping[str, tuple[AttributeValue, ...]]
    payloads: tuple[bytes, ...]
    if TYPE_CHECKING:
        parameters: EffectiveParameters

    @property
    def dial(self) -> str:
        """The dial of all rows, or the range of the rows' dials, as text for `repr`."""
        bound = self.parameters.lose_at_most
        if self.parameters.has_fixed_dial:
            return super().dial
        rule = "auto" if bound is None else f"by lose_at_most {bound:g}"
        if not len(self.diversities):
            return f"diversity {rule}"
        least, most = self.diversities.min(), self.diversities.max()
        dials = f"{least:g}" if least == most else f"{least:g} to {most:g}"
        return f"diversity {rule} ({dials})"

    def _hits(self, row: int) -> tuple[Hit, ...]:
        columns = self._cut(row, self.ids)
        attributes: Iterable[Mapping[str, AttributeValue] | None] = repeat(None)
        payloads: Iterable[bytes | None] = repeat(None)
        if self.attributes or self.payloads:
            start = int(self.counts[:row].sum())
            part = slice(start, start + int(self.counts[row]))
            if self.attributes:
                values = zip(*(column[part] for column in self.attributes.values()), strict=True)
                attributes = (dict(zip(self.attributes, v, strict=True)) for v in values)
            if self.payloads:
                payloads = self.payloads[part]
        ids, scores, selection_scores = columns
        return tuple(map(Hit, ids, scores, count(1), selection_scores, attributes, payloads))

    def _columns_of_hits(self) -> dict[str, Sequence[Any]]:
        columns: dict[str, Sequence[Any]] = {"payload": self.payloads} if self.payloads else {}
        taken_names = {"row", "payload", *self._hit_fields}
        for name, values in self.attributes.items():
            columns[f"attributes.{name}" if name in taken_names else name] = values
        return columns


class LabelHitRows(HitRows[LabelHit]):
    """The rows of a result with labels."""

    __slots__ = ()
    _hit_fields = LabelHit._fields

    labels: npt.NDArray[np.int64]
    names: tuple[tuple[str, ...], ...]

    def _hits(self, row: int) -> tuple[LabelHit, ...]:
        labels, scores, selection_scores = self._cut(row, self.labels)
        names = self.names[row] if self.names else repeat(None)
        return tuple(map(LabelHit, labels, names, scores, count(1), selection_scores))


def rows_of(number: int) -> str:
    """Return "1 row", "2 rows" and so on."""
    return f"{number:,} {'row' if number == 1 else 'rows'}"


def _key(hit: Hit | LabelHit) -> str:
    if isinstance(hit, Hit):
        return str(hit.id)
    return str(hit.label) if hit.name is None else f"{hit.label} {hit.name!r}"
