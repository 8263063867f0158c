"""What an evaluation of labels will do, checked as far as it can be without an index."""

from dataclasses import dataclass
from typing import Final, Literal

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.evaluation.planning import check_size
from divgrpc.metrics import Values
from divgrpc.types import EffectiveLabelParameters

# Labels that are kept until the end, each in eight bytes.
LABELS_MAX: Final = 10_000_000

Goal = Literal["h_score", "f_score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTask:
    """What is asked of an evaluation of labels, but the documents.

    As `Task`; `set_default` makes the threshold of the best choice of each mode the index's, so
    there must be folds, one top_k and some threshold. `per_document`: rows have `values`. Raises
    `InvalidArgumentError` with the field.
    """

    grid: LabelGrid
    documents: int
    folds: int = FOLDS
    set_default: bool = False
    per_document: bool = False

    def __post_init__(self) -> None:
        settings = self.grid.settings()
        check_size("documents", self.documents, len(settings), self.folds)
        kept = self.documents * sum(setting.top_k for setting in settings)
        if kept > LABELS_MAX:
            raise InvalidArgumentError(
                "grid",
                f"settings times documents times top_k must be at most {LABELS_MAX}, got {kept}",
            )
        if not self.set_default:
            return
        if not self.folds:
            raise InvalidArgumentError("set_default", "set_default needs folds to choose by")
        if len({each.top_k for each in settings}) > 1:
            raise InvalidArgumentError(
                "set_default", "set_default needs one top_k: several cannot be compared"
            )
        if all(each.threshold is None for each in settings):
            raise InvalidArgumentError("set_default", "set_default needs thresholds to choose from")


@dataclass(frozen=True, slots=True)
class LabelOutlook:
    """What an index makes of a task: its generation, the settings resolved, in the grid's order.

    `goal` is what is chosen by; `inverse` (L,) what `inverse_propensities` gives, None where the
    index does not know how frequent labels are.
    """

    generation: int
    resolved: tuple[EffectiveLabelParameters, ...]
    goal: Goal
    inverse: Values | None
