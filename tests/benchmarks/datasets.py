"""Points and queries: CIFAR-100 features, or digits where there are none; made points."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.manifold import Manifold
from divgrpc.metrics import Labels
from divgrpc.types import FloatArray, IntArray
from divgrpc_lab.data.topics import sha256

REAL: Final = "real"
_FILE = "cifar100_dense256.npz"


@dataclass(frozen=True)
class Points:
    """Unit rows: `base` (n, d) to index; `queries` to report; `tuning` queries to set dials by.

    `labels` of the base and the category `asked` (nq,) by each reported query, where there are any.
    """

    name: str
    sha256: str
    base: FloatArray
    queries: FloatArray
    tuning: FloatArray
    labels: Labels | None = None
    asked: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    def described(self) -> dict[str, str]:
        """Return what the environment record says of the data."""
        return {
            "data": f"{self.name}, {self.base.shape[0]:,} x {self.base.shape[1]}",
            "data sha256": self.sha256,
            "queries": f"{len(self.queries)} reported, {len(self.tuning)} for tuning",
        }


def load(reported: int, tuning: int) -> Points:
    """Read the points that DIVGRPC_DATA names; without it the digits of scikit-learn."""
    folder = os.environ.get("DIVGRPC_DATA")
    if not folder:
        return _digits(reported, tuning)
    path = Path(folder) / _FILE
    with np.load(path, allow_pickle=False) as file:
        rows, indexed = _unit(file["x"]), file["split"] == 0
        categories, subtopics = (file[name].astype(np.int64) for name in ("category", "subtopic"))
    pool = rows[~indexed]
    return Points(
        name=path.stem,
        sha256=sha256(path),
        base=np.ascontiguousarray(rows[indexed]),
        queries=pool[:reported],
        tuning=pool[reported : reported + tuning],
        labels=Labels.of(categories[indexed], subtopics[indexed]),
        asked=categories[~indexed][:reported],
    )


def told(which: str, reported: int, tuning: int) -> Points:
    """Read the data set where `REAL` is asked for, or make as many points as a number says."""
    return load(reported, tuning) if which == REAL else made(int(which), reported, tuning)


def made(count: int, reported: int, tuning: int) -> Points:
    """Make so many points on a manifold; they have no labels that would mean anything."""
    manifold = Manifold.of()
    queries = manifold.queries(reported + tuning)
    return Points(
        name="made points on a manifold",
        sha256=f"seed {manifold.seed}",
        base=manifold.points(count),
        queries=queries[:reported],
        tuning=queries[reported:],
    )


def _digits(reported: int, tuning: int) -> Points:
    from sklearn.datasets import load_digits

    rows = _unit(load_digits().data)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    held_out = reported + tuning
    return Points(
        name="digits of scikit-learn (DIVGRPC_DATA is not set)",
        sha256="shipped with scikit-learn",
        base=np.ascontiguousarray(rows[held_out:]),
        queries=rows[:reported],
        tuning=rows[reported:held_out],
    )


def _unit(rows: npt.NDArray[np.generic]) -> FloatArray:
    numbers = rows.astype(np.float32)
    numbers /= np.linalg.norm(numbers, axis=1, keepdims=True)
    return numbers
