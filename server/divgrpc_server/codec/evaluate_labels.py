"""EvaluateLabels' messages as the core takes them, its rows, and what front and worker exchange.

As `tasks`, and used by the same; so it loads nothing that computes.
"""

import json
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.evaluation.label_planning import LabelOutlook, LabelTask, told_max
from divgrpc.metrics.labelling import Truth
from divgrpc.parameters import check_index_name
from divgrpc.parameters.predict import PredictParameters
from divgrpc.types import EffectiveLabelParameters, EvaluateLabelRow, IntArray
from divgrpc_protos import words
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2
from divgrpc_server.codec import evaluate
from divgrpc_server.codec.results import effective_of_labels, parse_label_sets, word

_REQUEST: Final = evaluate_labels_pb2.EvaluateLabelsRequest.DESCRIPTOR
_ROW: Final = evaluate_labels_pb2.EvaluateLabelRow.DESCRIPTOR
_WORDS: Final = {"modes": "mode", "selectors": "selector", "searches": "search"}
_NUMBERS: Final = ("diversities", "top_ks")
_PLAIN: Final = (
    "number",
    "generation",
    "goal",
    "h_of_means",
    "documents",
    "empty",
    "short",
    "scored",
    "on_front",
    "by_fold",
    "is_default",
    "coverage_at",
)
_AT: Final = ("precision_at", "recall_at", "ndcg_at", "propensity_scored_at")


def parse_task(request: evaluate_labels_pb2.EvaluateLabelsRequest, documents: int) -> LabelTask:
    """Return what a request with so many documents asks for, but their labels.

    Raises `InvalidArgumentError` with the field named.
    """
    check_index_name(request.index)
    axes = evaluate.axes_of(request, _WORDS, _NUMBERS)
    thresholds = (
        each.threshold if each.HasField("threshold") else None for each in request.thresholds
    )
    axes |= {"thresholds": tuple(thresholds)} if request.thresholds else {}
    if not axes:
        raise InvalidArgumentError("grid", "the grid is empty: give an axis of it some values")
    axes |= {n: getattr(request, n) for n in ("neighbours", "seed") if request.HasField(n)}
    vote = word(_REQUEST, "vote", request.vote)
    axes |= {} if vote is None else {"vote": vote}
    told = {"folds": request.folds} if request.HasField("folds") else {}
    task = LabelTask(
        grid=LabelGrid(**axes),
        documents=documents,
        set_default=request.set_default,
        per_document=request.per_document,
        **told,
    ).bounded()
    most = told_max(max(setting.top_k for setting in task.grid.settings()))
    if task.per_document and documents > most:
        raise InvalidArgumentError(
            "per_document",
            f"per_document needs at most {most} documents for this top_k, got {documents}: "
            "a row must fit a message",
        )
    return task


def parse_truth(request: evaluate_labels_pb2.EvaluateLabelsRequest, task: LabelTask) -> Truth:
    """Return the true labels of a task's documents; raises as `parse_task` does."""
    sets = parse_label_sets(request.labels, task.documents, "documents")
    if task.folds and not len(sets.indices):
        raise InvalidArgumentError("labels", "labels must have one label at least")
    return Truth(sets.indptr, sets.indices, (task.documents, sets.cols))


def piece_of(
    name: str,
    setting: PredictParameters,
    documents: Any,  # noqa: ANN401  # a Vectors message
) -> evaluate_labels_pb2.EvaluateLabelsRequest:
    """Return the request that asks of some documents at one setting, and chooses nothing."""
    request = evaluate_labels_pb2.EvaluateLabelsRequest(
        index=name,
        documents=documents,
        limits=[
            evaluate_pb2.EvaluateLimits(
                hash_limit=setting.hash_limit, candidates_limit=setting.candidates_limit
            )
        ],
        thresholds=[evaluate_labels_pb2.EvaluateThreshold(threshold=setting.threshold)],
        diversities=[setting.dial],
        top_ks=[setting.top_k],
        neighbours=setting.neighbours,
        seed=setting.seed,
        folds=0,
    )
    setattr(request, "vote", words.to_enum(_REQUEST.fields_by_name["vote"], setting.vote))  # noqa: B010  # the enum's type is mypy's alone
    evaluate.add_words(request, _WORDS, setting)
    return request


def pack_outlook(outlook: LabelOutlook) -> bytes:
    """Return what `unpack_outlook` reads: a line of JSON, then the counts as they are."""
    counts = b"" if outlook.counts is None else np.asarray(outlook.counts, "<u4").tobytes()
    told = {
        "generation": outlook.generation,
        "resolved": [asdict(each) for each in outlook.resolved],
        "goal": outlook.goal,
        "points": outlook.points,
    }
    return json.dumps(told).encode() + b"\n" + counts


def unpack_outlook(payload: bytes) -> LabelOutlook:
    """Return what a worker found of a task."""
    line, _, packed = payload.partition(b"\n")
    told = json.loads(line)
    resolved = tuple(EffectiveLabelParameters(**each) for each in told.pop("resolved"))
    counts = np.frombuffer(packed, "<u4").astype(np.int64) if packed else None
    return LabelOutlook(resolved=resolved, counts=counts, **told)


def pack_frequencies(outlook: LabelOutlook, truth: Truth) -> list[bytes]:
    """Return the message that says how frequent true labels are, none where it is not known."""
    if outlook.counts is None:
        return []
    told = evaluate_labels_pb2.LabelFrequencies(
        points=outlook.points, counts=outlook.counts[np.unique(truth.indices)].tolist()
    )
    return [evaluate_labels_pb2.EvaluateLabelsResponse(frequencies=told).SerializeToString()]


def pack_row(row: EvaluateLabelRow) -> bytes:
    """Return the EvaluateLabelsResponse that holds a row."""
    message = evaluate_labels_pb2.EvaluateLabelRow(
        **{name: getattr(row, name) for name in _PLAIN},
        parameters=effective_of_labels(row.parameters),
        metrics=[evaluate.metric_of(*each) for each in row.metrics.items()],
        microseconds=evaluate_pb2.EvaluateTimes(**row.microseconds._asdict()),
        values=evaluate.values_of(row.values),
        labels=None if row.labels is None else _picked(row.labels),
    )
    for name in _AT:
        getattr(message, name).extend(evaluate.metric_of("", each) for each in getattr(row, name))
    setattr(message, "search", words.to_enum(_ROW.fields_by_name["search"], row.search))  # noqa: B010  # as above
    return evaluate_labels_pb2.EvaluateLabelsResponse(row=message).SerializeToString()


def _picked(labels: IntArray) -> evaluate_labels_pb2.PickedLabels:
    known = labels >= 0
    ends = np.cumsum([0, *known.sum(axis=1)])
    return evaluate_labels_pb2.PickedLabels(offsets=ends.tolist(), labels=labels[known].tolist())
