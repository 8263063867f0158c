"""How the client splits an evaluation of labels into messages and joins the answers."""

from typing import Any

import numpy as np
import pytest

from divgrpc_client.messages import evaluate as messages_of_evaluate
from divgrpc_client.messages.evaluate import LabelEvaluation
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2

DOCUMENTS, LABELS = np.eye(12), np.eye(12, 5)
FLAGS: dict[str, Any] = {"folds": 0, "set_default": False, "per_document": False}
COLUMNS = ("precision", "recall", "drank", "scored", "microseconds")


@pytest.fixture
def evaluation(monkeypatch: pytest.MonkeyPatch) -> LabelEvaluation:
    """Return an evaluation in several messages; the last documents have no labels."""
    monkeypatch.setattr(messages_of_evaluate, "MESSAGE_BYTES", 400)
    grid: Any = {"selectors": ["nearest"], "top_ks": [2]}
    return LabelEvaluation("one", DOCUMENTS, LABELS, grid, FLAGS, groups=None, progress=None)


def answer(documents: int, generation: int) -> evaluate_labels_pb2.EvaluateLabelsResponse:
    """Return an answer in which each document gets label 1, and every second one label 3 too."""
    offsets = np.cumsum([0, *(1 + np.arange(documents) % 2)])
    row = evaluate_labels_pb2.EvaluateLabelRow(
        generation=generation,
        goal="f_score",
        documents=documents,
        values=[evaluate_pb2.EvaluateValues(name=n, values=[1.0] * documents) for n in COLUMNS],
        labels=evaluate_labels_pb2.PickedLabels(
            offsets=offsets.tolist(),
            labels=[label for n in range(documents) for label in ((1, 3) if n % 2 else (1,))],
        ),
    )
    row.parameters.top_k = 2
    return evaluate_labels_pb2.EvaluateLabelsResponse(row=row)


def test_rows_combine_the_answers_to_all_messages(evaluation: LabelEvaluation) -> None:
    """The labels predicted for a document are compared with the same document's true labels."""
    sizes = []
    for message in evaluation.messages():
        sizes.append(message.documents.dense.rows)
        assert (message.folds, message.per_document) == (0, True)
        assert len(message.labels.offsets) == sizes[-1] + 1
        assert list(evaluation.take(answer(sizes[-1], 1))) == []
    assert len(sizes) > 2
    assert sum(sizes) == len(DOCUMENTS)
    assert not evaluation.is_torn
    (row,) = evaluation.rows()
    assert (row.documents, row.empty, row.propensity_scored_at) == (12, 0, ())
    # Only document 1 of 12 has label 1 in truth, and label 3 is always predicted in second place.
    assert row.precision_at[0].value == pytest.approx(1 / 12)
    assert (row.values, row.labels) == ({}, None)


def test_generations_are_not_mixed(evaluation: LabelEvaluation) -> None:
    """If the index is replaced between two messages, the next answer shows it by its generation."""
    for generation, message in enumerate(evaluation.messages()):
        list(evaluation.take(answer(message.documents.dense.rows, generation)))
        assert evaluation.is_torn == (generation > 0)
