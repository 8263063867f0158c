"""How much memory servers have for further shards."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from divgrpc_server.engines.memory import bytes_at_places, room_for_shards

NODES = ["a", "b", "c"]


@given(
    st.lists(st.tuples(st.sampled_from(NODES), st.integers(-20, 20)), max_size=6),
    st.dictionaries(st.sampled_from(NODES), st.integers(0, 40)),
)
def test_a_shard_of_the_room_fits_and_a_larger_one_does_not(
    servers: list[tuple[str, int]], free: dict[str, int]
) -> None:
    def fits(size: int) -> bool:
        needs: dict[str, int] = defaultdict(int)
        for node, spare in servers:
            needs[node] += max(0, size - spare)
        return all(need <= free.get(node, 0) for node, need in needs.items())

    room = room_for_shards(servers, free)
    assert room == 0 or fits(room)
    assert not (servers and fits(room + 1))


def test_there_is_no_room_without_servers() -> None:
    assert room_for_shards([], {"a": 5}) == 0


@given(st.lists(st.integers(0, 9), max_size=9), st.integers(1, 4))
def test_a_place_has_every_nth_shard(sizes: list[int], places: int) -> None:
    total = [0] * places
    for shard, size in enumerate(sizes):
        total[shard % places] += size
    assert bytes_at_places(sizes, places) == total
