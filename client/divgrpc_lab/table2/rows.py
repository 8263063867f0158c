"""What Table 2 asks, as grids for an evaluation of labels, and the rows that come back.

A setting says which labels, or in the mode `neighbour_vote` which documents, may be chosen from:

everything      all, scored exactly: the paper's LEML and MMR
the paper's     tables of 100 projections in all, 200 components at most, no limits: Algorithm 1
default         what Build and predict_labels take where nobody says; `auto` may come to an exact
                search where there is little to hash
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from divgrpc.metrics import Values
from divgrpc.types import EvaluateLabelRow, HashFamily, Interval, LabelSelector, Mode, Search

EVERYTHING: Final = "everything"
PAPERS: Final = "the paper's"
DEFAULT: Final = "default"

# 100 projections in all: ten tables of ten bits.
N_TABLES, N_BITS, N_COMPONENTS = 10, 10, 200
FAMILIES: Final[dict[str, HashFamily]] = {
    "PCA-Hash": "pca_hash",
    "LSH-Div": "lsh_div",
    "LSH-SDiv": "lsh_sdiv",
}
MODES: Final[dict[Mode, str]] = {"embedding": "embedding", "neighbour_vote": "votes"}
# Of the paper's figures for a label set.
FIGURES: Final = ("precision", "recall", "f_score", "drank", "h_score")

TOP_K: Final = 5
# Above 0: there every selector is plain nearest neighbours.
_DIALS: Final = (0.05, 0.2, 0.5)
_THRESHOLDS: Final = (None, 0.1, 0.3)
_GRIDS: Final[dict[str, dict[str, Any]]] = {
    EVERYTHING: {"searches": ("exact",), "limits": ((0, 0),)},
    PAPERS: {"searches": ("tables",), "limits": ((0, 0),)},
    DEFAULT: {"searches": ("auto",), "limits": ((None, None),)},
}


@dataclass(frozen=True, slots=True)
class Asking:
    """One line of the table: a method's name, its mode, setting and selector."""

    method: str
    mode: Mode
    setting: str
    selector: LabelSelector = "greedy"

    def grid(self) -> dict[str, Any]:
        """Return the axes of an evaluation's grid."""
        dials = (0.0,) if self.selector == "nearest" else _DIALS
        return _GRIDS[self.setting] | {
            "modes": (self.mode,),
            "selectors": (self.selector,),
            "diversities": dials,
            "thresholds": _THRESHOLDS,
            "top_ks": (TOP_K,),
        }

    @property
    def settings(self) -> int:
        """How many settings that makes."""
        return len(_THRESHOLDS) * (1 if self.selector == "nearest" else len(_DIALS))


WITHOUT_HASHING: Final = (
    Asking("LEML", "embedding", EVERYTHING, "nearest"),
    Asking("MMR", "embedding", EVERYTHING, "mmr"),
    Asking("Greedy", "embedding", EVERYTHING),
    Asking("nearest", "neighbour_vote", EVERYTHING, "nearest"),
)
# Where the labels have a hierarchy.
BY_HIERARCHY: Final = tuple(Asking("Hierarchy", mode, EVERYTHING, "hierarchy") for mode in MODES)


def hashing(family: str, setting: str) -> list[Asking]:
    """Return what is asked of an index of one family at one setting."""
    return [Asking(family, mode, setting) for mode in MODES]


def built_as(family: str, setting: str, dims: int) -> dict[str, Any]:
    """Return what a build of an index of one family is told at one setting."""
    options: dict[str, Any] = {"hash_family": FAMILIES[family]}
    if setting != PAPERS:
        return options
    options |= {"n_tables": N_TABLES, "n_bits": N_BITS}
    if family != "LSH-Div":
        options["n_components"] = components = min(dims, N_COMPONENTS)
        if family == "PCA-Hash":
            # A component is one projection, and there may be fewer than a hundred.
            options["n_bits"] = min(N_BITS, components)
            options["n_tables"] = max(1, min(N_TABLES, components // N_BITS))
    return options


@dataclass(frozen=True, slots=True, eq=False)
class LabelRow:
    """A method in a mode at a setting, on one data set; dial and threshold chosen by folds.

    `dial` and `threshold` are those best for all documents, `search` what it came to. `figures`
    have their 95 % intervals over documents, NaN where there is no hierarchy; `precision_at` are
    P@1 to P@`TOP_K`. `scored` is how many of `among` labels, or documents, were scored exactly, the
    mean. `same_as_lsh_div`: there are as many components as dimensions, so hyperplanes are drawn as
    those of LSH-Div are. `microseconds` is the median over documents. `values` are by document.
    """

    data: str
    asking: Asking
    search: Search
    dial: float
    threshold: float | None
    documents: int
    empty: int
    figures: dict[str, Interval]
    precision_at: tuple[float, ...]
    h_of_means: float
    microseconds: float
    scored: float
    among: int
    same_as_lsh_div: bool
    values: dict[str, Values]

    @property
    def name(self) -> str:
        """The row within its data set, in words."""
        asking = self.asking
        return f"{asking.method}, {MODES[asking.mode]}, {asking.setting}"

    @property
    def is_hashed(self) -> bool:
        """Whether anything was found by hashing."""
        return self.search != "exact"

    def plain(self) -> dict[str, Any]:
        """Return all but the numbers per document for JSON, each figure under its name."""
        asking = self.asking
        shown: dict[str, Any] = {"method": asking.method, "mode": asking.mode}
        shown["setting"] = asking.setting
        apart = ("asking", "figures", "values")
        shown |= {name: getattr(self, name) for name in self.__slots__ if name not in apart}
        # A figure that does not apply is null as a whole.
        figures = {n: None if np.isnan(item.value) else item for n, item in self.figures.items()}
        return shown | figures


def chosen(
    data: str,
    asking: Asking,
    rows: Sequence[EvaluateLabelRow],
    among: int,
    *,
    same_as_lsh_div: bool = False,
) -> LabelRow:
    """Make a row of what folds chose."""
    (row,) = (item for item in rows if item.by_fold)
    used = row.parameters
    return LabelRow(
        data=data,
        asking=asking,
        search=used.search,
        dial=used.diversity,
        threshold=used.threshold,
        documents=row.documents,
        empty=row.empty,
        figures={name: row.metrics[name] for name in FIGURES},
        precision_at=tuple(item.value for item in row.precision_at),
        h_of_means=row.h_of_means,
        microseconds=row.microseconds.p50,
        scored=row.scored,
        among=among,
        same_as_lsh_div=same_as_lsh_div,
        values={name: row.values[name] for name in FIGURES},
    )
