"""Points with categories and sub-topics, and the pools that hyperplane queries are learned from.

Counts of words are weighted as search in text does it: a count becomes its root (images) or 1 plus
its logarithm (text), times log((1 + n) / (1 + df)) + 1, both counted over the indexed points alone.
All rows are of unit length.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import sklearn
from scipy import sparse
from sklearn.preprocessing import normalize

from divgrpc.metrics import PointCategories
from divgrpc.types import FloatArray, IntArray
from divgrpc_lab.data.hyperplanes import HyperplaneQueries, hyperplane_queries

# A dense (n, d) float32 array, or scipy's csr_array of float32.
Points: TypeAlias = Any
Arrays: TypeAlias = Mapping[str, npt.NDArray[Any]]

DATA_VARIABLE: Final = "DIVGRPC_DATA"
_INDEXED: Final = 0
# What stands in for the data sets where there are none.
DIGITS: Final = "digits of scikit-learn (DIVGRPC_DATA is not set)"


@dataclass(frozen=True, eq=False)
class Topics:
    """A data set: unit `points` to index with their `labels`, a `pool` to learn queries from.

    `penalty` is the C of the support vector machines, what serves plain search best.
    """

    name: str
    sha256: str
    points: Points
    labels: PointCategories
    pool: Points
    pool_categories: IntArray
    penalty: float

    @property
    def asked(self) -> IntArray:
        """The categories that have two sub-topics or more: in others diversity means nothing."""
        categories, subtopics = self.labels.categories, self.labels.subtopics
        return np.array(
            [c for c in np.unique(categories) if len(np.unique(subtopics[categories == c])) > 1]
        )

    def described(self) -> dict[str, str]:
        """Return what the environment record says of the data."""
        rows, dims = self.points.shape
        kind = f"sparse, {self.points.nnz:,} values" if sparse.issparse(self.points) else "dense"
        return {
            "data": f"{self.name}, {rows:,} x {dims:,}, {kind}",
            "data sha256": self.sha256,
            "query pool": f"{self.pool.shape[0]:,} rows, C = {self.penalty:g}",
        }

    def queries(self, per_category: int, seed: int = 0) -> HyperplaneQueries:
        """Learn hyperplane queries, or read what an earlier run learned.

        What is learned is kept in a folder for temporary files: minutes that every run would spend
        on the same numbers.
        """
        learned = (self.sha256, self.pool.shape, self.penalty, per_category, seed)
        key = hashlib.sha256(
            repr((learned, sklearn.__version__, np.__version__)).encode()
        ).hexdigest()
        folder = Path(tempfile.gettempdir()) / "divgrpc-benchmarks"
        path = folder / f"hyperplanes-{key[:16]}.npz"
        if not path.exists():
            made = hyperplane_queries(
                self.pool,
                self.pool_categories,
                per_category,
                seed,
                asked=self.asked,
                penalty=self.penalty,
                balanced=True,
            )
            folder.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, suffix=".npz", delete=False) as file:
                np.savez(file, queries=made.queries, asked=made.asked)
            Path(file.name).replace(path)
        with np.load(path, allow_pickle=False) as kept:
            return HyperplaneQueries(kept["queries"], kept["asked"])


def sha256(path: Path) -> str:
    """Return the checksum of a data file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load(names: Sequence[str], folder: str | None = None) -> list[Topics]:
    """Read named sets from `folder`, else that in DIVGRPC_DATA; else scikit-learn's digits."""
    folder = folder or os.environ.get(DATA_VARIABLE)
    return [SETS[name](Path(folder) / f"{name}.npz") for name in names] if folder else [_digits()]


def _digits() -> Topics:
    """Return scanned digits: even or odd is the category, the digit the sub-topic."""
    from sklearn.datasets import load_digits

    images = load_digits()
    rows = np.random.default_rng(0).permutation(len(images.data))
    points, digits = _unit(images.data[rows]), images.target[rows].astype(np.int64)
    pooled = len(rows) // 4
    return Topics(
        name=DIGITS,
        sha256="shipped with scikit-learn",
        points=points[pooled:],
        labels=PointCategories.of(digits[pooled:] % 2, digits[pooled:]),
        pool=points[:pooled],
        pool_categories=digits[:pooled] % 2,
        penalty=1.0,
    )


def _dense256(path: Path) -> Topics:
    with np.load(path, allow_pickle=False) as file:
        return _split(path, file, _unit(file["x"]), penalty=0.1)


def _visual_words(path: Path) -> Topics:
    with np.load(path, allow_pickle=False) as file:
        counts = _counts(file, "", int(file["n_features"]))
        counts.data = np.sqrt(counts.data)
        weighted = _weighted(counts, counts[file["split"] == _INDEXED])
        return _split(path, file, weighted, penalty=1.0)


def _newsgroups(path: Path) -> Topics:
    with np.load(path, allow_pickle=False) as file:
        columns = int(file["n_features"])
        train, test = (_counts(file, f"x_{part}_", columns) for part in ("train", "test"))
        for counts in (train, test):
            counts.data = 1 + np.log(counts.data)
        return Topics(
            name=path.stem,
            sha256=sha256(path),
            points=_weighted(train, train),
            labels=PointCategories.of(
                _whole(file["category_train"]), _whole(file["subtopic_train"])
            ),
            pool=_weighted(test, train),
            pool_categories=_whole(file["category_test"]),
            penalty=1.0,
        )


SETS: Final[Mapping[str, Callable[[Path], Topics]]] = {
    "cifar100_dense256": _dense256,
    "cifar100_7x5_bovw": _visual_words,
    "newsgroups20": _newsgroups,
}


def _split(path: Path, file: Arrays, rows: Points, penalty: float) -> Topics:
    indexed = file["split"] == _INDEXED
    categories, subtopics = _whole(file["category"]), _whole(file["subtopic"])
    return Topics(
        name=path.stem,
        sha256=sha256(path),
        points=rows[indexed],
        labels=PointCategories.of(categories[indexed], subtopics[indexed]),
        pool=rows[~indexed],
        pool_categories=categories[~indexed],
        penalty=penalty,
    )


def _counts(file: Arrays, prefix: str, columns: int) -> Points:
    # LIBLINEAR takes no wider offsets.
    indptr = file[f"{prefix}indptr"].astype(np.int32)
    parts = (file[f"{prefix}data"].astype(np.float32), file[f"{prefix}indices"].astype(np.int32))
    return sparse.csr_array((*parts, indptr), shape=(len(indptr) - 1, columns))


def _weighted(counts: Points, indexed: Points) -> Points:
    """Weigh words by how few of the indexed points have them, and make rows of unit length."""
    rows, columns = indexed.shape
    holders = np.bincount(indexed.indices, minlength=columns)
    rarity = np.log((1 + rows) / (1 + holders)) + 1
    weighted = counts.copy()
    weighted.data *= rarity.astype(np.float32)[counts.indices]
    return normalize(weighted)


def _unit(rows: npt.NDArray[np.generic]) -> FloatArray:
    unit: FloatArray = normalize(rows.astype(np.float32))
    return unit


def _whole(numbers: npt.NDArray[np.generic]) -> IntArray:
    return numbers.astype(np.int64)
