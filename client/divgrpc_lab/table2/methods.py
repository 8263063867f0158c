"""The methods of Table 2 as grids for an evaluation of labels, and the rows of their results.

A setting defines the labels, or in the mode `neighbour_vote` the documents, that are scored:

everything      all of them, by exact search; the paper's LEML and MMR
the paper's     tables with 100 projections in total, at most 200 components and no limits;
                Algorithm 1
default         the defaults of Build and predict_labels; `auto` may be an exact search if there is
                little to hash
"""

from dataclasses import dataclass
from math import isnan
from typing import Any, Final

from divgrpc.evaluation.grid import LabelGrid
from divgrpc.types import EvaluateLabelRow, HashFamily, Interval, LabelSelector, Mode

EVERYTHING: Final = "everything"
PAPERS: Final = "the paper's"
DEFAULT: Final = "default"

# 100 projections in total, as ten tables of ten bits.
_TABLES, _BITS, _COMPONENTS_MAX = 10, 10, 200
FAMILIES: Final[dict[str, HashFamily]] = {
    "PCA-Hash": "pca_hash",
    "LSH-Div": "lsh_div",
    "LSH-SDiv": "lsh_sdiv",
}
MODES: Final[dict[Mode, str]] = {"embedding": "embedding", "neighbour_vote": "votes"}
# The paper's figures of a label set.
FIGURES: Final = ("precision", "recall", "f_score", "drank", "h_score")
TOP_K: Final = 5
# Diversities above 0. At 0 every selector returns plain nearest neighbours.
_DIALS: Final = (0.05, 0.2, 0.5)
_THRESHOLDS: Final = (None, 0.1, 0.3)
_GRIDS: Final[dict[str, dict[str, Any]]] = {
    EVERYTHING: {"searches": ("exact",), "limits": ((0, 0),)},
    PAPERS: {"searches": ("tables",), "limits": ((0, 0),)},
    DEFAULT: {"searches": ("auto",), "limits": ((None, None),)},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table: the name, mode, setting and selector of a method."""

    method: str
    mode: Mode
    setting: str
    selector: LabelSelector = "greedy"

    @property
    def name(self) -> str:
        """The case in words."""
        return f"{self.method}, {MODES[self.mode]}, {self.setting}"

    def grid(self, **axes: Any) -> LabelGrid:
        """Return the grid of an evaluation, in which `axes` replace the axes of the case."""
        case_axes = {
            "modes": (self.mode,),
            "selectors": (self.selector,),
            "diversities": (0.0,) if self.selector == "nearest" else _DIALS,
            "thresholds": _THRESHOLDS,
            "top_ks": (TOP_K,),
        }
        return LabelGrid(**(_GRIDS[self.setting] | case_axes | axes))


WITHOUT_HASHING: Final = (
    Case("LEML", "embedding", EVERYTHING, "nearest"),
    Case("MMR", "embedding", EVERYTHING, "mmr"),
    Case("Greedy", "embedding", EVERYTHING),
    Case("nearest", "neighbour_vote", EVERYTHING, "nearest"),
)
# Additional cases for labels with a hierarchy.
BY_HIERARCHY: Final = tuple(Case("Hierarchy", mode, EVERYTHING, "hierarchy") for mode in MODES)


def build_options(family: str, setting: str, dims: int) -> dict[str, Any]:
    """Return the options of a build with one hash family at one setting."""
    options: dict[str, Any] = {"hash_family": FAMILIES[family]}
    if setting != PAPERS:
        return options
    options |= {"n_tables": _TABLES, "n_bits": _BITS}
    if family != "LSH-Div":
        options["n_components"] = components = min(dims, _COMPONENTS_MAX)
        if family == "PCA-Hash":
            # Each projection of PCA-Hash is one component, and there may be fewer than 100
            # components.
            options["n_bits"] = min(_BITS, components)
            options["n_tables"] = max(1, min(_TABLES, components // _BITS))
    return options


@dataclass(frozen=True, slots=True, eq=False)
class LabelRow:
    """The result of a case on one data set, with diversity and threshold chosen by folds.

    `result` has the figures, including those of every document. `candidates` is the number of
    labels or documents that could be scored. `same_as_lsh_div` says that there are as many
    components as dimensions, so that LSH-SDiv and LSH-Div draw hyperplanes from the same
    distribution.
    """

    data: str
    case: Case
    result: EvaluateLabelRow
    candidates: int
    same_as_lsh_div: bool = False

    @property
    def is_hashed(self) -> bool:
        """Whether the search used hashing."""
        return self.result.parameters.search != "exact"

    @property
    def microseconds(self) -> float:
        """The median time of a document."""
        return self.result.microseconds.p50

    def figure(self, name: str) -> Interval | None:
        """Return a figure, or None if it does not apply, for example without a hierarchy."""
        figure = self.result.metrics[name]
        return None if isnan(figure.value) else figure
