"""Grids of settings: each axis is a list of values, and every combination is one setting.

`Grid` is for queries and `LabelGrid` is for predictions of labels.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, Final, TypeVar

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters import DEFAULT_VARIANT, LIMITS, QueryParameters
from divgrpc.parameters.predict import DEFAULT_NEIGHBOURS, DEFAULT_TOP_K, PredictParameters
from divgrpc.parameters.suggestions import with_suggestions
from divgrpc.types import LabelSelector, Mode, Rounding, Search, Selector, Variant, Vote

Limits = tuple[int | None, int | None]
Parameters = TypeVar("Parameters")

_LIMITS: Final = ("hash_limit", "candidates_limit")
_WITH_VARIANTS: Final = ("greedy", "qp_relax")
# Each parameter and its axis. Errors name the axis as their field. The first axis varies slowest.
_AXES: Final = {
    "k": "ks",
    "search": "searches",
    "limits": "limits",
    "selector": "selectors",
    "variant": "variants",
    "rounding": "roundings",
    "diversity": "diversities",
}
_LABEL_AXES: Final = {
    "top_k": "top_ks",
    "mode": "modes",
    "search": "searches",
    "limits": "limits",
    "selector": "selectors",
    "threshold": "thresholds",
    "diversity": "diversities",
}


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Settings of a query: every value of every axis with every value of the others.

    What is no axis has the default of `QueryParameters`. `limits` are pairs of a `hash_limit` and
    a `candidates_limit`; None is the default limit, and 0 is no limit. An axis may be any sequence.
    `seed` and `keep_duplicates` are the same in all settings.

    Raises `InvalidArgumentError` with the axis as its field: for an axis without a value, for more
    combinations than the limit `grid_settings_max`, and for values that `QueryParameters` refuses,
    such as a limit below one of `ks`.
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
        _check_axes(self, _AXES)
        if any(isinstance(dial, str) for dial in self.diversities):
            raise InvalidArgumentError(
                "diversities", "diversities must be numbers: an evaluation compares fixed dials"
            )
        self.settings()

    def settings(self) -> list[QueryParameters]:
        """Return the settings, each once, in the order of the axes: k varies slowest.

        A parameter that has no effect on a selector makes no further settings: `nearest` has no
        diversity, most selectors have no variants, and only `qp_relax` rounds.
        """
        return list(dict.fromkeys(self._combined()))

    def _combined(self) -> Iterator[QueryParameters]:
        make = partial(QueryParameters, seed=self.seed, keep_duplicates=self.keep_duplicates)
        for setting in _combinations(self, _AXES, make):
            has_variants, rounds = (
                setting.selector in _WITH_VARIANTS,
                setting.selector == "qp_relax",
            )
            yield replace(
                setting,
                variant=setting.variant if has_variants else DEFAULT_VARIANT,
                rounding=setting.rounding if rounds else "exchange",
                diversity=0.0 if setting.selector == "nearest" else setting.diversity,
            )


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelGrid:
    """Settings of a prediction of labels; what is no axis has the default of `PredictParameters`.

    `limits` are as in `Grid`. A threshold of None is no threshold, whatever is kept with the index.
    The selector `hierarchy` needs an index that has one. `neighbours`, `vote` and `seed` are the
    same in all settings. Raises `InvalidArgumentError` with the axis as its field, as `Grid` does.
    """

    modes: tuple[Mode, ...] = ("embedding",)
    selectors: tuple[LabelSelector, ...] = ("nearest", "greedy")
    searches: tuple[Search, ...] = ("auto",)
    limits: tuple[Limits, ...] = ((None, None),)
    thresholds: tuple[float | None, ...] = (None,)
    diversities: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    top_ks: tuple[int, ...] = (DEFAULT_TOP_K,)
    neighbours: int = DEFAULT_NEIGHBOURS
    vote: Vote = "weighted"
    seed: int = 0

    def __post_init__(self) -> None:
        _check_axes(self, _LABEL_AXES)
        for axis in ("selectors", "diversities"):
            if None in getattr(self, axis):
                raise InvalidArgumentError(axis, f"{axis} must be named, got None")
        self.settings()

    def settings(self) -> list[PredictParameters]:
        """Return the settings, each once, in the order of the axes: top_k varies slowest."""
        return list(dict.fromkeys(self._combined()))

    def _combined(self) -> Iterator[PredictParameters]:
        make = partial(
            PredictParameters, neighbours=self.neighbours, vote=self.vote, seed=self.seed
        )
        for setting in _combinations(self, _LABEL_AXES, make):
            dial = 0.0 if setting.selector == "nearest" else setting.diversity
            yield replace(setting, diversity=dial, threshold=setting.least)


def _check_axes(grid: object, axes: Mapping[str, str]) -> None:
    """Make each axis of a grid a tuple; raises `InvalidArgumentError` with the field."""
    for axis in axes.values():
        values = getattr(grid, axis)
        if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
            raise InvalidArgumentError(axis, f"{axis} must be a list of values")
        object.__setattr__(grid, axis, tuple(values))
        if not getattr(grid, axis):
            raise InvalidArgumentError(axis, f"{axis} must have a value at least")
    count = prod(len(getattr(grid, axis)) for axis in axes.values())
    most = LIMITS["grid_settings_max"]
    if count > most:
        raise InvalidArgumentError(
            "grid", f"the grid must have at most {most} settings, got {count}"
        )


def _combinations(
    grid: object, axes: Mapping[str, str], make: Callable[..., Parameters]
) -> Iterator[Parameters]:
    """Yield what `make` returns for every combination; its errors get the axis as their field."""
    for values in product(*(getattr(grid, axis) for axis in axes.values())):
        fields: dict[str, Any] = dict(zip(axes, values, strict=True))
        fields |= _limits(fields.pop("limits"))
        try:
            setting = make(**fields)
        except InvalidArgumentError as error:
            field = "limits" if error.field in _LIMITS else axes.get(error.field, error.field)
            raise type(error)(field, f"in {field}: {error}") from error
        yield setting


def _limits(pair: Any) -> dict[str, Any]:  # noqa: ANN401  # whatever a caller passes as a pair
    if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != len(_LIMITS):
        raise InvalidArgumentError(
            "limits", f"limits must be pairs of hash_limit and candidates_limit, got {pair!r}"
        )
    return dict(zip(_LIMITS, pair, strict=True))
