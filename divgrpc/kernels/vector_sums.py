"""Adds operations that numba lacks: sums in a fixed order, and prefetching.

The rounding of a float sum depends on the order of its terms. By default the compiler adds terms
one by one, which is slow. With fastmath it chooses an order for each processor. `row_dot` and
`row_distance` fix the order. Terms are added to ACCUMULATORS accumulators of LANES lanes each. The
accumulators are added pairwise, then the upper half of the lanes is added to the lower half (lane 8
to lane 0 and so on) until one lane is left. The last terms, which are fewer than LANES, are added
one by one. Multiplications and additions are never fused. Processors with narrower registers do the
same additions with more instructions.

`gathered_dot` does the same for the elements of a sparse row, with two accumulators of 8 float64
lanes.
"""

from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

# `row_dot` and `row_distance` use ACCUMULATORS accumulators of LANES float32 lanes each.
LANES: Final = 16
ACCUMULATORS: Final = 4

CACHE_LINE_BYTES: Final = 64
_FLOAT: Final = ir.FloatType()
_VECTOR: Final = ir.VectorType(_FLOAT, LANES)
_DOUBLE: Final = ir.DoubleType()
# `gathered_dot` uses two accumulators of this many float64 lanes each.
_DOUBLE_LANES: Final = 8
_INT32: Final = ir.IntType(32)


@intrinsic
def row_dot(_context: Any, x: Any, i: Any, y: Any, j: Any) -> Any:
    """Return the float32 dot product of row `i` of `x` and row `j` of `y`.

    `x` and `y` are C-contiguous float32 matrices with the same number of columns.
    """
    return _row_sums(x, i, y, _product)


@intrinsic
def row_distance(_context: Any, x: Any, i: Any, y: Any, j: Any) -> Any:
    """Return the float32 squared Euclidean distance of row `i` of `x` and row `j` of `y`.

    The squares of the differences are summed, so points that nearly equal the query are ordered
    correctly. For unit vectors, the formula 2 - 2 a.b would not resolve distances below 1e-7. `x`
    and `y` are as in `row_dot`.
    """
    return _row_sums(x, i, y, _square)


@intrinsic
def row_distance_within(_context: Any, x: Any, i: Any, y: Any, j: Any, limit: Any) -> Any:
    """Return the same bits as `row_distance` if it is at most `limit`, else a number above `limit`.

    `limit` is float32. Squares are not negative and rounding is monotone, so a partial sum never
    exceeds the whole sum. The computation therefore ends at the first partial sum above the limit.
    """
    return _row_sums(x, i, y, _square, limit)


@intrinsic
def row_dots(_context: Any, x: Any, rows: Any, y: Any, j: Any) -> Any:
    """Return the tuple of `row_dot(x, i, y, j)` for all i of the tuple `rows`, with the same bits.

    Row `j` of `y` is read once for all `rows`. With AVX-512, the sums of four rows fit into
    registers.
    """
    return _row_sums(x, rows, y, _product)


@intrinsic
def row_distances(_context: Any, x: Any, rows: Any, y: Any, j: Any) -> Any:
    """Return the tuple of `row_distance(x, i, y, j)` for all i of the tuple `rows`."""
    return _row_sums(x, rows, y, _square)


@intrinsic
def gathered_dot(
    _context: Any,
    indices: Any,
    values: Any,
    start: Any,
    stop: Any,
    ahead: Any,
    dense: Any,
    row: Any,
) -> Any:
    """Return the float64 dot product of a sparse row and row `row` of `dense`.

    The sparse row has elements start to stop - 1 of `indices` int32 and `values` float32; `dense`
    is a C-contiguous float32 matrix. Element `ahead` is the first of the row to be read next. From
    there on, about as many elements as are summed are prefetched in small steps. Prefetching them
    all at once would delay the loads of the current row.
    """
    if not _is_matrix(dense):
        return None
    whole = types.intp
    signature = types.float64(indices, values, whole, whole, whole, dense, whole)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, (columns, values, start, stop, ahead, matrix, row) = signature.args, arguments
        columns = make_array(kinds[0])(context, builder, columns).data
        values = make_array(kinds[1])(context, builder, values).data
        pointer = row_start(context, builder, kinds[5], matrix, row)
        return _gathered_sum(builder, (columns, values), (start, stop, ahead), pointer)

    return signature, generate


def _product(builder: Any, x: Any, y: Any, _column: Any) -> Any:
    return builder.fmul(x, y)


def _square(builder: Any, x: Any, y: Any, _column: Any) -> Any:
    difference = builder.fsub(x, y)
    return builder.fmul(difference, difference)


