"""Valid requests of every method, which `support.mutations` changes before it sends them."""

from typing import Final

import numpy as np
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from scipy.sparse import csr_array

from divgrpc.types import FloatArray
from divgrpc_client.messages.vectors import as_matrix, encode
from divgrpc_protos.v1 import (
    evaluate_labels_pb2,
    evaluate_pb2,
    index_pb2,
    labels_pb2,
    predict_pb2,
    query_pb2,
    vectors_pb2,
)
from support.mutators import Draw
from support.served_index import random_points

DIMS: Final = 24
# Indexes that come and go, so that a build seldom finds another of its name under way.
SCRATCH: Final = ("scratch", "scratch-2", "scratch-3", "scratch-4")
_PLAN: Final = labels_pb2.LabelPlan(
    model=labels_pb2.LABEL_MODEL_LEML,
    parameters=labels_pb2.LabelParameters(rank=2, regularisation=1.0, iterations=1),
)
_TOLD: Final = labels_pb2.LabelChunk(
    label_names=labels_pb2.LabelNames(values=["a", "b", "c"]),
    hierarchy=labels_pb2.Hierarchy(parents=[3, 3, 3], children=[0, 1, 2], roots=[3]),
)
# Of thirty rows.
_OWN: Final = labels_pb2.LabelSets(
    label_count=3, offsets=range(31), ids=[row % 3 for row in range(30)]
)
# Of the twelve documents that are judged, and of the labels of the index that is asked.
_TRUE: Final = labels_pb2.LabelSets(label_count=20, offsets=range(13), ids=range(12))


