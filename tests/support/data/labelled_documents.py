"""Documents with labels, and all other label arguments of a build."""

from typing import Any

import numpy as np
from scipy import sparse

from divgrpc.types import FloatArray

DOCUMENTS, FEATURES, LABELS, RANK = 700, 40, 130, 8


def documents(rows: int = DOCUMENTS, *, seed: int = 0) -> sparse.csr_array:
    """Return bags of words (rows, FEATURES) with at least one word each."""
    rng = np.random.default_rng(seed)
    bags = rng.random((rows, FEATURES)) * (rng.random((rows, FEATURES)) < 0.2)
    bags[np.arange(rows), rng.integers(0, FEATURES, rows)] += 1
    return sparse.csr_array(bags.astype(np.float32))


def widened(
    rows: sparse.csr_array, columns: np.typing.NDArray[np.int64], width: int
) -> sparse.csr_array:
    """Return the rows with their columns moved to `columns`, in a matrix of `width` columns."""
    arrays = (rows.data, columns[rows.indices], rows.indptr)
    return sparse.csr_array(arrays, (rows.shape[0], width))


def labels_of(bags: sparse.csr_array, *, seed: int = 9) -> sparse.csr_array:
    """Return labels (rows, LABELS) that depend on the words; some documents have no label."""
    rng = np.random.default_rng(seed)
    scores = bags @ rng.standard_normal((FEATURES, LABELS))
    return sparse.csr_array(scores > 2.2)


def factors(*, seed: int = 4) -> tuple[FloatArray, FloatArray]:
    """Return label factors (LABELS, RANK) with a few large norms, and a feature map."""
    rng = np.random.default_rng(seed)
    lengths = (1 + rng.permutation(LABELS)) ** -0.7
    return (
        (rng.standard_normal((LABELS, RANK)) * lengths[:, None]).astype(np.float32),
        rng.standard_normal((FEATURES, RANK)).astype(np.float32),
    )


def edges(*, seed: int = 5) -> np.typing.NDArray[np.int64]:
    """Return a hierarchy with a cycle, nodes with two parents, and labels that no root reaches."""
    rng = np.random.default_rng(seed)
    groups = LABELS + np.arange(12)
    below = np.column_stack([rng.choice(groups[2:], LABELS), np.arange(LABELS)])[:-7]
    above = np.column_stack([groups[rng.integers(0, 2, 10)], groups[2:]])
    return np.vstack([above, below, below[:9] - [1, 0], [[0, groups[3]]]])


def everything() -> dict[str, Any]:
    """Return all label arguments of a build, with parameters for a short training."""
    return {
        "labels": labels_of(documents()),
        "label_model": "leml",
        "label_names": [f"label {number} é" for number in range(LABELS)],
        "hierarchy": edges(),
        "roots": [LABELS, LABELS + 1],
        "rank": RANK,
        "regularisation": 1.0,
        "iterations": 3,
    }
