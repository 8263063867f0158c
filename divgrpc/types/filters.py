"""Filters: conditions on the ids and attributes of points, written in Python.

    (Field("price") < 20) & Field("brand").is_in(["acme", "globex"]) & ~Field("sold")

Comparisons of a `Field` return conditions. `&`, `|` and `~` combine conditions into a `Filter`. All
objects of this module are immutable and hashable. `divgrpc.columns.filters` checks them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from divgrpc.types.records import Scalar


class Condition:
    """The base of all conditions, which `&`, `|` and `~` combine."""

    __slots__ = ()

    def __and__(self, other: "Condition") -> "Filter":
        """Return the filter that passes a point if both conditions pass it."""
        if not isinstance(other, Condition):
            return NotImplemented
        return Filter(must=(*_parts(self, "must"), *_parts(other, "must")))

    def __or__(self, other: "Condition") -> "Filter":
        """Return the filter that passes a point if at least one of the conditions passes it."""
        if not isinstance(other, Condition):
            return NotImplemented
        return Filter(should=(*_parts(self, "should"), *_parts(other, "should")))

    def __invert__(self) -> "Filter":
        """Return the filter that passes a point if the condition does not pass it."""
        return Filter(must_not=(self,))

    def __bool__(self) -> bool:
        """Raise TypeError, because `and`, `or`, `not` and chained comparisons cannot work."""
        raise TypeError(
            "a condition has no truth value: combine conditions with & | ~ in parentheses, and "
            "write a < Field < b as two conditions"
        )


@dataclass(frozen=True, slots=True)
class Match(Condition):
    """Passes a point if a value of the attribute is one of `values`.

    A point without a value does not pass.
    """

    attribute: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Others(Condition):
    """Passes a point if it has a value of the attribute that is none of `values`.

    Routers send it to shards, because all further values may be too many for a `Match`.
    """

    attribute: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Range(Condition):
    """Passes a point if a value of an integer or float attribute is within all bounds that are set.

    A point without a value does not pass.
    """

    attribute: str
    gt: int | float | None = None
    gte: int | float | None = None
    lt: int | float | None = None
    lte: int | float | None = None


@dataclass(frozen=True, slots=True)
class Exists(Condition):
    """Passes a point if it has a value of the attribute."""

    attribute: str


@dataclass(frozen=True, slots=True)
class HasId(Condition):
    """Passes a point if its id is one of `ids`. Ids that no point has are ignored."""

    ids: tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Filter(Condition):
    """Passes a point if every condition in `must`, none in `must_not` and one in `should` passes.

    An empty `should` has no effect. A filter without conditions passes every point.
    """

    must: tuple[Condition, ...] = ()
    should: tuple[Condition, ...] = ()
    must_not: tuple[Condition, ...] = ()

    def __iter__(self) -> Iterator[Condition]:
        yield from (*self.must, *self.should, *self.must_not)


# What a caller may pass as a filter: conditions, a dictionary in the form of Qdrant's filters, or
# None.
FilterLike: TypeAlias = Condition | dict[str, Any] | None


class Field:
    """An attribute of the points, whose comparisons return conditions.

    `==`, `!=`, `<`, `<=`, `>` and `>=` compare the attribute with a value. `!=` also passes points
    without a value. Times are compared with integer attributes.
    """

    __slots__ = ("name",)
    __hash__ = None  # type: ignore[assignment]  # == returns a condition

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Field({self.name!r})"

    def __eq__(self, value: object) -> Match:  # type: ignore[override]  # returns a condition
        return Match(self.name, (value,))  # type: ignore[arg-type]  # checked with the filter

    def __ne__(self, value: object) -> Filter:  # type: ignore[override]  # returns a condition
        return ~(self == value)

    def __lt__(self, bound: Any) -> Range:  # noqa: ANN401  # numbers and times
        return Range(self.name, lt=bound)

    def __le__(self, bound: Any) -> Range:  # noqa: ANN401  # numbers and times
        return Range(self.name, lte=bound)

    def __gt__(self, bound: Any) -> Range:  # noqa: ANN401  # numbers and times
        return Range(self.name, gt=bound)

    def __ge__(self, bound: Any) -> Range:  # noqa: ANN401  # numbers and times
        return Range(self.name, gte=bound)

    def __invert__(self) -> Filter:
        """Return the filter of points whose value is not true: `~Field("sold")`."""
        return ~(self == True)  # noqa: E712  # returns a condition

    def is_in(self, values: Iterable[Any]) -> Match:
        """Return the condition that a value of the attribute is one of `values`."""
        if isinstance(values, str | bytes):
            raise TypeError(f"is_in needs a list of values, got {values!r:.80}")
        return Match(self.name, in_order(values))

    def exists(self) -> Exists:
        """Return the condition that the point has a value of the attribute."""
        return Exists(self.name)


def in_order(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values in an order that is the same in each process, also those of a set."""
    return tuple(sorted(values, key=repr) if isinstance(values, set | frozenset) else values)


def _parts(condition: Condition, kind: str) -> tuple[Condition, ...]:
    """Return the conditions of a filter that has no other kind of conditions, or the condition."""
    if isinstance(condition, Filter):
        conditions: tuple[Condition, ...] = getattr(condition, kind)
        if conditions and len(conditions) == len(tuple(condition)):
            return conditions
    return (condition,)