def _row_sums(x: Any, rows: Any, y: Any, term: Any, limit: Any = None) -> Any:
    """Return the signature and the code generator of a sum of `term` over the columns of two rows.

    `x`, `rows` and `y` are numba types. `rows` is the type of one row number of `x`, or of a tuple
    of row numbers, for which the result is a tuple of sums. `limit` is the type of the limit at
    which a sum may end early, or None.
    """
    if not (_is_matrix(x) and _is_matrix(y)):
        return None
    several = isinstance(rows, UniTuple)
    numbers = UniTuple(types.intp, rows.count) if several else types.intp
    result = UniTuple(types.float32, rows.count) if several else types.float32
    signature = result(x, numbers, y, types.intp, *(() if limit is None else (types.float32,)))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cols = _shape(context, builder, signature.args[0], arguments[0])[1]
        numbers = cgutils.unpack_tuple(builder, arguments[1]) if several else arguments[1:2]
        a = [row_start(context, builder, signature.args[0], arguments[0], row) for row in numbers]
        b = row_start(context, builder, signature.args[2], arguments[2], arguments[3])
        totals = sums_of_terms(builder, a, b, cols, term, *arguments[4:])
        return context.make_tuple(builder, result, totals) if several else totals[0]

    return signature, generate


def _is_matrix(kind: Any) -> bool:
    return isinstance(kind, types.Array) and kind.ndim == 2 and kind.layout == "C"


