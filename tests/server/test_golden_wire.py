"""Recorded requests, byte for byte, and what a server answered them with.

They hold a change of the code to the same bytes on the wire. The indexes are those of
`core.test_golden_families`. Methods whose answers hold times or come from a build are left to tests
of their own. Run as a script, this file records all of it anew:

    PYTHONPATH=tests .venv/bin/python tests/server/test_golden_wire.py
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from core.storage.test_golden_families import points
from divgrpc_protos.v1 import index_pb2, predict_pb2, query_pb2, vectors_pb2
from support import raw_calls
from support.running_server import RunningServer

_GOLDEN: Final = Path(__file__).parent.parent / "golden"
_RECORD: Final = _GOLDEN / "wire.json"
_INDEXES: Final = ("lsh_div", "lsh_sdiv", "pca_hash", "cells", "sparse", "labels")
# What each call is named by; its request and its answer are recorded.
Calls = dict[str, tuple[str, bytes]]


def requests() -> Calls:
    """Return requests by name, each with its method."""
    rows = points()[:2]
    dense = vectors_pb2.Vectors(
        dense=vectors_pb2.DenseMatrix(rows=2, cols=9, values=rows.ravel().tolist())
    )
    sparse = vectors_pb2.Vectors(
        sparse=vectors_pb2.CsrMatrix(
            rows=2,
            cols=9,
            indptr=np.array([0, 2, 5], "<i8").tobytes(),
            indices=np.array([1, 7, 0, 3, 8], "<u4").tobytes(),
            data=np.array([0.5, -1, 2, 0.25, 1], "<f4").tobytes(),
        )
    )
    plain: dict[str, Any] = {"k": 4, "list_collapsed": True}
    calls: dict[str, tuple[str, Message]] = {
        f"query {name}": ("Query", query_pb2.QueryRequest(index=name, queries=dense, **plain))
        for name in _INDEXES
    }
    calls["query sparse with sparse rows"] = (
        "Query",
        query_pb2.QueryRequest(index="sparse", queries=sparse, diversity_auto=True),
    )
    calls["query with a bound"] = (
        "Query",
        query_pb2.QueryRequest(index="cells", queries=dense, lose_at_most=0.1, hash_limit=40),
    )
    calls["predict"] = (
        "PredictLabels",
        predict_pb2.PredictLabelsRequest(index="labels", documents=dense, top_k=3),
    )
    for name in _INDEXES:
        calls[f"describe {name}"] = ("GetIndex", index_pb2.GetIndexRequest(index=name))
    return {
        name: (method, message.SerializeToString(deterministic=True))
        for name, (method, message) in calls.items()
    }


@cache
def recorded() -> dict[str, list[str]]:
    record: dict[str, list[str]] = json.loads(_RECORD.read_text())
    return record


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """Return a channel to a server of its own, which serves the golden indexes."""
    with _serving(tmp_path_factory.mktemp("golden")) as channel:
        yield channel


@contextmanager
def _serving(folder: Path) -> Iterator[grpc.Channel]:
    for name in _INDEXES:
        shutil.copytree(_GOLDEN / "families" / name, folder / "data" / name)
    running = RunningServer(folder, "--data-dir", str(folder / "data"))
    with running as server, server.channel() as channel:
        yield channel


@pytest.mark.parametrize("name", recorded())
def test_a_recorded_request_gets_the_recorded_bytes(golden: grpc.Channel, name: str) -> None:
    """The same request bytes get the same answer bytes."""
    method, request, answer = recorded()[name]
    assert raw_calls.unary(golden, method)(bytes.fromhex(request), timeout=30).hex() == answer


def test_requests_have_the_bytes_that_were_recorded() -> None:
    """What the generated code writes is what it wrote, and no recorded call is left over."""
    written = {name: [method, request.hex()] for name, (method, request) in requests().items()}
    assert written == {name: call[:2] for name, call in recorded().items()}


def record() -> None:
    """Write all requests and answers anew."""
    with tempfile.TemporaryDirectory() as folder, _serving(Path(folder)) as channel:
        answers = {
            name: [method, request.hex(), raw_calls.unary(channel, method)(request).hex()]
            for name, (method, request) in requests().items()
        }
    lines = [f" {json.dumps(name)}: {json.dumps(answers[name])}" for name in sorted(answers)]
    _RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
