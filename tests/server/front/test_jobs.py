"""Building over the wire: what is refused, and that nothing half built is left or served."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest

from divgrpc.errors import BuildUnderWayError, IndexExistsError, InvalidArgumentError
from divgrpc.types import Progress
from divgrpc_client import Client
from divgrpc_protos.v1 import index_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.manual_uploads import Held, build, chunk, commit, header, refusal
from support.raw_calls import stream
from support.running_server import RunningServer, eventually
from support.served_index import DIMS, random_points
from support.status_details import details_of

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ONES = np.ones((3, DIMS), np.float32)


def leftovers(server: RunningServer, name: str) -> list[Path]:
    """Return what lies in the data folder under a name that no index has."""
    data = server.folder / "data"
    return [entry for entry in data.iterdir() if entry.name.lstrip(".").split(".")[0] == name]


@pytest.fixture
def clean(server: RunningServer) -> Iterator[str]:
    """Yield a name; whatever was done with it, nothing may be left."""
    yield "clean"
    eventually(lambda: not leftovers(server, "clean"))


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ([chunk(ONES)], "header"),
        ([header("../x")], "index"),
        ([header("clean"), chunk(ONES), commit(3), chunk(ONES)], "step"),
        ([header("clean"), chunk(ONES * np.nan), commit(3)], "vectors"),
        ([header("clean"), chunk(ONES, ids=[1, 2, 1]), commit(3)], "ids"),
    ],
    ids=["no-header", "name", "after-commit", "nan", "twice"],
)
def test_a_wrong_upload_names_its_field(
    stub: DiverseIndexStub, clean: str, steps: list[index_pb2.BuildRequest], field: str
) -> None:
    """INVALID_ARGUMENT with the field, and nothing is left behind."""
    details = refusal(stub, *steps)
    assert details.code == INVALID
    assert details.fields == (field,)
    assert clean


def test_bytes_that_are_no_message(channel: grpc.Channel) -> None:
    """A malformed message ends a build with INVALID_ARGUMENT."""
    with pytest.raises(grpc.RpcError) as caught:
        list(stream(channel, "Build", iter([b"\xff\xff"])))
    assert details_of(caught.value).reason == "MALFORMED_MESSAGE"


def test_a_bad_row_is_counted_from_the_first_chunk(stub: DiverseIndexStub, clean: str) -> None:
    """The number of a bad row is its place in the upload."""
    bad = ONES.copy()
    bad[1, 1] = np.nan
    details = refusal(stub, header(clean), chunk(ONES), chunk(bad), commit(6))
    assert "row 4" in details.message


def test_a_name_in_use(client: Client) -> None:
    """Without `replace` an index stays as it is; with it the generation goes up."""
    client.build("used", ONES + np.arange(3)[:, None])
    with pytest.raises(IndexExistsError):
        client.build("used", ONES)
    assert client.get_index("used").generation == 1
    assert client.build("used", ONES, replace=True).generation == 2


def test_one_build_of_a_name_at_a_time(stub: DiverseIndexStub, client: Client) -> None:
    """A second build of the same name is ABORTED, and the first goes on."""
    first = Held(stub, "twice")
    with pytest.raises(BuildUnderWayError) as caught:
        client.build("twice", ONES)
    assert caught.value.code == grpc.StatusCode.ABORTED  # type: ignore[attr-defined]  # an RpcError
    assert caught.value.retry_after is not None  # type: ignore[attr-defined]  # as above
    for step in (chunk(ONES), commit(3), None):
        first.send(step)
    assert list(first.call)[-1].done.rows == 3


def test_more_builds_than_may_be(stub: DiverseIndexStub) -> None:
    """A third build at a time is RESOURCE_EXHAUSTED, and told to wait."""
    held = [Held(stub, name) for name in ("full-a", "full-b")]
    details = refusal(stub, header("full-c"))
    assert (details.code, details.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUILDS_FULL")
    assert details.retry_after
    for one in held:
        one.call.cancel()


def test_a_cancelled_build_leaves_nothing(
    server: RunningServer, stub: DiverseIndexStub, client: Client, clean: str
) -> None:
    """Cancelling ends the builder; the name is free and nothing is left."""
    held = Held(stub, clean)
    held.send(chunk(random_points(1000)))
    assert next(held.call).HasField("progress")
    assert leftovers(server, clean)
    held.call.cancel()
    eventually(lambda: not leftovers(server, clean) and not server.pids("builder"))
    assert clean not in [info.name for info in client.list_indexes()]


def test_a_lost_connection_leaves_nothing(server: RunningServer, clean: str) -> None:
    """A caller who vanishes is a caller who cancelled."""
    with server.channel() as lost:
        held = Held(DiverseIndexStub(lost), clean)
        held.send(chunk(ONES))
    eventually(lambda: not leftovers(server, clean))


def test_a_deadline_that_passes_during_a_build(
    server: RunningServer, stub: DiverseIndexStub, clean: str
) -> None:
    """DEADLINE_EXCEEDED, and nothing is left."""

    def endless() -> Iterator[index_pb2.BuildRequest]:
        yield header(clean)
        while True:
            yield chunk(random_points(1000))

    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Build(endless(), timeout=1.5))
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    eventually(lambda: not leftovers(server, clean))


def test_a_failed_replacement_leaves_the_old_generation(
    server: RunningServer, stub: DiverseIndexStub, client: Client
) -> None:
    """Whatever ends a build, the generation before goes on serving."""
    client.build("kept", random_points(100))
    before = client.query("kept", ONES[0])
    held = Held(stub, "kept", replace=True)
    held.send(chunk(ONES))
    server.kill("builder")
    with pytest.raises(grpc.RpcError) as caught:
        list(held.call)
    assert details_of(caught.value).code == grpc.StatusCode.UNAVAILABLE
    with pytest.raises(InvalidArgumentError):
        client.build("kept", ONES * np.nan, replace=True)
    after = client.query("kept", ONES[0])
    assert after.generation == before.generation == 1
    assert after.ids.tobytes() == before.ids.tobytes()
    eventually(lambda: [path.name for path in leftovers(server, "kept")] == ["kept"])


def test_progress_is_told(client: Client) -> None:
    """A build says which stage it is at, and how many rows it has done."""
    told: list[Progress] = []
    client.build("told", random_points(), progress=told.append)
    stages = [progress.stage for progress in told]
    assert stages[0] == "receiving"
    assert {"hashing", "tables", "tuning"} <= set(stages)


def test_a_stream_may_stay_open_until_done(stub: DiverseIndexStub) -> None:
    """A caller need not end its side of the stream to get its index."""
    held = Held(stub, "open-ended")
    held.send(chunk(ONES))
    held.send(commit(3))
    assert list(held.call)[-1].done.rows == 3


def test_half_precision_rows_are_widened(client: Client) -> None:
    """float16 rows build the index of the numbers they stand for."""
    points = random_points(50).astype(np.float16)
    client.build("half", points)
    result = client.query("half", points[7].astype(np.float32), k=1)
    assert result.ids[0, 0] == 7


def test_zero_rows_in_a_chunk_are_nothing(stub: DiverseIndexStub) -> None:
    """An empty chunk among others is not a fault."""
    steps = [header("sparse-upload"), chunk(ONES[:0]), chunk(ONES, ids=[4, 5, 6]), commit(3)]
    assert build(stub, steps).rows == 3
