"""What an evaluation of labels will do, checked as far as it can be without an index."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.folds import FOLDS
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.evaluation.planning import check_folds, check_size, rows_max
from divgrpc.metrics import Values, inverse_propensities
from divgrpc.parameters import LIMITS
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import EffectiveLabelParameters, IntArray

# Labels that are kept until the end, each in eight bytes; of one setting, which take ten times that
# when they are judged; and ranks of all settings, each of which has four intervals.
LABELS_MAX: Final = 10_000_000
JUDGED_MAX: Final = 1_000_000
RANKS_MAX: Final = 20_000
# Fewer points have no propensities: see `inverse_propensities`.
_POINTS_LEAST: Final = 3
# What a row takes in a message: at every rank four intervals, of each document nine numbers and
# an offset, of each of its labels a varint; and what else there is.
_RANK_BYTES: Final = 160
_DOCUMENT_BYTES: Final = 80
_LABEL_BYTES: Final = 4
_HEADROOM_BYTES: Final = 2**16

Goal = Literal["h_score", "f_score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTask:
    """What is asked of an evaluation of labels, but the documents.

    As `Task`; `set_default` makes the threshold of the best choice of each mode the index's, so
    there must be folds, one top_k and some threshold. `per_document`: rows have `values` and
    `labels`. Raises `InvalidArgumentError` with the field.
    """

    grid: LabelGrid
    documents: int
    folds: int = FOLDS
    set_default: bool = False
    per_document: bool = False

    def __post_init__(self) -> None:
        settings = self.grid.settings()
        check_folds("documents", self.documents, self.folds)
        ranks = sum(setting.top_k for setting in settings)
        if ranks > RANKS_MAX:
            raise InvalidArgumentError(
                "grid", f"settings times top_k must be at most {RANKS_MAX}, got {ranks}"
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

    def bounded(self) -> Self:
        """Return the task; raises `InvalidArgumentError` where it is too much for one call."""
        settings = self.grid.settings()
        check_size("documents", self.documents, len(settings))
        top_ks = [setting.top_k for setting in settings]
        for what, ranks, most in (
            ("documents times top_k", max(top_ks), JUDGED_MAX),
            ("settings times documents times top_k", sum(top_ks), LABELS_MAX),
        ):
            if self.documents * ranks > most:
                raise InvalidArgumentError(
                    "grid", f"{what} must be at most {most}, got {self.documents * ranks}"
                )
        return self


def told_max(top_k: int) -> int:
    """Return how many documents' own numbers, and `top_k` labels each, a message surely holds."""
    room = LIMITS["message_bytes_max"] - _HEADROOM_BYTES - _RANK_BYTES * top_k
    return room // (_DOCUMENT_BYTES + _LABEL_BYTES * top_k)


def documents_max(settings: Sequence[PredictParameters], *, told: bool) -> int:
    """Return how many documents one call may ask at all settings; `told`: with `per_document`."""
    top_ks = [setting.top_k for setting in settings]
    most = min(rows_max(len(settings)), JUDGED_MAX // max(top_ks), LABELS_MAX // sum(top_ks))
    return min(most, told_max(max(top_ks))) if told else most


@dataclass(frozen=True, slots=True)
class LabelOutlook:
    """What an index makes of a task: its generation, the settings resolved, in the grid's order.

    `goal` is what is chosen by; `counts` (L,) int64 of the `points` have each label, None where the
    index does not know.
    """

    generation: int
    resolved: tuple[EffectiveLabelParameters, ...]
    goal: Goal
    points: int
    counts: IntArray | None

    def inverse(self) -> Values | None:
        """Return what `inverse_propensities` gives (L,), None where it cannot be known."""
        if self.counts is None or self.points < _POINTS_LEAST:
            return None
        return inverse_propensities(self.counts, self.points)
