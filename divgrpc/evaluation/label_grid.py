"""Grids of settings of a prediction of labels; see `axes`."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.axes import check_axes, combinations
from divgrpc.evaluation.grid import Limits
from divgrpc.parameters.predict import DEFAULT_NEIGHBOURS, DEFAULT_TOP_K, PredictParameters
from divgrpc.parameters.suggestions import with_suggestions
from divgrpc.types import LabelSelector, Mode, Search, Vote

_AXES: Final = {
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
class LabelGrid:
    """What is tried: every value of every axis with every other, at `PredictParameters`' defaults.

    `limits` are pairs of a `hash_limit` and a `candidates_limit`, as in `Grid`; a threshold of None
    is none, whatever is kept with the index. The selector `hierarchy` needs an index that has one.
    `neighbours`, `vote` and `seed` are the same in all
    settings. Raises `InvalidArgumentError`, with the axis as its field, as `Grid` does.
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
        check_axes(self, _AXES)
        for axis in ("selectors", "diversities"):
            if None in getattr(self, axis):
                raise InvalidArgumentError(axis, f"{axis} must be named, got None")
        self.settings()

    def settings(self) -> list[PredictParameters]:
        """Return the settings, each once, in the order of the axes: top_k outermost."""
        return list(dict.fromkeys(self._combined()))

    def _combined(self) -> Iterator[PredictParameters]:
        make = partial(
            PredictParameters, neighbours=self.neighbours, vote=self.vote, seed=self.seed
        )
        for told in combinations(self, _AXES, make):
            dial = 0.0 if told.selector == "nearest" else told.diversity
            yield replace(told, diversity=dial, threshold=told.least)
