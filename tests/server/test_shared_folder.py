"""The check that other machines have the data folder of this one."""

import asyncio
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from divgrpc_server.config import Config
from divgrpc_server.engines.engine import HopelessError
from divgrpc_server.engines.shared_folder import fault_of, marker
from divgrpc_server.logging import logs

SECRET = "sixteen characters"  # noqa: S105  # of these tests alone


def test_a_marker_is_seen_where_the_folder_is(tmp_path: Path) -> None:
    """It is removed at the end, and so is one that a killed process has left."""
    (tmp_path / ".nodes-old").touch()
    with marker(tmp_path) as path:
        assert os.listdir(tmp_path) == [path.name]
        assert fault_of(path, 0) == ""
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["missing", "missing/.nodes-1"])
def test_another_folder_is_a_fault(tmp_path: Path, name: str) -> None:
    assert "has another data folder" in fault_of(tmp_path / name, 0)


def test_a_lock_that_excludes_nobody_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / ".nodes-1"
    path.touch()
    assert fault_of(path, 0) == "does not see the file locks of other machines"


def test_a_folder_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert fault_of(tmp_path / "file" / ".nodes-1", 0) == (
        "cannot read the data folder: Not a directory"
    )


class GetTimeoutError(Exception):
    """What Ray raises if a node does not reply in time."""


class FakeRay:
    """What an engine finds of a Ray cluster with two nodes, which look for markers here."""

    def __init__(self, *, has_groups: bool) -> None:
        self.has_groups = has_groups
        # What nodes do instead.
        self.looks: dict[str, Callable[[], str]] = {}
        # For how many seconds each node has looked for the marker, and its reply was awaited.
        self.seconds: list[tuple[float, float]] = []
        self.ray = MagicMock(remote=lambda **_: self._remote, get=self._get)
        self.ray.nodes.return_value = [{"Alive": True, "NodeManagerAddress": "127.0.0.1"}]
        self._groups: list[str] = []

    @property
    def is_removed(self) -> bool:
        """Whether actors of the groups were ended."""
        return bool(self.ray.kill.called)

    @contextmanager
    def engine(self, root: Path, **options: Any) -> Iterator[Any]:  # noqa: ANN401  # as Config's
        """Make an engine, which imports this instead of Ray."""
        names = (
            *("RayError", "RayActorError", "ActorDiedError"),
            *("ActorUnavailableError", "ActorUnschedulableError"),
        )
        errors = dict.fromkeys(names, GetTimeoutError)
        modules: dict[str, Any] = {
            "ray": self.ray,
            "ray._private": MagicMock(),
            "ray._private.state": MagicMock(),
            "ray.exceptions": SimpleNamespace(**errors),
            "ray.util": MagicMock(
                get_placement_group=self._group,
                placement_group_table=self._table,
                list_named_actors=lambda: [f"{name}-r0" for name in self._groups],
            ),
            "ray.util.placement_group": MagicMock(),
            "ray.util.scheduling_strategies": MagicMock(
                NodeAffinitySchedulingStrategy=lambda node, **_: node
            ),
        }
        options |= {"data_dir": str(root), "engine": "ray", "ray_address": "127.0.0.1:1"}
        config = Config(shards=2, **options)
        name = "divgrpc_server.engines.ray"
        with pytest.MonkeyPatch.context() as patch:
            for key in (name, *modules):
                patch.setitem(sys.modules, key, modules.get(key))
            # It is imported here, and anew by others.
            del sys.modules[name]
            module = importlib.import_module(name)
            yield module.RayEngine(config, root, SECRET, logs.configure(config, "engine"))

    def _group(self, name: str) -> str:
        self._groups.append(name)
        if not self.has_groups:
            raise ValueError(name)
        return name

    def _table(self, group: object = None) -> dict[str, Any]:
        return {"bundles_to_node_id": {0: "one", 1: "two", 2: ""}} if group else {}

    def _remote(self, work: object) -> Any:  # noqa: ANN401  # Ray makes its class
        return MagicMock(options=self._on) if work is fault_of else MagicMock()

    def _on(self, scheduling_strategy: str) -> SimpleNamespace:
        """Return what looks on a node."""
        look = self.looks.get(scheduling_strategy)
        return SimpleNamespace(
            remote=lambda path, seconds: (look or (lambda: fault_of(path, 0)), seconds)
        )

    def _get(self, reply: tuple[Callable[[], str], float], timeout: float) -> str:
        look, seconds = reply
        self.seconds.append((seconds, timeout))
        return look()


def be_silent() -> str:
    """Do what Ray does for a node that does not reply."""
    raise GetTimeoutError


