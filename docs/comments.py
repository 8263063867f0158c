"""Converts comments of .proto files and Python docstrings to Markdown."""

import re
from collections.abc import Iterable, Sequence

# Matches the explanation of a parameter: a line `name: meaning` or `name, other: meaning`, and the
# indented lines after it.
_PARAMETER = re.compile(
    r"^(\*{0,2}[a-z_]\w*(?:, \*{0,2}[a-z_]\w*)*): (.*(?:\n {4,}.*)*)", re.MULTILINE
)
_NAME_AND_MEANING = re.compile(r"^ +([A-Z]\w+) +(.*)$")


def from_comment(comment: str) -> str:
    """Return a .proto comment as Markdown; an indented paragraph becomes a table or code."""
    paragraphs = re.split(r"\n\s*\n", comment.strip("\n"))
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs).strip()


def _paragraph(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if lines and all(line.startswith("   ") for line in lines):
        return _list(lines)
    return _escape(" ".join(line.strip() for line in lines))


def _list(lines: list[str]) -> str:
    """Return indented lines as a table if each has a name and a meaning, else as code."""
    rows = [match for line in lines if (match := _NAME_AND_MEANING.match(line))]
    if len(rows) < len(lines):
        return "\n".join(f"    {line.strip()}" for line in lines)
    return table(("name", "meaning"), [(f"`{row[1]}`", _escape(row[2])) for row in rows])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; line breaks in cells become spaces, and bars are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    # Bars are escaped only outside backticks. Between backticks, a bar does not end a cell, and a
    # backslash would be visible.
    parts = " ".join(text.splitlines()).split("`")
    parts[::2] = [re.sub(r"(?<!\\)\|", r"\\|", part) for part in parts[::2]]
    return "`".join(parts)


def _escape(text: str) -> str:
    # Outside backticks, Markdown and HTML would interpret these characters.
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_<>\[\]|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def from_docstring(docstring: str) -> str:
    """Return a docstring in which the explanations of parameters form a Markdown list."""
    return _PARAMETER.sub(_item, docstring)


def _item(explanation: re.Match[str]) -> str:
    names = ", ".join(f"`{name}`" for name in explanation[1].split(", "))
    return f"- {names}: {_joined(explanation[2])}"


def split_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without explanations of parameters, and the explanations by parameter."""
    texts = {
        name: _joined(match[2])
        for match in _PARAMETER.finditer(docstring)
        for name in match[1].split(", ")
    }
    return re.sub(r"\n{3,}", "\n\n", _PARAMETER.sub("", docstring)).strip(), texts


def _joined(lines: str) -> str:
    return " ".join(lines.split())
