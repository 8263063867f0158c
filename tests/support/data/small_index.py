"""A small index on disk, written without the builder, and a build that is killed."""

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np

from divgrpc.parameters import BuildParameters
from divgrpc.storage.generations import Staging, staging
from divgrpc.storage.manifest import Manifest
from divgrpc.types import Choice, FloatArray, SearchCost, WarningInfo

ROWS, DIMS = 5, 3


def manifest() -> Manifest:
    """Return the manifest of a small index; `publish` fills in the generation and the arrays."""
    return Manifest(
        generation=0,
        rows=ROWS,
        dims=DIMS,
        points="dense",
        nonzeros=ROWS * DIMS,
        widest_row=DIMS,
        parameters=BuildParameters(n_tables=2, n_bits=8, n_components=3, seed=2**64 - 1),
        code_bits=64,
        n_probes=4,
        auto_search="scan",
        search_costs=(SearchCost("scan", 0.5, 1.25), SearchCost("exact", 1.0, 2.0)),
        choices=(Choice("search", "scan", "A reason."),),
        warnings=(WarningInfo("CODE", "A sentence.", "field"),),
        arrays={},
    )


def vectors(fill: float) -> FloatArray:
    return np.full((ROWS, DIMS), fill, np.float32)


def write(stage: Staging, fill: float = 1.0) -> None:
    """Write one array by appending and another one in place."""
    stage.begin("vectors", np.float32, (DIMS,), rows=100)
    stage.append("vectors", vectors(fill)[:2])
    stage.append("vectors", vectors(fill)[2:])
    stage.create("codes", np.uint64, (1, ROWS))[:] = np.arange(ROWS, dtype=np.uint64)


def publish(folder: Path, fill: float = 1.0, *, replace: bool = False) -> int:
    with staging(folder, replace=replace) as stage:
        write(stage, fill)
        return stage.publish(manifest()).manifest.generation


def hold_lock(path: Path) -> None:
    """Kill this process during a build."""
    with staging(path, replace=True) as stage:
        write(stage)
        os.kill(os.getpid(), signal.SIGKILL)


def die_while_building(path: Path) -> None:
    """Run a build in a process that is killed during the build."""
    process = multiprocessing.get_context("spawn").Process(target=hold_lock, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
