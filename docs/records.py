"""Turn benchmark records into tables: a hook of MkDocs.

Enable it in docs/mkdocs.yml with ``hooks: [records.py]``, and add ``records`` and ``records.py`` to
``watch``.

A line ``{{ record NAME }}`` in a page becomes the table of docs/records/NAME.json and a caption
with the command that printed the table, the commit, the machine and the date. The caption has the
HTML class ``record-caption``. A run of ``make bench`` writes a record with the option ``--record``:

    make bench ARGS="RUN --record docs/records/NAME.json"
"""

import html
import json
import re
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path

FOLDER = Path(__file__).parent / "records"
MARKER = re.compile(r"^\{\{ record ([a-z0-9-]+) \}\}$", re.MULTILINE)
_NUMBER = re.compile(r"[-+<>=\u2212 ]*[\d.,]+([eE][-+]?\d+)?\s*(%|x|ms|us|s|MB)?!?")


@dataclass(frozen=True)
class Record:
    """One table of one benchmark run; every cell is text, and may hold inline Markdown."""

    title: str
    command: str
    commit: str
    date: str
    machine: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def load(path: Path) -> Record:
    """Read a record; raise ValueError for missing or unknown fields and rows of a wrong length."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    missing = {field.name for field in dataclass_fields(Record)} ^ set(fields)
    if missing:
        raise ValueError(f"{path.name}: missing or unknown fields: {', '.join(sorted(missing))}")
    for name in ("notes", "columns"):
        fields[name] = tuple(fields[name])
    fields["rows"] = tuple(tuple(row) for row in fields["rows"])
    record = Record(**fields)
    for number, row in enumerate(record.rows, start=1):
        if len(row) != len(record.columns):
            raise ValueError(
                f"{path.name}: row {number} has {len(row)} cells, expected {len(record.columns)}"
            )
    return record


def render(record: Record) -> str:
    """Return the Markdown table of a record, followed by its caption."""
    cells = zip(*record.rows, strict=True)
    rules = ["--:" if _is_numeric(column) else "---" for column in cells]
    lines = [_line(record.columns), _line(["---", *rules[1:]]), *map(_line, record.rows)]
    return "\n".join(lines) + "\n\n" + _caption(record)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace every marker of a page; MkDocs calls this before it renders the page."""
    return MARKER.sub(lambda marker: render(load(FOLDER / f"{marker[1]}.json")), markdown)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


def _is_numeric(column: tuple[str, ...]) -> bool:
    """Whether every cell is a number or empty, ignoring Markdown's stars."""
    return all(not cell or _NUMBER.fullmatch(cell.strip("*")) for cell in column)


def _caption(record: Record) -> str:
    parts = [
        f"<code>{html.escape(record.command)}</code>",
        f"commit <code>{html.escape(record.commit)}</code>",
        html.escape(record.machine),
        html.escape(record.date),
        *map(html.escape, record.notes),
    ]
    return f'<p class="record-caption">{" · ".join(parts)}</p>'
