"""Grids of settings of a query; see `axes`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.axes import check_axes, combinations
from divgrpc.parameters import DEFAULT_VARIANT, QueryParameters
from divgrpc.parameters.suggestions import with_suggestions
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
Limits = tuple[int | None, int | None]
_WITH_VARIANTS: Final = ("greedy", "qp_relax")


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is tried: every value of every axis with every other, at `QueryParameters`' defaults.

    `limits` are pairs of a `hash_limit` and a `candidates_limit`; None is the default one, 0 is
    none. Any sequence will do for an axis. Raises `InvalidArgumentError`, with the axis as its
    field: for an axis without a value, for more combinations than the limit
    `grid_settings_max`, and for what `QueryParameters` refuses, such as a limit below one of `ks`.
    `seed` and `keep_duplicates` are the same in all settings.
    """

    selectors: tuple[Selector, ...] = ("nearest", "greedy")
    variants: tuple[Variant, ...] = (DEFAULT_VARIANT,)
    roundings: tuple[Rounding, ...] = ("exchange",)
    searches: tuple[Search, ...] = ("auto",)
    limits: tuple[Limits, ...] = ((None, None),)
    diversities: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    ks: tuple[int, ...] = (10,)
    seed: int = 0
    keep_duplicates: bool = False

    def __post_init__(self) -> None:
        check_axes(self, _AXES)
        if any(isinstance(dial, str) for dial in self.diversities):
            raise InvalidArgumentError(
                "diversities", "diversities must be numbers: an evaluation compares fixed dials"
            )
        self.settings()

    def settings(self) -> list[QueryParameters]:
        """Return the settings, each once, in the order of the axes: k outermost, diversity inmost.

        What has no meaning for a selector makes no settings of its own: `nearest` has no diversity,
        most have no variants, and only `qp_relax` rounds.
        """
        return list(dict.fromkeys(self._combined()))

    def _combined(self) -> Iterator[QueryParameters]:
        make = partial(QueryParameters, seed=self.seed, keep_duplicates=self.keep_duplicates)
        for told in combinations(self, _AXES, make):
            variants, rounds = told.selector in _WITH_VARIANTS, told.selector == "qp_relax"
            yield replace(
                told,
                variant=told.variant if variants else DEFAULT_VARIANT,
                rounding=told.rounding if rounds else "exchange",
                diversity=0.0 if told.selector == "nearest" else told.diversity,
            )
