"""Recorded requests of every method, byte for byte, and the server's recorded answers.

A change of the code must leave these bytes as they are. `support.requests.golden_requests` makes
the requests. Before answers are compared, the fields in `UNSTEADY` are cleared and those in
`_ROUNDED_FIELDS` are rounded. To record requests and answers again, run this file as a script, and
review the changes before you commit them:

    PYTHONPATH=tests .venv/bin/python tests/server/test_golden_wire.py
"""

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from divgrpc.collection import Collection
from divgrpc_protos.v1 import diverse_index_pb2, index_pb2
from support.processes.running_server import RunningServer, eventually
from support.requests import raw_calls
from support.requests.golden_requests import GOLDEN_NAMES, WRITTEN_NAMES
from support.requests.golden_writes import calls

_GOLDEN: Final = Path(__file__).parent.parent / "golden"
_RECORD: Final = _GOLDEN / "wire.json"
_METHODS: Final = diverse_index_pb2.DESCRIPTOR.services_by_name["DiverseIndex"].methods_by_name
_PACKAGE: Final = "divgrpc.v1."
_TIMES: Final = {
    f"row.microseconds.{name}": "a measured time" for name in ("mean", "p50", "p90", "p99")
}
_EVALUATION: Final = {
    **_TIMES,
    "row.values[microseconds].values": "measured times",
    "row.on_front": "a comparison of measured times",
    "progress.seconds_left": "an estimate from the clock",
}
# Errors in the answers of a stream.
_ERRORS: Final = {
    "error.message": "a text for people, free to change",
    "error.details": "they hold a random request id and the text",
}
# Methods whose progress reports are left out.
_WITHOUT_PROGRESS: Final = ("Build", "AddAttributes", "Compact", "Diagnose", "Retrain")
# The fields of each method that differ between runs or machines, each with the reason. In a path, a
# name in brackets selects the elements of a repeated field that have this name.
UNSTEADY: Final = {
    "Diagnose": {
        "done.effects.gain": "a difference of sums, whose last digits depend on the processor",
        "done.effects.loss": "the same",
    },
    "Evaluate": _EVALUATION,
    "EvaluateLabels": _EVALUATION,
    "QueryStream": _ERRORS,
    "WriteStream": _ERRORS,
    "GetServerInfo": {
        "version": "the release under test",
        "versions": "the installed libraries",
        "kernels_compiled": "depends on the kernels cached before the start",
        "kernels_total": "depends on the kernels cached before the start",
    },
}
# The fields of each method that are rounded to 12 digits, because confidence intervals are computed
# by linear algebra, whose last bits differ between processors.
_ROUNDED_FIELDS: Final = {
    "Evaluate": ("row.metrics.low", "row.metrics.high"),
    "EvaluateLabels": tuple(
        f"row.{name}.{end}"
        for name in ("metrics", "precision_at", "recall_at", "ndcg_at", "propensity_scored_at")
        for end in ("low", "high")
    ),
}
# Fields and enum values that occur in no recorded call, each with the reason.
_NOT_RECORDED: Final = {
    **dict.fromkeys(("EvaluateTimes", "EvaluateProgress.seconds_left"), "cleared"),
    **dict.fromkeys(("EvaluateRow.on_front", "EvaluateLabelRow.on_front"), "cleared"),
    **{f"GetServerInfoResponse.{name}": "cleared" for name in UNSTEADY["GetServerInfo"]},
    "GetServerInfoResponse.read_only": "the server under test writes",
    "AddAttributesResponse.progress": "left out",
    "BuildResponse.progress": "left out",
    "CompactResponse.progress": "left out",
    "RetrainResponse.progress": "left out",
    "DiagnoseResponse.progress": "left out",
    **dict.fromkeys(("DefaultEffect.gain", "DefaultEffect.loss"), "cleared"),
    "BuildProgress": "left out",
    "DiversifyStreamResponse.rank": "0 in a first message; the number of messages depends on time",
    "EvaluateRow.empty": "a query of a golden index always has a result",
    **dict.fromkeys(
        (
            *("IndexInfo.shards", "IndexInfo.degraded", "IndexInfo.missing_shards"),
            *("ShardInfo", "ReplicaInfo"),
            *("QueryRequest.allow_partial", "QueryResponse.coverage"),
            *("PredictLabelsRequest.allow_partial", "PredictLabelsResponse.coverage"),
            *("QueryResponse.missing_shards", "PredictLabelsResponse.missing_shards"),
            *("REPLICA_STATE_SERVING", "REPLICA_STATE_STARTING", "REPLICA_STATE_AVOIDED"),
            *("REPLICA_STATE_UNREACHABLE", "REPLICA_STATE_FAULTY"),
        ),
        "the server under test has no shards",
    ),
    "LabelPlan.parameters": "the numbers of a training differ between processors",
    "LABEL_MODEL_LEML": "the numbers of a training differ between processors",
}


