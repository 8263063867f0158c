"""Points with categories and sub-topics, and the pools that hyperplane queries are learned from.

Counts of words are weighted as text search does it: a count becomes its root (images) or 1 plus its
logarithm (text), times log((1 + n) / (1 + df)) + 1 over the indexed points. Rows have unit length.

The paper's queries are hyperplanes that separate one category from the rest. Such a query is a
learned direction and is near no point. It is learned from a pool that holds no indexed point.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import sklearn
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize

from divgrpc.metrics import PointCategories
from divgrpc.types import FloatArray, IntArray

# An array, or any sparse matrix of scipy's, which has no types.
Rows: TypeAlias = Any

# LIBLINEAR's own default of 1,000 is not always enough for it to settle.
_ITERATIONS = 10_000


class HyperplaneQueries(NamedTuple):
    """Queries (nq, dims) float32, unit rows, and the category (nq,) that each asks for."""

    queries: FloatArray
    categories: npt.NDArray[np.int64]

    def first_places(self, per_category: int) -> npt.NDArray[np.int64]:
        """Return the places of the first queries of each category."""
        places = (np.flatnonzero(self.categories == item) for item in np.unique(self.categories))
        return np.concatenate([rows[:per_category] for rows in places])

    def first(self, per_category: int) -> "HyperplaneQueries":
        """Return the first queries of each category."""
        places = self.first_places(per_category)
        return HyperplaneQueries(self.queries[places], self.categories[places])


def hyperplane_queries(
    pool: Rows,
    categories: npt.NDArray[np.int64],
    per_category: int,
    seed: int,
    *,
    targets: npt.ArrayLike | None = None,
    penalty: float = 1.0,
    balanced: bool = False,
) -> HyperplaneQueries:
    """Train one query after another, each on a random half of `pool` (rows, dims).

    A query is the unit normal of a linear support vector machine, one category against the rest;
    its bias is dropped, since it changes no order. `targets` names the categories to train for, all
    if None; `penalty` is LIBLINEAR's C; `balanced` lets the category weigh as much as the rest.
    """
    from sklearn.preprocessing import normalize
    from sklearn.svm import LinearSVC

    random = np.random.default_rng(seed)
    unit = normalize(pool)
    labels = np.repeat(np.unique(categories if targets is None else targets), per_category)
    queries = np.empty((len(labels), unit.shape[1]), np.float32)
    machine = LinearSVC(
        C=penalty,
        class_weight="balanced" if balanced else None,
        dual="auto",
        max_iter=_ITERATIONS,
        random_state=0,
    )
    for query, category in zip(queries, labels, strict=True):
        half = random.permutation(unit.shape[0])[: unit.shape[0] // 2]
        normal = machine.fit(unit[half], categories[half] == category).coef_[0]
        query[:] = normal / np.linalg.norm(normal)
    return HyperplaneQueries(queries, labels)


# A dense (n, d) float32 array, or scipy's csr_array of float32.
Points: TypeAlias = Any
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

DATA_VARIABLE: Final = "DIVGRPC_DATA"
# The digits stand in for the data sets without a folder.
DIGITS: Final = "digits of scikit-learn (DIVGRPC_DATA is not set)"


@dataclass(frozen=True, eq=False)
class Topics:
    """A data set: unit `points` to index with their `labels`, and a `pool` to learn queries from.

    `penalty` is the C of the support vector machines, chosen for plain search.
    """

    name: str
    sha256: str
    points: Points
    labels: PointCategories
    pool: Points
    pool_categories: IntArray
    penalty: float = 1.0

    @property
    def query_categories(self) -> IntArray:
        """The categories with two or more sub-topics; in others diversity means nothing."""
        categories, subtopics = self.labels.categories, self.labels.subtopics
        return np.array(
            [c for c in np.unique(categories) if len(np.unique(subtopics[categories == c])) > 1]
        )

    def described(self) -> dict[str, str]:
        """Return what a report says of the data."""
        rows, dims = self.points.shape
        kind = f"sparse, {self.points.nnz:,} values" if sparse.issparse(self.points) else "dense"
        return {
            "data": f"{self.name}, {rows:,} x {dims:,}, {kind}",
            "data sha256": self.sha256,
            "query pool": f"{self.pool.shape[0]:,} rows, C = {self.penalty:g}",
        }

    def queries(self, per_category: int, seed: int = 0) -> HyperplaneQueries:
        """Learn hyperplane queries, or read those that an earlier run learned.

        Learning takes minutes, so the queries are stored in the folder for temporary files.
        """
        learning = (self.sha256, self.pool.shape, self.penalty, per_category, seed)
        versions = (sklearn.__version__, np.__version__)
        key = hashlib.sha256(repr((*learning, *versions)).encode()).hexdigest()
        folder = Path(tempfile.gettempdir()) / "divgrpc-benchmarks"
        path = folder / f"hyperplanes-{key[:16]}.npz"
        if not path.exists():
            learned = hyperplane_queries(
                self.pool,
                self.pool_categories,
                per_category,
                seed,
                targets=self.query_categories,
                penalty=self.penalty,
                balanced=True,
            )
            folder.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".npz", delete=False) as file:
                np.savez(file, **learned._asdict())
            Path(file.name).replace(path)
        with np.load(path, allow_pickle=False) as arrays:
            return HyperplaneQueries(**arrays)


def sha256(path: Path) -> str:
    """Return the checksum of a data file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(names: Sequence[str], folder: str | None = None) -> list[Topics]:
    """Read named sets from `folder`, else that in DIVGRPC_DATA; else scikit-learn's digits."""
    folder = folder or os.environ.get(DATA_VARIABLE)
    return [SETS[name](Path(folder) / f"{name}.npz") for name in names] if folder else [_digits()]


