"""What numba has no word for: sums over rows in a fixed order, population counts, prefetching.

A float sum depends on its order. Left alone the compiler adds one by one, which is slow; with
fastmath it chooses an order per processor, which is not reproducible. `row_dot` and `row_distance`
spell the order out: terms go to four accumulators of 16 lanes, those are added pairwise, lanes are
folded in halves, what is left of the row is added one by one. Multiplications and additions are
never fused. Processors with narrower registers do the same additions in more instructions.
`gathered_dot` does so of stored values, in two accumulators of 8 lanes of float64.
"""

from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_untracked
from numba.core.types.containers import UniTuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

LANES: Final = 16
ACCUMULATORS: Final = 4

_CACHE_LINE: Final = 64
_FLOAT: Final = ir.FloatType()
_VECTOR: Final = ir.VectorType(_FLOAT, LANES)
_DOUBLE: Final = ir.DoubleType()
_DOUBLES: Final = 8
_INT32: Final = ir.IntType(32)


@intrinsic
def popcount(_context: Any, word: Any) -> Any:  # numba's own types
    """Return the number of set bits of a uint64 as a uint64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        count = builder.module.declare_intrinsic("llvm.ctpop", [ir.IntType(64)])
        return builder.call(count, arguments)

    return types.uint64(types.uint64), generate


@intrinsic
def float_of(_context: Any, bits: Any) -> Any:
    """Return the float32 that a uint32 holds the bits of."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.uint32), generate


