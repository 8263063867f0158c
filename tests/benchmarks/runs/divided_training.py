"""Benchmark of a training of labels whose products shard servers compute."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import structlog

from benchmarks.harness.runner import Option, Options, Output, Table, benchmark
from divgrpc.builder.builder import IndexBuilder
from divgrpc.builder.label_model import TrainLabels, train_here
from divgrpc.labels.build_inputs import LabelInputs
from divgrpc.parameters import BuildParameters, LabelParameters
from divgrpc.sharding.layouts import COLUMNS, FILE, OPERATION, STAGED_REQUEST
from divgrpc.sharding.staged_training import OPERATIONS
from divgrpc.storage.generations import staging
from divgrpc_lab.data.synthetic import LabelledDocuments, labelled_documents
from divgrpc_protos.v1 import shard_index_pb2
from divgrpc_server.builder.shard_trainer import ShardTrainer
from support.processes.builder_front import Shards, shard_work

_MEGABYTE: Final = 1e6
_VALUE_BYTES: Final = 4


@benchmark(
    "divided_training",
    documents=Option(50_000, "synthetic documents"),
    features=Option(5_000, "their features"),
    labels=Option(1_000, "their labels"),
    rank=Option(50, "rank"),
    iterations=Option(5, "iterations"),
    shards=Option([0, 2, 4], "numbers of shard servers; 0 for the builder alone"),
)
def divided_training(options: Options) -> Iterator[Output]:
    """Train labels during a build, alone and with shard servers, and compare the losses.

    The shard servers are threads of this process, so the seconds show what messages and files cost,
    and not what more machines would save. A product is one matrix in a file, and one reply for each
    part of the rows; parts that the builder multiplies itself have no reply.
    """
    data = labelled_documents(options.documents, options.features, options.labels, 1)
    size = f"{options.documents:,} x {options.features:,} x {options.labels:,}"
    yield Table("Training with shard servers", {"documents, features, labels": size})
    parameters = LabelParameters(
        rank=options.rank, regularisation=1.0, iterations=options.iterations, tolerance=0
    )
    alone: float | None = None
    for shards in options.shards:
        traffic = _Traffic()
        start = time.perf_counter()
        loss = _train(data, parameters, shards, traffic)
        seconds = time.perf_counter() - start
        alone = loss if alone is None else alone
        yield {
            "shard servers": shards,
            "loss": loss,
            "difference": "none" if loss == alone else f"{abs(loss - alone) / alone:.1e}",
            "products": len(traffic.matrices),
            "replies": traffic.replies,
            "replies a product, at most": max(traffic.matrices.values(), default=0),
            "matrices, MB": traffic.matrix_bytes / _MEGABYTE,
            "replies, MB": traffic.reply_bytes / _MEGABYTE,
            "s": seconds,
        }


class _Traffic:
    """What shard servers read and answer; `matrices` counts the replies for each file."""

    def __init__(self) -> None:
        self.matrices: dict[int, int] = {}
        self.matrix_bytes = self.reply_bytes = self.replies = 0

    def add(
        self, data: LabelledDocuments, request: shard_index_pb2.AskRequest, reply: bytes
    ) -> None:
        """Count a message and its reply."""
        numbers = STAGED_REQUEST.unpack(request.messages)["matrix"].tolist()
        if numbers[FILE] not in self.matrices:
            is_of_labels = OPERATIONS[numbers[OPERATION]] == "features"
            rows = data.labels.shape[1] if is_of_labels else data.documents.shape[1] + 1
            self.matrix_bytes += rows * numbers[COLUMNS] * _VALUE_BYTES
        self.matrices[numbers[FILE]] = self.matrices.get(numbers[FILE], 0) + 1
        self.reply_bytes += len(reply)
        self.replies += 1


def _train(
    data: LabelledDocuments, parameters: LabelParameters, shards: int, traffic: _Traffic
) -> float:
    """Build an index with a label model; return the loss after the last iteration."""
    with tempfile.TemporaryDirectory(prefix="divgrpc-bench-") as temporary, ExitStack() as stack:
        stage = stack.enter_context(staging(Path(temporary) / "points", replace=False))
        servers = Shards(stage)

        def answer(place: int, request: shard_index_pb2.AskRequest) -> bytes:
            reply = servers(place, request)
            traffic.add(data, request, reply)
            return reply

        train: TrainLabels = train_here
        if shards:
            work, _ = stack.enter_context(shard_work(answer, shards, structlog.get_logger()))
            train = ShardTrainer(work, stage)
        inputs = LabelInputs(model="leml", parameters=parameters)
        builder = IndexBuilder(stage, BuildParameters(), labels=inputs, train_labels=train)
        builder.append_all(data.documents, labels=data.labels)
        section = builder.build().manifest.labels
    assert section is not None
    return section.losses[-1]
