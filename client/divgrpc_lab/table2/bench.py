"""Measures Table 2 on a data set without a server, one document at a time on one thread.

The first build trains a label model and chooses its parameters on held-out rows. All other builds
get these parameters and train the same model. Each family is built for each number of bits and
tables and each hash seed, and once with default options. A job measures one index. It depends only
on the job that chooses these parameters, so jobs can run in several processes; see
`divgrpc_lab.work`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc import Index
from divgrpc.evaluation.grid import LabelGrid
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.metrics import Values
from divgrpc.types import Mode
from divgrpc_lab.data.documents import Split
from divgrpc_lab.table2.methods import (
    ALL_ITEMS,
    AT_FIVE,
    BY_HIERARCHY,
    DEFAULT,
    FAMILIES,
    HOME,
    HOME_BY_FOLDS,
    MANY,
    MODES,
    PAPERS,
    TOP_K,
    TUNED_PROBES,
    WITHOUT_HASHING,
    Answer,
    Case,
    LabelRow,
    Shape,
    build_options,
    choose,
    keeps_all_components,
    tables_of,
)
from divgrpc_lab.work import Job

EPSILONS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
# Folds choose one of these epsilons, as for Table 1, or no limit.
FOLD_EPSILONS: Final = (0.5, 1.0)
# Diversity of the curves against epsilon. It is fixed so that only epsilon varies.
EPSILON_DIAL: Final = 0.3
# Figures of the curves: the paper's P, D and h, with P of five labels.
CURVES: Final = (AT_FIVE, "drank", "h_score")
_PCA: Final = "PCA-Hash"
_LABEL_MODEL: Final = "leml"
_MODEL: Final = ("rank", "regularisation", "iterations")
# The least hash_limit that an epsilon gives: a list needs so many labels or documents.
_LIMIT_MIN: Final = max(TOP_K, LabelGrid().neighbours)


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work of a run.

    Each set has at most `documents` test documents. Methods with hashing are repeated with `seeds`
    hash seeds. `shapes` are the numbers of bits and tables of the literal mode (`table2.methods`).
    The times at the paper's size are measured in `rounds`.
    """

    documents: int = 250
    seeds: int = 10
    shapes: tuple[Shape, ...] = (Shape(5, 20), PAPERS, Shape(20, 5))
    rounds: int = 5

    def described(self) -> dict[str, str]:
        """Return the facts about the plan for a report."""
        return {"documents of each set": f"{self.documents} at most", "hash seeds": f"{self.seeds}"}


def facts(plan: Plan) -> tuple[object, ...]:
    """Return all that the results of jobs depend on, except the data and names of the jobs.

    If a dial, a limit or a build option is edited, the facts change, so `Work` does not reuse older
    results.
    """
    with_hashing = product(FAMILIES, MODES, (HOME, TUNED_PROBES, DEFAULT))
    cases = [*WITHOUT_HASHING, *BY_HIERARCHY, *(Case(*parts) for parts in with_hashing)]
    shapes = (None, *plan.shapes)
    return (
        plan.documents,
        [(case, case.grid()) for case in cases],
        [build_options(family, shape, 0, MANY) for family, shape in product(FAMILIES, shapes)],
        (_LABEL_MODEL, _MODEL),
        [(epsilon, _epsilon_grid("embedding", MANY, epsilon)) for epsilon in EPSILONS],
        [(epsilon, _limit(MANY, epsilon)) for epsilon in FOLD_EPSILONS],
    )


class AtEpsilon(NamedTuple):
    """The figures of a method at the hash_limit of one epsilon, (seeds, nq) by name.

    `epsilon` is None if all labels were scored.
    """

    data: str
    method: str
    mode: Mode
    epsilon: float | None
    hash_limit: int
    values: Mapping[str, Values]