class Seeds:
    """Valid requests of every method, to be drawn from."""

    def __init__(self) -> None:
        rows = random_points(12, dims=DIMS, seed=1)
        self._matrices = [_dense(rows[:1]), _dense(rows), _sparse(rows[:1]), _sparse(rows)]
        half = vectors_pb2.Vectors()
        half.CopyFrom(self._matrices[0])
        half.dense.dtype = vectors_pb2.DTYPE_FLOAT16
        half.dense.data = rows[:1].astype("<f2").tobytes()
        plain = vectors_pb2.Vectors()
        plain.dense.rows, plain.dense.cols = 1, DIMS
        plain.dense.values.extend(rows[0].tolist())
        self._matrices += [half, plain]

    def query(self, draw: Draw) -> query_pb2.QueryRequest:
        """Return a query with most of its fields set."""
        request = query_pb2.QueryRequest(
            index=draw.choice(("dense", "sparse", "cells", "product")),
            queries=draw.choice(self._matrices),
            k=draw.choice((1, 5, 10)),
            diversity=draw.choice((0.0, 0.3, 1.0)),
            selector=draw.choice(query_pb2.Selector.values()[1:4]),
            search=draw.choice(query_pb2.Search.values()[1:]),
            seed=7,
        )
        if draw.random() < 0.5:
            request.hash_limit, request.candidates_limit = 100, 50
        if draw.random() < 0.2 and request.index != "product":
            request.max_distance = 1.5
        return request

    def item(self, draw: Draw) -> query_pb2.QueryStreamRequest:
        """Return an item of a stream; its number is put in afterwards."""
        return query_pb2.QueryStreamRequest(correlation_id=1, query=self.query(draw))

    def steps(self, draw: Draw) -> list[Message]:
        """Return the messages of a build."""
        points = random_points(60, dims=DIMS, seed=2)
        encoded = draw.choice((_dense, _sparse))
        header = index_pb2.BuildHeader(
            index=draw.choice(SCRATCH),
            parameters=_parameters(draw),
            replace=True,
            expected_rows=60,
            labels=_PLAN,
        )
        chunks = [
            index_pb2.BuildChunk(
                vectors=encoded(points[start : start + 30]),
                ids=range(start, start + 30),
                categories=[1] * 30,
                labels=_OWN,
            )
            for start in (0, 30)
        ]
        return [
            index_pb2.BuildRequest(header=header),
            index_pb2.BuildRequest(label_chunk=_TOLD),
            *(index_pb2.BuildRequest(chunk=chunk) for chunk in chunks),
            index_pb2.BuildRequest(commit=index_pb2.BuildCommit(rows=60)),
        ]

    def _build_once(self, draw: Draw) -> index_pb2.BuildOnceRequest:
        return index_pb2.BuildOnceRequest(
            index=draw.choice(SCRATCH),
            parameters=_parameters(draw),
            replace=True,
            vectors=draw.choice((_dense, _sparse))(random_points(30, dims=DIMS, seed=2)),
            ids=range(30),
            categories=[1] * 30,
            subtopics=[2] * 30,
            labels=_OWN,
            label_plan=_PLAN,
            label_chunk=_TOLD,
        )

    def _prediction(self, draw: Draw) -> predict_pb2.PredictLabelsRequest:
        return predict_pb2.PredictLabelsRequest(
            index="dense",
            documents=draw.choice(self._matrices),
            top_k=3,
            threshold=draw.choice((-1.0, 0.1)),
            diversity=0.3,
            selector=draw.choice(query_pb2.Selector.values()[1:4]),
            search=draw.choice(query_pb2.Search.values()[1:]),
            mode=draw.choice(predict_pb2.PredictionMode.values()[1:]),
            vote=draw.choice(predict_pb2.Vote.values()[1:]),
            neighbours=5,
            seed=1,
        )

    def _judging(self, draw: Draw) -> evaluate_labels_pb2.EvaluateLabelsRequest:
        return evaluate_labels_pb2.EvaluateLabelsRequest(
            index="dense",
            documents=draw.choice((self._matrices[1], self._matrices[3])),
            labels=_TRUE,
            modes=[draw.choice(predict_pb2.PredictionMode.values()[1:])],
            selectors=[query_pb2.SELECTOR_GREEDY],
            limits=[evaluate_pb2.EvaluateLimits(hash_limit=100, candidates_limit=50)],
            thresholds=[
                evaluate_labels_pb2.EvaluateThreshold(),
                evaluate_labels_pb2.EvaluateThreshold(threshold=0.1),
            ],
            diversities=[0.3, 0.7],
            top_ks=[4],
            neighbours=5,
            vote=draw.choice(predict_pb2.Vote.values()[1:]),
            seed=1,
            folds=2,
            set_default=draw.random() < 0.3,
            per_document=draw.random() < 0.5,
        )

    def other(self, method: str, draw: Draw) -> Message:
        """Return the one request of any other method."""
        match method:
            case "BuildOnce":
                return self._build_once(draw)
            case "PredictLabels":
                return self._prediction(draw)
            case "EvaluateLabels":
                return self._judging(draw)
            case "Evaluate":
                return evaluate_pb2.EvaluateRequest(
                    index="dense",
                    queries=self._matrices[1],
                    categories=[1, 2] * 6,
                    selectors=[query_pb2.SELECTOR_GREEDY],
                    limits=[evaluate_pb2.EvaluateLimits(hash_limit=100, candidates_limit=50)],
                    diversities=[0.3, 0.7],
                    ks=[5],
                    seed=1,
                    folds=2,
                )
            case "GetIndex":
                return index_pb2.GetIndexRequest(index=draw.choice(("dense", "sparse", "cells")))
            case "ListIndexes":
                return index_pb2.ListIndexesRequest(page_size=2, page_token="dense")  # noqa: S106  # no secret
            case "DeleteIndex":
                return index_pb2.DeleteIndexRequest(index=draw.choice(SCRATCH))
            case "GetServerInfo":
                return index_pb2.GetServerInfoRequest()
        request: Message = health_pb2.HealthCheckRequest(service="divgrpc.v1.DiverseIndex")
        if method == "Reflection":
            request = reflection_pb2.ServerReflectionRequest(
                host="here", file_containing_symbol="divgrpc.v1.DiverseIndex"
            )
        return request


def _parameters(draw: Draw) -> index_pb2.BuildParameters:
    return index_pb2.BuildParameters(
        metric=draw.choice(index_pb2.Metric.values()[1:]),
        hash_family=draw.choice(index_pb2.HashFamily.values()[1:]),
        seed=3,
    )


def _dense(rows: FloatArray) -> vectors_pb2.Vectors:
    return encode(rows, 0, len(rows))


def _sparse(rows: FloatArray) -> vectors_pb2.Vectors:
    kept = np.where(np.abs(rows) > 0.7, rows, 0).astype(np.float32)
    kept[:, 0] = 1
    return encode(as_matrix("rows", csr_array(kept)), 0, len(rows))
