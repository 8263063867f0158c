"""Rules of the project that no linter checks.

A hand-written file has at most 600 lines. A function has at most 40 lines without its docstring. A
kernel may have 60, because splitting a compiled loop can make it harder to follow.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import divgrpc

ROOT = Path(__file__).parent.parent
PACKAGES = (
    *("divgrpc", "protos/divgrpc_protos", "server/divgrpc_server"),
    *("client/divgrpc_client", "client/divgrpc_lab"),
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("client/integrations/*/src")),
)
TESTS = (
    "tests",
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("client/integrations/*/tests")),
)
EXTRAS = (
    "cli",
    "server",
    "tracing",
    "ray",
    "report",
    "dev",
    "bench",
    "docs",
    "rivals",
    "conformance",
)
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 40
KERNEL_LINES_MAX = 60
# Participles and pronouns that say nothing about a value. `expected` is usual in tests.
POOR_NAMES = """
told found each own asked wanted given kept made taken said seen begun ours theirs mine held sent
chosen done built caught drawn what which that this these those them nothing something everything
anything another others listed picked counted printed
"""
# Names of public parameters and fields, which stay.
PUBLIC_NAMES = {"asked", "counted", "found", "kept", "told"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _sources(*folders: str) -> list[Path]:
    """Return the hand-written Python files in some folders."""
    paths = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in paths if "_pb2" not in path.name)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _length(function: Function) -> int:
    """Return the number of lines of a function without its docstring."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def _undocumented(tree: ast.Module) -> Iterator[str]:
    """Yield the public modules, classes, functions and methods that have no docstring.

    An overload is a signature of a function that has a docstring.
    """
    if ast.get_docstring(tree) is None:
        yield "module"
    public = [n for n in tree.body if isinstance(n, ast.ClassDef | Function)]
    for thing in public:
        if thing.name.startswith("_") or "overload" in map(ast.unparse, thing.decorator_list):
            continue
        if ast.get_docstring(thing) is None:
            yield thing.name
        if isinstance(thing, ast.ClassDef):
            public.extend(n for n in thing.body if isinstance(n, Function))


def test_files_are_short() -> None:
    files = [*_sources(*PACKAGES, *TESTS), *(ROOT / "protos").rglob("*.proto")]
    lengths = {_name(path): len(path.read_text().splitlines()) for path in files}
    assert {name: n for name, n in lengths.items() if n > FILE_LINES_MAX} == {}


def test_functions_fit_a_screen() -> None:
    long = []
    for path in _sources(*PACKAGES, *TESTS):
        most = KERNEL_LINES_MAX if path.parent.name == "kernels" else FUNCTION_LINES_MAX
        long += [
            f"{_name(path)}:{function.lineno} {function.name}"
            for function in _functions(_parsed(path))
            if _length(function) > most
        ]
    assert long == []


def _variables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each variable, parameter and field."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def test_variables_are_named_by_nouns() -> None:
    poor = [
        f"{_name(path)}:{line} {name}"
        for path in _sources(*PACKAGES, *TESTS)
        for line, name in _variables(_parsed(path))
        if (word := name.strip("_").lower()) in POOR_NAMES.split()
        and not (path.is_relative_to(ROOT / "divgrpc") and word in PUBLIC_NAMES)
    ]
    assert poor == []


def test_public_things_are_documented() -> None:
    bare = [
        f"{_name(path)} {thing}"
        for path in _sources(*PACKAGES)
        for thing in _undocumented(_parsed(path))
    ]
    assert bare == []


def test_docstrings_of_tests_are_sentences() -> None:
    """A docstring of a test is a sentence; a test needs one only if it says more than the name."""
    functions = [
        (f"{_name(path)}:{function.lineno} {function.name}", ast.get_docstring(function))
        for path in _sources(*TESTS)
        for function in _functions(_parsed(path))
        if function.name.startswith("test_")
    ]
    assert functions
    assert [name for name, text in functions if text and not text.endswith(".")] == []


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = re.search(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert project["version"] == divgrpc.__version__ == newest[1]


@pytest.mark.parametrize("array", ["dependencies", *EXTRAS])
def test_every_dependency_has_its_reason(array: str) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    match = re.search(rf"^(.*)\n{array} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert match is not None
    above, body = match.groups()
    assert above.splitlines()[-1].startswith("# "), f"what is {array} for?"
    entries = [line for line in body.splitlines() if line.strip().startswith('"')]
    assert entries
    assert [line.strip() for line in entries if "#" not in line] == []


@pytest.mark.parametrize("array", ["select", "ignore"])
def test_every_lint_choice_has_its_reason(array: str) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    match = re.search(rf"^{array} = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert match is not None
    assert [line.strip() for line in match[1].splitlines() if "#" not in line] == []


def test_extras_are_all_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) == set(EXTRAS)


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    process = subprocess.run(
        ["git", "ls-files", "-z"],  # noqa: S607  # the repository's own git
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    private = re.compile(
        r"(?<![\w.])/(home|root|work|opt|Users)/\w|(?<!\S)--((extra-)?index-url|find-links)"
    )
    private_names = []
    for name in filter(None, process.stdout.split("\0")):
        path = ROOT / name
        if path.suffix not in {".png", ".npy", ".npz"} and path.is_file():
            private_names += [f"{name}: {m[0]}" for m in private.finditer(path.read_text())]
    assert private_names == []


_COMPUTING = ("numba", "scipy", "sklearn", "divgrpc.index")


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        *((module, _COMPUTING) for module in ("divgrpc_protos.arrays", "divgrpc.types")),
        ("divgrpc.parameters", _COMPUTING),
        ("divgrpc_client", (*_COMPUTING, "rich", "PIL")),
        ("divgrpc_client.cli.main", (*_COMPUTING, "rich", "PIL", "divgrpc_client.load")),
        ("divgrpc_server.supervisor.supervisor", ("grpc", "numba", "google")),
        ("divgrpc_server.__main__", ("grpc", "numba", "google")),
        ("divgrpc_server.front.__main__", ("numba", "scipy", "llvmlite")),
        ("divgrpc_server.worker.__main__", ("grpc",)),
        ("divgrpc_server.builder.__main__", ("grpc",)),
    ],
)
def test_modules_do_not_import_what_they_do_not_need(module: str, absent: tuple[str, ...]) -> None:
    """For example, clients compute nothing, fronts know no numba, and workers know no gRPC."""
    program = f"import sys, {module}; print(sorted({set(absent)} & set(sys.modules)))"
    command = [sys.executable, "-W", "error", "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")
