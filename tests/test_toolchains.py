"""Tests that miss a program of another language say so, and are counted apart."""

import pytest

from support import toolchains


def test_a_missing_program_skips_and_is_named() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"missing toolchain no-such-program$"):
        toolchains.require("sh", "no-such-program")
    with pytest.raises(pytest.skip.Exception, match=r"missing toolchain node-modules: make it$"):
        toolchains.skip("node-modules", "make it")


def test_present_programs_do_not_skip() -> None:
    toolchains.require("sh", "make")


@pytest.mark.parametrize(
    ("reasons", "line"),
    [
        ([], "0 tests skipped for a missing toolchain"),
        (["needs DIVGRPC_DATA"], "0 tests skipped for a missing toolchain"),
        (
            ["Skipped: missing toolchain node", "x", "Skipped: missing toolchain go: install it"],
            "2 tests skipped for a missing toolchain: go, node",
        ),
        (
            ["('f.py', 3, 'Skipped: missing toolchain protoc-gen-go')"] * 2,
            "2 tests skipped for a missing toolchain: protoc-gen-go",
        ),
    ],
)
def test_the_last_lines_count_them(reasons: list[str], line: str) -> None:
    assert toolchains.summary(reasons) == line
