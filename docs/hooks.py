"""MkDocs hooks that generate pages from other files, and tables from benchmark records.

A line ``{{ record NAME }}`` in a page becomes the table of docs/records/NAME.json and a caption
with the command that printed the table, the commit, the machine, the date and the notes. The
caption has the HTML class ``record-caption``. Options of the measuring commands write records:

    make bench ARGS="RUN --record docs/records/NAME.json"
    make paper ARGS="--data FOLDER --records docs/records"
"""

import html
import json
import re
import sys
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "records"
MARKER = re.compile(r"^\{\{ record ([a-z0-9-]+) \}\}$", re.MULTILINE)
# Units and words that may occur in cells of a numeric column.
_UNITS = re.compile(r"\b(h|of|to|x|s|ms|us|MB|e)\b|(?<=\d)e(?=[-+]?\d)")
_MOST_ROWS_SHOWN = 60


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages of the gRPC API and of the changelog to the site."""
    # MkDocs loads a hook by its path, so its folder is not on the import path.
    sys.path.insert(0, str(Path(__file__).parent))
    import grpc_reference
    from mkdocs.structure.files import File

    changelog = (ROOT / "CHANGELOG.md").read_text()
    pages = {"reference/grpc.md": grpc_reference.page(), "reference/changelog.md": changelog}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


@dataclass(frozen=True)
class Record:
    """One table of one benchmark run; every cell is text and may contain inline Markdown."""

    title: str
    command: str
    commit: str
    date: str
    machine: str
    notes: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def load(path: Path) -> Record:
    """Read a record; raise ValueError for missing or unknown fields, or rows of wrong length."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    if names := {field.name for field in dataclass_fields(Record)} ^ set(fields):
        raise ValueError(f"{path.name}: missing or unknown fields: {', '.join(sorted(names))}")
    rows = tuple(map(tuple, fields["rows"]))
    columns, notes = tuple(fields["columns"]), tuple(fields["notes"])
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns):
            raise ValueError(
                f"{path.name}: row {number} has {len(row)} cells, expected {len(columns)}"
            )
    return Record(**fields | {"rows": rows, "columns": columns, "notes": notes})


def render(record: Record) -> str:
    """Return the table and the caption of a record as Markdown; a long table starts collapsed."""
    cells = zip(*record.rows, strict=True)
    rules = ["--:" if _is_numeric(column) else "---" for column in cells]
    lines = [_line(record.columns), _line(["---", *rules[1:]]), *map(_line, record.rows)]
    table = "\n".join(lines)
    if len(record.rows) > _MOST_ROWS_SHOWN:
        summary = f"<summary>{html.escape(record.title)}: {len(record.rows)} rows</summary>"
        table = f'<details markdown="1">{summary}\n\n{table}\n\n</details>'
    return f'<div class="record" markdown="1">\n\n{table}\n\n{_caption(record)}\n\n</div>'


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the record markers of a page; MkDocs calls this before it renders the page."""
    return MARKER.sub(lambda marker: render(load(FOLDER / f"{marker[1]}.json")), markdown)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |"


def _is_numeric(column: tuple[str, ...]) -> bool:
    """Tell whether every cell is empty, or has a digit and no letters other than `_UNITS`."""
    texts = [_UNITS.sub("", cell) for cell in column if cell]
    return all(re.search(r"\d", text) and not re.search(r"[A-Za-z]", text) for text in texts)


def _caption(record: Record) -> str:
    parts = [
        f"<code>{html.escape(record.command)}</code>",
        f"commit <code>{html.escape(record.commit)}</code>",
        html.escape(record.machine),
        html.escape(record.date),
        *map(html.escape, record.notes),
    ]
    return f'<p class="record-caption">{" · ".join(parts)}</p>'
