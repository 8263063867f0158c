"""Passes records to kernels by address.

Passing one array to a compiled function takes a tenth of a microsecond, and an index and a thread's
scratch memory have more than sixty arrays. So `register` writes their addresses once into a
register: an (n, 3) int64 array whose row i has the address of array i, its number of rows and its
number of columns. The arrays are in the order of the record's fields. Inside a kernel, `record_at`
takes a register for the record, without checks. The caller of `register` must keep the arrays
alive.

A kernel reads a register as a `View`, which is one address. Each field is loaded from there where
the kernel uses it. A record of arrays would be a value of hundreds of numbers, which the compiler
would have to copy with every variable and every call.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

import numpy as np
import numpy.typing as npt
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, lower_getattr_generic, models, register_model
from numba.np import numpy_support
from numba.np.arrayobj import make_array, populate_array

from divgrpc.kernels.records import FindReply, Index, Merge, Message, PointRows, Scratch

Array: TypeAlias = npt.NDArray[Any]
Record: TypeAlias = type[tuple[Any, ...]]
# Numbers of a register row: an address, a number of rows and a number of columns.
_NUMBERS: Final = 3
RecordT = TypeVar("RecordT", bound=tuple[Any, ...])


class Slot(NamedTuple):
    """One array of a record.

    name: in `Index` the name of the stored array, elsewhere the name of the field.
    dtype: the dtype of the array.
    shape: one string for each dimension, as in the annotations of `kernels.records`: a letter, a
        word or a number.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[str, ...]


@cache
def fields_of(record: Record) -> dict[str, Slot | Record]:
    """Map each array field of a record type to its `Slot`, and each record field to its type."""
    fields: dict[str, Slot | Record] = {}
    for field, hint in get_type_hints(record, include_extras=True).items():
        if isinstance(hint, type):
            fields[field] = hint
        else:
            shape, *name = hint.__metadata__
            (dtype,) = get_args(get_args(hint.__origin__)[1])
            fields[field] = Slot(name[0] if name else field, np.dtype(dtype), tuple(shape.split()))
    return fields


def record_of(
    record: type[RecordT], arrays: Mapping[str, Array] | None, sizes: Mapping[str, int]
) -> RecordT:
    """Return a record made of `arrays` by name; missing arrays become read-only zeros.

    If `arrays` is None, all arrays of the record are writable zeros. `sizes` maps letters and words
    in the shapes of these zeros to numbers. Letters and words that `sizes` does not contain stand
    for 0.
    """

    def value(field: Slot | Record) -> Any:  # an array or a record
        if not isinstance(field, Slot):
            return record_of(field, arrays, sizes)
        if arrays and field.name in arrays:
            return arrays[field.name]
        shape = [int(word) if word.isdigit() else sizes.get(word, 0) for word in field.shape]
        zeros = np.zeros(shape, field.dtype)
        zeros.flags.writeable = arrays is None
        return zeros

    return record(*map(value, fields_of(record).values()))


def slots_of(record: Record) -> list[Slot]:
    """Return the slots of a record and of the records nested in it, in the order of the fields."""
    slots: list[Slot] = []
    for field in fields_of(record).values():
        slots += [field] if isinstance(field, Slot) else slots_of(field)
    return slots


def arrays_of(record: tuple[Any, ...]) -> list[Array]:
    """Return the arrays of a record and of the records nested in it, in the order of the fields."""
    arrays: list[Array] = []
    for value in record:
        arrays += arrays_of(value) if isinstance(value, tuple) else [value]
    return arrays


