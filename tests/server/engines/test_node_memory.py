"""Memory that is kept for shards, in groups of a cluster that is no Ray."""

from collections.abc import Callable
from itertools import pairwise
from unittest.mock import Mock

import pytest

from divgrpc_server.engines.node_memory import Group, NodeMemory

STEP_BYTES = 16 << 20
SERVER = 0, 1


class Cluster:
    """Places groups on nodes, which have some steps of free memory."""

    def __init__(self, **free: int) -> None:
        self.free = free
        # The node that each group asks for, its steps, and whether it is placed.
        self.groups: dict[str, tuple[str, int, bool]] = {}
        # The steps that are kept after each change.
        self.history: list[int] = []
        self.log = Mock()

    def read(self) -> dict[str, Group]:
        """See `Groups`."""
        return {
            name: Group([steps * STEP_BYTES], [node if is_placed else ""])
            for name, (node, steps, is_placed) in self.groups.items()
        }

    def keep(self, name: str, node: str, size: int) -> bool:
        """See `Groups`."""
        assert name not in self.groups
        self.groups[name] = node, size // STEP_BYTES, False
        self.place()
        self.history.append(self.total)
        return self.groups[name][2]

    def place(self) -> None:
        """Place the groups that have room now."""
        for name, (node, steps, is_placed) in self.groups.items():
            if not is_placed and self.free[node] >= steps:
                self.free[node] -= steps
                self.groups[name] = node, steps, True

    def remove(self, name: str) -> None:
        """See `Groups`."""
        node, steps, is_placed = self.groups.pop(name)
        self.free[node] += steps * is_placed
        self.history.append(self.total)

    def read_free_bytes(self) -> dict[str, int]:
        """See `Groups`."""
        return {node: steps * STEP_BYTES for node, steps in self.free.items()}

    @property
    def total(self) -> int:
        """The steps of all groups that are placed."""
        return sum(steps for _, steps, is_placed in self.groups.values() if is_placed)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(a=20, b=20)


@pytest.fixture
def keep(cluster: Cluster) -> Callable[..., int]:
    """Return a function that keeps memory for the shards of a server, in steps.

    It returns the room for further shards.
    """
    memory = NodeMemory(cluster, "x", cluster.log)

    def keep(steps: int, node: str = "a") -> int:
        room_bytes = memory.keep({SERVER: node}, [steps * STEP_BYTES])
        assert room_bytes is not None
        return room_bytes // STEP_BYTES

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
