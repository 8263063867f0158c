"""Comments of .proto files and docstrings of Python as Markdown."""

import re
from collections.abc import Iterable, Sequence

_PARAMETER = re.compile(r"^(\*{0,2}[a-z_][\w*]*(?:, \*{0,2}[a-z_]\w*)*): (.*)$")
_NAMED = re.compile(r"^ +([A-Z]\w+) +(.*)$")


def from_comment(comment: str) -> str:
    """Return a .proto comment as Markdown; indented lines become a table or code."""
    paragraphs = re.split(r"\n\s*\n", comment.strip("\n"))
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs).strip()


def _paragraph(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if lines and all(line.startswith("   ") for line in lines):
        return _list(lines)
    return _escape(" ".join(line.strip() for line in lines))


def _list(lines: list[str]) -> str:
    """Return indented lines as a table where each is a name and a meaning, else as code."""
    rows = [match for line in lines if (match := _NAMED.match(line))]
    if len(rows) < len(lines):
        return "\n".join(f"    {line.strip()}" for line in lines)
    return table(("name", "meaning"), [(f"`{row[1]}`", _escape(row[2])) for row in rows])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Neither line breaks nor bars in its cells end a cell."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    # Inside backticks a bar does not end a cell, and a backslash would be shown.
    parts = " ".join(text.splitlines()).split("`")
    parts[::2] = [re.sub(r"(?<!\\)\|", r"\\|", part) for part in parts[::2]]
    return "`".join(parts)


def _escape(text: str) -> str:
    # Outside backticks Markdown and HTML would read these as their own.
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_<>\[\]|])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def from_docstring(docstring: str) -> str:
    """Return a docstring with each line of parameters, `name: meaning`, made an item of a list."""
    lines: list[str] = []
    in_list = False
    for line in docstring.splitlines():
        match = _PARAMETER.match(line)
        if match:
            if not in_list and lines and lines[-1].strip():
                lines.append("")
            names = ", ".join(f"`{name}`" for name in match[1].split(", "))
            lines.append(f"- {names}: {match[2]}")
            in_list = True
        elif in_list and line.startswith("    "):
            lines.append(f"    {line.strip()}")
        else:
            in_list = in_list and not line.strip()
            lines.append(line)
    return "\n".join(lines)
