"""Arrays by their addresses: those that a query's kernel takes, the same at every call.

To hand one array to a compiled function takes a tenth of a microsecond, and an index and a thread's
memory are sixty of them. So where they lie is written down once, in a register (n, 3) int64: an
address, rows and columns for each. `arrays_at` gives them back to a kernel in groups. It checks
nothing: `register` sees that arrays are what their slots say, and who keeps a register holds its
arrays for as long.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import numpy_support
from numba.np.arrayobj import make_array, populate_array


class Slot(NamedTuple):
    """One array of a layout, with as many dimensions as `absent` has numbers.

    That is the shape of what stands for it in an index that has none, "d" for its dimensions.
    """

    name: str
    dtype: type[np.generic]
    absent: tuple[int | str, ...]


# In groups, which are the tuples of `answering._answer`, in its order.
INDEX: Final[dict[str, tuple[Slot, ...]]] = {
    "points": (
        Slot("vectors", np.float32, (0, "d")),
        Slot("indptr", np.int64, (0,)),
        Slot("indices", np.int32, (0,)),
        Slot("values", np.float32, (0,)),
        Slot("squares", np.float64, (0,)),
    ),
    "postings": (
        Slot("posting_starts", np.int64, (0,)),
        Slot("posting_rows", np.int32, (0,)),
        Slot("posting_values", np.float32, (0,)),
        Slot("common_lengths", np.float32, (0,)),
    ),
    "named": (
        Slot("ids", np.int64, (0,)),
        Slot("inverse_lengths", np.float32, (0,)),
        Slot("length_bounds", np.float32, (0,)),
    ),
    "hashing": (
        Slot("hyperplanes", np.float32, ("d", 0)),
        Slot("thresholds", np.float32, (0,)),
        Slot("codes", np.uint64, (0, 0)),
        Slot("scan_terms", np.uint32, (0,)),
        Slot("sketch", np.int32, (0,)),
    ),
    "tables": (
        Slot("table_starts", np.int64, (0,)),
        Slot("table_keys", np.uint32, (0,)),
        Slot("table_offsets", np.int32, (0,)),
        Slot("table_rows", np.int32, (0, 0)),
    ),
    "cells": (
        Slot("cell_codes", np.uint64, (0, 0)),
        Slot("cell_terms", np.uint32, (0,)),
        Slot("cell_centres", np.float32, (0, 1)),
        Slot("cell_squares", np.float32, (0,)),
        Slot("cell_starts", np.int64, (0,)),
        Slot("cell_rows", np.int32, (0,)),
        Slot("no_ids", np.int64, (0,)),
    ),
}

# What queries write into: see `divgrpc.search.memory.Scratch.as_tuple`, flat.
SCRATCH: Final[dict[str, tuple[Slot, ...]]] = {
    "found": (
        Slot("rows", np.int32, (0,)),
        Slot("distances", np.float32, (0,)),
        Slot("projections", np.float32, (0,)),
        Slot("code", np.uint64, (0, 0)),
        Slot("planes", np.uint64, (0, 0)),
    ),
    "scanning": (
        Slot("scores", np.int32, (0,)),
        Slot("maxima", np.int32, (0,)),
        Slot("minima", np.float32, (0,)),
        Slot("block", np.int32, (0,)),
        Slot("fresh", np.float32, (0,)),
    ),
    "probing": (
        Slot("order", np.int32, (0, 0)),
        Slot("margins", np.float32, (0, 0)),
        Slot("homes", np.int64, (0,)),
    ),
    "heap": (
        Slot("costs", np.float32, (0,)),
        Slot("tables", np.int32, (0,)),
        Slot("flips", np.int64, (0,)),
        Slot("keys", np.int64, (0,)),
    ),
    "seen": (
        Slot("marks", np.uint32, (0,)),
        Slot("mark", np.uint32, (0,)),
    ),
    "ranking": (
        Slot("numbers", np.int32, (0,)),
        Slot("distances", np.float32, (0,)),
    ),
    "selection": (
        Slot("far", np.float32, (0,)),
        Slot("target", np.float32, (0, 0)),
        Slot("apart", np.float32, (0,)),
        Slot("marks", np.uint64, (0,)),
    ),
    "picking": (
        Slot("costs", np.float32, (0,)),
        Slot("picked", np.int64, (0,)),
        Slot("sketched", np.float32, (0, 0)),
        Slot("sums", np.float32, (0,)),
    ),
    "together": (
        Slot("rows", np.int32, (0, 0)),
        Slot("distances", np.float32, (0, 0)),
        Slot("tallies", np.int64, (0, 0)),
        Slot("limits", np.float32, (0, 0)),
        Slot("margins", np.float32, (0, 0)),
        Slot("planes", np.uint64, (0, 0)),
    ),
}


def register(
    layout: Mapping[str, tuple[Slot, ...]], arrays: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.int64]:
    """Return a register (n, 3) int64 of n arrays, given in the order of a layout.

    Raises TypeError naming an array of another type or number of dimensions, or not C-contiguous
    and aligned; ValueError where there are more or fewer.
    """
    slots = [(group, slot) for group, slots in layout.items() for slot in slots]
    rows = []
    for (group, slot), array in zip(slots, arrays, strict=True):
        plain = array.flags.c_contiguous and array.flags.aligned
        if array.dtype != slot.dtype or array.ndim != len(slot.absent) or not plain:
            raise TypeError(f"{group}: {slot.name} is no such array: {array.dtype}, {array.shape}")
        rows.append((array.__array_interface__["data"][0], *array.shape, 1)[:3])
    return np.array(rows, np.int64)


def _groups() -> Iterator[tuple[str, tuple[int, tuple[types.Array, ...]]]]:
    """Yield each group, the number of its first array, and its arrays' types."""
    for layout in (INDEX, SCRATCH):
        first = 0
        for name, slots in layout.items():
            kinds = tuple(
                types.Array(
                    numpy_support.from_dtype(np.dtype(slot.dtype)),
                    len(slot.absent),
                    "C",
                    readonly=layout is INDEX,  # which queries only read
                )
                for slot in slots
            )
            yield name, (first, kinds)
            first += len(slots)


_GROUPS: Final = dict(_groups())


@intrinsic(prefer_literal=True)
def arrays_at(typing: Any, where: Any, name: Any) -> Any:  # numba's own have no type
    """Return a group's arrays as a tuple, from the register that its layout is of."""
    first, kinds = _GROUPS[name.literal_value]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows = make_array(signature.args[0])(context, builder, arguments[0])
        made = []
        for number, kind in enumerate(kinds, first):
            address, *shape = (
                builder.load(builder.gep(rows.data, [cgutils.intp_t(3 * number + column)]))
                for column in range(1 + kind.ndim)
            )
            value = context.get_data_type(kind.dtype)
            item = cgutils.intp_t(context.get_abi_sizeof(value))
            array = make_array(kind)(context, builder)
            populate_array(
                array,
                data=builder.inttoptr(address, value.as_pointer()),
                shape=shape,
                strides=[builder.mul(item, each) for each in shape[1:]] + [item],
                itemsize=item,
                meminfo=None,
            )
            made.append(array._getvalue())  # noqa: SLF001  # numba's way
        return context.make_tuple(builder, signature.return_type, made)

    return types.Tuple(kinds)(where, name), generate
