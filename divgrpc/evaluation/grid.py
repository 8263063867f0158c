"""Grids of settings for evaluations.

A grid has several axes. An axis is a list of values of one parameter, or of pairs of limits. Every
combination of values is a setting. `Grid` has settings of queries, and `LabelGrid` has settings of
label predictions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from math import prod
from typing import Any, ClassVar, Final, Generic, TypeVar

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc.parameters import DEFAULT_VARIANT, LIMITS, QueryParameters
from divgrpc.parameters.predict import DEFAULT_NEIGHBOURS, DEFAULT_TOP_K, PredictParameters
from divgrpc.parameters.query import WITH_VARIANTS
from divgrpc.parameters.suggestions import with_suggestions
from divgrpc.types import LabelSelector, Mode, Rounding, Sampling, Search, Selector, Variant, Vote

Limits = tuple[int | None, int | None]
ParametersT = TypeVar("ParametersT", QueryParameters, PredictParameters)

_LIMITS: Final = ("hash_limit", "candidates_limit")


class _SettingsGrid(ABC, Generic[ParametersT]):
    """The base class of both grids."""

    __slots__ = ()

    # `_parameters` is the class of the settings. `_axes` maps the name of each parameter to the
    # name of its axis. Errors name the axis as the field. `settings` varies the first axis slowest.
    _parameters: ClassVar[Any]
    _axes: ClassVar[dict[str, str]]

    def __post_init__(self) -> None:
        for axis in self._axes.values():
            values = getattr(self, axis)
            if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
                raise invalid(axis, "must be a list of values")
            object.__setattr__(self, axis, tuple(values))
            if not getattr(self, axis):
                raise invalid(axis, "must have a value at least")
        count = prod(len(getattr(self, axis)) for axis in self._axes.values())
        limit = LIMITS["grid_settings_max"]
        if count > limit:
            sentence = f"the grid must have at most {limit} settings, got {count}"
            raise InvalidArgumentError("grid", sentence)
        self._check()
        self.settings()

    def settings(self) -> list[ParametersT]:
        """Return the distinct settings; the first axis of `_axes` varies slowest.

        Settings that differ only in a parameter that has no effect are one setting. For example,
        `diversity` has no effect on the selector `nearest`, `variant` has an effect on `greedy` and
        `qp_relax` only, and `rounding` on `qp_relax` only. `n_probes` has an effect only if the
        search is `tables`, or `auto`, which may choose `tables`. `sampling` has an effect only if
        the search has a hash limit and is not `exact`.
        """
        return list(dict.fromkeys(map(self._effective, self._combinations())))

    def _combinations(self) -> Iterator[ParametersT]:
        shared = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]  # both grids are dataclasses
        lists = [shared.pop(axis) for axis in self._axes.values()]
        axes = self._axes | dict.fromkeys(_LIMITS, "limits")
        for values in product(*lists):
            options: dict[str, Any] = dict(zip(self._axes, values, strict=True))
            options |= _limits(options.pop("limits"))
            if "epsilon" in options and options["hash_limit"] is not None:
                options["epsilon"] = None
            try:
                yield self._parameters(**options, **shared)
            except InvalidArgumentError as error:
                axis = axes.get(error.field, error.field)
                if axis == error.field:
                    raise
                raise type(error)(axis, f"in {axis}: {error}") from error

    @abstractmethod
    def _check(self) -> None:
        """Raise `InvalidArgumentError` for values that only calls other than evaluations accept."""

    @abstractmethod
    def _effective(self, setting: ParametersT) -> ParametersT:
        """Return the setting with a fixed value for each parameter that has no effect."""


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(_SettingsGrid[QueryParameters]):
    """Settings of a query: all combinations of the values of the axes.

    An axis may be any sequence. `limits` has pairs of a `hash_limit` and a `candidates_limit`. A
    limit of None means the default limit, and 0 means no limit. If the `hash_limit` of a pair is
    None, an epsilon sets it. None in `n_probes` means the number that Build tuned, and None in
    `epsilons` means no epsilon. `seed` and `keep_duplicates` are the same in all settings. All
    other parameters have the defaults of `QueryParameters`.

    Raises `InvalidArgumentError`, with the name of the axis as the field, for an axis without
    values and for values that `QueryParameters` refuses, such as a limit below a value in `ks`. The
    field is epsilons if an epsilon is given although every pair sets `hash_limit`. For more
    combinations than the limit `grid_settings_max`, the field is grid.
    """

    selectors: tuple[Selector, ...] = ("nearest", "greedy")
    variants: tuple[Variant, ...] = (DEFAULT_VARIANT,)
    roundings: tuple[Rounding, ...] = ("exchange",)
    searches: tuple[Search, ...] = ("auto",)
    limits: tuple[Limits, ...] = ((None, None),)
    epsilons: tuple[float | None, ...] = (None,)
    n_probes: tuple[int | None, ...] = (None,)
    samplings: tuple[Sampling, ...] = ("uniform",)
    diversities: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    ks: tuple[int, ...] = (10,)
    seed: int = 0
    keep_duplicates: bool = False

    _parameters = QueryParameters
    _axes: ClassVar = {
        "k": "ks",
        "search": "searches",
        "limits": "limits",
        "epsilon": "epsilons",
        "n_probes": "n_probes",
        "sampling": "samplings",
        "selector": "selectors",
        "variant": "variants",
        "rounding": "roundings",
        "diversity": "diversities",
    }

    def _check(self) -> None:
        if any(isinstance(dial, str) for dial in self.diversities):
            raise invalid("diversities", "must be numbers: an evaluation compares fixed dials")
        hash_limits = [_limits(pair)["hash_limit"] for pair in self.limits]
        if None not in hash_limits and any(epsilon is not None for epsilon in self.epsilons):
            raise invalid("epsilons", "set hash_limit, but every pair in limits has a hash_limit")

    def _effective(self, setting: QueryParameters) -> QueryParameters:
        has_variants = setting.selector in WITH_VARIANTS
        samples = setting.search != "exact" and setting.hash_limit != 0
        return replace(
            setting,
            n_probes=setting.n_probes if _may_probe(setting) else None,
            sampling=setting.sampling if samples else "uniform",
            variant=setting.variant if has_variants else DEFAULT_VARIANT,
            rounding=setting.rounding if setting.selector == "qp_relax" else "exchange",
            diversity=0.0 if setting.selector == "nearest" else setting.diversity,
        )


@with_suggestions
@dataclass(frozen=True, slots=True, kw_only=True)
class LabelGrid(_SettingsGrid[PredictParameters]):
    """Settings of a label prediction: all combinations of the values of the axes.

    `limits` and `n_probes` are as in `Grid`. A threshold of None means no threshold, even if the
    index has a default threshold. The selector `hierarchy` needs an index with a label hierarchy.
    `neighbours`, `vote` and `seed` are the same in all settings. All other parameters have the
    defaults of `PredictParameters`. Raises the same errors as `Grid`.
    """

    modes: tuple[Mode, ...] = ("embedding",)
    selectors: tuple[LabelSelector, ...] = ("nearest", "greedy")
    searches: tuple[Search, ...] = ("auto",)
    limits: tuple[Limits, ...] = ((None, None),)
    n_probes: tuple[int | None, ...] = (None,)
    thresholds: tuple[float | None, ...] = (None,)
    diversities: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    top_ks: tuple[int, ...] = (DEFAULT_TOP_K,)
    neighbours: int = DEFAULT_NEIGHBOURS
    vote: Vote = "weighted"
    seed: int = 0

    _parameters = PredictParameters
    _axes: ClassVar = {
        "top_k": "top_ks",
        "mode": "modes",
        "search": "searches",
        "limits": "limits",
        "n_probes": "n_probes",
        "selector": "selectors",
        "threshold": "thresholds",
        "diversity": "diversities",
    }

    def _check(self) -> None:
        for axis in ("selectors", "diversities"):
            if None in getattr(self, axis):
                raise invalid(axis, "must be named, got None")

    def _effective(self, setting: PredictParameters) -> PredictParameters:
        dial = 0.0 if setting.selector == "nearest" else setting.diversity
        n_probes = setting.n_probes if _may_probe(setting) else None
        return replace(setting, diversity=dial, threshold=setting.least, n_probes=n_probes)


def check_storable(settings: Iterable[QueryParameters]) -> None:
    """Raise `InvalidArgumentError` if an index cannot store one of the settings as its default."""
    for setting in settings:
        if (setting.epsilon, setting.n_probes, setting.sampling) != (None, None, "uniform"):
            raise invalid("set_default", "stores no epsilon, n_probes or sampling: set none")


def _may_probe(setting: QueryParameters | PredictParameters) -> bool:
    """Whether the search may look up buckets or cells; `auto` without a hash limit is exact."""
    return setting.search == "tables" or (setting.search == "auto" and setting.hash_limit != 0)


def _limits(pair: Any) -> dict[str, Any]:  # noqa: ANN401  # whatever a caller passes as a pair
    if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != len(_LIMITS):
        raise invalid("limits", f"must be pairs of hash_limit and candidates_limit, got {pair!r}")
    return dict(zip(_LIMITS, pair, strict=True))
