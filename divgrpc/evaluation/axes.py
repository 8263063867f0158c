"""What all grids share: each axis a list, every combination some parameters, checked."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import prod
from typing import Any, Final, TypeVar

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS

_LIMITS: Final = ("hash_limit", "candidates_limit")

Parameters = TypeVar("Parameters")


def check_axes(grid: object, axes: Mapping[str, str]) -> None:
    """Make tuples of a grid's axes, which are the values of `axes`.

    Raises `InvalidArgumentError` with the axis as its field, or `grid` for too many combinations.
    """
    for axis in axes.values():
        given = getattr(grid, axis)
        if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
            raise InvalidArgumentError(axis, f"{axis} must be a list of values")
        object.__setattr__(grid, axis, tuple(given))
        if not getattr(grid, axis):
            raise InvalidArgumentError(axis, f"{axis} must have a value at least")
    count = prod(len(getattr(grid, axis)) for axis in axes.values())
    most = LIMITS["grid_settings_max"]
    if count > most:
        raise InvalidArgumentError(
            "grid", f"the grid must have at most {most} settings, got {count}"
        )


def combinations(
    grid: object, axes: Mapping[str, str], make: Callable[..., Parameters]
) -> Iterator[Parameters]:
    """Yield what `make` gives for every combination, the last axis changing fastest.

    `axes` has the axis that each of its parameters comes from; that axis is the field of its
    errors. `limits` are two parameters.
    """
    for values in product(*(getattr(grid, axis) for axis in axes.values())):
        told: dict[str, Any] = dict(zip(axes, values, strict=True))
        told |= _pair(told.pop("limits"))
        try:
            setting = make(**told)
        except InvalidArgumentError as error:
            field = "limits" if error.field in _LIMITS else axes.get(error.field, error.field)
            raise type(error)(field, f"in {field}: {error}") from error
        yield setting


def _pair(limits: Any) -> dict[str, Any]:  # noqa: ANN401  # whatever a caller takes for a pair
    if isinstance(limits, str) or not hasattr(limits, "__len__") or len(limits) != len(_LIMITS):
        raise InvalidArgumentError(
            "limits", f"limits must be pairs of hash_limit and candidates_limit, got {limits!r}"
        )
    return dict(zip(_LIMITS, limits, strict=True))
