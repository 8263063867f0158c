"""EvaluateLabels' messages as the core takes them, its rows, and what front and worker exchange.

As `tasks`, and used by the same; so it loads nothing that computes.
"""

import json
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.label_grid import LabelGrid
from divgrpc.evaluation.label_planning import LabelOutlook, LabelTask
from divgrpc.label_parameters import PredictParameters
from divgrpc.parameters import check_index_name
from divgrpc.types import EffectiveLabelParameters, EvaluateLabelRow, Interval
from divgrpc_protos import arrays, words
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2
from divgrpc_server import tasks
from divgrpc_server.messages import effective_of_labels, word

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


class Truth(NamedTuple):
    """The true labels of documents, as `divgrpc.metrics.labelling.SparseLabels` has them."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.uint32]
    shape: tuple[int, int]


def parse_task(request: evaluate_labels_pb2.EvaluateLabelsRequest, documents: int) -> LabelTask:
    """Return what a request with so many documents asks for, but their labels.

    Raises `InvalidArgumentError` with the field named.
    """
    check_index_name(request.index)
    axes = tasks.axes_of(request, _WORDS, _NUMBERS)
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
    return LabelTask(
        grid=LabelGrid(**axes),
        documents=documents,
        set_default=request.set_default,
        per_document=request.per_document,
        **told,
    )


def parse_truth(request: evaluate_labels_pb2.EvaluateLabelsRequest, documents: int) -> Truth:
    """Return the true labels of so many documents; raises as `parse_task` does."""
    try:
        sets = arrays.decode_label_sets(request.labels)
    except arrays.MatrixError as error:
        raise InvalidArgumentError(f"labels.{error.field}", f"labels.{error}") from None
    if arrays.row_count(sets) != documents:
        raise InvalidArgumentError(
            "labels.offsets",
            f"labels.offsets must be {documents + 1}, one more than the documents, "
            f"got {arrays.row_count(sets) + 1}",
        )
    if not len(sets.indices):
        raise InvalidArgumentError("labels", "labels must have one label at least")
    return Truth(sets.indptr, sets.indices, (documents, sets.cols))


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
        diversities=[setting.diversity],
        top_ks=[setting.top_k],
        neighbours=setting.neighbours,
        seed=setting.seed,
        folds=0,
    )
    setattr(request, "vote", words.to_enum(_REQUEST.fields_by_name["vote"], setting.vote))  # noqa: B010  # the enum's type is mypy's alone
    tasks.add_words(request, _WORDS, setting)
    return request


def pack_outlook(outlook: LabelOutlook) -> bytes:
    """Return what `unpack_outlook` reads: a line of JSON, then the propensities as they are."""
    inverse = b"" if outlook.inverse is None else np.asarray(outlook.inverse, "<f8").tobytes()
    told = {
        "generation": outlook.generation,
        "resolved": [asdict(each) for each in outlook.resolved],
        "goal": outlook.goal,
    }
    return json.dumps(told).encode() + b"\n" + inverse


def unpack_outlook(payload: bytes) -> LabelOutlook:
    """Return what a worker found of a task."""
    line, _, inverse = payload.partition(b"\n")
    told = json.loads(line)
    resolved = tuple(EffectiveLabelParameters(**each) for each in told.pop("resolved"))
    known = np.frombuffer(inverse, "<f8") if inverse else None
    return LabelOutlook(resolved=resolved, inverse=known, **told)


def pack_row(row: EvaluateLabelRow) -> bytes:
    """Return the EvaluateLabelsResponse that holds a row."""
    message = evaluate_labels_pb2.EvaluateLabelRow(
        **{name: getattr(row, name) for name in _PLAIN},
        parameters=effective_of_labels(row.parameters),
        metrics=[_metric(name, interval) for name, interval in row.metrics.items()],
        microseconds=evaluate_pb2.EvaluateTimes(**row.microseconds._asdict()),
        values=[
            evaluate_pb2.EvaluateValues(name=name, values=values)
            for name, values in row.values.items()
        ],
    )
    for name in _AT:
        getattr(message, name).extend(_metric("", each) for each in getattr(row, name))
    setattr(message, "search", words.to_enum(_ROW.fields_by_name["search"], row.search))  # noqa: B010  # as above
    return evaluate_labels_pb2.EvaluateLabelsResponse(row=message).SerializeToString()


def _metric(name: str, interval: Interval) -> evaluate_pb2.EvaluateMetric:
    return evaluate_pb2.EvaluateMetric(name=name, **interval._asdict())
