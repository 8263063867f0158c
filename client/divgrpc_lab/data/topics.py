"""Data sets of points with categories and sub-topics, and hyperplane queries learned from pools.

Word counts are weighted by tf-idf. The term frequency is the square root of a count for images and
1 plus the logarithm of a count for text. The inverse document frequency over the indexed points is
log((1 + n) / (1 + df)) + 1. Rows are scaled to unit length.

The paper's queries are hyperplanes that separate one category from the others. Such a query is a
learned direction and is not close to any point. It is learned from a pool of points that are not
indexed.
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

# An array or any sparse matrix. scipy has no type annotations.
Rows: TypeAlias = Any

# LIBLINEAR does not always converge within its default of 1,000 iterations.
_ITERATIONS = 10_000


class HyperplaneQueries(NamedTuple):
    """Queries (nq, dims) float32 of unit length, and the category (nq,) that each asks for."""

    queries: FloatArray
    categories: npt.NDArray[np.int64]

    def first_places(self, per_category: int) -> npt.NDArray[np.int64]:
        """Return the positions of the first `per_category` queries of each category."""
        places = (np.flatnonzero(self.categories == item) for item in np.unique(self.categories))
        return np.concatenate([rows[:per_category] for rows in places])

    def first(self, per_category: int) -> "HyperplaneQueries":
        """Return the first `per_category` queries of each category."""
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
    is_balanced: bool = False,
) -> HyperplaneQueries:
    """Learn queries, each from a random half of `pool` (rows, dims).

    A query is the unit normal of a linear support vector machine for one category against the rest.
    The machine's bias is dropped, because it does not change the order of points. `targets` has the
    categories to learn queries for; by default all. `penalty` is LIBLINEAR's C. If `is_balanced`,
    the category has the same total weight as the rest.
    """
    from sklearn.preprocessing import normalize
    from sklearn.svm import LinearSVC

    random = np.random.default_rng(seed)
    unit = normalize(pool)
    labels = np.repeat(np.unique(categories if targets is None else targets), per_category)
    queries = np.empty((len(labels), unit.shape[1]), np.float32)
    machine = LinearSVC(
        C=penalty,
        class_weight="balanced" if is_balanced else None,
        dual="auto",
        max_iter=_ITERATIONS,
        random_state=0,
    )
    for query, category in zip(queries, labels, strict=True):
        half = random.permutation(unit.shape[0])[: unit.shape[0] // 2]
        normal = machine.fit(unit[half], categories[half] == category).coef_[0]
        query[:] = normal / np.linalg.norm(normal)
    return HyperplaneQueries(queries, labels)


# A dense float32 array (n, d), or a csr_array of float32.
Points: TypeAlias = Any
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

DATA_VARIABLE: Final = "DIVGRPC_DATA"
# Name of the data set that is used if there is no folder of data sets.
DIGITS: Final = "digits of scikit-learn (DIVGRPC_DATA is not set)"


@dataclass(frozen=True, eq=False)
class Topics:
    """A data set: unit `points` to index, their `labels`, and a `pool` to learn queries from.

    The queries are the normals of support vector machines that are trained on `pool`. `penalty` is
    the C of these machines. It was chosen for the quality of plain nearest neighbours.
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
        """The categories with at least two sub-topics; diversity is meaningless in the others."""
        categories, subtopics = self.labels.categories, self.labels.subtopics
        return np.array(
            [c for c in np.unique(categories) if len(np.unique(subtopics[categories == c])) > 1]
        )

    def described(self) -> dict[str, str]:
        """Return the facts about the data for a report."""
        rows, dims = self.points.shape
        kind = f"sparse, {self.points.nnz:,} values" if sparse.issparse(self.points) else "dense"
        return {
            "data": f"{self.name}, {rows:,} x {dims:,}, {kind}",
            "data sha256": self.sha256,
            "query pool": f"{self.pool.shape[0]:,} rows, C = {self.penalty:g}",
        }

    def queries(self, per_category: int, seed: int = 0) -> HyperplaneQueries:
        """Learn hyperplane queries, or read the queries that an earlier run stored.

        Learning takes minutes, so the queries are stored in the folder for temporary files.
        """
        learning = (self.sha256, self.pool.shape, self.penalty, per_category, seed)
        versions = (sklearn.__version__, np.__version__)
        key = hashlib.sha256(repr((*learning, *versions)).encode()).hexdigest()
        folder = Path(tempfile.gettempdir()) / "divgrpc-benchmarks"
        path = folder / f"hyperplanes-{key[:16]}.npz"
        if not path.exists():
            queries = hyperplane_queries(
                self.pool,
                self.pool_categories,
                per_category,
                seed,
                targets=self.query_categories,
                penalty=self.penalty,
                is_balanced=True,
            )
            folder.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".npz", delete=False) as file:
                np.savez(file, **queries._asdict())
            Path(file.name).replace(path)
        with np.load(path, allow_pickle=False) as arrays:
            return HyperplaneQueries(**arrays)


