"""Replacing, damaging and deleting indexes while they are queried."""

import os
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from divgrpc import Index
from divgrpc.errors import IndexDamagedError, IndexNotFoundError, OtherFormatError
from divgrpc_client import Client
from support.checks.refusals import failing
from support.data.served_index import DIMS, Served, place, random_points
from support.processes.running_server import RunningServer


def watching(client: Client, name: str, stop: threading.Event) -> list[int]:
    """Query until `stop` is set, and return the generations of the answers in order."""
    generations = []
    while not stop.is_set():
        generations.append(client.query(name, np.ones(DIMS)).generation)
    return generations


def test_replacing_an_index_under_load_fails_no_call(server: RunningServer) -> None:
    """No answer comes from an older generation than the answer before it."""
    stop = threading.Event()
    with (
        Client(server.target, timeout=30, retries=False) as client,
        ThreadPoolExecutor(3) as threads,
    ):
        place(server, "growing", random_points())
        asking = [threads.submit(watching, client, "growing", stop) for _ in range(3)]
        try:
            for generation in (2, 3, 4):
                info = client.build("growing", random_points(seed=generation), replace=True)
                assert info.generation == generation
                for _ in range(6):
                    assert client.query("growing", np.ones(DIMS)).generation == generation
        finally:
            stop.set()
        for future in asking:
            generations = future.result()
            assert generations == sorted(generations)
            assert generations[-1] == 4
    old = [entry.name for entry in (server.folder / "data" / "growing").iterdir()]
    assert sorted(old) == ["4", "CURRENT"]


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped bit": lambda folder: flip(folder / "1" / "codes.npy"),
    "short file": lambda folder: os.truncate(folder / "1" / "vectors.npy", 4920),
    "missing file": lambda folder: (folder / "1" / "hyperplanes.npy").unlink(),
    "empty manifest": lambda folder: os.truncate(folder / "1" / "manifest.json", 0),
    "bad pointer": lambda folder: os.truncate(folder / "CURRENT", 0),
}


def test_a_damaged_index_harms_no_other(tmp_path: Path) -> None:
    """A damaged index is listed, can be replaced, and is DATA_LOSS when it is queried."""
    data = tmp_path / "data"
    names = [f"doomed-{number}" for number in range(len(DAMAGES))]
    Index.build(random_points(50), path=data / "sound")
    for name in [*names, "newer"]:
        shutil.copytree(data / "sound", data / name)
    for name, damage in zip(names, DAMAGES.values(), strict=True):
        damage(data / name)
    manifest = data / "newer" / "1" / "manifest.json"
    text, changes = re.subn(r'"format_version": *\d+', '"format_version": 99', manifest.read_text())
    assert changes == 1
    manifest.write_text(text)
    arguments = ("--data-dir", str(data), "--workers", "1")
    with RunningServer(tmp_path, *arguments) as server, Client(server.target, timeout=30) as client:
        for name in names:
            no_path = f"(?s)^(?!.*{re.escape(str(tmp_path))})"
            with failing(grpc.StatusCode.DATA_LOSS, IndexDamagedError, match=no_path):
                client.query(name, np.ones(DIMS))
            assert client.query("sound", np.ones(DIMS)).generation == 1
        with failing(grpc.StatusCode.FAILED_PRECONDITION, OtherFormatError):
            client.query("newer", np.ones(DIMS))
        info_by_name = {info.name: info for info in client.list_indexes()}
        assert set(info_by_name) == {*names, "sound", "newer"}
        assert info_by_name["doomed-4"].warnings[0].code == "INDEX_DAMAGED"
        assert client.build(names[0], random_points(50), replace=True).generation == 2
        assert client.query(names[0], np.ones(DIMS)).generation == 2


def test_a_deleted_index_can_be_built_again(
    server: RunningServer, client: Client, served_index: Served
) -> None:
    """Under its old name, the new index answers and the deleted index never does."""
    place(server, "again", np.eye(4, dtype=np.float32), ids=[1, 2, 3, 4])
    assert client.query("again", np.eye(4)[0], k=1).ids[0, 0] == 1
    client.delete_index("again")
    with pytest.raises(IndexNotFoundError):
        client.query("again", np.eye(4)[0])
    place(server, "again", np.eye(4, dtype=np.float32), ids=[11, 12, 13, 14])
    for _ in range(6):
        assert client.query("again", np.eye(4)[0], k=1).ids[0, 0] == 11
    assert client.query(served_index.name, served_index.queries[0]).generation == 1
