"""Writes the tables of a run as records, which the site shows; see docs/hooks.py."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parents[2]
# Options that a recorded command leaves out. Names of files differ from machine to machine, and a
# record has its own field for notes.
_FILE_OPTIONS: Final = ("--data", "--work", "--json", "--out", "--records", "--note")


class Record(NamedTuple):
    """One table of a run: the name of its file, its title, and cells of text."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_records(
    folder: Path, records: Iterable[Record], command: str, notes: Sequence[str]
) -> None:
    """Write each record to NAME.json in the folder, with the command, commit, machine and date.

    `notes` are facts about the run that the tables do not show.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        text = record_text(record, command, notes)
        (folder / f"{record.name}.json").write_text(text, encoding="utf-8")


def record_text(record: Record, command: str, notes: Sequence[str]) -> str:
    """Return a record as JSON, with one row of the table on each line."""
    head = {
        "title": record.title,
        "command": command,
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": machine(),
        "notes": notes,
        "columns": record.columns,
    }
    lines = [f"  {json.dumps(name)}: {_dump(value)}," for name, value in head.items()]
    rows = ",\n".join(f"    {_dump(row)}" for row in record.rows)
    return "\n".join(["{", *lines, '  "rows": [', rows, "  ]", "}"]) + "\n"


def number(value: float, digits: int = 3) -> str:
    """Return a number without a leading zero."""
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def signed(value: float) -> str:
    """Return a number with its sign and without a leading zero."""
    return f"{value:+.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:+.3f}"


def command(words: Sequence[str], *, has_data: bool) -> str:
    """Return the make command of a run with arguments `words`, without the names of its files.

    If `has_data` is false, the run used the digits and no folder of data sets.
    """
    folder = ["--data", "FOLDER"] if has_data else []
    arguments = [*folder, *without_options(words[1:], _FILE_OPTIONS)]
    return f'make {words[0]} ARGS="{shlex.join(arguments)}"' if arguments else f"make {words[0]}"


def without_options(words: Sequence[str], options: Iterable[str]) -> list[str]:
    """Return the words without these options and their values."""
    remaining = iter(words)
    rest = []
    for word in remaining:
        if word in options:
            next(remaining)
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            rest.append(word)
    return rest


@cache
def commit() -> str:
    """Return the short name of the commit, with a mark if tracked files had changes.

    The first result is kept, because records that the run writes change tracked files.
    """

    def git(*arguments: str) -> str:
        words = ["git", "-C", str(_ROOT), *arguments]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout  # noqa: S603  # fixed words

    name = git("rev-parse", "--short", "HEAD").strip() or "unknown"
    return f"{name} with changes" if git("status", "--porcelain", "-uno") else name


def machine() -> str:
    """Return the processor, the number of cores, and whether codes can use AVX-512."""
    text = Path("/proc/cpuinfo").read_text()
    match = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    vector = "" if "avx512_vpopcntdq" in text else "no "
    cores = len(os.sched_getaffinity(0))
    return f"{match[1] if match else 'unknown'}, {cores} cores, {vector}AVX-512 vpopcntdq"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
