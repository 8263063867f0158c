"""Arrays of any dtype: the type, read-only views, and the pages of mapped arrays."""

import mmap
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


def read_only(array: Array) -> Array:
    """Return a read-only view, the only kind of array that kernels take for an index."""
    view = array.view()
    view.setflags(write=False)
    return view


def release(array: Array) -> None:
    """Let the system drop the pages of a mapped array; the file keeps what was written.

    A process that reads a file through a mapping is charged for its pages until then. Arrays that
    are not mapped are left as they are.
    """
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)
