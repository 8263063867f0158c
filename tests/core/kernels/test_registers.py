"""Kernels read records by address unchanged, and refuse arrays that they would misread."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from divgrpc.kernels.code_scan import BLOCK_POINTS
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.records import Cells, Heap, Index, Scratch
from divgrpc.kernels.registers import Slot, arrays_of, fields_of, record_at, register, slots_of
from divgrpc.search.memory import Memory


@kernel
def read_cells(where: npt.NDArray[np.int64]) -> tuple[object, ...]:
    cells = record_at(where, Cells)
    return (
        cells.codes.shape,
        cells.centres.shape,
        cells.codes[1, 2],
        cells.terms[0],
        cells.centres[-1, -1],
        cells.squares[1],
        cells.starts[2],
        cells.rows[-1],
    )


@kernel
def read_nested(where: npt.NDArray[np.int64]) -> tuple[object, ...]:
    index = record_at(where, Index)
    return index.points.vectors[1, 2], index.cells.no_ids[0], index.ids[2]


@kernel
def write_heap(where: npt.NDArray[np.int64]) -> None:
    record_at(where, Heap).costs[1] = -2.5
    record_at(where, Scratch).probes.heap.keys[0] = -7


def made(record: type[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return a record of arrays with distinct values; no matrix is square."""
    numbers = iter(range(100))

    def value(field: Any) -> Any:  # noqa: ANN401  # a slot or a type of record
        if not isinstance(field, Slot):
            return field(*map(value, fields_of(field).values()))
        shape = (3, 4)[: len(field.shape)]
        array = np.arange(np.prod(shape)) + 10 * next(numbers)
        return array.astype(field.dtype).reshape(shape)

    whole: tuple[Any, ...] = value(record)
    return whole


def test_kernels_read_and_write_the_registered_arrays() -> None:
    index = made(Index)
    codes, terms, centres, squares, _, starts, rows, *_ = index[-1]
    read = read_cells(register(index))
    assert read[:2] == (codes.shape, centres.shape)
    assert read[2:] == (codes[1, 2], terms[0], centres[-1, -1], squares[1], starts[2], rows[-1])
    assert isinstance(index, Index)
    expected = (index.points.vectors[1, 2], index.cells.no_ids[0], index.ids[2])
    assert read_nested(register(index)) == expected
    scratch = made(Scratch)
    before = [array.copy() for array in arrays_of(scratch)]
    write_heap(register(scratch))
    changes = [
        number
        for number, array in enumerate(arrays_of(scratch))
        if not np.array_equal(array, before[number])
    ]
    assert isinstance(scratch, Scratch)
    heap = scratch.probes.heap
    assert [id(arrays_of(scratch)[number]) for number in changes] == [id(heap.costs), id(heap.keys)]
    assert (heap.costs[1], heap.keys[0]) == (-2.5, -7)


@pytest.mark.parametrize("record", [Index, Scratch])
def test_every_field_of_a_record_has_a_dtype_and_a_shape(record: type[tuple[Any, ...]]) -> None:
    slots = slots_of(record)
    assert len(slots) == len(arrays_of(made(record)))
    assert all(1 <= len(slot.shape) <= 2 for slot in slots)
    if record is Index:
        assert len({slot.name for slot in slots}) == len(slots)


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
def test_arrays_that_a_kernel_would_misread_are_refused(
    spoil: Callable[[npt.NDArray[np.generic]], npt.NDArray[np.generic]],
) -> None:
    index = made(Index)
    assert isinstance(index, Index)
    points = index.points._replace(vectors=spoil(index.points.vectors))  # type: ignore[arg-type]  # it is spoilt
    with pytest.raises(TypeError, match="vectors must be a contiguous float32 array of 2"):
        register(index._replace(points=points))


@pytest.mark.parametrize(
    "fit",
    [
        *(("fit_points", 9), ("fit_selection", 9, 2), ("fit_selection", 2, 9), ("fit_lists", 9)),
        *(("fit_scan", 9 * BLOCK_POINTS), ("fit_probes", 2, 3), ("fit_cells", 9)),
        ("fit_batch", 3, 7),
    ],
    ids=str,
)
def test_enlarged_memory_is_registered_again(fit: tuple[Any, ...]) -> None:
    """After memory is enlarged, the register holds its new address; large enough memory is kept."""
    memory, (method, *sizes) = Memory(4, (4, 64)), fit
    old = memory.register
    getattr(memory, method)(*sizes)
    assert memory.register is not old
    arrays = arrays_of(memory.scratch)
    assert memory.register[:, 0].tolist() == [array.ctypes.data for array in arrays]
    new_register = memory.register
    getattr(memory, method)(*sizes)
    assert memory.register is new_register
