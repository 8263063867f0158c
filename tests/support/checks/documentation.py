"""The fenced code blocks of README.md and the site's pages, and how each is tested.

An HTML comment right above a block says how to test it:

    <!-- continues -->           a Python block that continues the previous Python block
    <!-- not run: docker -->     a block that cannot run here; the reason begins with one word of
                                 `REASONS` in docs/test_blocks.py
    <!-- run by: test_x.py -->   a block that test_x.py runs, because it needs more than a shell
"""

import re
import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "pages"
ADDRESSES = ("127.0.0.1:50051", "localhost:50051")
SHELLS = {"console", "sh", "bash", "shell"}
NOT_RUN = "documentation block not run"

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w-]*)(?P<options>[^\n`]*)\n"
    r"(?P<text>.*?)^(?P=indent)(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
_MARK = re.compile(r"<!-- (continues|not run|run by)(?:: ([^>]*?))? -->\s*\Z")
_TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    """A code block with its page, line and language, and the mark in the comment above it."""

    page: str
    line: int
    language: str
    text: str
    title: str = ""
    mark: str = ""
    note: str = ""
    before: str = ""

    @property
    def place(self) -> str:
        """The page and the line, which identify the block in the names of tests."""
        return f"{self.page}:{self.line}"


def pages() -> dict[str, str]:
    """Return the texts of README.md and of all pages, by name."""
    files = {path.relative_to(PAGES).as_posix(): path for path in sorted(PAGES.rglob("*.md"))}
    return {
        name: path.read_text() for name, path in {"README.md": ROOT / "README.md", **files}.items()
    }


def blocks(page: str, text: str) -> list[Block]:
    """Return the code blocks of a page in order."""
    return list(_blocks(page, text))


def _blocks(page: str, text: str) -> Iterator[Block]:
    end = 0
    for match in _FENCE.finditer(text):
        before, end = text[end : match.start()], match.end()
        mark = _MARK.search(before)
        title = _TITLE.search(match["options"])
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start()) + 1,
            language=match["language"],
            text=textwrap.dedent(match["text"]),
            title=title[1] if title else "",
            mark=mark[1] if mark else "",
            note=(mark[2] or "") if mark else "",
            before=before.strip(),
        )


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block; if it has `$` prompts, other lines are output."""
    lines = block.text.splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return list(_joined(lines))
    return [text.removeprefix("$ ") for text in _joined(lines) if text.startswith("$ ")]


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of each command; it continues after a backslash and inside quotes."""
    command = ""
    for line in lines:
        command += line
        try:
            shlex.split(command.removesuffix("\\"), comments=True)
        except ValueError:  # the quotation continues on the next line
            command += "\n"
            continue
        if command.endswith("\\"):
            command += "\n"
            continue
        if command.split("#")[0].strip():
            yield command
        command = ""
    assert not command, f"a command without its end: {command}"


def program(command: str) -> str:
    """Return the program that a command runs; variables set before the program are skipped."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    return next((word for word in words if not re.match(r"[A-Z_][A-Z0-9_]*=", word)), "")


def summary(reasons: Iterable[str]) -> str:
    """Return the number of blocks that did not run, counted by the first word of the reason."""
    words = [match[1] for text in reasons if (match := re.search(rf"{NOT_RUN}: ([\w-]+)", text))]
    names = ", ".join(f"{word} {count}" for word, count in sorted(Counter(words).items()))
    return f"{len(words)} documentation blocks not run" + (f": {names}" if names else "")
