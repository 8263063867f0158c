"""What PredictLabels can be told, and what a build is told of labels beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Self, TypeAlias, TypedDict, Unpack, get_args

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.labels import LabelModel
from divgrpc.metrics.hierarchy import LabelTree
from divgrpc.parameters import (
    LIMITS,
    LabelParameters,
    QueryParameters,
    check_choice,
    check_integer,
    check_number,
)
from divgrpc.types import (
    EffectiveLabelParameters,
    EffectiveParameters,
    Mode,
    Search,
    Selector,
    Vote,
)

DEFAULT_TOP_K: Final = 5
DEFAULT_NEIGHBOURS: Final = 10


@dataclass(frozen=True, kw_only=True)
class PredictParameters:
    """How labels are predicted; None means the default that a query has.

    `top_k` labels at most, of at least the score `threshold`: None takes what is kept with the
    index (`Index.set_threshold`), if anything is. In the mode `embedding` the other
    parameters are those of a query for labels; in `neighbour_vote` those of a query for so many
    `neighbours`, each of which has a `vote`, and the `top_k` labels of most votes are the answer.
    """

    top_k: int = DEFAULT_TOP_K
    threshold: float | None = None
    diversity: float = 0.3
    selector: Selector = "greedy"
    search: Search = "auto"
    hash_limit: int | None = None
    candidates_limit: int | None = None
    mode: Mode = "embedding"
    neighbours: int = DEFAULT_NEIGHBOURS
    vote: Vote = "weighted"
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer(self, "top_k", 1, LIMITS["k_max"])
        if self.threshold is not None:
            check_number(self, "threshold")
        check_choice("mode", self.mode, get_args(Mode))
        check_integer(self, "neighbours", 1, LIMITS["neighbours_max"])
        check_choice("vote", self.vote, get_args(Vote))
        _ = self.query

    @cached_property
    def query(self) -> QueryParameters:
        """How the labels, or the neighbours, are asked for."""
        return QueryParameters(
            k=self.top_k if self.mode == "embedding" else self.neighbours,
            diversity=self.diversity,
            selector=self.selector,
            search=self.search,
            hash_limit=self.hash_limit,
            candidates_limit=self.candidates_limit,
            seed=self.seed,
        )

    def with_threshold(self, thresholds: Mapping[Mode, float]) -> Self:
        """Return the same with the threshold of its mode, where it has none of its own."""
        if self.threshold is not None or self.mode not in thresholds:
            return self
        return replace(self, threshold=thresholds[self.mode])

    def effective(self, query: EffectiveParameters) -> EffectiveLabelParameters:
        """Return the same with what its query came to."""
        return EffectiveLabelParameters(
            top_k=self.top_k,
            threshold=self.threshold,
            mode=self.mode,
            neighbours=0 if self.mode == "embedding" else self.neighbours,
            vote=self.vote,
            diversity=query.diversity,
            selector=query.selector,
            search=query.search,
            hash_limit=query.hash_limit,
            candidates_limit=query.candidates_limit,
            seed=query.seed,
        )


# "leml", factors (L, r) and (d, r) from elsewhere, a model, or none.
LabelModelLike: TypeAlias = str | tuple[npt.ArrayLike, npt.ArrayLike] | LabelModel | None


def as_label_model(given: LabelModelLike) -> LabelModel | str | None:
    """Return a pair of factors as the model that it makes; raises `InvalidArgumentError`."""
    if isinstance(given, tuple) and len(given) == 2:
        return LabelModel.of_factors(*given)
    if isinstance(given, tuple):
        raise InvalidArgumentError("label_model", "label_model must be a pair of factors")
    return given


class Labelling(TypedDict, total=False):
    """What `Index.build` takes about labels by name, beside the rows of them.

    `label_model` is "leml", to train one on all rows with what is not told chosen on held-out rows,
    or a pair of label factors (L, r) and feature map (d, r), or a `LabelModel`. `label_names` (L);
    `hierarchy` (m, 2) are edges from parent to child, from the `roots` down, nodes below L being
    the labels. `rank`, `regularisation` and `iterations`: see `LabelParameters`.
    """

    label_model: LabelModelLike
    label_names: Sequence[str] | None
    hierarchy: npt.ArrayLike | None
    roots: Sequence[int] | None
    rank: int | None
    regularisation: float | None
    iterations: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPlan:
    """What a build is told of labels, beside the rows of them that come with the points.

    `model`: "leml" trains one with `parameters` on all rows, a `LabelModel` is taken as it is, None
    leaves the votes of neighbours alone. `names` (L) of the labels; `hierarchy` (m, 2) edges from
    parent to child, nodes below L being the labels, from the `roots` down: see
    `divgrpc.metrics.LabelTree`.
    """

    model: LabelModel | str | None = None
    parameters: LabelParameters = field(default_factory=LabelParameters)
    names: Sequence[str] | None = None
    hierarchy: npt.ArrayLike | None = None
    roots: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.model, str):
            check_choice("label_model", self.model, ("leml",))
        elif not isinstance(self.model, LabelModel | None):
            raise InvalidArgumentError(
                "label_model", 'label_model must be "leml", a pair of factors, or None'
            )
        if self.names is not None and not all(map(_is_text, self.names)):
            raise InvalidArgumentError("label_names", "label_names must be texts")
        if self.roots is not None and self.hierarchy is None:
            raise InvalidArgumentError("roots", "roots must come with a hierarchy")
        if self.hierarchy is not None and np.asarray(self.hierarchy).shape[1:] != (2,):
            raise InvalidArgumentError(
                "hierarchy", "hierarchy must have two columns, parents and children"
            )

    @classmethod
    def told(cls, seed: int, **labelling: Unpack[Labelling]) -> Self:
        """Return the plan of what `Index.build` was told; raises `InvalidArgumentError`."""
        return cls(
            model=as_label_model(labelling.get("label_model")),
            parameters=LabelParameters(
                rank=labelling.get("rank"),
                regularisation=labelling.get("regularisation"),
                iterations=labelling.get("iterations"),
                seed=seed,
            ),
            names=labelling.get("label_names"),
            hierarchy=labelling.get("hierarchy"),
            roots=labelling.get("roots"),
        )

    @property
    def is_empty(self) -> bool:
        """Whether nothing but rows of labels may come."""
        return self.model is None and self.names is None and self.hierarchy is None

    def tree(self, label_count: int) -> LabelTree | None:
        """Return the tree over so many labels; raises `InvalidArgumentError` as that does."""
        if self.hierarchy is None:
            return None
        edges = np.asarray(self.hierarchy)
        return LabelTree.of_edges(edges[:, 0], edges[:, 1], label_count, self.roots)


def _is_text(name: object) -> bool:
    """Tell what UTF-8 can hold: half a pair of surrogates it cannot."""
    return isinstance(name, str) and name.encode(errors="ignore").decode() == name
