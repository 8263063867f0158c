"""Points and queries: CIFAR-100 features, digits where there are none, or synthetic points."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.harness.manifold import Manifold
from divgrpc.index import Index
from divgrpc.metrics import JudgedLabels, Labels, LabelTree, precision_at
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, HashFamily, IntArray, Search
from divgrpc.vectors import RowsLike
from divgrpc_lab.data import documents, topics
from divgrpc_lab.data.documents import Split

__all__ = ["Split", "documents", "topics"]

REAL: Final = "real"
_FILE: Final = "cifar100_dense256.npz"


@dataclass(frozen=True)
class Points:
    """Unit rows: `base` (n, d) to index, `queries` to report, `tuning` queries to set dials with.

    `labels` of the base and the `categories` (nq,) of the reported queries, where there are any.
    """

    name: str
    sha256: str
    base: FloatArray
    queries: FloatArray
    tuning: FloatArray
    labels: Labels | None = None
    categories: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    def described(self) -> dict[str, str]:
        """Return the facts of a table."""
        return {
            "data": f"{self.name}, {self.base.shape[0]:,} x {self.base.shape[1]}",
            "data sha256": self.sha256,
            "queries": f"{len(self.queries)} reported, {len(self.tuning)} for tuning",
        }


def load(which: str, reported: int, tuning: int = 0) -> Points:
    """Read the data set for `REAL`, digits without DIVGRPC_DATA; make points for a number."""
    if which != REAL:
        return _made(int(which), reported, tuning)
    folder = os.environ.get("DIVGRPC_DATA")
    if not folder:
        return _digits(reported, tuning)
    path = Path(folder) / _FILE
    with np.load(path, allow_pickle=False) as file:
        rows, indexed = _unit(file["x"]), file["split"] == 0
        categories, subtopics = (file[name].astype(np.int64) for name in ("category", "subtopic"))
    pool = rows[~indexed]
    return Points(
        path.stem,
        topics.sha256(path),
        np.ascontiguousarray(rows[indexed]),
        pool[:reported],
        pool[reported : reported + tuning],
        Labels.of(categories[indexed], subtopics[indexed]),
        categories[~indexed][:reported],
    )


def _made(count: int, reported: int, tuning: int) -> Points:
    """Return synthetic points on a manifold, which have no labels."""
    manifold = Manifold.of()
    queries = manifold.queries(reported + tuning)
    seed, points = f"seed {manifold.seed}", manifold.points(count)
    return Points("synthetic points", seed, points, queries[:reported], queries[reported:])


def _digits(reported: int, tuning: int) -> Points:
    from sklearn.datasets import load_digits

    rows = _unit(load_digits().data)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    base = np.ascontiguousarray(rows[reported + tuning :])
    name, sha256 = "digits of scikit-learn (DIVGRPC_DATA is not set)", "part of scikit-learn"
    return Points(name, sha256, base, rows[:reported], rows[reported : reported + tuning])


def _unit(rows: npt.NDArray[np.generic]) -> FloatArray:
    numbers = rows.astype(np.float32)
    numbers /= np.linalg.norm(numbers, axis=1, keepdims=True)
    return numbers


def build_each(
    points: FloatArray, families: Sequence[HashFamily], folder: Path
) -> dict[HashFamily, Index]:
    """Build an index of each family over points (n, d), in a folder of its name."""
    return {
        family: Index.build(points, hash_family=family, path=folder / family) for family in families
    }


def searches(family: str) -> tuple[Search, ...]:
    """Return the searches of a family: `auto` takes what Build chose."""
    return ("auto",) if family == "auto" else ("tables", "scan")


def hashed_search(index: Index, family: str, queries: RowsLike) -> Search:
    """Return `auto`, or a search by hashing where `auto` would not hash or would pass by cells."""
    hashing = ("tables",) if family == "cells" else ("tables", "scan", "scan_hamming")
    if family == "auto" or index.engine.resolve(QueryParameters(), queries).search in hashing:
        return "auto"
    return "tables" if family == "cells" else "scan"


def tree_of(split: Split) -> LabelTree | None:
    """Return the tree of the labels, None where they have no hierarchy."""
    if split.hierarchy is None:
        return None
    parents, children = split.hierarchy.T
    return LabelTree.of_edges(parents, children, split.labels.shape[1], split.roots)


def precisions(split: Split, labels: IntArray) -> dict[str, float]:
    """Return P@1, P@3 and P@5 of labels (nq, 5) in percent."""
    means = precision_at(JudgedLabels.of(labels, split.truth)).mean(axis=0)
    return {f"P@{k}": float(100 * means[k - 1]) for k in (1, 3, 5)}
