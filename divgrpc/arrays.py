"""Helpers for arrays: a type alias, read-only views, and release of memory-mapped pages."""

import mmap
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


def spans(starts: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers from starts[i] to starts[i] + widths[i] - 1 for each i, one after another.

    starts, widths: (n,) int64.
    """
    ends = np.cumsum(widths)
    numbers: npt.NDArray[np.int64] = np.repeat(starts - (ends - widths), widths)
    return numbers + np.arange(len(numbers))


def read_only(array: Array) -> Array:
    """Return a read-only view; kernels accept only read-only arrays as the arrays of an index."""
    view = array.view()
    view.setflags(write=False)
    return view


def release(array: Array) -> None:
    """Drop the pages of a memory-mapped array from memory; the file keeps all written data.

    Pages of the file that were read through the array count as memory of this process until they
    are dropped. An array that is not memory-mapped is left unchanged, and so is one whose changes
    are in memory alone, because they would be lost.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.mode == "c":
            return
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)
