"""Adds operations on rows of bytes to numba: products, and rounding float32 rows to bytes.

The sums of products are exact integers. The float32 sums are in the order of
`divgrpc.kernels.vector_sums`. So all results have the same bytes on every processor.
"""

from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from divgrpc.kernels.vector_sums import LANES, row_start, sums_of_terms

# Rows of bytes are multiplied GROUP_ROWS rows and CHUNK columns at a time.
CHUNK: Final = 32
GROUP_ROWS: Final = 4

_INT8: Final = ir.IntType(8)
_INT32: Final = ir.IntType(32)
_FLOAT: Final = ir.FloatType()
_LANES: Final = ir.VectorType(_FLOAT, LANES)
# Adding this to a float32 of magnitude below 2**22 rounds it to an integer. The lowest bits of the
# sum are the lowest bits of this integer.
_ROUNDER: Final = 1.5 * 2**23


@intrinsic
def four_byte_dots(_context: Any, octets: Any, row: Any, words: Any, dots: Any) -> Any:
    """Write the dot products of rows `row` to `row` + 3 and `words` into dots[row : row + 4].

    `octets` (rows, width) int8; `words` (width,) int16; `dots` (rows,) int32. `rows` must be a
    multiple of GROUP_ROWS, and `width` of CHUNK. The sums must fit into 32 bits. Pairs of products
    are added first, because x86 processors have one instruction that multiplies and adds pairs.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        matrix, vector, output = (
            make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 3)
        )
        width = cgutils.unpack_tuple(builder, matrix.shape, 2)[1]
        sums = ir.VectorType(_INT32, CHUNK // 2)
        totals, rows = [], []
        for i in range(GROUP_ROWS):
            totals.append(cgutils.alloca_once_value(builder, ir.Constant(sums, [0] * sums.count)))
            start = builder.mul(builder.add(arguments[1], cgutils.intp_t(i)), width)
            rows.append(builder.gep(matrix.data, [start]))
        zero, chunk = cgutils.intp_t(0), cgutils.intp_t(CHUNK)
        with cgutils.for_range_slice(builder, zero, width, chunk) as (column, _):
            factors = _load(builder, vector.data, column)
            for total, data in zip(totals, rows, strict=True):
                products = builder.mul(_load(builder, data, column), factors)
                builder.store(builder.add(builder.load(total), _pairs(builder, products)), total)
        first, second, third, fourth = (_quarters(builder, builder.load(total)) for total in totals)
        low, high = _pairs(builder, first, second), _pairs(builder, third, fourth)
        place = builder.gep(output.data, [arguments[1]])
        result = _pairs(builder, low, high)
        builder.store(result, builder.bitcast(place, result.type.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(octets, types.intp, words, dots), generate


def _load(builder: Any, data: Any, column: Any) -> Any:
    """Return CHUNK integers from `column` on, widened to 32 bits."""
    kind = ir.VectorType(data.type.pointee, CHUNK)
    place = builder.bitcast(builder.gep(data, [column]), kind.as_pointer())
    return builder.sext(builder.load(place, align=1), ir.VectorType(_INT32, CHUNK))


def _quarters(builder: Any, vector: Any) -> Any:
    """Add the upper half of a vector to the lower, until four numbers are left."""
    while vector.type.count > GROUP_ROWS:
        half = vector.type.count // 2
        low, high = range(half), range(half, 2 * half)
        vector = builder.add(*(_taken(builder, vector, vector, part) for part in (low, high)))
    return vector


def _pairs(builder: Any, first: Any, second: Any = None) -> Any:
    """Add neighbours of one vector, or of two vectors in a row."""
    count = first.type.count * (1 if second is None else 2)
    second = first if second is None else second
    evens, odds = range(0, count, 2), range(1, count, 2)
    return builder.add(*(_taken(builder, first, second, part) for part in (evens, odds)))


def _taken(builder: Any, first: Any, second: Any, places: Sequence[int]) -> Any:
    order = ir.Constant(ir.VectorType(_INT32, len(places)), list(places))
    return builder.shuffle_vector(first, second, order)


@intrinsic
def move_row(_context: Any, vectors: Any, row: Any, centre: Any, moved: Any, place: Any) -> Any:
    """Write row `row` minus row `centre` into row `place` of `moved`; return two float32 numbers.

    The first number is the distance of the two rows, the same bits as `vector_sums.row_distance`.
    The second is the largest square of an element of the difference. `vectors` and `moved` are
    C-contiguous float32 matrices; a row of `moved` may be longer than a row of `vectors`.
    """
    result = UniTuple(types.float32, 2)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, matrix = signature.args[0], arguments[0]
        a, b = (row_start(context, builder, kind, matrix, number) for number in arguments[1:3])
        output = row_start(context, builder, signature.args[3], *arguments[3:5])
        cols = cgutils.unpack_tuple(builder, make_array(kind)(context, builder, matrix).shape, 2)[1]
        largest = {
            _LANES: cgutils.alloca_once_value(builder, ir.Constant(_LANES, [0.0] * LANES)),
            _FLOAT: cgutils.alloca_once_value(builder, ir.Constant(_FLOAT, 0.0)),
        }

        def square(builder: Any, x: Any, y: Any, column: Any) -> Any:
            difference = builder.fsub(x, y)
            _store(builder, difference, output, column)
            value = builder.fmul(difference, difference)
            most = largest[value.type]
            builder.store(_larger(builder, value, builder.load(most)), most)
            return value

        distance = sums_of_terms(builder, [a], b, cols, square)[0]
        vector = builder.load(largest[_LANES])
        while vector.type.count > 1:
            half = vector.type.count // 2
            low, high = range(half), range(half, 2 * half)
            parts = (_taken(builder, vector, vector, part) for part in (low, high))
            vector = _larger(builder, *parts)
        first = builder.extract_element(vector, _INT32(0))
        most = _larger(builder, first, builder.load(largest[_FLOAT]))
        return context.make_tuple(builder, result, (distance, most))

    return result(vectors, types.intp, types.intp, moved, types.intp), generate


@intrinsic
def round_row(
    _context: Any, moved: Any, place: Any, factor: Any, octets: Any, row: Any, cols: Any
) -> Any:
    """Multiply the first `cols` elements of row `place` of `moved` by `factor`; round to bytes.

    The bytes become row `row` of `octets` (rows, width) int8. Returns the float32 sum of the
    squares of what rounding changed. `moved` and `factor` are float32; the products must be -127 to
    127.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = row_start(context, builder, signature.args[0], *arguments[:2])
        target = row_start(context, builder, signature.args[3], *arguments[3:5])

        def square(builder: Any, x: Any, _: Any, column: Any) -> Any:
            value = builder.fmul(x, _like(builder, x.type, arguments[2]))
            rounder = _like(builder, x.type, ir.Constant(_FLOAT, _ROUNDER))
            total = builder.fadd(value, rounder)
            whole = ir.VectorType(_INT32, LANES) if x.type == _LANES else _INT32
            byte = ir.VectorType(_INT8, LANES) if x.type == _LANES else _INT8
            octet = builder.trunc(builder.bitcast(total, whole), byte)
            _store(builder, octet, target, column)
            change = builder.fsub(value, builder.fsub(total, rounder))
            return builder.fmul(change, change)

        return sums_of_terms(builder, [source], source, arguments[5], square)[0]

    return types.float32(moved, types.intp, types.float32, octets, types.intp, types.intp), generate


def _like(builder: Any, form: Any, number: Any) -> Any:
    """Return a number of type `form`, float32 or a vector of it, whose elements are `number`."""
    if form == _FLOAT:
        return number
    one = builder.insert_element(ir.Constant(form, ir.Undefined), number, _INT32(0))
    return _taken(builder, one, one, [0] * LANES)


def _store(builder: Any, value: Any, data: Any, column: Any) -> None:
    """Store a number, or LANES numbers, from `column` on; rows are not aligned to vectors."""
    place = builder.bitcast(builder.gep(data, [column]), value.type.as_pointer())
    builder.store(value, place).align = 4 if data.type.pointee == _FLOAT else 1


def _larger(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)
