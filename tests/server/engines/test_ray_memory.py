"""Memory that is kept for shards, in groups of a cluster that is no Ray."""

import importlib
import sys
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

STEP_BYTES = 16 << 20
SERVER = 0, 1
NAME = "divgrpc_server.engines.ray_memory"


class Cluster:
    """Places groups on nodes, given the free memory of each in steps."""

    def __init__(self, **free: int) -> None:
        self.free = free
        self.groups: dict[str, dict[str, Any]] = {}
        # The node that each group asks for.
        self._nodes: dict[str, str] = {}
        # The steps that are kept after each change.
        self.history: list[int] = []
        self.log = Mock()

    def create(
        self,
        bundles: list[dict[str, float]],
        *,
        name: str,
        lifetime: str = "detached",
        bundle_label_selector: list[dict[str, str]],
    ) -> Any:  # noqa: ANN401  # stands for a group
        """Make a group, which is placed if its node has the memory."""
        assert (len(bundles), lifetime) == (1, "detached")
        assert name not in self.groups
        self.groups[name] = {
            "name": name,
            "state": "PENDING",
            "bundles": dict(enumerate(bundles)),
            "bundles_to_node_id": {0: ""},
        }
        self._nodes[name] = bundle_label_selector[0]["ray.io/node-id"]
        self.place()
        self.history.append(self.total)
        return SimpleNamespace(wait=lambda _: self.groups[name]["state"] == "CREATED")

    def place(self) -> None:
        """Place the groups that have room now."""
        for name, group in self.groups.items():
            node, steps = self._nodes[name], self._steps(group["bundles"][0])
            if group["state"] == "PENDING" and self.free[node] >= steps:
                self.free[node] -= steps
                group |= {"state": "CREATED", "bundles_to_node_id": {0: node}}

    def remove(self, name: str) -> None:
        """Remove a group, and give its memory back."""
        group = self.groups.pop(name)
        if node := group["bundles_to_node_id"][0]:
            self.free[node] += self._steps(group["bundles"][0])
        self.history.append(self.total)

    @property
    def total(self) -> int:
        """The steps of all groups that are placed."""
        groups = (group for group in self.groups.values() if group["state"] == "CREATED")
        return sum(self._steps(group["bundles"][0]) for group in groups)

    @staticmethod
    def _steps(bundle: dict[str, float]) -> int:
        return int(bundle["memory"]) // STEP_BYTES


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(a=20, b=20)


@pytest.fixture
def keep(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that keeps memory for the shards of a server, in steps.

    It returns the room for further shards.
    """

    def resources() -> dict[str, dict[str, float]]:
        return {node: {"memory": steps * STEP_BYTES} for node, steps in cluster.free.items()}

    modules: dict[str, Any] = {
        "ray": Mock(),
        "ray._private": Mock(),
        "ray._private.state": Mock(available_resources_per_node=resources),
        "ray.util": Mock(
            get_placement_group=lambda name: name,
            placement_group=cluster.create,
            placement_group_table=cluster.groups.copy,
        ),
        "ray.util.placement_group": Mock(remove_placement_group=cluster.remove),
    }
    for key in (NAME, *modules):
        monkeypatch.setitem(sys.modules, key, modules.get(key))
    del sys.modules[NAME]
    memory = importlib.import_module(NAME).NodeMemory("x", cluster.log)

    def keep(steps: int, node: str = "a") -> int:
        return int(memory.keep({SERVER: node}, [steps * STEP_BYTES])) // STEP_BYTES

    return keep


def test_a_node_that_is_nearly_full_gives_the_difference(
    keep: Callable[..., int], cluster: Cluster
) -> None:
    """Although it has no memory for all of it beside the group from before."""
    assert keep(15) == 5
    assert keep(18) == 2
    assert cluster.history == [15, 18]
    assert keep(18) == 2
    assert cluster.history == [15, 18]


def test_what_a_node_lacks_is_asked_for_once(keep: Callable[..., int], cluster: Cluster) -> None:
    """What there is stays, until a request that fits replaces the one that waits."""
    for _ in range(2):
        keep(15)
        assert keep(25) == 0
        assert (cluster.total, len(cluster.groups)) == (15, 2)
        assert keep(25) == 0
        assert (cluster.total, len(cluster.groups)) == (15, 2)
    keep(20)
    assert (cluster.total, len(cluster.groups)) == (20, 2)


def test_memory_that_a_node_has_later_is_logged(keep: Callable[..., int], cluster: Cluster) -> None:
    keep(25)
    keep(25)
    (event,) = [call.args[0] for call in cluster.log.warning.call_args_list]
    assert event == "a node lacks memory for its shards"
    cluster.free["a"] += 10
    cluster.place()
    assert keep(25) == 5
    assert keep(25) == 5
    cluster.log.info.assert_called_once_with(
        "memory is kept for shards", place=0, replica=1, node="a", bytes=25 * STEP_BYTES
    )


def test_memory_is_given_back(keep: Callable[..., int], cluster: Cluster) -> None:
    for steps in (6, 9, 10, 7, 0):
        keep(steps)
        assert cluster.total == steps
    assert cluster.groups == {}
    assert cluster.free == {"a": 20, "b": 20}


def test_an_index_that_grows_for_long_has_few_groups(
    keep: Callable[..., int], cluster: Cluster
) -> None:
    """The largest ones stay where they are."""
    keep(5)
    for steps in range(6, 21):
        keep(steps)
        assert cluster.total == steps
        assert len(cluster.groups) <= 8
    assert min(after - before for before, after in pairwise(cluster.history)) >= -2


def test_memory_follows_a_server_to_another_node(
    keep: Callable[..., int], cluster: Cluster
) -> None:
    keep(5)
    keep(7)
    assert keep(7, node="b") == 13
    assert cluster.free == {"a": 20, "b": 13}
