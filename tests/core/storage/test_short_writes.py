"""The system may write less than it is asked to."""

import os
from pathlib import Path

import numpy as np
import pytest

from divgrpc.storage.arrays import ArrayFile, open_array


def test_a_header_that_is_written_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite

    def write_half(descriptor: int, data: bytes, offset: int) -> int:
        return pwrite(descriptor, bytes(data)[: max(1, len(data) // 2)], offset)

    monkeypatch.setattr(os, "pwrite", write_half)
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    file = ArrayFile(tmp_path / "array.npy", np.float32, (2,))
    file.append(rows)
    array = open_array(tmp_path / "array.npy", file.close(), verify=True)
    np.testing.assert_array_equal(array, rows)
