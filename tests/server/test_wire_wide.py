"""Sparse rows of the maximum number of columns, over the wire and in this process."""

from typing import Any, get_args

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.parameters import LIMITS
from divgrpc.types import FloatArray, Mode
from divgrpc_client import Client
from support.data import labelled_documents
from support.data.served_index import place
from support.processes.running_server import RunningServer

WIDE = LIMITS["sparse_dims_max"]
# The columns in use are spread evenly and include the first and the last column.
COLUMNS = np.linspace(0, WIDE - 1, labelled_documents.FEATURES).astype(np.int64)
MODEL_OPTIONS: dict[str, Any] = {
    "label_model": "leml",
    "rank": 8,
    "regularisation": 1.0,
    "iterations": 2,
}
X = labelled_documents.widened(labelled_documents.documents(300), COLUMNS, WIDE)
DOCUMENTS = labelled_documents.widened(labelled_documents.documents(40, seed=1), COLUMNS, WIDE)


def brought() -> tuple[FloatArray, FloatArray]:
    """Return label factors, and a feature map for all columns."""
    factors, few = labelled_documents.factors()
    feature_map = np.zeros((WIDE, labelled_documents.RANK), np.float32)
    feature_map[COLUMNS] = few
    return factors, feature_map


@pytest.mark.parametrize("model", ["trained", "brought", "votes"])
def test_wide_rows_equal_the_core(server: RunningServer, client: Client, model: str) -> None:
    """Answers of queries and predictions are equal, and a wide feature map can be uploaded."""
    labels = labelled_documents.labels_of(labelled_documents.documents(300))
    if model == "brought":
        info = client.build("wide", X, replace=True, labels=labels, label_model=brought())
        index = Index.open(server.folder / "data" / "wide")
        assert (info.dims, info.points, info) == (WIDE, "sparse", index.info)
    else:
        index = place(
            server, "wide", X, labels=labels, **(MODEL_OPTIONS if model == "trained" else {})
        )
    for search in ("auto", "scan", "exact"):
        wire = client.query("wide", DOCUMENTS, k=4, search=search, timeout=60)
        core = index.query(DOCUMENTS, k=4, search=search)
        assert wire.ids.tobytes() == core.ids.tobytes()
        assert wire.scores.tobytes() == core.scores.tobytes()
    modes: tuple[Mode, ...] = ("neighbour_vote",) if model == "votes" else get_args(Mode)
    for mode in modes:
        prediction = client.predict_labels("wide", DOCUMENTS, mode=mode, timeout=60)
        expected = index.predict_labels(DOCUMENTS, mode=mode)
        assert prediction.labels.tobytes() == expected.labels.tobytes()
        assert prediction.scores.tobytes() == expected.scores.tobytes()
