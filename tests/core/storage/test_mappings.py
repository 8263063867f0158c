"""Memory-mapped arrays whose pages are dropped from memory."""

from pathlib import Path

import numpy as np
import pytest

from divgrpc.arrays import Array, release
from divgrpc.storage.arrays import HEADER_BYTES, map_array


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "array.npy"
    path.write_bytes(b"\0" * HEADER_BYTES + np.arange(5_000, dtype=np.float32).tobytes())
    return path


@pytest.mark.parametrize("part", [slice(None), slice(10, 20)], ids=str)
def test_changes_in_memory_alone_survive_a_release(file: Path, part: slice) -> None:
    array: Array = map_array(file, np.float32, (50, 100), "c")
    array[15] = 7
    release(array[part])
    assert array[15].tolist() == [7] * 100
    assert array[16].tolist() == list(range(1_600, 1_700))


def test_a_release_keeps_what_was_written_to_the_file(file: Path) -> None:
    array: Array = map_array(file, np.float32, (50, 100), "r+")
    array[15] = 7
    release(array)
    assert array[15].tolist() == [7] * 100
    assert map_array(file, np.float32, (50, 100), "r")[15].tolist() == [7] * 100