def unsteady(method: str) -> bool:
    """Tell whether answers of a method have fields to clear or events to leave out."""
    return method in UNSTEADY or method in _WITHOUT_PROGRESS


def fields_at(message: Message, path: str) -> Iterator[tuple[Message, str]]:
    """Yield each message that `path` leads to, with the name of the field in it."""
    first, _, rest = path.partition(".")
    name, _, element = first.rstrip("]").partition("[")
    if not rest:
        yield message, name
        return
    child = getattr(message, name)
    for part in [child] if isinstance(child, Message) else child:
        present = part is not child or message.HasField(name)
        if present and element in {"", getattr(part, "name", "")}:
            yield from fields_at(part, rest)


def is_interim(method: str, message: Any) -> bool:  # noqa: ANN401  # a message with a oneof
    """Tell whether an event is a progress report before the end, whose number depends on time."""
    if method in _WITHOUT_PROGRESS:
        return bool(message.HasField("progress"))
    if not method.startswith("Evaluate") or not message.HasField("progress"):
        return False
    return bool(message.progress.queries_done < message.progress.queries_total)


def steady(method: str, answers: Iterable[bytes]) -> list[str]:
    """Return answers in hexadecimal, without the fields that differ between runs or machines.

    Answers of a QueryStream come in any order, so they are sorted by correlation id.
    """
    if not unsteady(method):
        return [answer.hex() for answer in answers]
    texts: list[str] = []
    for answer in answers:
        message = answer_class(method).FromString(answer)
        if is_interim(method, message):
            continue
        for path in UNSTEADY.get(method, ()):
            for part, name in fields_at(message, path):
                part.ClearField(name)
        for path in _ROUNDED_FIELDS.get(method, ()):
            for part, name in fields_at(message, path):
                setattr(part, name, float(f"{getattr(part, name):.12g}"))
        texts.append(message.SerializeToString(deterministic=True).hex())
    # The server may send the last progress event twice.
    texts = list(dict.fromkeys(texts))
    return sorted(texts) if method == "QueryStream" else texts


def answer_class(method: str) -> type[Message]:
    return GetMessageClass(_METHODS[method].output_type)


def request_class(method: str) -> type[Message]:
    return GetMessageClass(_METHODS[method].input_type)


def call(channel: grpc.Channel, method: str, requests: list[bytes]) -> list[bytes]:
    """Call a method with bytes and return all its answers."""
    if _METHODS[method].client_streaming:
        return list(raw_calls.stream(channel, method, iter(requests)))
    (request,) = requests
    if _METHODS[method].server_streaming:
        return list(raw_calls.unary_stream(channel, method)(request, timeout=30))
    return [raw_calls.unary(channel, method)(request, timeout=30)]


def written() -> dict[str, tuple[str, list[str]]]:
    """Return the method and the requests of each call, in hexadecimal."""
    return {
        name: (method, [part.SerializeToString(deterministic=True).hex() for part in requests])
        for name, (method, requests) in calls().items()
    }


@cache
def recorded() -> dict[str, list[Any]]:
    record: dict[str, list[Any]] = json.loads(_RECORD.read_text())
    return record