@intrinsic
def prefetch_row(_context: Any, matrix: Any, row: Any) -> Any:
    """Prefetch a row of a C-contiguous float32 matrix into the caches."""
    if not _is_matrix(matrix):
        return None
    signature = types.void(matrix, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cols = _shape(context, builder, signature.args[0], arguments[0])[1]
        _prefetch(builder, row_start(context, builder, signature.args[0], *arguments), cols)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def prefetch_run(_context: Any, array: Any, start: Any, stop: Any) -> Any:
    """Prefetch elements start to stop - 1 of a C-contiguous array of numbers."""
    if not (isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"):
        return None
    width = array.dtype.bitwidth // 8
    signature = types.void(array, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, start, stop = arguments
        data = make_array(signature.args[0])(context, builder, value).data
        _prefetch(builder, builder.gep(data, [start]), builder.sub(stop, start), width)
        return context.get_dummy_value()

    return signature, generate


def _prefetch(builder: Any, start: Any, count: Any, width: int = 4) -> None:
    """Prefetch every cache line of the `count` numbers of `width` bytes from address `start` on."""
    per_line = ir.Constant(count.type, CACHE_LINE_BYTES // width)
    padded_count = builder.add(count, ir.Constant(count.type, CACHE_LINE_BYTES // width - 1))
    with cgutils.for_range(builder, builder.udiv(padded_count, per_line)) as loop:
        prefetch_line(builder, builder.gep(start, [builder.mul(loop.index, per_line)]))


def prefetch_line(builder: Any, place: Any) -> None:
    """Prefetch the cache line at the address `place`."""
    byte = ir.IntType(8).as_pointer()
    prefetch = builder.module.declare_intrinsic(
        "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, *[_INT32] * 3])
    )
    # The three hints mean read access, keep in all cache levels, and data cache.
    hints = [ir.Constant(_INT32, hint) for hint in (0, 3, 1)]
    builder.call(prefetch, [builder.bitcast(place, byte), *hints])


def _shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return cgutils.unpack_tuple(builder, make_array(kind)(context, builder, value).shape, 2)


def row_start(context: Any, builder: Any, kind: Any, value: Any, row: Any) -> Any:
    """Return the address of row `row` of a C-contiguous matrix."""
    array = make_array(kind)(context, builder, value)
    cols = cgutils.unpack_tuple(builder, array.shape, 2)[1]
    return builder.gep(array.data, [builder.mul(row, cols)])


def sums_of_terms(
    builder: Any, rows: Sequence[Any], b: Any, cols: Any, term: Any, limit: Any = None
) -> list[Any]:
    """Generate the sums of `term` over the columns of row `b` and each of `rows`; return them.

    `term` gets the builder, vectors of LANES elements of a row and of `b`, and their first column.
    For the last columns it gets single elements. Row `b` is loaded once for all rows. If `limit` is
    given, `rows` must contain only one row. Its sum ends after the first stride (LANES *
    ACCUMULATORS columns) at which it exceeds the limit.
    """
    index = cols.type

    def constant(value: int) -> Any:
        return ir.Constant(index, value)

    sums = [
        [
            cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [0.0] * LANES))
            for _ in range(ACCUMULATORS)
        ]
        for _ in rows
    ]

    def add_block(start: Any, number: int) -> None:
        y = _load(builder, b, start)
        for a, accumulators in zip(rows, sums, strict=True):
            value = term(builder, _load(builder, a, start), y, start)
            accumulator = accumulators[number]
            builder.store(builder.fadd(builder.load(accumulator), value), accumulator)

    stride = LANES * ACCUMULATORS
    strides = builder.udiv(cols, constant(stride))
    with cgutils.for_range(builder, strides) as loop:
        base = builder.mul(loop.index, constant(stride))
        for number in range(ACCUMULATORS):
            add_block(builder.add(base, constant(number * LANES)), number)
        if limit is not None:
            exceeds = builder.fcmp_ordered(">", _fold(builder, sums[0]), limit)
            with builder.if_then(exceeds):
                loop.do_break()
    column = builder.mul(strides, constant(stride))
    blocks = builder.udiv(builder.sub(cols, column), constant(LANES))
    with cgutils.for_range(builder, blocks) as loop:
        add_block(builder.add(column, builder.mul(loop.index, constant(LANES))), 0)
    column = builder.add(column, builder.mul(blocks, constant(LANES)))

    totals = [cgutils.alloca_once_value(builder, _fold(builder, parts)) for parts in sums]
    with cgutils.for_range(builder, builder.sub(cols, column)) as loop:
        at = builder.add(column, loop.index)
        y = builder.load(builder.gep(b, [at]))
        for a, total in zip(rows, totals, strict=True):
            value = term(builder, builder.load(builder.gep(a, [at])), y, at)
            builder.store(builder.fadd(builder.load(total), value), total)
    return [builder.load(total) for total in totals]


def _load(builder: Any, pointer: Any, start: Any) -> Any:
    block = builder.bitcast(builder.gep(pointer, [start]), _VECTOR.as_pointer())
    # Rows are aligned to four bytes only, not to the size of the vector.
    return builder.load(block, align=4)


def _gathered_sum(builder: Any, elements: Any, span: Any, dense: Any) -> Any:
    """Generate the dot product of a sparse row, `elements` (columns, values), and a dense row.

    `span` is (start, stop, ahead) as in `gathered_dot`.
    """
    (columns, values), (start, stop, ahead) = elements, span
    index, stride = start.type, 2 * _DOUBLE_LANES
    zeros = ir.Constant(ir.VectorType(_DOUBLE, _DOUBLE_LANES), [0.0] * _DOUBLE_LANES)
    sums = [cgutils.alloca_once_value(builder, zeros) for _ in range(2)]

    def add(total: Any, at: Any, lanes: int) -> None:
        numbers, factors = (ir.Constant(ir.VectorType(_FLOAT, lanes), ir.Undefined),) * 2
        for lane in range(lanes):
            place, slot = builder.add(at, ir.Constant(index, lane)), ir.Constant(_INT32, lane)
            column = builder.sext(builder.load(builder.gep(columns, [place])), index)
            number = builder.load(builder.gep(dense, [column]))
            numbers = builder.insert_element(numbers, number, slot)
            value = builder.load(builder.gep(values, [place]))
            factors = builder.insert_element(factors, value, slot)
        wide = ir.VectorType(_DOUBLE, lanes)
        product = builder.fmul(builder.fpext(numbers, wide), builder.fpext(factors, wide))
        if lanes == 1:
            product = builder.extract_element(product, ir.Constant(_INT32, 0))
        builder.store(builder.fadd(builder.load(total), product), total)

    steps = builder.udiv(builder.sub(stop, start), ir.Constant(index, stride))
    with cgutils.for_range(builder, steps) as loop:
        offset = builder.mul(loop.index, ir.Constant(index, stride))
        for array in (columns, values):
            prefetch_line(builder, builder.gep(array, [builder.add(ahead, offset)]))
        for number, total in enumerate(sums):
            step = ir.Constant(index, number * _DOUBLE_LANES)
            add(total, builder.add(builder.add(start, offset), step), _DOUBLE_LANES)
    tail_start = builder.add(start, builder.mul(steps, ir.Constant(index, stride)))
    lane_sums = builder.fadd(*(builder.load(total) for total in sums))
    total = cgutils.alloca_once_value(builder, _folded(builder, lane_sums, _DOUBLE_LANES))
    with cgutils.for_range(builder, builder.sub(stop, tail_start)) as loop:
        add(total, builder.add(tail_start, loop.index), 1)
    return builder.load(total)


def _fold(builder: Any, sums: Any) -> Any:
    low, high = (builder.fadd(builder.load(sums[i]), builder.load(sums[i + 1])) for i in (0, 2))
    return _folded(builder, builder.fadd(low, high), LANES)


def _folded(builder: Any, vector: Any, width: int) -> Any:
    """Generate the sum of a vector's lanes: add the upper half to the lower until one is left."""
    while width > 1:
        width //= 2
        halves = (
            builder.shuffle_vector(
                vector,
                vector,
                ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(at, at + width))),
            )
            for at in (0, width)
        )
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))