def register(record: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    """Return the register (n, 3) of a record's n arrays.

    Raises TypeError if an array is not C-contiguous and aligned, or does not have the dtype and the
    number of dimensions of its field.
    """
    rows = []
    for slot, array in zip(slots_of(type(record)), arrays_of(record), strict=True):
        plain = array.flags.c_contiguous and array.flags.aligned
        if array.dtype != slot.dtype or array.ndim != len(slot.shape) or not plain:
            raise TypeError(
                f"{type(record).__name__}: {slot.name} must be a contiguous {slot.dtype}"
                f" array of {len(slot.shape)} dimensions, got {array.dtype}, {array.shape}"
            )
        rows.append((array.__array_interface__["data"][0], *array.shape, 1)[:3])
    return np.array(rows, np.int64)


class View(types.Type):  # type: ignore[misc]  # numba has no types
    """numba's type of a record that is read from a register; its value is an address in it.

    `fields` maps the name of a field to the number of register rows before it, and to its type.
    """

    def __init__(self, record: Record, *, readonly: bool) -> None:
        self.fields: dict[str, tuple[int, Any]] = {}
        row = 0
        for name, field in fields_of(record).items():
            if isinstance(field, Slot):
                dtype = numpy_support.from_dtype(field.dtype)
                kind = types.Array(dtype, len(field.shape), "C", readonly=readonly)
                self.fields[name] = row, kind
                row += 1
            else:
                self.fields[name] = row, View(field, readonly=readonly)
                row += len(slots_of(field))
        super().__init__(f"View({record.__name__})")


@register_model(View)
class _Address(models.OpaqueModel):  # type: ignore[misc]  # numba has no types
    """The value of a `View`."""


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]  # numba has no types
    key = View

    def generic_resolve(self, view: View, name: str) -> Any:  # numba has no types
        return view.fields[name][1] if name in view.fields else None


@lower_getattr_generic(View)
def _load_field(context: Any, builder: Any, view: View, address: Any, name: str) -> Any:
    row, kind = view.fields[name]
    numbers = builder.bitcast(address, cgutils.intp_t.as_pointer())
    place = builder.gep(numbers, [cgutils.intp_t(_NUMBERS * row)])
    if isinstance(kind, View):
        return builder.bitcast(place, cgutils.voidptr_t)
    start, *shape = (
        _load_number(builder, builder.gep(place, [cgutils.intp_t(column)]))
        for column in range(1 + kind.ndim)
    )
    element = context.get_data_type(kind.dtype)
    item_bytes = cgutils.intp_t(kind.dtype.bitwidth // 8)
    array = make_array(kind)(context, builder)
    populate_array(
        array,
        data=builder.inttoptr(start, element.as_pointer()),
        shape=shape,
        strides=[builder.mul(item_bytes, size) for size in shape[1:]] + [item_bytes],
        itemsize=item_bytes,
        meminfo=None,
    )
    return array._getvalue()  # noqa: SLF001  # numba's way


def _load_number(builder: Any, place: Any) -> Any:
    number = builder.load(place)
    # No kernel writes into a register. So the compiler may load a field once for a whole loop.
    number.set_metadata("invariant.load", builder.module.add_metadata([]))
    return number


def _places() -> dict[Record, tuple[int, View]]:
    """Return the first register row and the view of each record that has a register."""
    places: dict[Record, tuple[int, View]] = {}

    def add(record: Record, first: int, *, readonly: bool) -> None:
        places[record] = first, View(record, readonly=readonly)
        for field in fields_of(record).values():
            if isinstance(field, Slot):
                first += 1
            else:
                add(field, first, readonly=readonly)
                first += len(slots_of(field))

    # Give arrays that no kernel writes into read-only types.
    for source in (Index, Message, FindReply):
        add(source, 0, readonly=True)
    for target in (Scratch, Merge, PointRows):
        add(target, 0, readonly=False)
    return places


_PLACES: Final = _places()


@intrinsic
def record_at(typing: Any, register: Any, record: Any) -> Any:  # numba has no types
    """View the record of type `record` in its register, or in that of its `Index` or `Scratch`."""
    first, view = _PLACES[record.instance_class]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.gep(data, [cgutils.intp_t(_NUMBERS * first)])
        return builder.bitcast(place, cgutils.voidptr_t)

    return view(register, record), generate
