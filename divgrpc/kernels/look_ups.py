"""Adds the scan of a tile to numba: sums of table entries that codes select, in vector registers.

A tile holds the codes of TILE_POINTS points (`divgrpc.kernels.tiles`). A group is four bits of a
code, the bits of four hyperplanes. For each group of hyperplanes a query has a table of 16 bytes,
one for each combination of four bits. One instruction looks up the entries of 16 or 32 points:
`pshufb` on x86 processors, `tbl` on ARM processors (André, Kermarrec and Le Scouarnec 2015, PQ Fast
Scan). A processor without such an instruction compares and selects, which is slow.

All sums are integers, so every processor computes the same result. Four entries are added as bytes,
because an entry is at most ENTRY_MAX. Then the bytes are widened: words of 16 bits accumulate pairs
of bytes (even + 256 * odd, which may overflow) and the odd bytes. The even sums follow from both.
"""

import functools
from typing import Any, Final, NamedTuple

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from divgrpc.kernels.vector_sums import CACHE_LINE_BYTES, prefetch_line

# Number of points in a tile.
TILE_POINTS: Final = 32
# Number of bytes of one group in a tile: two points share a byte.
GROUP_BYTES: Final = 16
# Greatest entry of a table. Four entries must fit into a byte.
ENTRY_MAX: Final = 63
# Number of entries that are added as bytes.
_BYTE_TERMS: Final = 4
# Number of groups after which sums are widened to 32 bits. The weights of the levels of a code add
# up to at most 15, and 63 * 64 * 15 fits into 16 bits.
_ROUND_GROUPS: Final = 64
# Codes are prefetched when the codes this many bytes before them are read, because processors
# prefetch by themselves only within a page of memory.
_PREFETCH_BYTES: Final = 8_192

_INT8, _INT16, _INT32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_WORDS: Final = ir.VectorType(_INT32, TILE_POINTS)
_FLOATS: Final = ir.VectorType(ir.FloatType(), TILE_POINTS)

# A function whose assembly shows whether a processor shuffles bytes in registers of n bytes.
_SHUFFLE: Final = """
define <{n} x i8> @shuffle(<{n} x i8> %a) {{
  %b = shufflevector <{n} x i8> %a, <{n} x i8> %a, <{n} x i32> <{places}>
  ret <{n} x i8> %b
}}
"""


class _Tile(NamedTuple):
    """Values of the tile that is being scanned: two pointers, and the sizes as integers."""

    codes: Any  # first byte of the tile
    tables: Any  # first byte of the tables
    groups: Any  # number of groups of hyperplanes
    depth: Any  # number of bits for each hyperplane


