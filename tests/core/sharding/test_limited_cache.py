"""What a cache with a limit of bytes keeps."""

from hypothesis import given
from hypothesis import strategies as st

from divgrpc.sharding import limited_cache
from divgrpc.sharding.limited_cache import LimitedCache

_ENTRY = limited_cache._ENTRY_BYTES


@given(
    most=st.integers(0, 20 * _ENTRY),
    sizes=st.lists(st.integers(0, 4 * _ENTRY), max_size=60),
)
def test_the_newest_values_that_fit_are_kept(most: int, sizes: list[int]) -> None:
    cache: LimitedCache[int] = LimitedCache(most)
    for key, size in enumerate(sizes):
        assert cache.get(key) is None
        cache.put(key, -key, size)
        sums, expected = 0, 0
        for newest in reversed(sizes[: key + 1]):
            sums += newest + _ENTRY
            if sums > most:
                break
            expected += 1
        # The newest value is kept, however large it is.
        newest_keys = range(key + 1 - max(1, expected), key + 1)
        assert [number for number in range(key + 1) if cache.get(number) is not None] == [
            *newest_keys
        ]
        assert all(cache.get(number) == -number for number in newest_keys)
