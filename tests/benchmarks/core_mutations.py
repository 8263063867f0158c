"""Mutation testing of the core."""

import ast
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from benchmarks.harness.runner import Option, Options, Output, benchmark

_PAIRS: Final = (
    ("+", "-"),
    ("*", "/"),
    ("&", "|"),
    ("<<", ">>"),
    ("and", "or"),
    ("<", "<="),
    (">", ">="),
    ("==", "!="),
    ("is", "is not"),
    ("in", "not in"),
)
_SWAPS: Final = {
    **dict(_PAIRS),
    **{second: first for first, second in _PAIRS},
    **dict.fromkeys(("//", "%", "**"), "*"),
    "@": "-",
    "^": "&",
}
_EXEMPT_FILES: Final = ("__init__.py", "errors.py", "former_paths.py")


@dataclass(frozen=True)
class Mutant:
    """A change of a source file: `new` replaces the bytes [begin, end).

    `line` is the line number of the change, from 1 up.
    """

    path: str
    line: int
    begin: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        """Return `source` with this change."""
        return source[: self.begin] + self.new.encode() + source[self.end :]


@benchmark(
    "core-mutations",
    long=True,
    clone=Option(None, "throw-away clone whose files are changed", kind=Path),
    count=Option(50, "mutants"),
    seed=Option(0, "seed of the draws"),
    files=Option([], "paths in the clone to draw from; without any, the whole core"),
    timeout=Option(900, "seconds for the tests of a mutant; a mutant that hangs is noticed"),
)
def core_mutations(options: Options) -> Iterator[Output]:
    """Share of mutants of the core that its tests notice.

    A mutant is a copy of the core in which one operator, constant or comparison is changed. The
    benchmark draws statements from core files of a throw-away clone, changes one statement at a
    time, runs the tests of its file and restores it. The tests of a file are in the folder under
    `tests/core` that mirrors the folder of the file. If there is no such folder, they are the files
    directly in `tests/core`. A mutant is noticed if a test fails, or if the tests crash, hang or
    cannot start. The clone must not be used for anything else, because its files are overwritten.
    """
    if options.clone is None or not (options.clone / "divgrpc").is_dir():
        raise SystemExit("--clone must name a clone of the repository")
    mutants = draw(options.clone, options.files, options.count, options.seed)
    noticed_count = 0
    for mutant in mutants:
        path = options.clone / mutant.path
        source = path.read_bytes()
        start = time.monotonic()
        try:
            path.write_bytes(mutant.apply(source))
            folders = tests_of(mutant.path, options.clone)
            outcome = _run(options, folders)
        finally:
            path.write_bytes(source)
        noticed_count += outcome
        yield {
            "file": f"{mutant.path}:{mutant.line}",
            "change": f"{source[mutant.begin : mutant.end].decode()} to {mutant.new}",
            "noticed": outcome,
            "s": time.monotonic() - start,
        }
    yield f"{noticed_count} of {len(mutants)} noticed"


def draw(clone: Path, files: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Draw `count` statements without replacement, and a random change of each."""
    paths = files or sorted(
        str(path.relative_to(clone))
        for path in (clone / "divgrpc").rglob("*.py")
        if path.name not in _EXEMPT_FILES
    )
    statements = [places for path in paths for places in statements_of(path, clone)]
    draws = random.Random(seed)
    sample = draws.sample(statements, min(count, len(statements)))
    return [draws.choice(places) for places in sample]


def statements_of(path: str, clone: Path) -> Iterator[list[Mutant]]:
    """Yield the possible changes of each statement that can be changed.

    Changes in the body of a compound statement belong to the statements in the body.
    """
    source = (clone / path).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.stmt) and not _is_docstring(statement):
            places = [_mutant(path, source, starts, node) for node in _expressions(statement)]
            mutants = [place for place in places if place]
            if mutants:
                yield mutants


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions of a statement; skip nested statements, annotations and decorators."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.stmt):
                yield child
                yield from _expressions(child)


def _mutant(path: str, source: bytes, starts: Sequence[int], node: ast.AST) -> Mutant | None:
    """Return the change that is made to an expression, or None if it cannot be changed."""

    def begin_of(expression: ast.expr) -> int:
        return starts[expression.lineno - 1] + expression.col_offset

    def end_of(expression: ast.expr) -> int:
        return starts[(expression.end_lineno or 0) - 1] + (expression.end_col_offset or 0)

    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        new = repr(not node.value if isinstance(node.value, bool) else node.value + 1)
        return Mutant(path, node.lineno, begin_of(node), end_of(node), new)
    if isinstance(node, ast.BinOp):
        left_side, right_side = node.left, node.right
    elif isinstance(node, ast.Compare):
        left_side, right_side = node.left, node.comparators[0]
    elif isinstance(node, ast.BoolOp):
        left_side, right_side = node.values[:2]
    else:
        return None
    begin = end_of(left_side)
    between = source[begin : begin_of(right_side)].decode()
    operator = " ".join(between.replace("(", " ").replace(")", " ").split())
    if operator not in _SWAPS or operator not in between:
        return None
    begin += between.index(operator)
    return Mutant(path, left_side.lineno, begin, begin + len(operator), _SWAPS[operator])


def tests_of(path: str, clone: Path) -> list[str]:
    """Return the paths of the tests of a source file.

    This is the folder that mirrors the folder of the source file. If there is no such folder, these
    are the files directly in `tests/core`.
    """
    source = Path(path)
    folder = "tests" / Path("core", *source.parts[1:-1])
    if source.parts[1:-1] and (clone / folder).is_dir():
        return [str(folder)]
    return sorted(str(file.relative_to(clone)) for file in (clone / "tests/core").glob("test_*.py"))


def _run(options: Options, tests: Sequence[str]) -> bool:
    """Return whether the tests of a mutant fail, crash or hang."""
    clone = options.clone.resolve()
    roots = (clone, *(clone / name for name in ("protos", "server", "client", "tests")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", *tests]
    try:
        result = subprocess.run(
            command,
            cwd=clone,
            env=environment,
            capture_output=True,
            timeout=options.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    if result.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"there are no tests: {result.stdout.decode()[-1_000:]}")
    return result.returncode != pytest.ExitCode.OK
