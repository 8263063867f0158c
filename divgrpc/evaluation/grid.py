"""Grids of settings: each axis a list, every combination a query's parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Final

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.types import Rounding, Search, Selector, Variant

# The axis that each parameter comes from, which is the field that an error names.
_AXES: Final = {
    "k": "ks",
    "search": "searches",
    "limits": "limits",
    "selector": "selectors",
    "variant": "variants",
    "rounding": "roundings",
    "diversity": "diversities",
}
_WITH_VARIANTS: Final = ("greedy", "qp_relax")
_LIMITS: Final = ("hash_limit", "candidates_limit")

Limits = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is tried: every value of every axis with every other, at `QueryParameters`' defaults.

    `limits` are pairs of a `hash_limit` and a `candidates_limit`; None is the default one, 0 is
    none. Any sequence will do for an axis. Raises `InvalidArgumentError`, with the axis as its
    field: for an axis without a value, for more combinations than the limit
    `grid_settings_max`, and for what `QueryParameters` refuses, such as a limit below one of `ks`.
    """

    selectors: tuple[Selector, ...] = ("nearest", "greedy")
    variants: tuple[Variant, ...] = ("corrected",)
    roundings: tuple[Rounding, ...] = ("exchange",)
    searches: tuple[Search, ...] = ("auto",)
    limits: tuple[Limits, ...] = ((None, None),)
    diversities: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    ks: tuple[int, ...] = (10,)
    seed: int = 0

    def __post_init__(self) -> None:
        for axis in _AXES.values():
            given = getattr(self, axis)
            if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
                raise InvalidArgumentError(axis, f"{axis} must be a list of values")
            object.__setattr__(self, axis, tuple(given))
            if not getattr(self, axis):
                raise InvalidArgumentError(axis, f"{axis} must have a value at least")
        count = prod(len(getattr(self, axis)) for axis in _AXES.values())
        most = LIMITS["grid_settings_max"]
        if count > most:
            raise InvalidArgumentError(
                "grid", f"the grid must have at most {most} settings, got {count}"
            )
        self.settings()

    def settings(self) -> list[QueryParameters]:
        """Return the settings, each once, in the order of the axes: k outermost, diversity inmost.

        What has no meaning for a selector makes no settings of its own: `nearest` has no diversity,
        most have no variants, and only `qp_relax` rounds.
        """
        return list(dict.fromkeys(self._combined()))

    def _combined(self) -> Iterator[QueryParameters]:
        for values in product(*(getattr(self, axis) for axis in _AXES.values())):
            told: dict[str, Any] = dict(zip(_AXES, values, strict=True))
            told |= _pair(told.pop("limits"))
            try:
                # Checked whole before anything is left out.
                setting = QueryParameters(**told, seed=self.seed)
            except InvalidArgumentError as error:
                field = "limits" if error.field in _LIMITS else _AXES.get(error.field, error.field)
                raise type(error)(field, f"in {field}: {error}") from error
            if setting.selector not in _WITH_VARIANTS:
                setting = replace(setting, variant="corrected")
            if setting.selector != "qp_relax":
                setting = replace(setting, rounding="exchange")
            yield replace(setting, diversity=0.0) if setting.selector == "nearest" else setting


def _pair(limits: Any) -> dict[str, Any]:  # noqa: ANN401  # whatever a caller takes for a pair
    if isinstance(limits, str) or not hasattr(limits, "__len__") or len(limits) != len(_LIMITS):
        raise InvalidArgumentError(
            "limits", f"limits must be pairs of hash_limit and candidates_limit, got {limits!r}"
        )
    return dict(zip(_LIMITS, limits, strict=True))
