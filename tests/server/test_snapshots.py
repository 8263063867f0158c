"""A snapshot of a served index that is written to, and a restore into a running server."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from divgrpc import Index
from divgrpc.backup import SnapshotEntry, restore_snapshot, write_snapshot
from divgrpc.errors import ConditionFailedError
from divgrpc_client import Client
from reference.index import same_bytes
from support.data.served_index import random_points
from support.processes.running_server import RunningServer

_ROWS, _DIMS = 300, 12
_POINTS = random_points(_ROWS, dims=_DIMS, seed=8)
_QUERIES = random_points(8, dims=_DIMS, seed=9)


def test_answers_of_a_restored_index_equal_those_of_the_server(
    server: RunningServer, tmp_path: Path
) -> None:
    """A client writes all the time; the server's answers at each number are kept and compared."""
    root = server.folder / "data"
    answers = {}
    stop = threading.Event()
    with Client(server.target) as client:
        client.build("snapshot-copied", _POINTS)

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                result = client.upsert("snapshot-copied", [number % 50], _POINTS[[-number % _ROWS]])
                answer = client.query("snapshot-copied", _QUERIES, k=5)
                assert answer.sequence == result.sequence == number
                answers[number] = answer
                if number % 20 == 0:
                    client.compact("snapshot-copied")

        thread = threading.Thread(target=write)
        thread.start()
        entries: list[SnapshotEntry] = []
        try:
            while len(entries) < 6:
                (entry,) = write_snapshot(
                    root / "snapshot-copied", tmp_path / f"{len(entries)}.tar"
                )
                entries.append(entry)
        finally:
            stop.set()
            thread.join()
    for number, entry in enumerate(entries):
        restore_snapshot(tmp_path / f"{number}.tar", tmp_path / f"other-{number}")
        index = Index.open(tmp_path / f"other-{number}" / "snapshot-copied")
        assert index.info.generation == entry.generation
        if entry.sequence:
            same_bytes(index.query(_QUERIES, k=5), answers[entry.sequence])


def test_a_running_server_serves_what_is_restored(server: RunningServer, tmp_path: Path) -> None:
    root = server.folder / "data"
    with Client(server.target) as client:
        client.build("snapshot-kept", _POINTS)
        client.upsert("snapshot-kept", [1, _ROWS + 7], _POINTS[:2])
        first = client.query("snapshot-kept", _QUERIES, k=5)
        write_snapshot(root / "snapshot-kept", tmp_path / "kept.tar")
        client.delete("snapshot-kept", list(range(200)))
        assert client.count("snapshot-kept") == _ROWS + 1 - 200
        (entry,) = restore_snapshot(tmp_path / "kept.tar", root, replace=True)
        assert entry.generation == first.generation + 1
        second = client.query("snapshot-kept", _QUERIES, k=5)
        assert (second.generation, second.sequence) == (entry.generation, first.sequence)
        np.testing.assert_array_equal(first.ids, second.ids)
        np.testing.assert_array_equal(first.scores, second.scores)
        assert client.count("snapshot-kept") == _ROWS + 1
        # The last write has the number that it has in the snapshot.
        with pytest.raises(ConditionFailedError):
            client.upsert("snapshot-kept", [2], _POINTS[:1], if_sequence=2)
        assert client.upsert("snapshot-kept", [2], _POINTS[:1]).sequence == 2
        client.delete_index("snapshot-kept")
        restore_snapshot(tmp_path / "kept.tar", root)
        third = client.query("snapshot-kept", _QUERIES, k=5)
        assert third.generation == first.generation
        same_bytes(first, third)


def test_a_pipe_carries_a_snapshot(server: RunningServer, tmp_path: Path) -> None:
    with Client(server.target) as client:
        client.build("snapshot-piped", _POINTS)
    command = [sys.executable, "-m", "divgrpc_client"]
    folder = server.folder / "data" / "snapshot-piped"
    output = subprocess.run(
        [*command, "snapshot", str(folder), "-"], capture_output=True, check=True
    )
    assert output.stderr.decode().startswith("snapshot-piped: generation 1, ")
    restored = subprocess.run(
        [*command, "restore", "-", str(tmp_path / "other")],
        input=output.stdout,
        capture_output=True,
        check=True,
    )
    assert restored.stdout == output.stderr
    same_bytes(
        Index.open(folder).query(_QUERIES, k=5),
        Index.open(tmp_path / "other" / "snapshot-piped").query(_QUERIES, k=5),
    )
