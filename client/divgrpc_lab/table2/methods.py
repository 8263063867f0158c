"""The methods of Table 2 as grids for an evaluation of labels, and the rows of their results.

A setting defines which labels are scored, or which documents in the mode `neighbour_vote`. The
settings HOME and HOME_BY_FOLDS are the paper's literal mode: independent Gaussian hyperplanes, 100
projections in all, at most 200 components, and one bucket of each table. This home bucket has the
query's own key.

ALL_ITEMS       all of them, by exact search; the paper's LEML and MMR
HOME            ten tables of ten bits, home buckets only, no limits
HOME_BY_FOLDS   100 projections, home buckets only; folds choose the number of bits and epsilon,
                or no limit
TUNED_PROBES    ten tables of ten bits, with as many buckets as Build found necessary
DEFAULT         the defaults of Build and predict_labels; `auto` may be an exact search if there is
                little to hash
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import numpy as np

from divgrpc import Index
from divgrpc.evaluation.folds import choose_by_folds, deal_folds
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.metrics import Values
from divgrpc.types import EvaluateLabelRow, HashFamily, Interval, LabelSelector, Mode
from divgrpc_lab.draws import mean_over_draws

ALL_ITEMS: Final = "everything"
HOME: Final = "10 x 10, home buckets"
HOME_BY_FOLDS: Final = "by folds, home buckets"
TUNED_PROBES: Final = "10 x 10, tuned probes"
DEFAULT: Final = "default"

FAMILIES: Final[dict[str, HashFamily]] = {
    "PCA-Hash": "pca_hash",
    "LSH-Div": "lsh_div",
    "LSH-SDiv": "lsh_sdiv",
}
MODES: Final[dict[Mode, str]] = {"embedding": "embedding", "neighbour_vote": "votes"}
# The paper's figures of a label set.
FIGURES: Final = ("precision", "recall", "f_score", "drank", "h_score")
# P@5 without a threshold, so that all rows have the same number of labels.
AT_FIVE: Final = "precision_at_5"
TOP_K: Final = 5
_COLUMNS: Final = (*FIGURES, "found", "scored", "microseconds")
# Diversities above 0. At 0 every selector returns plain nearest neighbours.
_DIALS: Final = (0.05, 0.3)
_THRESHOLDS: Final = (None, 0.1, 0.3)
_COMPONENTS_MAX: Final = 200
# A number of dimensions or rows that is above every limit, for the facts of `Work`.
MANY: Final = 10**6
_GRIDS: Final[dict[str, dict[str, Any]]] = {
    ALL_ITEMS: {"searches": ("exact",), "limits": ((0, 0),)},
    HOME: {"searches": ("tables",), "limits": ((0, 0),)},
    TUNED_PROBES: {"searches": ("tables",), "limits": ((0, 0),)},
    DEFAULT: {"searches": ("auto",), "limits": ((None, None),)},
}


class Shape(NamedTuple):
    """The number of bits of a key, and the number of tables."""

    n_bits: int
    n_tables: int

    def __str__(self) -> str:
        return f"{self.n_bits} x {self.n_tables}"


# The paper has 100 random projections. Its text does not say how many bits a key has.
PAPERS: Final = Shape(10, 10)


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
    Case("LEML", "embedding", ALL_ITEMS, "nearest"),
    Case("MMR", "embedding", ALL_ITEMS, "mmr"),
    Case("Greedy", "embedding", ALL_ITEMS),
    Case("nearest", "neighbour_vote", ALL_ITEMS, "nearest"),
)
# Additional cases for labels with a hierarchy.
BY_HIERARCHY: Final = tuple(Case("Hierarchy", mode, ALL_ITEMS, "hierarchy") for mode in MODES)


def build_options(family: str, shape: Shape | None, seed: int, dims: int) -> dict[str, Any]:
    """Return the options of a build; without a shape, the defaults of Build with one family."""
    options: dict[str, Any] = {"hash_family": FAMILIES[family], "seed": seed}
    if shape is None:
        return options
    options |= {"hyperplanes": "gaussian", **shape._asdict()}
    if family != "LSH-Div":
        options["n_components"] = components = min(dims, _COMPONENTS_MAX)
        if family == "PCA-Hash":
            # Each projection of PCA-Hash is one component, and there may be fewer than 100
            # components.
            options["n_bits"] = min(shape.n_bits, components)
            options["n_tables"] = max(1, min(shape.n_tables, components // shape.n_bits))
    return options


class Answer(NamedTuple):
    """The figures of every document at one setting, and the setting in words and numbers.

    values: lists of nq numbers by name, which fit JSON: the paper's figures, the number of labels
        `found`, the number `scored` exactly, and `microseconds`.
    """

    shape: str
    search: str
    diversity: float
    threshold: float | None
    hash_limit: int
    values: Mapping[str, list[float]]

    @classmethod
    def of(cls, row: EvaluateLabelRow, shape: str = "") -> Self:
        """Return the answer of a row that has the values of every document."""
        p = row.parameters
        values = {name: row.values[name].tolist() for name in _COLUMNS}
        return cls(shape, p.search, p.diversity, p.threshold, p.hash_limit, values)

    def array(self, name: str) -> Values:
        """Return the values (nq,) of a figure; P@5 counts missing labels as wrong."""
        if name == AT_FIVE:
            return self.array("precision") * self.array("found") / TOP_K
        return np.array(self.values[name], np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class LabelRow:
    """The figures of a case on one data set, with all parameters chosen by folds for each seed.

    values: (seeds, nq) by name: the paper's figures, `precision_at_5`, the share `scored`, and
        `microseconds`. For P@5, parameters are chosen only among those without a threshold.
    answers: the answer of the best setting of each seed on all documents.
    candidates: the number of labels or documents that could be scored.
    same_as_lsh_div: whether there are as many components as dimensions, so that LSH-SDiv and
        LSH-Div draw hyperplanes from the same distribution.
    """

    data: str
    case: Case
    values: Mapping[str, Values]
    answers: tuple[Answer, ...]
    candidates: int
    same_as_lsh_div: bool = False

    @property
    def microseconds(self) -> float:
        """The median time of a document."""
        return float(np.median(self.values["microseconds"]))

    @property
    def scored(self) -> float:
        """The mean share of labels or documents that was scored, 0 to 1."""
        return float(self.values["scored"].mean())

    def figure(self, name: str) -> Interval | None:
        """Return a mean over documents and seeds, or None if it does not apply."""
        values = self.values[name]
        return None if np.isnan(values).all() else mean_over_draws(values).size

    def spread(self, name: str) -> tuple[float, float] | None:
        """Return the least and the greatest mean of a seed, or None if it does not apply."""
        means = self.values[name].mean(axis=1)
        return None if np.isnan(means).any() else (float(means.min()), float(means.max()))


def choose(answers: list[Answer], candidates: int, goal: str) -> tuple[Answer, dict[str, Values]]:
    """Choose a setting for each fold of the documents by the mean of `goal` on the other folds.

    Returns the best setting on all documents, and the values (nq,) of `LabelRow.values`.
    """
    goals = np.array([answer.array(goal) for answer in answers])
    folds = deal_folds(np.arange(goals.shape[1]))
    choice = choose_by_folds(goals, folds)
    plain = [number for number, answer in enumerate(answers) if answer.threshold is None]
    of_five = choose_by_folds(goals[plain], folds)

    def reported(name: str) -> Values:
        return choice.reported(np.array([answer.array(name) for answer in answers]), folds)

    values = {name: reported(name) for name in (*FIGURES, "microseconds")}
    at_five = np.array([answers[number].array(AT_FIVE) for number in plain])
    values |= {AT_FIVE: of_five.reported(at_five, folds), "scored": reported("scored") / candidates}
    return answers[choice.overall], values


def tables_of(index: Index, mode: Mode) -> int:
    """Return the number of tables that a mode searches, which is its number of home buckets."""
    factors = _factors(index)
    manifest = factors if factors is not None and mode == "embedding" else index.engine.manifest
    return manifest.parameters.n_tables or 1


def keeps_all_components(index: Index, mode: Mode) -> bool:
    """Return whether a mode hashes as many components as there are dimensions.

    LSH-SDiv then draws its hyperplanes from the same distribution as LSH-Div.
    """
    factors = _factors(index)
    if factors is None or mode != "embedding":
        return False
    return bool((factors.parameters.n_components or 0) >= factors.dims)


def _factors(index: Index) -> Any:  # a manifest, which is not public
    """Return the manifest of the index of the label factors, or None without label factors."""
    section = index.engine.manifest.labels
    return None if section is None else section.index
