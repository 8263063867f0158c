"""Times of all methods at the paper's size, on synthetic documents (`data.synthetic`).

In the mode `embedding` the planted model of the paper's rank is used, so nothing is trained, and
the documents are embedded beforehand. In the mode `neighbour_vote` the sparse documents are
indexed. Each method scores all labels or documents, or only the labels or documents that hashing
finds. Documents are processed one at a time on one thread.

Every round measures all methods, with another hash seed. The speed of a machine drifts by some ten
percent within minutes. Rounds are minutes apart, so tests that count the variance between rounds
count this drift too.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from divgrpc import Index
from divgrpc.evaluation.label_running import evaluate_labels
from divgrpc.metrics import Values
from divgrpc.platforms import thread_seconds
from divgrpc.types import FloatArray, Mode
from divgrpc_lab.data.synthetic import LabelledDocuments, Mixture, labelled_documents
from divgrpc_lab.table2.methods import (
    ALL_ITEMS,
    DEFAULT,
    FAMILIES,
    HOME,
    MANY,
    MODES,
    PAPERS,
    TOP_K,
    WITHOUT_HASHING,
    Case,
    build_options,
    keeps_all_components,
    tables_of,
)
from divgrpc_lab.work import Job

# Name of the setting of an exact search that scores rows in descending order of norm and stops when
# no further row can be better.
ENDS_EARLY: Final = "exact, ends early"
# Axes of the grids of all cases: one dial and no threshold.
_AXES: Final[dict[str, Any]] = {"thresholds": (None,), "diversities": (0.3,)}
# Number of documents for exhaustive methods, which are slow.
_SLOW_DOCUMENTS: Final = 20


class LabelTime(NamedTuple):
    """Times (rounds, nq) of each document in microseconds, P@5, and the share of candidates scored.

    P@5 and the share are means over the rounds. `candidates` is the number of labels that could be
    scored (documents in the mode `neighbour_vote`). `same_as_lsh_div` is as in `LabelRow`.
    """

    method: str
    mode: Mode
    setting: str
    candidates: int
    microseconds: Values
    precision: float
    scored: float
    same_as_lsh_div: bool = False

    @property
    def documents(self) -> int:
        """The number of test documents."""
        return int(self.microseconds.shape[1])

    @property
    def median(self) -> float:
        """The median over rounds of the median time of a document, in microseconds."""
        return float(np.median(np.median(self.microseconds, axis=1)))


class AtSize:
    """The times on a synthetic set of `size`: documents, features, labels and test documents.

    The planted model has this `rank`. All methods are measured in each of the `rounds`. Only one
    index is in memory at a time. Building an index of all documents takes up to a minute.
    """

    def __init__(self, size: tuple[int, int, int, int], rank: int, rounds: int) -> None:
        self._size, self._rank, self._rounds = size, rank, rounds

    def jobs(self) -> dict[str, Job]:
        """Return a job for each index and round, whose results are lists of `LabelTime`."""
        jobs: dict[str, Job] = {}
        for seed in range(self._rounds):
            jobs[f"times, round {seed}, every label"] = self._products
            for cases in _indexes():
                jobs[f"times, round {seed}, {cases[-1].name}"] = partial(self._times, cases, seed)
        return jobs

    def facts(self) -> tuple[object, ...]:
        """Return all that the results of jobs depend on; see `divgrpc_lab.work`."""
        cases = [(case, case.grid(**_AXES)) for cases in _indexes() for case in cases]
        shapes = product(FAMILIES, (PAPERS, None))
        builds = [build_options(family, shape, 0, MANY) for family, shape in shapes]
        return self._size, self._rank, Mixture(), cases, builds, _SLOW_DOCUMENTS

    @cached_property
    def _data(self) -> tuple[LabelledDocuments, FloatArray, FloatArray]:
        """The set, its embedded test documents (nq, r), and its label factors (L, r)."""
        documents = labelled_documents(*self._size)
        factors, feature_map = documents.planted(self._rank)
        return documents, documents.test_documents @ feature_map, factors

    def _products(self) -> list[LabelTime]:
        return [_every_label(*self._data)]

    def _times(self, cases: tuple[Case, ...], seed: int) -> list[LabelTime]:
        split, embedded, factors = self._data
        rows, tests, options = split.documents, split.test_documents, {"labels": split.labels}
        candidates, last = rows.shape[0], cases[-1]
        if last.mode == "embedding":
            rows = tests = embedded
            model = (factors, np.eye(factors.shape[1], dtype=np.float32))
            options, candidates = {"label_model": model}, len(factors)
        shape = PAPERS if last.setting == HOME else None
        family = build_options(last.method, shape, seed, rows.shape[1])
        with threadpool_limits(1):
            index = Index.build(rows, **options, **family)
        return [_timed(index, case, tests, split.truth, candidates) for case in cases]


def _indexes() -> Iterator[tuple[Case, ...]]:
    """Yield the cases of each index; the last case gives the options of the build."""
    for mode, family, setting in product(MODES, FAMILIES, (HOME, DEFAULT)):
        # The exhaustive methods need any index, so the first one serves them.
        is_first = (family, setting) == (next(iter(FAMILIES)), HOME)
        cases = [case for case in WITHOUT_HASHING if case.mode == mode and is_first]
        yield *cases, Case(family, mode, setting)


def label_times(results: Mapping[str, Any]) -> list[LabelTime]:
    """Return the times of the results of all jobs, with the rounds of a case together."""
    rounds: dict[tuple[str, Mode, str], list[LabelTime]] = defaultdict(list)
    for items in results.values():
        for item in items:
            time = LabelTime(*item)
            rounds[time.method, time.mode, time.setting].append(time)
    return [
        times[0]._replace(
            microseconds=np.concatenate([np.atleast_2d(time.microseconds) for time in times]),
            precision=float(np.mean([time.precision for time in times])),
            scored=float(np.mean([time.scored for time in times])),
        )
        for times in rounds.values()
    ]


def _every_label(split: LabelledDocuments, embedded: FloatArray, factors: FloatArray) -> LabelTime:
    """Time LEML: the products of a document with all labels, and the selection of the best."""
    seconds, hits, count = [], 0.0, len(embedded)
    with threadpool_limits(1):
        for row in range(count):
            begin = thread_seconds()
            products = factors @ embedded[row]
            best = np.argpartition(products, -TOP_K)[-TOP_K:]
            seconds.append(thread_seconds() - begin)
            hits += float(split.truth[[row]][:, best].sum()) / TOP_K
    times = 1e6 * np.array(seconds)
    return LabelTime("LEML", "embedding", ALL_ITEMS, len(factors), times, hits / count, 1.0)


def _timed(index: Index, case: Case, tests: Any, truth: Any, candidates: int) -> LabelTime:
    slow = case.setting == ALL_ITEMS and case.selector != "nearest"
    rows = slice(_SLOW_DOCUMENTS if slow else None)
    probes = {"n_probes": (tables_of(index, case.mode),)} if case.setting == HOME else {}
    grid = case.grid(**_AXES, **probes)
    [row] = evaluate_labels(index, tests[rows], truth[rows], grid=grid, folds=0, per_document=True)
    setting = ENDS_EARLY if case.method == "LEML" else case.setting
    return LabelTime(
        case.method,
        case.mode,
        setting,
        candidates,
        row.values["microseconds"],
        row.precision_at[TOP_K - 1].value,
        row.scored / candidates,
        case.method == "LSH-SDiv" and keeps_all_components(index, case.mode),
    )
