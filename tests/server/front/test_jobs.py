"""Builds over the wire: which are refused, and that no partial index is kept or served."""

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import IndexExistsError, IndexNotFoundError, InvalidArgumentError
from divgrpc.parameters import LIMITS
from divgrpc.types import Progress
from divgrpc_client import Client
from divgrpc_protos.v1 import index_pb2, labels_pb2, points_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import code_of_failure, failure
from support.data.served_index import DIMS, place, random_points
from support.processes.running_server import RunningServer, eventually, index_folders
from support.requests.manual_uploads import Held, Message, chunk, commit, header, once, refusal

ABORTED = grpc.StatusCode.ABORTED
DEADLINE = grpc.StatusCode.DEADLINE_EXCEEDED
RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
ONES = np.ones((3, DIMS), np.float32)


def large(name: str, **fields: Any) -> index_pb2.BuildOnceRequest:  # noqa: ANN401  # a message's types
    """Return a request whose message is nearly of the maximum size."""
    rows = (LIMITS["message_bytes_max"] - 1024) // 4 // DIMS
    return once(name, random_points(rows), **fields)


LEML = labels_pb2.LabelPlan(model=labels_pb2.LABEL_MODEL_LEML)
RANK = labels_pb2.LabelPlan(
    model=labels_pb2.LABEL_MODEL_LEML, parameters=labels_pb2.LabelParameters(rank=0)
)
ROWS = points_pb2.LabelSets(label_count=4, offsets=[0, 1, 2, 4], ids=[0, 1, 2, 3])
INCOMPLETE_SETS = points_pb2.LabelSets(label_count=4, offsets=[0])


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([chunk(ONES)], "header"),
        ([header("clean"), chunk(ONES), commit(3), chunk(ONES)], "step"),
        ([header("clean"), chunk(ONES * np.nan), commit(3)], "vectors"),
        ([once("../x", ONES)], "index"),
        ([once("clean", ONES, ids=[1, 2, 1])], "ids"),
        ([header("clean", labels=RANK)], "rank"),
        ([header("clean"), chunk(ONES, labels=INCOMPLETE_SETS)], "labels.offsets"),
        ([header("clean", labels=LEML), chunk(ONES, labels=ROWS)], "commit"),
    ],
    ids=["no-header", "after-commit", "nan", "name", "twice", "plan", "rows", "no-commit"],
)
def test_a_wrong_upload_names_its_field(
    stub: DiverseIndexStub, clean: str, messages: list[Message], field: str
) -> None:
    """The call ends as INVALID_ARGUMENT with the field, and no file of the build is left."""
    details = refusal(stub, *messages)
    assert (details.code, details.fields) == (INVALID, (field,))
    assert clean


def test_replacing_an_index_must_be_asked_for(
    server: RunningServer, stub: DiverseIndexStub, client: Client
) -> None:
    """Without `replace` a build of an existing index fails; with it, the generation increases."""
    place(server, "used", ONES + np.arange(3)[:, None])
    with pytest.raises(IndexExistsError):
        client.build("used", ONES)
    assert refusal(stub, once("used", ONES)).code == grpc.StatusCode.ALREADY_EXISTS
    assert client.get_index("used").generation == 1
    assert client.build("used", ONES, replace=True).generation == 2
    again = stub.BuildOnce(once("used", ONES, replace=True), timeout=30)
    assert again.index.generation == client.query("used", ONES[0], k=3).generation == 3


def test_one_build_of_a_name_at_a_time(stub: DiverseIndexStub) -> None:
    first = Held(stub, "twice")
    for messages in ([header("twice"), chunk(ONES), commit(3)], [once("twice", ONES)]):
        details = refusal(stub, *messages)
        assert (details.code, details.reason) == (ABORTED, "BUILD_UNDER_WAY")
        assert details.retry_after
    for step in (chunk(ONES), commit(3), None):
        first.send(step)
    assert list(first.call)[-1].done.rows == 3


def test_a_third_build_at_a_time_is_refused(server: RunningServer, stub: DiverseIndexStub) -> None:
    uploads = [Held(stub, name) for name in ("full-a", "full-b")]
    for message in (header("full-c"), once("full-c", ONES)):
        details = refusal(stub, message)
        assert (details.code, details.reason) == (RESOURCE_EXHAUSTED, "BUILDS_FULL")
        assert details.retry_after
    for upload in uploads:
        upload.call.cancel()
    eventually(lambda: not server.pids("builder"))