@intrinsic
def bits_of(_context: Any, number: Any) -> Any:
    """Return the bits of a float32 as an int32."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _INT32)

    return types.int32(types.float32), generate


@intrinsic
def row_dot(_context: Any, left: Any, i: Any, right: Any, j: Any) -> Any:
    """Return the float32 dot product of row `i` of `left` and row `j` of `right`.

    Both are C-contiguous float32 matrices with the same number of columns.
    """
    return _row_sum(left, right, lambda builder, x, y: builder.fmul(x, y))


@intrinsic
def row_distance(_context: Any, left: Any, i: Any, right: Any, j: Any) -> Any:
    """Return the float32 squared distance of row `i` of `left` and row `j` of `right`.

    Summed from differences, so that near-duplicates keep their order; 2 - 2 a.b of unit vectors
    would lose what is below 1e-7. Arrays as in `row_dot`.
    """
    return _row_sum(left, right, _square)


@intrinsic
def row_distance_within(_context: Any, left: Any, i: Any, right: Any, j: Any, limit: Any) -> Any:
    """Return `row_distance` to the bit where it is at most `limit`, else a number above `limit`.

    Squares are not negative and rounding keeps order, so that no sum falls below a part of it: the
    sum ends at the first stride of columns that exceeds the float32 `limit`.
    """
    return _row_sum(left, right, _square, limit)


@intrinsic
def row_dots(_context: Any, left: Any, rows: Any, right: Any, j: Any) -> Any:
    """Return `row_dot` of several rows of `left`, a tuple of their numbers, as a tuple.

    To the bit the same; row `j` is read once for all of them. Four keep their sums in the registers
    of AVX-512.
    """
    return _row_sums(left, rows, right, lambda builder, x, y: builder.fmul(x, y))


@intrinsic
def row_distances(_context: Any, left: Any, rows: Any, right: Any, j: Any) -> Any:
    """Return the same of `row_distance`."""
    return _row_sums(left, rows, right, _square)


@intrinsic
def gathered_dot(
    _context: Any,
    indices: Any,
    values: Any,
    start: Any,
    stop: Any,
    ahead: Any,
    target: Any,
    at: Any,
) -> Any:
    """Return the float64 dot product of stored values start to stop and row `at` of `target`.

    `indices` int32, `values` float32; `target` a C-contiguous float32 matrix. As many values from
    `ahead` on are asked for meanwhile: rows lie anywhere in memory, and a burst of requests for a
    row as long as this holds up what it should speed up.
    """
    if not _is_matrix(target):
        return None
    whole = types.intp
    signature = types.float64(indices, values, whole, whole, whole, target, whole)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kinds, (columns, stored, start, stop, ahead, _, at) = signature.args, arguments
        columns = make_array(kinds[0])(context, builder, columns).data
        stored = make_array(kinds[1])(context, builder, stored).data
        dense = _row(context, builder, kinds[5], arguments[5], at)
        total = _gathered_sum(builder, (columns, stored), (start, stop, ahead), dense)
        return impl_ret_untracked(context, builder, signature.return_type, total)

    return signature, generate


def _square(builder: Any, x: Any, y: Any) -> Any:
    difference = builder.fsub(x, y)
    return builder.fmul(difference, difference)


def _row_sum(left: Any, right: Any, term: Any, limit: Any = None) -> Any:
    """Return the signature and the generator of a sum of `term` over the columns of two rows.

    `limit` is the type of the limit at which the sum may end, None for a whole sum.
    """
    if not (_is_matrix(left) and _is_matrix(right)):
        return None
    limits = () if limit is None else (types.float32,)
    signature = types.float32(left, types.intp, right, types.intp, *limits)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cols = _shape(context, builder, signature.args[0], arguments[0])[1]
        a = _row(context, builder, signature.args[0], arguments[0], arguments[1])
        b = _row(context, builder, signature.args[2], arguments[2], arguments[3])
        (total,) = _sums_of_terms(builder, [a], b, cols, term, *arguments[4:])
        return impl_ret_untracked(context, builder, signature.return_type, total)

    return signature, generate


def _row_sums(left: Any, rows: Any, right: Any, term: Any) -> Any:
    """Return the same of several sums that share the second row."""
    if not (_is_matrix(left) and _is_matrix(right) and isinstance(rows, UniTuple)):
        return None
    taken = UniTuple(types.intp, rows.count)
    signature = UniTuple(types.float32, rows.count)(left, taken, right, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cols = _shape(context, builder, signature.args[0], arguments[0])[1]
        numbers = cgutils.unpack_tuple(builder, arguments[1])
        a = [_row(context, builder, signature.args[0], arguments[0], each) for each in numbers]
        b = _row(context, builder, signature.args[2], arguments[2], arguments[3])
        totals = _sums_of_terms(builder, a, b, cols, term)
        return context.make_tuple(builder, signature.return_type, totals)

    return signature, generate


def _is_matrix(given: Any) -> bool:
    return isinstance(given, types.Array) and given.ndim == 2 and given.layout == "C"


@intrinsic
def prefetch_row(_context: Any, matrix: Any, row: Any) -> Any:
    """Ask for a row of a C-contiguous float32 matrix ahead of its use; changes no result."""
    if not (isinstance(matrix, types.Array) and matrix.ndim == 2 and matrix.layout == "C"):
        return None
    signature = types.void(matrix, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cols = _shape(context, builder, signature.args[0], arguments[0])[1]
        _prefetch(builder, _row(context, builder, signature.args[0], *arguments), cols)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def prefetch_run(_context: Any, array: Any, start: Any, stop: Any) -> Any:
    """Ask for the elements start to stop of a C-contiguous array of four-byte numbers."""
    if not (isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"):
        return None
    signature = types.void(array, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, start, stop = arguments
        data = make_array(signature.args[0])(context, builder, given).data
        _prefetch(builder, builder.gep(data, [start]), builder.sub(stop, start))
        return context.get_dummy_value()

    return signature, generate


def _prefetch(builder: Any, start: Any, count: Any) -> None:
    """Ask for every cache line of `count` four-byte numbers."""
    per_line = ir.Constant(count.type, _CACHE_LINE // 4)
    rounded = builder.add(count, ir.Constant(count.type, _CACHE_LINE // 4 - 1))
    with cgutils.for_range(builder, builder.udiv(rounded, per_line)) as loop:
        _prefetch_line(builder, builder.gep(start, [builder.mul(loop.index, per_line)]))


def _prefetch_line(builder: Any, place: Any) -> None:
    byte = ir.IntType(8).as_pointer()
    prefetch = builder.module.declare_intrinsic(
        "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, *[_INT32] * 3])
    )
    # To be read, to stay in every cache, as data.
    hints = [ir.Constant(_INT32, hint) for hint in (0, 3, 1)]
    builder.call(prefetch, [builder.bitcast(place, byte), *hints])


def _shape(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return cgutils.unpack_tuple(builder, make_array(kind)(context, builder, value).shape, 2)


def _row(context: Any, builder: Any, kind: Any, value: Any, row: Any) -> Any:
    array = make_array(kind)(context, builder, value)
    cols = cgutils.unpack_tuple(builder, array.shape, 2)[1]
    return builder.gep(array.data, [builder.mul(row, cols)])


def _sums_of_terms(
    builder: Any, rows: Sequence[Any], b: Any, cols: Any, term: Any, limit: Any = None
) -> list[Any]:
    """Return the sum over the columns for each of the rows beside `b`, which is loaded once.

    With a `limit` the sum of a single row ends at the first stride that exceeds it.
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
            added = term(builder, _load(builder, a, start), y)
            accumulator = accumulators[number]
            builder.store(builder.fadd(builder.load(accumulator), added), accumulator)

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
    done = builder.mul(strides, constant(stride))
    blocks = builder.udiv(builder.sub(cols, done), constant(LANES))
    with cgutils.for_range(builder, blocks) as loop:
        add_block(builder.add(done, builder.mul(loop.index, constant(LANES))), 0)
    done = builder.add(done, builder.mul(blocks, constant(LANES)))

    totals = [cgutils.alloca_once_value(builder, _fold(builder, each)) for each in sums]
    with cgutils.for_range(builder, builder.sub(cols, done)) as loop:
        at = builder.add(done, loop.index)
        y = builder.load(builder.gep(b, [at]))
        for a, total in zip(rows, totals, strict=True):
            added = term(builder, builder.load(builder.gep(a, [at])), y)
            builder.store(builder.fadd(builder.load(total), added), total)
    return [builder.load(total) for total in totals]


