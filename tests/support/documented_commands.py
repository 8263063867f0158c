"""Commands as the documentation prints them: blocks that are indented by four spaces."""

import re
import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = (ROOT / "docs/examples/README.md").read_text()
_BLOCK = re.compile(r"(?:^    \S.*\n(?:^ {4}.*\n)*)", re.MULTILINE)


class Command(NamedTuple):
    """One command: as it stands, lines and all, and the words that a shell makes of it."""

    text: str
    words: list[str]

    @property
    def program(self) -> str:
        """What it runs: a program, or a module of Python's."""
        words = [word for word in self.words if "=" not in word and word != "sudo"] or [""]
        return words[2] if words[:2] == ["python", "-m"] else words[0]


def commands(text: str, program: str) -> list[Command]:
    """Return the commands that some text prints and that run a program, from the first on."""
    found = [command for block in _BLOCK.findall(text) for command in _split(block)]
    return [command for command in found if command.program == program]


def section(text: str, heading: str) -> str:
    """Return the section of a heading of any level, up to the next heading."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no section {heading}"
    return found[1]


def _split(block: str) -> list[Command]:
    """Cut a block into commands: one goes on after a backslash and inside quotes."""
    made, lines = [], ""
    for line in textwrap.dedent(block).splitlines():
        lines += line + "\n"
        try:
            words = shlex.split(lines.replace("\\\n", " "))
        except ValueError:  # a quotation without its end
            continue
        if not line.endswith("\\"):
            made.append(Command(lines, words))
            lines = ""
    return made