def weighted(counts: Points, indexed: Points) -> Points:
    """Weight the words of `counts` by their rarity in `indexed`, both csr_array, in unit rows."""
    rows, columns = indexed.shape
    frequencies = np.bincount(indexed.indices, minlength=columns)
    rarity = (np.log((1 + rows) / (1 + frequencies)) + 1).astype(np.float32)
    values = counts.data * rarity[counts.indices]
    return normalize(sparse.csr_array((values, counts.indices, counts.indptr), counts.shape))


def _digits() -> Topics:
    """Return scanned digits: even or odd is the category, the digit the sub-topic."""
    images = load_digits()
    rows = np.random.default_rng(0).permutation(len(images.data))
    subtopics = images.target[rows].astype(np.int64)
    indexed = np.arange(len(rows)) >= len(rows) // 4
    points, labels = normalize(images.data[rows].astype(np.float32)), (subtopics % 2, subtopics)
    return _split(DIGITS, "shipped with scikit-learn", points, labels, indexed)


def _dense256(path: Path) -> Topics:
    with np.load(path, allow_pickle=False) as file:
        points, labels = normalize(file["x"].astype(np.float32)), _labels(file)
        return _split(path.stem, sha256(path), points, labels, file["split"] == 0, penalty=0.1)


def _visual_words(path: Path) -> Topics:
    with np.load(path, allow_pickle=False) as file:
        counts, indexed = _counts(file, ""), file["split"] == 0
        counts.data = np.sqrt(counts.data)
        points = weighted(counts, counts[indexed])
        return _split(path.stem, sha256(path), points, _labels(file), indexed)


def _newsgroups(path: Path) -> Topics:
    with np.load(path, allow_pickle=False) as file:
        training, test = (_counts(file, f"x_{part}_") for part in ("train", "test"))
        for counts in (training, test):
            counts.data = 1 + np.log(counts.data)
        return Topics(
            name=path.stem,
            sha256=sha256(path),
            points=weighted(training, training),
            labels=PointCategories.of(*_labels(file, "_train")),
            pool=weighted(test, training),
            pool_categories=_labels(file, "_test")[0],
        )


SETS: Final[Mapping[str, Callable[[Path], Topics]]] = {
    "cifar100_dense256": _dense256,
    "cifar100_7x5_bovw": _visual_words,
    "newsgroups20": _newsgroups,
}


def _split(
    name: str,
    checksum: str,
    rows: Points,
    labels: Sequence[IntArray],
    indexed: npt.NDArray[np.bool_],
    *,
    penalty: float = 1.0,
) -> Topics:
    """Make a set of `rows`, whose `labels` are categories and sub-topics (n,) each."""
    known = PointCategories.of(*(column[indexed] for column in labels))
    pool = rows[~indexed], labels[0][~indexed]
    return Topics(name, checksum, rows[indexed], known, *pool, penalty)


def _labels(file: Arrays, suffix: str = "") -> tuple[IntArray, ...]:
    names = (f"category{suffix}", f"subtopic{suffix}")
    return tuple(file[name].astype(np.int64) for name in names if name in file)


def _counts(file: Arrays, prefix: str) -> Points:
    # LIBLINEAR takes 32-bit indices and offsets alone.
    indices, indptr = (file[f"{prefix}{name}"].astype(np.int32) for name in ("indices", "indptr"))
    values = file[f"{prefix}data"].astype(np.float32)
    shape = (len(indptr) - 1, int(file["n_features"]))
    return sparse.csr_array((values, indices, indptr), shape)
