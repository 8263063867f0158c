"""Tiles of codes, and the sums of table entries that they select."""

import os

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llvmlite import ir

from divgrpc.hashing.codes import sort_codes, tiles_of
from divgrpc.kernels import look_ups, tiles
from divgrpc.kernels.jit import kernel
from divgrpc.kernels.look_ups import register_bytes, tile_distances
from divgrpc.types import FloatArray
from reference import kernels

Bytes = npt.NDArray[np.uint8]
seeds = st.integers(0, 2**32 - 1)
POINTS = [1, 2, 15, 16, 17, 31, 32, 33, 64, 100]
PROCESSORS = [("generic", 0), ("x86-64-v2", 16), ("haswell", 32), ("znver4", 32)]


@kernel
def sum_entries(codes: Bytes, tables: Bytes, distances: FloatArray, sizes: tuple[int, ...]) -> None:
    tile, depth, bias, count, place = sizes
    tile_distances(codes, tile, tables, depth, bias, count, distances, place)


@settings(max_examples=30)
@given(
    seed=seeds,
    words=st.sampled_from([1, 2, 4, 5, 9]),
    depth=st.sampled_from([1, 2, 4]),
    count=st.integers(1, 32),
    top=st.sampled_from([1, 63]),
)
def test_a_tile_adds_the_entries_that_codes_select(
    seed: int, words: int, depth: int, count: int, top: int
) -> None:
    """Only the results asked for are written."""
    rng = np.random.default_rng(seed)
    bits = rng.random((96, 64 * words * depth)) < (0.5 if top == 1 else 0.9)
    tables = rng.integers(0, top + 1, (16 * words, 16)).astype(np.uint8)
    if top > 1:
        tables[:, 15] = top
    distances = np.full(40, 7, np.float32)
    sum_entries(kernels.tiles(bits), tables, distances, (1, depth, 5, count, 3))
    expected = np.full(40, 7.0)
    for i in range(count):
        expected[3 + i] = 5 - kernels.entry_sum(bits[32 + i], tables.tolist())
    assert distances.tolist() == expected.tolist()


@given(seed=seeds, points=st.sampled_from(POINTS), words=st.integers(1, 3))
def test_words_are_stored_in_tiles_and_taken_out_again(seed: int, points: int, words: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.random((points, 64 * words)) < 0.5
    packed, expected = kernels.pack(bits), kernels.tiles(bits)
    codes = tiles_of(packed, 64 * words)
    assert codes.tolist() == expected.tolist()
    word = np.empty(points, np.uint64)
    for w in range(words):
        tiles.take_word(codes, w, word)
        assert word.tolist() == packed[w].tolist()
    order = rng.permutation(points).astype(np.int32)
    sort_codes(codes, order)
    assert codes.tolist() == kernels.tiles(bits[order]).tolist()


@given(points=st.sampled_from(POINTS))
def test_later_tiles_do_not_change_earlier_ones(points: int) -> None:
    codes = np.full((6, 256), 7, np.uint8)
    tiles.put_word(np.zeros(points, np.uint64), 0, codes, 32)
    stop = 1 + -(-points // 32)
    assert (codes[1:stop] == 0).all()
    assert (codes[:1] == 7).all()
    assert (codes[stop:] == 7).all()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="processors of another architecture")
@pytest.mark.parametrize(("processor", "size"), PROCESSORS)
def test_a_processor_gets_the_widest_look_up_that_pays(processor: str, size: int) -> None:
    assert register_bytes("x86_64-unknown-linux-gnu", processor, "") == size


def test_arm_processors_look_up_sixteen_bytes() -> None:
    """The instruction is `tbl`. Its code is only generated here; `make arm` also runs it."""
    triple = "aarch64-unknown-linux-gnu"
    assert register_bytes(triple, "generic", "") == 16
    octets, module = ir.VectorType(ir.IntType(8), 16), ir.Module()
    function = ir.Function(module, ir.FunctionType(octets, [octets, octets]), "look_up")
    table, index = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(look_ups._look_up(builder, table, index, (triple, "generic", "")))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(cpu="generic")
    module.triple = triple
    assert "\ttbl\t" in machine.emit_assembly(llvm.parse_assembly(str(module)))
