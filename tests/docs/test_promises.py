"""Each test that the page "Promises" names exists."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[2]
_PAGE: Final = _ROOT / "docs" / "pages" / "reference" / "promises.md"
_NAMES: Final = sorted(set(re.findall(r"`(tests/[^`]+)`", _PAGE.read_text())))


def functions_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


@pytest.mark.parametrize("name", _NAMES)
def test_a_named_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert (_ROOT / file).is_file()
    assert not function or function in functions_in(_ROOT / file)


def test_every_promise_names_a_test() -> None:
    promises = _PAGE.read_text().partition("## What is not promised")[0]
    rows = [line for line in promises.splitlines() if re.match(r"\| [A-Z]", line)]
    assert len(rows) > 20
    assert [row for row in rows if "`tests/" not in row] == []