class LabelBench:
    """One data set and some of its test documents, drawn with a fixed seed.

    `model` is the first job, and `jobs` are the measurements by name. The other methods turn the
    results of jobs into rows. `described` has the facts about the data and the documents for a
    report.
    """

    def __init__(self, split: Split, plan: Plan) -> None:
        self._split, self._plan = split.with_features(), plan
        self.name = split.name
        count = self._split.test_documents.shape[0]
        rows = np.sort(np.random.default_rng(0).permutation(count)[: plan.documents])
        self._documents, self._truth = self._split.test_documents[rows], self._split.truth[rows]
        document_count = f"{len(rows):,} of the documents to test with"
        self.described = {"name": self.name, **split.described(), "asked": document_count}
        self.model_name = self._name("model")
        self._has_hierarchy = self._split.hierarchy is not None

    def jobs(self, model: Mapping[str, Any]) -> dict[str, Job]:
        """Return all measurements; `model` has the parameters of the label model."""
        jobs: dict[str, Job] = {self._name(ALL_ITEMS): partial(self._without_hashing, model)}
        for family in FAMILIES:
            jobs[self._name(family, DEFAULT)] = partial(self._default, model, family)
        for seed, family, shape in product(range(self._plan.seeds), FAMILIES, self._plan.shapes):
            if seed in self._seeds(family):
                job = partial(self._hashed, model, family, seed, shape)
                jobs[self._name(family, seed, shape)] = job
        return jobs

    def model(self) -> dict[str, Any]:
        """Let a build choose the parameters of the label model, and return them."""
        section = self._built({}, {}).engine.manifest.labels
        parameters = None if section is None else section.parameters
        return {name: getattr(parameters, name) for name in _MODEL}

    def rows(self, results: Mapping[str, Any]) -> Iterator[LabelRow]:
        """Yield every row of the table."""
        for number, case in enumerate(self._unhashed_cases()):
            yield self._row(case, [results[self._name(ALL_ITEMS)][number]])
        for family in FAMILIES:
            seeds = self._seeds(family)
            at = [results[self._name(family, seed, PAPERS)] for seed in seeds]
            for mode in MODES:
                parts = {
                    HOME: [_without_limit(result[mode][HOME]) for result in at],
                    HOME_BY_FOLDS: self._folded(results, family, mode),
                    TUNED_PROBES: [result[mode][TUNED_PROBES] for result in at],
                    DEFAULT: [results[self._name(family, DEFAULT)][mode]],
                }
                for setting, case_results in parts.items():
                    yield self._row(Case(family, mode, setting), case_results)

    def curves(self, results: Mapping[str, Any]) -> Iterator[AtEpsilon]:
        """Yield the points of the curves against epsilon."""
        leml = results[self._name(ALL_ITEMS)][0]
        plain = [Answer(*item) for item in leml["answers"] if item[3] is None]
        yield self._point("LEML", "embedding", None, plain)
        for family, mode in product(("LSH-Div", "LSH-SDiv"), MODES):
            names = [self._name(family, seed, PAPERS) for seed in self._seeds(family)]
            for place, epsilon in enumerate(EPSILONS):
                at = [Answer(*results[name][mode]["epsilon"][place]) for name in names]
                yield self._point(family, mode, epsilon, at)

    def _name(self, *parts: object) -> str:
        """Return the name of a job; the checksum in it keeps `Work` from mixing data sets."""
        return ", ".join(map(str, (f"{self.name} ({self._split.sha256[:8]})", *parts)))

    def _seeds(self, family: str) -> range:
        """Return the hash seeds; PCA-Hash has no random draws."""
        return range(1 if family == _PCA else self._plan.seeds)

    def _unhashed_cases(self) -> list[Case]:
        return [*WITHOUT_HASHING, *(BY_HIERARCHY if self._has_hierarchy else ())]

    def _folded(self, results: Mapping[str, Any], family: str, mode: Mode) -> list[Any]:
        """Return the results of the home buckets of all shapes and epsilons, for each seed."""
        results_by_seed = []
        for seed in self._seeds(family):
            names = [self._name(family, seed, shape) for shape in self._plan.shapes]
            parts = [results[name][mode][HOME] for name in names]
            answers = [answer for part in parts for answer in part["answers"]]
            results_by_seed.append(parts[0] | {"answers": answers})
        return results_by_seed

    def _built(self, model: Mapping[str, Any], hashing: Mapping[str, Any]) -> Index:
        split = self._split
        options: dict[str, Any] = {**model, **hashing}
        if self._has_hierarchy:
            options |= {"hierarchy": split.hierarchy, "roots": split.roots}
        # The machine may be busy, and a decomposition on many threads then takes many times longer.
        with threadpool_limits(1):
            return Index.build(
                split.documents, labels=split.labels, label_model=_LABEL_MODEL, **options
            )

    def _without_hashing(self, model: Mapping[str, Any]) -> list[dict[str, Any]]:
        index = self._built(model, {})
        return [self._measured(index, case.mode, case.grid()) for case in self._unhashed_cases()]

    def _default(self, model: Mapping[str, Any], family: str) -> dict[str, Any]:
        options = build_options(family, None, 0, self._split.documents.shape[1])
        index = self._built(model, options)
        return {
            mode: self._measured(index, mode, Case(family, mode, DEFAULT).grid()) for mode in MODES
        }

    def _hashed(
        self, model: Mapping[str, Any], family: str, seed: int, shape: Shape
    ) -> dict[str, Any]:
        options = build_options(family, shape, seed, self._split.documents.shape[1])
        index = self._built(model, options)
        result: dict[str, Any] = {}
        for mode in MODES:
            limits = [0, *(_limit(self._count(index, mode), e) for e in FOLD_EPSILONS)]
            grid = Case(family, mode, HOME).grid(
                n_probes=(tables_of(index, mode),), limits=tuple((limit, 0) for limit in limits)
            )
            result[mode] = {HOME: self._measured(index, mode, grid, str(shape))}
            if shape == PAPERS:
                grid_of_probes = Case(family, mode, TUNED_PROBES).grid()
                result[mode][TUNED_PROBES] = self._measured(index, mode, grid_of_probes, str(shape))
                result[mode]["epsilon"] = [self._at(index, mode, e) for e in EPSILONS]
        return result

    def _measured(
        self, index: Index, mode: Mode, grid: LabelGrid, shape: str = ""
    ) -> dict[str, Any]:
        """Return the answers of a grid, and the facts about the index that a row has."""
        return {
            "answers": self._answers(index, grid, shape),
            "candidates": self._count(index, mode),
            "same": keeps_all_components(index, mode),
        }

    def _answers(self, index: Index, grid: LabelGrid, shape: str = "") -> list[Answer]:
        rows = evaluate_labels(
            index, self._documents, self._truth, grid=grid, folds=0, per_document=True
        )
        return [Answer.of(row, shape) for row in rows]

    def _at(self, index: Index, mode: Mode, epsilon: float) -> Answer:
        grid = _epsilon_grid(mode, self._count(index, mode), epsilon)
        [answer] = self._answers(index, grid)
        return answer

    def _count(self, index: Index, mode: Mode) -> int:
        """Return the number of labels or documents that a mode can score."""
        return self._split.labels.shape[1] if mode == "embedding" else index.rows

    def _row(self, case: Case, results: list[Any]) -> LabelRow:
        """Return the row of a case; `results` has the result of `_measured` for each seed."""
        goal = "h_score" if self._has_hierarchy else "f_score"
        candidates = results[0]["candidates"]
        choices = [
            choose([Answer(*item) for item in result["answers"]], candidates, goal)
            for result in results
        ]
        values = {name: np.stack([v[name] for _, v in choices]) for name in choices[0][1]}
        best = tuple(answer for answer, _ in choices)
        is_same = case.method == "LSH-SDiv" and results[0]["same"]
        return LabelRow(self.name, case, values, best, candidates, is_same)

    def _point(
        self, method: str, mode: Mode, epsilon: float | None, answers: list[Answer]
    ) -> AtEpsilon:
        values = {name: np.stack([answer.array(name) for answer in answers]) for name in CURVES}
        return AtEpsilon(self.name, method, mode, epsilon, answers[0].hash_limit, values)


def _epsilon_grid(mode: Mode, count: int, epsilon: float) -> LabelGrid:
    """Return a grid for `tables` with the hash_limit that an epsilon gives for `count` rows.

    There is no threshold, and the diversity is fixed.
    """
    return Case("LSH-SDiv", mode, TUNED_PROBES).grid(
        limits=((_limit(count, epsilon), 0),), diversities=(EPSILON_DIAL,), thresholds=(None,)
    )


def _limit(count: int, epsilon: float) -> int:
    """Return the paper's number of points to hash among `count`, at least `_LIMIT_MIN`."""
    return max(_LIMIT_MIN, math.ceil(2 * math.pow(count, 1 / (1 + epsilon))))


def _without_limit(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result of `LabelBench._measured` with only the answers without a hash_limit."""
    answers = [answer for answer in result["answers"] if not Answer(*answer).hash_limit]
    return {**result, "answers": answers}