def sha256(path: Path) -> str:
    """Return the checksum of a data file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(names: Sequence[str], folder: str | None = None) -> list[Topics]:
    """Read the named data sets.

    `folder` is by default the environment variable DIVGRPC_DATA. If that is not set, scikit-learn's
    digits are returned instead.
    """
    folder = folder or os.environ.get(DATA_VARIABLE)
    return [SETS[name](Path(folder) / f"{name}.npz") for name in names] if folder else [_digits()]


def weighted(counts: Points, corpus: Points) -> Points:
    """Multiply term frequencies by inverse document frequencies, and return unit rows.

    `counts` has the term frequencies, and `corpus` the rows that define the document frequencies.
    Both are csr_array.
    """
    rows, columns = corpus.shape
    frequencies = np.bincount(corpus.indices, minlength=columns)
    rarity = (np.log((1 + rows) / (1 + frequencies)) + 1).astype(np.float32)
    values = counts.data * rarity[counts.indices]
    return normalize(sparse.csr_array((values, counts.indices, counts.indptr), counts.shape))


def _digits() -> Topics:
    """Return scikit-learn's digits with parity as category and the digit as sub-topic."""
    images = load_digits()
    rows = np.random.default_rng(0).permutation(len(images.data))
    subtopics = images.target[rows].astype(np.int64)
    is_indexed = np.arange(len(rows)) >= len(rows) // 4
    points, labels = normalize(images.data[rows].astype(np.float32)), (subtopics % 2, subtopics)
    return _split(DIGITS, "shipped with scikit-learn", points, labels, is_indexed)


def _dense256(path: Path) -> Topics:
    with np.load(path, allow_pickle=False) as file:
        points, labels = normalize(file["x"].astype(np.float32)), _labels(file)
        return _split(path.stem, sha256(path), points, labels, file["split"] == 0, penalty=0.1)


def _visual_words(path: Path) -> Topics:
    with np.load(path, allow_pickle=False) as file:
        counts, is_indexed = _counts(file, ""), file["split"] == 0
        counts.data = np.sqrt(counts.data)
        points = weighted(counts, counts[is_indexed])
        return _split(path.stem, sha256(path), points, _labels(file), is_indexed)


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
    is_indexed: npt.NDArray[np.bool_],
    *,
    penalty: float = 1.0,
) -> Topics:
    """Split `rows` into indexed points and a pool, by the flags `is_indexed` (n,).

    `labels` are the categories and the sub-topics, (n,) each.
    """
    categories = PointCategories.of(*(column[is_indexed] for column in labels))
    pool = rows[~is_indexed], labels[0][~is_indexed]
    return Topics(name, checksum, rows[is_indexed], categories, *pool, penalty)


def _labels(file: Arrays, suffix: str = "") -> tuple[IntArray, ...]:
    names = (f"category{suffix}", f"subtopic{suffix}")
    return tuple(file[name].astype(np.int64) for name in names if name in file)


def _counts(file: Arrays, prefix: str) -> Points:
    # LIBLINEAR accepts only 32-bit indices and offsets.
    indices, indptr = (file[f"{prefix}{name}"].astype(np.int32) for name in ("indices", "indptr"))
    values = file[f"{prefix}data"].astype(np.float32)
    shape = (len(indptr) - 1, int(file["n_features"]))
    return sparse.csr_array((values, indices, indptr), shape)
