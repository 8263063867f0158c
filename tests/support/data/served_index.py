"""Points for tests, and indexes that a server serves."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from divgrpc import Collection, Index
from divgrpc.types import FloatArray
from support.processes.running_server import RunningServer

ROWS, DIMS = 1500, 24
# Number of points of the index that tests evaluate.
EVALUATED_ROWS = 900


@dataclass(frozen=True)
class Served:
    """The name of an index, its points, and queries that are not among the points."""

    name: str
    points: FloatArray
    queries: FloatArray


def random_points(rows: int = ROWS, *, dims: int = DIMS, seed: int = 0) -> FloatArray:
    """Return points (rows, dims) in loose clusters, because real data is clustered."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((20, dims))
    points = centres[rng.integers(0, 20, rows)] + 0.5 * rng.standard_normal((rows, dims))
    return points.astype(np.float32)


def place(server: RunningServer, name: str, points: Any, **options: Any) -> Index:  # noqa: ANN401  # any option
    """Build an index directly into the server's data folder, which is faster than a Build call."""
    return Index.build(points, path=server.folder / "data" / name, replace=True, **options)


def twin(server: RunningServer, name: str, folder: Path) -> Collection:
    """Open a copy of an index of the server in this process."""
    shutil.copytree(server.folder / "data" / name, folder / name)
    return Collection.open(folder / name, durability="process")
