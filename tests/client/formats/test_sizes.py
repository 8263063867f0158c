"""Sizes of indexes and arrays in tables for people."""

import pytest

from divgrpc_client.formats import tables


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_500_000, "1.4 MiB"),
        (3 * 2**30, "3.0 GiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_sizes_have_binary_units(count: int, text: str) -> None:
    assert tables.size(count) == text