def _load(builder: Any, pointer: Any, start: Any) -> Any:
    block = builder.bitcast(builder.gep(pointer, [start]), _VECTOR.as_pointer())
    # Rows begin wherever the number of columns puts them.
    return builder.load(block, align=4)


def _gathered_sum(builder: Any, stored: Any, span: Any, dense: Any) -> Any:
    """Return the sum of stored values, as (columns, values), times the dense row's numbers."""
    (columns, values), (start, stop, ahead) = stored, span
    index, stride = start.type, 2 * _DOUBLES
    nothing = ir.Constant(ir.VectorType(_DOUBLE, _DOUBLES), [0.0] * _DOUBLES)
    sums = [cgutils.alloca_once_value(builder, nothing) for _ in range(2)]

    def add(total: Any, at: Any, lanes: int) -> None:
        gathered, taken = (ir.Constant(ir.VectorType(_FLOAT, lanes), ir.Undefined),) * 2
        for lane in range(lanes):
            place, slot = builder.add(at, ir.Constant(index, lane)), ir.Constant(_INT32, lane)
            column = builder.sext(builder.load(builder.gep(columns, [place])), index)
            number = builder.load(builder.gep(dense, [column]))
            gathered = builder.insert_element(gathered, number, slot)
            value = builder.load(builder.gep(values, [place]))
            taken = builder.insert_element(taken, value, slot)
        wide = ir.VectorType(_DOUBLE, lanes)
        product = builder.fmul(builder.fpext(gathered, wide), builder.fpext(taken, wide))
        if lanes == 1:
            product = builder.extract_element(product, ir.Constant(_INT32, 0))
        builder.store(builder.fadd(builder.load(total), product), total)

    steps = builder.udiv(builder.sub(stop, start), ir.Constant(index, stride))
    with cgutils.for_range(builder, steps) as loop:
        done = builder.mul(loop.index, ir.Constant(index, stride))
        for array in (columns, values):
            _prefetch_line(builder, builder.gep(array, [builder.add(ahead, done)]))
        for number, total in enumerate(sums):
            step = ir.Constant(index, number * _DOUBLES)
            add(total, builder.add(builder.add(start, done), step), _DOUBLES)
    rest = builder.add(start, builder.mul(steps, ir.Constant(index, stride)))
    both = builder.fadd(*(builder.load(each) for each in sums))
    total = cgutils.alloca_once_value(builder, _folded(builder, both, _DOUBLES))
    with cgutils.for_range(builder, builder.sub(stop, rest)) as loop:
        add(total, builder.add(rest, loop.index), 1)
    return builder.load(total)


def _fold(builder: Any, sums: Any) -> Any:
    low, high = (builder.fadd(builder.load(sums[i]), builder.load(sums[i + 1])) for i in (0, 2))
    return _folded(builder, builder.fadd(low, high), LANES)


def _folded(builder: Any, vector: Any, width: int) -> Any:
    """Return the sum of a vector's lanes, added in halves."""
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