def test_a_cancelled_build_leaves_nothing(
    server: RunningServer, stub: DiverseIndexStub, client: Client, clean: str
) -> None:
    upload = Held(stub, clean)
    upload.send(chunk(random_points(1000)))
    assert next(upload.call).HasField("progress")
    assert index_folders(server, clean)
    upload.call.cancel()
    eventually(lambda: not index_folders(server, clean) and not server.pids("builder"))
    assert clean not in [info.name for info in client.list_indexes()]


def test_a_lost_connection_leaves_nothing(server: RunningServer, clean: str) -> None:
    with server.channel() as connection:
        upload = Held(DiverseIndexStub(connection), clean)
        upload.send(chunk(ONES))
        eventually(lambda: index_folders(server, clean))
    eventually(lambda: not index_folders(server, clean))


def test_a_deadline_that_passes_during_a_build(
    server: RunningServer, stub: DiverseIndexStub, clean: str
) -> None:
    def endless() -> Iterator[index_pb2.BuildRequest]:
        yield header(clean)
        while True:
            yield chunk(random_points(1000))

    assert code_of_failure(list, stub.Build(endless(), timeout=1.5)) == DEADLINE
    eventually(lambda: not index_folders(server, clean))


def test_a_failed_replacement_leaves_the_old_generation(
    server: RunningServer, stub: DiverseIndexStub, client: Client
) -> None:
    place(server, "kept", random_points(100))
    before = client.query("kept", ONES[0])
    upload = Held(stub, "kept", replace=True)
    upload.send(chunk(ONES))
    server.kill("builder")
    assert failure(list, upload.call).code == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(InvalidArgumentError):
        client.build("kept", ONES * np.nan, replace=True)
    after = client.query("kept", ONES[0])
    assert after.generation == before.generation == 1
    assert after.ids.tobytes() == before.ids.tobytes()
    eventually(lambda: [path.name for path in index_folders(server, "kept")] == ["kept"])


def test_a_failed_build_once_leaves_the_old_generation(
    server: RunningServer, stub: DiverseIndexStub, client: Client
) -> None:
    place(server, "once-kept", ONES)
    call = stub.BuildOnce.future(large("once-kept", replace=True))
    eventually(lambda: len(index_folders(server, "once-kept")) > 1)
    server.kill("builder")
    assert failure(call.result).code == grpc.StatusCode.UNAVAILABLE
    assert client.query("once-kept", ONES[0], k=3).generation == 1


def test_a_cancelled_build_once_leaves_nothing(
    server: RunningServer, stub: DiverseIndexStub, client: Client, clean: str
) -> None:
    """The call is cancelled, or its deadline passes, while the builder is at work."""
    assert code_of_failure(stub.BuildOnce, large(clean), timeout=0.2) == DEADLINE
    eventually(lambda: not server.pids("builder"))
    call = stub.BuildOnce.future(large(clean))
    eventually(lambda: index_folders(server, clean))
    call.cancel()
    eventually(lambda: not index_folders(server, clean) and not server.pids("builder"))
    with pytest.raises(IndexNotFoundError):
        client.get_index(clean)


def test_a_build_reports_its_progress(client: Client) -> None:
    events: list[Progress] = []
    client.build("progress", random_points(), progress=events.append)
    stages = [progress.stage for progress in events]
    assert stages[0] == "receiving"
    assert {"hashing", "tables", "tuning"} <= set(stages)


def test_a_message_of_the_maximum_size_is_built(stub: DiverseIndexStub, client: Client) -> None:
    """BuildOnce takes messages up to the limit, and its error for larger messages names Build."""
    message = large("large")
    most = LIMITS["message_bytes_max"]
    assert most - 2048 < message.ByteSize() <= most
    assert stub.BuildOnce(message, timeout=60).index.rows == message.vectors.dense.rows
    client.delete_index("large")
    message.vectors.dense.data += bytes(4096)
    details = refusal(stub, message)
    assert (details.code, details.reason) == (RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
    assert str(most) in details.message
    assert details.message.endswith("use Build")


def test_a_stream_may_stay_open_until_done(stub: DiverseIndexStub) -> None:
    upload = Held(stub, "open-ended")
    upload.send(chunk(ONES))
    upload.send(commit(3))
    assert list(upload.call)[-1].done.rows == 3
