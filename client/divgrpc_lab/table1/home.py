"""The paper's literal mode: a study that builds an index for each number of bits and tables.

Hyperplanes are independent Gaussian draws. A query looks up only its own bucket in each table (the
home bucket). The selector sees every retrieved point, unless an epsilon limits their number. Folds
choose bits, tables, epsilon and the diversity with the best h, even for nearest neighbours, because
the paper tunes all parameters for h.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.folds import FOLDS, choose_by_folds, deal_folds
from divgrpc.parameters import BuildParameters
from divgrpc.types import HashFamily, IntArray
from divgrpc_client.client import Client
from divgrpc_lab.data.topics import HyperplaneQueries
from divgrpc_lab.table1.methods import (
    FAMILIES,
    FIGURES,
    HOME,
    HOME_BY_FOLDS,
    HOME_METHODS,
    TIME,
    Answer,
    Case,
    Row,
    rows_of,
)
from divgrpc_lab.table1.paper import KS

PCA: Final = "PCA-Hash"
ALL_FAMILIES: Final[dict[str, HashFamily]] = {**FAMILIES, PCA: "pca_hash"}
# The numbers of bits of a key and of tables that are tried.
BITS: Final = (6, 8, 10, 12)
TABLES: Final = (5, 10, 20)
# The paper's rule for the number of hashed points, tried beside no limit at all.
EPSILONS: Final = (0.5, 1.0)
# Maximum number of components that Build accepts. PCA-Hash uses one component for each bit.
_COMPONENTS_MAX: Final = 200
CASES: Final = tuple(Case(method, HOME) for method in HOME_METHODS)


class Code(NamedTuple):
    """The number of bits of a key, and the number of tables."""

    n_bits: int
    n_tables: int

    def __str__(self) -> str:
        return f"{self.n_bits} bits x {self.n_tables} tables"


# The paper has 100 random projections. Its text does not say how many bits a key has.
PAPERS: Final = Code(10, 10)


class Coded(NamedTuple):
    """The row of greedy at k = 10 with the home buckets of one code."""

    n_bits: int
    n_tables: int
    row: Row


class Place(NamedTuple):
    """One index of the study: a hash family, a hash seed and a code."""

    family: str
    seed: int
    code: Code

    def __str__(self) -> str:
        return f"{self.family}, seed {self.seed}, {self.code}"

    @property
    def options(self) -> dict[str, Any]:
        """The options of its build; the target recall is low, as queries set the probes."""
        return {
            "target_recall": 0.01,
            "hash_family": ALL_FAMILIES[self.family],
            "hyperplanes": "gaussian",
            "n_bits": self.code.n_bits,
            "n_tables": self.code.n_tables,
            "seed": self.seed,
        }


def codes(bits: Iterable[int], tables: Iterable[int]) -> tuple[Code, ...]:
    """Return the paper's code and all pairs of `bits` and `tables`, in ascending order of cost.

    Raises `InvalidArgumentError` for numbers that Build refuses.
    """
    pairs = {PAPERS, *(Code(*pair) for pair in product(bits, tables))}
    for code in pairs:
        BuildParameters(n_bits=code.n_bits, n_tables=code.n_tables)
    return tuple(sorted(pairs, key=lambda code: (code.n_bits * code.n_tables, code.n_tables)))


def places(codes: Sequence[Code], seeds: int, dims: int) -> list[Place]:
    """Return the indexes to build for points of `dims` dimensions.

    PCA-Hash has one seed, because it draws nothing at random. It has at most one bit per component.
    """
    return [
        Place(family, seed, code)
        for family in ALL_FAMILIES
        for seed in range(1 if family == PCA else seeds)
        for code in codes
        if family != PCA or code.n_bits * code.n_tables <= min(_COMPONENTS_MAX, dims)
    ]


def check_builds(builds: int, most: int) -> None:
    """Raise `InvalidArgumentError` if a study needs more `builds` than `most`."""
    if builds > most:
        text = f"the study of bits and tables needs {builds} builds, and --builds allows {most}"
        raise InvalidArgumentError("builds", text)


def measure(
    client: Client, index: str, place: Place, queries: HyperplaneQueries
) -> list[list[Answer]]:
    """Return the answers of each of `CASES` at every setting, without and with an epsilon.

    PCA-Hash has only the cases up to greedy.
    """
    cases = CASES if place.family != PCA else CASES[: 1 + HOME_METHODS.index("Greedy")]
    answers = []
    for case in cases:
        grid = case.grid("tables") | {"n_probes": [place.code.n_tables]}
        by_epsilon = grid | {"limits": [(None, 0)], "epsilons": EPSILONS}
        rows = [
            row
            for options in (grid, by_epsilon)
            for row in client.evaluate(index, *queries, folds=0, per_query=True, **options)
        ]
        answers.append([Answer.of(row) for row in rows])
    return answers


def rows(data: str, results: dict[Place, list[list[Answer]]], categories: IntArray) -> list[Row]:
    """Return rows with the paper's code and with a chosen code, for each family, method and k.

    `results` has the result of `measure` for every index.
    """
    table_rows = []
    for family, (number, case) in product(FAMILIES, enumerate(CASES)):
        for stage in (HOME, HOME_BY_FOLDS):
            seeds: dict[int, list[tuple[Code, Answer]]] = {}
            for place, answers in results.items():
                if place.family == family and (stage == HOME_BY_FOLDS or place.code == PAPERS):
                    seeds.setdefault(place.seed, []).extend(
                        (place.code, answer)
                        for answer in answers[number]
                        if stage == HOME_BY_FOLDS or not answer.parameters["hash_limit"]
                    )
            at_stage = Case(case.method, stage)
            table_rows += _chosen_rows(data, family, at_stage, list(seeds.values()), categories)
    return table_rows


def coded_rows(
    data: str, results: dict[Place, list[list[Answer]]], categories: IntArray
) -> list[Coded]:
    """Return the rows of greedy at k = 10 for each family and code."""
    number = HOME_METHODS.index("Greedy")
    groups: dict[tuple[str, Code], list[list[tuple[Code, Answer]]]] = {}
    for place, answers in results.items():
        pairs = [(place.code, answer) for answer in answers[number] if answer.k == KS[0]]
        groups.setdefault((place.family, place.code), []).append(pairs)
    return [
        Coded(*code, _chosen_rows(data, family, CASES[number], seeds, categories)[0])
        for (family, code), seeds in groups.items()
    ]


def _chosen_rows(
    data: str,
    family: str,
    case: Case,
    seeds: Sequence[Sequence[tuple[Code, Answer]]],
    categories: IntArray,
) -> list[Row]:
    """Return a row for each k, with the settings that folds choose for each hash seed."""
    table_rows = []
    for k in dict.fromkeys(answer.k for _, answer in seeds[0]):
        choices = [
            _choose([pair for pair in pairs if pair[1].k == k], categories) for pairs in seeds
        ]
        answers = [[answer] for _, answer in choices]
        table_rows += rows_of(data, family, case, answers, categories, str(choices[0][0]))
    return table_rows


def _choose(pairs: Sequence[tuple[Code, Answer]], categories: IntArray) -> tuple[Code, Answer]:
    """Return the best setting's code, and each query's figures at the setting of its fold."""
    h = np.array([answer.values["h_score"] for _, answer in pairs], np.float64)
    folds = deal_folds(categories, min(FOLDS, len(np.unique(categories))))
    choice = choose_by_folds(h, folds)
    values = {
        name: choice.reported(
            np.array([answer.values[name] for _, answer in pairs], np.float64), folds
        )
        for name in (*FIGURES, TIME)
    }
    code, best = pairs[choice.overall]
    return code, best._replace(values=values, microseconds=float(np.median(values[TIME])))
