"""Arrays that reach kernels by their addresses: the same ones, and none that would be misread."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from divgrpc.kernels.code_scan import BLOCK
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.registers import INDEX, SCRATCH, Slot, arrays_at, register
from divgrpc.search.memory import Scratch, flat

Layout = dict[str, tuple[Slot, ...]]


@kernel
def read_cells(where: npt.NDArray[np.int64]) -> tuple[object, ...]:
    """Return shapes of the two matrices among an index's cells, and a number of each array."""
    codes, terms, centres, squares, starts, rows, _ = arrays_at(where, "cells")
    return (
        codes.shape,
        centres.shape,
        codes[1, 2],
        terms[0],
        centres[-1, -1],
        squares[1],
        starts[2],
        rows[-1],
    )


@kernel
def write_heap(where: npt.NDArray[np.int64]) -> None:
    """Write to the heap of a scratch."""
    costs, _, _, keys = arrays_at(where, "heap")
    costs[1], keys[0] = -2.5, -7


def made(layout: Layout) -> list[npt.NDArray[np.generic]]:
    """Return arrays as a layout has them, of other numbers each; no matrix is square."""
    slots = [slot for group in layout.values() for slot in group]
    shapes = [(3, 4)[: len(slot.absent)] for slot in slots]
    return [
        (np.arange(np.prod(shape)) + 10 * number).astype(slot.dtype).reshape(shape)
        for number, (slot, shape) in enumerate(zip(slots, shapes, strict=True))
    ]


def test_a_kernel_gets_the_arrays_that_were_registered() -> None:
    """Their shapes and numbers, and what it writes is in them."""
    arrays = made(INDEX)
    codes, terms, centres, squares, starts, rows, _ = arrays[-7:]
    told = read_cells(register(INDEX, arrays))
    assert told[:2] == (codes.shape, centres.shape)
    assert told[2:] == (codes[1, 2], terms[0], centres[-1, -1], squares[1], starts[2], rows[-1])
    scratch = made(SCRATCH)
    before = [array.copy() for array in scratch]
    write_heap(register(SCRATCH, scratch))
    changed = [
        number for number, array in enumerate(scratch) if not np.array_equal(array, before[number])
    ]
    places = [(group, slot.name) for group, slots in SCRATCH.items() for slot in slots]
    assert [places[number] for number in changed] == [("heap", "costs"), ("heap", "keys")]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda array: array.astype(np.float64),
        lambda array: array[0],
        lambda array: array.T,
        lambda array: array[:, ::2],
        lambda array: np.zeros(array.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(3, 4),
    ],
    ids=["type", "dimensions", "order", "stride", "alignment"],
)
def test_what_a_kernel_would_misread_is_refused(
    spoil: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]],
) -> None:
    """The array at fault is named."""
    arrays = made(INDEX)
    arrays[0] = spoil(arrays[0])
    with pytest.raises(TypeError, match="vectors"):
        register(INDEX, arrays)
    with pytest.raises(ValueError, match="shorter"):
        register(INDEX, made(INDEX)[:-1])


@pytest.mark.parametrize(
    "make",
    [
        lambda scratch: scratch.make_points(9),
        lambda scratch: scratch.make_room(9, 2),
        lambda scratch: scratch.make_room(2, 9),
        lambda scratch: scratch.make_sums(9),
        lambda scratch: scratch.make_scanning(9 * BLOCK),
        lambda scratch: scratch.make_probing(2, 3),
        lambda scratch: scratch.make_cells(9),
    ],
    ids=["points", "seen", "k", "sums", "scanning", "probing", "cells"],
)
def test_memory_made_anew_is_registered_anew(make: Callable[[Scratch], None]) -> None:
    """The register says where memory is now; what was large enough keeps its own."""
    scratch = Scratch.empty(4, 4, 1, (4, 64))
    old = scratch.register
    make(scratch)
    assert scratch.register is not old
    held = flat(scratch.as_tuple())
    assert scratch.register[:, 0].tolist() == [each.ctypes.data for each in held]
    kept = scratch.register
    make(scratch)
    assert scratch.register is kept