def have_another_folder() -> str:
    """Reply as a node that has another folder."""
    return fault_of(Path("/nowhere"), 0)


@pytest.mark.parametrize("has_groups", [False, True])
def test_a_node_with_another_folder_is_refused(tmp_path: Path, *, has_groups: bool) -> None:
    """Also if its group was there; its servers may answer others, and stay."""
    fake = FakeRay(has_groups=has_groups)
    fake.looks["two"] = have_another_folder
    with fake.engine(tmp_path) as engine, pytest.raises(HopelessError, match="node two has"):
        engine._place(time.monotonic() + 10)
    assert fake.is_removed is not has_groups
    assert not os.listdir(tmp_path)


def test_a_node_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    fake = FakeRay(has_groups=False)
    fake.looks["one"] = be_silent
    with fake.engine(tmp_path) as engine, pytest.raises(HopelessError, match="node one does not"):
        engine._place(time.monotonic() + 10)
    assert fake.is_removed


def test_servers_that_run_stay_if_a_node_does_not_answer(tmp_path: Path) -> None:
    """The other nodes are checked."""
    fake = FakeRay(has_groups=True)
    fake.looks["one"] = be_silent
    with fake.engine(tmp_path) as engine, capture_logs() as lines:
        engine._place(time.monotonic() + 10)
        (line,) = [line for line in lines if line["log_level"] == "warning"]
        assert "the node one does not answer" in line["reason"]
        fake.looks["two"] = have_another_folder
        with pytest.raises(HopelessError, match="node two has another"):
            engine._place(time.monotonic() + 10)
        asyncio.run(engine.stop())
    assert not fake.is_removed


def test_nodes_reply_before_the_wait_of_the_engine_ends(tmp_path: Path) -> None:
    fake = FakeRay(has_groups=False)
    with fake.engine(tmp_path) as engine:
        for wait_seconds in (100, 1_000, -1):
            engine._place(time.monotonic() + wait_seconds)
    (few, until), _, (many, _), _, late, _ = fake.seconds
    assert few <= 30
    assert few < until <= 100
    assert (many, late) == (30, (0, 1))


def test_a_folder_without_a_marker_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    fake = FakeRay(has_groups=False)
    with fake.engine(tmp_path / "data") as engine, pytest.raises(HopelessError, match="Not a dir"):
        engine._place(time.monotonic() + 10)


def test_a_server_that_writes_nothing_does_not_look(tmp_path: Path) -> None:
    fake = FakeRay(has_groups=False)
    with fake.engine(tmp_path, read_only=True) as engine:
        engine._place(time.monotonic() + 10)
    assert not fake.seconds


def test_a_node_that_joins_later_is_looked_at(tmp_path: Path) -> None:
    """It gets no server until it has the folder, and the log says once why."""
    fake = FakeRay(has_groups=False)
    with fake.engine(tmp_path) as engine, capture_logs() as lines:
        engine._place(time.monotonic() + 10)
        actor, state = engine._actors[0, 0], SimpleNamespace(node="three", has_begun=False)
        actor.begin.remote.side_effect = lambda: asyncio.sleep(0)

        def admit() -> int:
            engine._folders._look_times.clear()
            asyncio.run(engine._admit((0, 0), state))
            return int(actor.begin.remote.call_count)

        fake.looks["three"] = have_another_folder
        assert [admit(), admit()] == [0, 0]
        fake.looks["three"] = be_silent
        assert [admit(), admit()] == [0, 0]
        reasons = [line["reason"] for line in lines if line["log_level"] == "warning"]
        assert ["another" in reason for reason in reasons] == [True, False]
        assert f"mount one data folder at {tmp_path}" in reasons[0]
        del fake.looks["three"]
        assert [admit(), admit()] == [1, 2]
        state.node = "one"  # it was looked at before servers were placed
        assert admit() == 3
        assert len(fake.seconds) == 2 + 5


def test_a_node_is_not_looked_at_again_and_again(tmp_path: Path) -> None:
    fake = FakeRay(has_groups=False)
    fake.looks["three"] = have_another_folder
    with fake.engine(tmp_path) as engine:
        assert not any(engine._folders.is_fit("three") for _ in range(3))
    assert len(fake.seconds) == 1


def test_an_engine_that_has_joined_no_cluster_asks_none(tmp_path: Path) -> None:
    """A call of Ray would start a cluster on this machine."""
    for is_joined in (False, True):
        fake = FakeRay(has_groups=False)
        fake.ray.is_initialized.return_value = is_joined
        with fake.engine(tmp_path) as engine:
            engine._place(time.monotonic() + 10)
            asyncio.run(engine.stop())
        assert fake.is_removed is is_joined