@contextmanager
def _serving(folder: Path) -> Iterator[grpc.Channel]:
    """Serve copies of the golden indexes with one worker, which is ready for the first call."""
    for name, golden in GOLDEN_NAMES.items():
        shutil.copytree(_GOLDEN / golden, folder / "data" / name)
    for name in WRITTEN_NAMES:
        with Collection.open(folder / "data" / name) as collection:
            numbers = np.arange(10, dtype=np.float32).reshape(2, 5)
            collection.upsert(["new", "n0"], numbers, attributes={"price": [1, 2]})
            collection.delete(["n5"])
    for name in ("vectorless", "a_vectorless"):
        vectors = [*np.arange(10, dtype=np.float32).reshape(2, 5), None]
        Collection.build(vectors, path=folder / "data" / name, vectors_optional=True).close()
    with Collection.open(folder / "data" / "labels_written") as collection:
        collection.upsert([10**6], np.eye(1, 9), labels=np.eye(1, 6))
        collection.delete([0])
    running = RunningServer(folder, "--data-dir", str(folder / "data"), "--workers", "1")
    with running as server, server.channel() as channel:
        describe = raw_calls.unary(channel, "GetServerInfo")
        state = index_pb2.GetServerInfoResponse.FromString
        eventually(lambda: state(describe(b"", timeout=30)).kernels_ready, seconds=100)
        yield channel


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """Return a channel to a separate server that serves the golden indexes."""
    with _serving(tmp_path_factory.mktemp("golden")) as channel:
        yield channel


@pytest.mark.parametrize("name", recorded())
def test_a_recorded_request_gets_the_recorded_bytes(golden: grpc.Channel, name: str) -> None:
    """Fields in `UNSTEADY` are not compared, and those in `_ROUNDED_FIELDS` are rounded."""
    method, requests, answers = recorded()[name]
    answers_now = call(golden, method, [bytes.fromhex(request) for request in requests])
    assert steady(method, answers_now) == answers


def test_requests_have_the_bytes_that_were_recorded() -> None:
    """The generated code writes the recorded bytes, and the record has no further calls."""
    record = {name: (method, requests) for name, (method, requests, _) in recorded().items()}
    assert written() == record


def test_every_method_is_recorded() -> None:
    assert {method for method, _, _ in recorded().values()} == set(_METHODS)


def declared_in(kind: Descriptor, message_names: set[str]) -> set[str]:
    """Return the names of all fields and enum values that a message and its parts declare."""
    if kind.full_name in message_names or not kind.full_name.startswith(_PACKAGE):
        return set()
    message_names.add(kind.full_name)
    names = set()
    for field in kind.fields:
        names.add(field.full_name.removeprefix(_PACKAGE))
        if field.enum_type:
            names |= {value.name for value in field.enum_type.values if value.number}
        if field.message_type and not field.message_type.GetOptions().map_entry:
            names |= declared_in(field.message_type, message_names)
    return names


def present_in(message: Message) -> set[str]:
    """Return the names of the fields and enum values that are set in a message and its parts."""
    names: set[str] = set()
    for field, value in message.ListFields():
        names.add(field.full_name.removeprefix(_PACKAGE))
        if field.enum_type:
            numbers = [value] if isinstance(value, int) else value
            names |= {field.enum_type.values_by_number[number].name for number in numbers}
        if field.message_type and not field.message_type.GetOptions().map_entry:
            parts = [value] if isinstance(value, Message) else value
            names = names.union(*map(present_in, parts))
    return names


def test_every_field_and_enum_value_is_recorded() -> None:
    """A recorded message has each field and enum value, or `_NOT_RECORDED` gives a reason."""
    present, declarations = set[str](), set[str]()
    for method_ in _METHODS.values():
        for message in (method_.input_type, method_.output_type):
            declarations |= declared_in(message, set())
    for method, requests, answers in recorded().values():
        for kind, parts in ((request_class(method), requests), (answer_class(method), answers)):
            present = present.union(*(present_in(kind.FromString(part)) for part in _bytes(parts)))
    missing = {name for name in declarations - present if name.split(".")[0] not in _NOT_RECORDED}
    assert missing == {name for name in _NOT_RECORDED if "." in name}


def record() -> None:
    """Write all requests and answers to the record."""
    with tempfile.TemporaryDirectory() as folder, _serving(Path(folder)) as channel:
        answers = {
            name: [method, requests, steady(method, call(channel, method, _bytes(requests)))]
            for name, (method, requests) in written().items()
        }
    lines = [f" {json.dumps(name)}: {json.dumps(answers[name])}" for name in sorted(answers)]
    _RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _bytes(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


if __name__ == "__main__":
    record()