@intrinsic
def tile_distances(
    _context: Any,
    codes: Any,
    tile: Any,
    tables: Any,
    depth: Any,
    bias: Any,
    count: Any,
    distances: Any,
    place: Any,
) -> Any:
    """Write `bias` minus the sums of the first `count` points of a tile as float32.

    The results are distances[place] to distances[place + count - 1]. The sum of a point adds, for
    each group of its code, the entry of the group's table, times the weight of the group's level.
    The first level has the greatest weight, 2**(depth - 1), and the last has 1. `codes` (tiles,
    bytes) uint8; `tables` (G, 16) uint8, entries 0 to ENTRY_MAX, G a multiple of 16; `depth` 1, 2
    or 4; the others are integers.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code_array, table_array, output = (
            make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 6)
        )
        tile_bytes = cgutils.unpack_tuple(builder, code_array.shape, 2)[1]
        start = builder.mul(arguments[1], tile_bytes)
        groups = cgutils.unpack_tuple(builder, table_array.shape, 2)[0]
        values = _Tile(
            builder.gep(code_array.data, [start]), table_array.data, groups, arguments[3]
        )
        target = context.codegen().magic_tuple()
        sums = _sum_rounds(builder, values, target)
        least = _splat_value(builder, builder.trunc(arguments[4], _INT32))
        results = builder.sitofp(builder.sub(least, sums), _FLOATS)
        _store(builder, results, builder.gep(output.data, [arguments[7]]), arguments[5])
        return context.get_dummy_value()

    size = types.intp
    return types.void(codes, size, tables, size, size, size, distances, size), generate


def _sum_rounds(builder: Any, tile: _Tile, target: tuple[str, str, str]) -> Any:
    """Return the sums of the TILE_POINTS points of a tile, as 32-bit integers."""
    total = cgutils.alloca_once_value(builder, ir.Constant(_WORDS, [0] * TILE_POINTS))
    lanes = register_bytes(*target) or GROUP_BYTES
    words = ir.VectorType(_INT16, lanes // 2)
    # For each half of the points: even + 256 * odd, and odd.
    sums = [cgutils.alloca_once(builder, words) for _ in range(4)]
    size_max = cgutils.intp_t(_ROUND_GROUPS)
    rounds = cgutils.for_range_slice(builder, cgutils.intp_t(0), tile.groups, size_max)
    with rounds as (first, _):
        left = builder.sub(tile.groups, first)
        size = builder.select(builder.icmp_signed("<", left, size_max), left, size_max)
        for pointer in sums:
            builder.store(_splat(words, 0), pointer)
        with cgutils.for_range(builder, tile.depth) as level:
            # The level of greatest weight comes first. The sums double before each further level.
            for pointer in sums:
                value = builder.load(pointer)
                builder.store(builder.add(value, value), pointer)
            group = builder.add(builder.mul(level.index, tile.groups), first)
            codes, tables = (
                builder.gep(data, [builder.mul(place, cgutils.intp_t(GROUP_BYTES))])
                for data, place in ((tile.codes, group), (tile.tables, first))
            )
            _add_groups(builder, codes, tables, size, sums, target)
        low, high = (_joined(builder, *map(builder.load, sums[i : i + 2])) for i in (0, 2))
        raw = _shuffled(builder, low, high, range(TILE_POINTS))
        builder.store(builder.add(builder.load(total), builder.zext(raw, _WORDS)), total)
    return builder.load(total)


def _add_groups(
    builder: Any, codes: Any, tables: Any, size: Any, sums: list[Any], target: tuple[str, str, str]
) -> None:
    """Add the entries of `size` groups to the four accumulators `sums`."""
    words = sums[0].type.pointee
    lanes = 2 * words.count
    octets = ir.VectorType(_INT8, lanes)
    groups = cgutils.intp_t(_BYTE_TERMS * lanes // GROUP_BYTES)

    def load(data: Any, place: Any) -> Any:
        value = builder.load(builder.bitcast(builder.gep(data, [place]), octets.as_pointer()))
        value.align = 1
        return value

    with cgutils.for_range_slice(builder, cgutils.intp_t(0), size, groups) as (group, _):
        start = builder.mul(group, cgutils.intp_t(GROUP_BYTES))
        entries: list[list[Any]] = [[], []]
        for term in range(_BYTE_TERMS):
            place = builder.add(start, cgutils.intp_t(term * lanes))
            pair, table = load(codes, place), load(tables, place)
            if term * lanes % CACHE_LINE_BYTES == 0:
                ahead = builder.add(place, cgutils.intp_t(_PREFETCH_BYTES))
                prefetch_line(builder, builder.gep(codes, [ahead]))
            upper = builder.lshr(builder.bitcast(pair, words), _splat(words, 4))
            for half, code in enumerate((pair, builder.bitcast(upper, octets))):
                index = builder.and_(code, _splat(octets, 15))
                entries[half].append(_look_up(builder, table, index, target))
        for half in range(2):
            value = builder.bitcast(functools.reduce(builder.add, entries[half]), words)
            for pointer, term in (
                (sums[2 * half], value),
                (sums[2 * half + 1], builder.lshr(value, _splat(words, 8))),
            ):
                builder.store(builder.add(builder.load(pointer), term), pointer)


def _look_up(builder: Any, table: Any, index: Any, target: tuple[str, str, str]) -> Any:
    """Return table[index] for vectors of bytes; each 16 bytes of both belong together."""
    kind = table.type
    names = {32: "llvm.x86.avx2.pshuf.b", 16: "llvm.x86.ssse3.pshuf.b.128"}
    name = "llvm.aarch64.neon.tbl1.v16i8" if _is_arm(target[0]) else names[kind.count]
    if register_bytes(*target):
        shuffle = ir.FunctionType(kind, [kind, kind])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, shuffle, name), [table, index]
        )
    entries = _splat(kind, 0)
    for i in range(GROUP_BYTES):
        entry = _shuffled(builder, table, table, [i] * GROUP_BYTES)
        here = builder.icmp_unsigned("==", index, _splat(kind, i))
        entries = builder.select(here, entry, entries)
    return entries


def _joined(builder: Any, pairs: Any, odd: Any) -> Any:
    """Return the 16 sums in two accumulators of the same points, one of pairs and one of odd."""
    even = builder.sub(pairs, builder.shl(odd, _splat(odd.type, 8)))
    parts = []
    for value in (even, odd):
        part, count = value, value.type.count
        # Every 16 bytes of a wide register hold other groups of the same points.
        while count > GROUP_BYTES // 2:
            count //= 2
            low, high = range(count), range(count, 2 * count)
            part = builder.add(*(_shuffled(builder, part, part, half) for half in (low, high)))
        parts.append(part)
    order = [i // 2 + 8 * (i % 2) for i in range(GROUP_BYTES)]
    return _shuffled(builder, parts[0], parts[1], order)


def _store(builder: Any, results: Any, output: Any, count: Any) -> None:
    """Store the first `count` entries of `results` at `output`."""
    whole = builder.icmp_signed("==", count, cgutils.intp_t(TILE_POINTS))
    with builder.if_else(whole) as (then, otherwise):
        with then:
            store = builder.store(results, builder.bitcast(output, _FLOATS.as_pointer()))
            store.align = 4
        with otherwise:
            copy = cgutils.alloca_once_value(builder, results)
            entries = builder.bitcast(copy, output.type)
            with cgutils.for_range(builder, count) as entry:
                value = builder.load(builder.gep(entries, [entry.index]))
                builder.store(value, builder.gep(output, [entry.index]))


@functools.cache
def register_bytes(triple: str, processor: str, features: str) -> int:
    """Return the size of the registers in which a processor looks up bytes; 0 if it cannot.

    Registers of 64 bytes are not used: a scan is limited by reading codes, and was no faster.
    LLVM does not tell which features a named processor has, so a small function is compiled.
    """
    if _is_arm(triple):
        return 16
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features
    )
    for lanes, register in ((32, "ymm"), (16, "xmm")):
        # No simpler instruction moves bytes in this order.
        order = [(i & ~15) | ((7 * i + 3) & 15) for i in range(lanes)]
        places = ", ".join(f"i32 {place}" for place in order)
        module = llvm.parse_assembly(_SHUFFLE.format(n=lanes, places=places))
        assembly = machine.emit_assembly(module)
        if any("pshufb" in line and register in line for line in assembly.splitlines()):
            return lanes
    return 0


def _is_arm(triple: str) -> bool:
    return triple.startswith(("aarch64", "arm64"))


def _splat(kind: Any, number: int) -> Any:
    return ir.Constant(kind, [number] * kind.count)


def _splat_value(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), value, _INT32(0))
    return _shuffled(builder, one, one, [0] * TILE_POINTS)


def _shuffled(builder: Any, a: Any, b: Any, places: Any) -> Any:
    places = list(places)
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT32, len(places)), places))
