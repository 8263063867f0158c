"""What a build is told of labels, beside the rows of them that come with the points."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.labels import LabelModel
from divgrpc.metrics.hierarchy import LabelTree
from divgrpc.parameters import LIMITS, LabelParameters

# "leml", factors (L, r) and (d, r) from elsewhere, a model, or none.
LabelModelLike: TypeAlias = str | tuple[npt.ArrayLike, npt.ArrayLike] | LabelModel | None


def check_trained(model: object, told: Iterable[str]) -> None:
    """Raise `InvalidArgumentError`, with the first as its field, for parameters that train none."""
    for name in told:
        if model != "leml":
            raise InvalidArgumentError(
                name, f'{name} goes with label_model="leml", which is trained; nothing else is'
            )


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
    the labels. What else there is says how one is trained: see `LabelParameters`.
    """

    label_model: LabelModelLike
    label_names: Sequence[str] | None
    hierarchy: npt.ArrayLike | None
    roots: Sequence[int] | None
    rank: int | None
    regularisation: float | None
    iterations: int | None
    inner_iterations: int
    tolerance: float


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
        trained = isinstance(self.model, str) and self.model == "leml"
        if not trained and not isinstance(self.model, LabelModel | None):
            raise InvalidArgumentError(
                "label_model", 'label_model must be "leml", a pair of factors, or None'
            )
        if self.names is not None and not all(map(_is_name, self.names)):
            most = LIMITS["label_name_bytes_max"]
            raise InvalidArgumentError(
                "label_names", f"label_names must be texts of at most {most} bytes each"
            )
        if self.roots is not None and self.hierarchy is None:
            raise InvalidArgumentError("roots", "roots must come with a hierarchy")
        if self.hierarchy is not None and np.asarray(self.hierarchy).shape[1:] != (2,):
            raise InvalidArgumentError(
                "hierarchy", "hierarchy must have two columns, parents and children"
            )

    @classmethod
    def told(cls, seed: int, **labelling: Unpack[Labelling]) -> Self:
        """Return the plan of what `Index.build` was told; raises `InvalidArgumentError`."""
        given: dict[str, Any] = dict(labelling)
        model = as_label_model(given.pop("label_model", None))
        names, hierarchy, roots = (
            given.pop(name, None) for name in ("label_names", "hierarchy", "roots")
        )
        plan = cls(
            model=model,
            parameters=LabelParameters(seed=seed, **given),
            names=names,
            hierarchy=hierarchy,
            roots=roots,
        )
        check_trained(model, (name for name, value in given.items() if value is not None))
        return plan

    @property
    def is_empty(self) -> bool:
        """Whether nothing but rows of labels may come."""
        return self.model is None and self.names is None and self.hierarchy is None

    def tree(self, label_count: int) -> LabelTree | None:
        """Return the tree over so many labels; raises `InvalidArgumentError` as that does."""
        if self.hierarchy is None:
            return None
        edges = np.asarray(self.hierarchy)
        most = LIMITS["hierarchy_nodes_max"]
        if edges.size and edges.max() >= most:
            raise InvalidArgumentError(
                "hierarchy", f"hierarchy must have nodes below {most}, got {edges.max()}"
            )
        return LabelTree.of_edges(edges[:, 0], edges[:, 1], label_count, self.roots)


def _is_name(name: object) -> bool:
    """Tell what UTF-8 can hold, half a pair of surrogates it cannot, and what is not too long."""
    if not isinstance(name, str):
        return False
    text = name.encode(errors="ignore")
    return len(text) <= LIMITS["label_name_bytes_max"] and text.decode() == name
