"""The label inputs of a build, except the labels of the points, which come with the points."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from divgrpc.errors import invalid
from divgrpc.labels import LabelModel
from divgrpc.metrics.hierarchy import LabelTree
from divgrpc.parameters import LIMITS, LabelParameters

# A label model as callers give it: "leml" to train one, a pair of factors (L, r) and (d, r), a
# `LabelModel`, or None for no model.
LabelModelLike: TypeAlias = str | tuple[npt.ArrayLike, npt.ArrayLike] | LabelModel | None


class Labelling(TypedDict, total=False):
    """The keyword arguments of `Index.build` for labels, except `labels`; see `Index.build`."""

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
class LabelInputs:
    """Checked label inputs of a build.

    `model` is "leml", a `LabelModel` or None. `parameters` apply only to "leml". `names` (L,),
    `hierarchy` (m, 2) and `roots` are the arguments `label_names`, `hierarchy` and `roots` of
    `Index.build`. Raises `InvalidArgumentError` with the field label_model, label_names, hierarchy
    or roots.
    """

    model: LabelModel | str | None = None
    parameters: LabelParameters = field(default_factory=LabelParameters)
    names: Sequence[str] | None = None
    hierarchy: npt.ArrayLike | None = None
    roots: Sequence[int] | None = None

    def __post_init__(self) -> None:
        is_leml = isinstance(self.model, str) and self.model == "leml"
        if not is_leml and not isinstance(self.model, LabelModel | None):
            raise invalid("label_model", 'must be "leml", a pair of factors, or None')
        if self.names is not None and not all(map(_is_name, self.names)):
            bytes_max = LIMITS["label_name_bytes_max"]
            raise invalid("label_names", f"must be texts of at most {bytes_max} bytes each")
        if self.roots is not None and self.hierarchy is None:
            raise invalid("roots", "must come with a hierarchy")
        if self.hierarchy is not None and np.asarray(self.hierarchy).shape[1:] != (2,):
            raise invalid("hierarchy", "must have two columns, parents and children")

    @classmethod
    def from_keywords(cls, seed: int, **labelling: Unpack[Labelling]) -> Self:
        """Create inputs from keyword arguments of `Index.build`; `seed` is the seed of training.

        Raises the errors of the constructor, of `LabelModel.of_factors` and of `LabelParameters`.
        Also raises `InvalidArgumentError` for a training parameter if the model is not "leml".
        """
        training: dict[str, Any] = dict(labelling)
        model = training.pop("label_model", None)
        if isinstance(model, tuple):
            if len(model) != 2:
                raise invalid("label_model", "must be a pair of factors")
            model = LabelModel.of_factors(*model)
        inputs = cls(
            model=model,
            names=training.pop("label_names", None),
            hierarchy=training.pop("hierarchy", None),
            roots=training.pop("roots", None),
            parameters=LabelParameters(seed=seed, **training),
        )
        check_trained(model, (name for name, value in training.items() if value is not None))
        return inputs

    told = from_keywords

    @property
    def is_empty(self) -> bool:
        """Whether there is no model, no name and no hierarchy."""
        return self.model is None and self.names is None and self.hierarchy is None

    def tree(self, label_count: int) -> LabelTree | None:
        """Return the hierarchy of `label_count` labels as a tree, or None if it was not given.

        Raises `InvalidArgumentError` with the field hierarchy for a node number above the limit,
        and the errors of `LabelTree.of_edges`.
        """
        if self.hierarchy is None:
            return None
        edges = np.asarray(self.hierarchy)
        nodes_max = LIMITS["hierarchy_nodes_max"]
        if edges.size and edges.max() >= nodes_max:
            raise invalid("hierarchy", f"must have nodes below {nodes_max}, got {edges.max()}")
        return LabelTree.of_edges(edges[:, 0], edges[:, 1], label_count, self.roots)


# The name in earlier releases.
LabelPlan = LabelInputs


def check_trained(model: object, names: Iterable[str]) -> None:
    """Raise `InvalidArgumentError` if `model` is not "leml" but `names` is not empty.

    `names` are the training parameters that the caller set; the error names the first of them.
    """
    for name in names:
        if model != "leml":
            raise invalid(name, 'goes with label_model="leml", which is trained; nothing else is')


def _is_name(name: object) -> bool:
    """Return whether `name` is a string that UTF-8 can encode within the maximum size.

    UTF-8 cannot encode a lone surrogate.
    """
    if not isinstance(name, str):
        return False
    text = name.encode(errors="ignore")
    return len(text) <= LIMITS["label_name_bytes_max"] and text.decode() == name
