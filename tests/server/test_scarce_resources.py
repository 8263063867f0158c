"""A server whose processes have too little memory, or whose file system in memory is full.

`test_faults.py` has full disks and a lack of descriptors.
"""

import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pytest

from divgrpc import Index
from divgrpc.errors import StorageFullError
from divgrpc.types import FloatArray
from divgrpc_client import Client
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub
from support.checks.status_details import failure
from support.data.served_index import random_points
from support.processes.running_server import RunningServer, eventually
from support.requests.manual_uploads import Held, chunk, commit

MIB = 2**20
ROWS, DIMS = 2_000, 256
# The file system holds the log of one index, which takes 16 MiB, and little more.
ROOM_MIB = 40
SCRIPT = """#!/bin/sh
exec unshare --map-root-user --mount sh -c \
    'mount -t tmpfs -o size={room}m none "$0" && exec "$@"' '{folder}' '{python}' "$@"
"""


def address_space(pid: int) -> int:
    """Return the bytes of addresses that a process uses."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("room", [1, 8])
def test_a_builder_without_memory_ends_its_build_alone(tmp_path: Path, room: int) -> None:
    """The build fails or, if a library ends the process, is UNAVAILABLE; nothing of it is left."""
    data = tmp_path / "data"
    Index.build(random_points(100, dims=DIMS), path=data / "small")
    with (
        RunningServer(tmp_path, "--data-dir", str(data), "--workers", "1") as server,
        Client(server.target, timeout=60, retries=False) as client,
        server.channel() as channel,
    ):
        upload = Held(DiverseIndexStub(channel), "small", replace=True)
        points = random_points(ROWS, dims=DIMS)
        upload.send(chunk(points))
        (builder,) = server.pids("builder")
        # It has read the chunk.
        eventually(lambda: any(data.glob(".small.staging*/*")))
        limit = address_space(builder) + room * MIB
        resource.prlimit(builder, resource.RLIMIT_AS, (limit, limit))
        for step in (*[chunk(points)] * 4, commit(5 * ROWS), None):
            upload.send(step)
        details = failure(list, upload.call)
        outcomes = [("RESOURCE_EXHAUSTED", "OUT_OF_MEMORY"), ("UNAVAILABLE", "UNAVAILABLE")]
        assert (details.code.name, details.reason) in outcomes, server.log
        assert details.retry_after
        assert client.query("small", points[0]).generation == 1
        eventually(lambda: not list(data.glob(".small*")))
        assert client.build("small", points, replace=True).generation == 2


def fill(path: Path) -> None:
    """Let a file take all room of its file system."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(MIB))


def upsert_often(client: Client, points: FloatArray) -> None:
    for number in range(20):
        client.upsert("small", np.arange(ROWS) + number, points)


def has_room(client: Client, points: FloatArray) -> bool:
    """Make a small write; return whether there was room for it."""
    try:
        client.upsert("small", np.arange(20), points[:20])
    except StorageFullError:
        return False
    return True


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[RunningServer]:
    """Run a server on a small file system of its own, in memory."""
    data, program = tmp_path / "data", tmp_path / "python"
    data.mkdir()
    program.write_text(SCRIPT.format(room=ROOM_MIB, folder=data, python=sys.executable))
    program.chmod(stat.S_IRWXU)
    is_possible = shutil.which("unshare") is not None
    if not is_possible or subprocess.run([program, "-c", ""], check=False).returncode:
        pytest.skip("needs unshare, and the right to mount a file system of its own")
    options = ("--data-dir", str(data), "--workers", "1")
    with RunningServer(tmp_path, *options, python=program) as server:
        yield server


def test_a_full_file_system_in_memory(small_server: RunningServer) -> None:
    """Builds and writes are STORAGE_FULL, queries go on, and all go on when there is room."""
    pid, data = small_server.process.pid, small_server.folder / "data"
    filler = Path(f"/proc/{pid}/root{data}/filler")
    points = random_points(ROWS, dims=DIMS)
    with Client(small_server.target, timeout=60, retries=False) as client:
        client.build("small", points[:500])
        client.upsert("small", np.arange(10), points[:10])
        with pytest.raises(StorageFullError) as error_info:
            client.build("large", np.repeat(points, 20, axis=0))
        assert error_info.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]  # of the client
        assert [info.name for info in client.list_indexes()] == ["small"]
        # Removed files that the builder maps take room until it has ended.
        eventually(lambda: not small_server.pids("builder"))
        fill(filler)
        with pytest.raises(StorageFullError):
            upsert_often(client, points)
        sequence = client.query("small", points[0], k=5).sequence
        filler.unlink()
        # A merge that was under way may still take the room.
        eventually(lambda: has_room(client, points))
        assert client.query("small", points[0], k=5).sequence == sequence + 1
        assert client.count("small") >= 500
