"""Write the tables of a run as records, which the documentation renders (see docs/records.py)."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.tables import Table

_FILE_OPTIONS = ("--json", "--record")


def write(
    path: Path,
    title: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    tables: Sequence[Table],
) -> list[Path]:
    """Write one record per table and return the paths.

    The first table goes to `path`, NAME.json; the others go to NAME-2.json, NAME-3.json and so on.
    `words` are the command-line arguments of the run, `environment` is `environment.record()`.
    """
    vector = (
        "AVX-512 vpopcntdq" if environment["avx512_vpopcntdq"] == "yes" else "no AVX-512 vpopcntdq"
    )
    head = {
        "title": title,
        "command": command(words),
        "commit": environment["commit"],
        "date": environment["date"].split()[0],
        "machine": f"{environment['processor']}, {environment['cores']} cores, {vector}",
        "notes": [f"load average before the run {environment['load average before']}"],
    }
    paths = []
    for number, table in enumerate(tables, start=1):
        paths.append(path if number == 1 else path.with_stem(f"{path.stem}-{number}"))
        paths[-1].write_text(_text(head, table), encoding="utf-8")
    return paths


def command(words: Sequence[str]) -> str:
    """Return the make command of a run, without the options that name files to write."""
    return f'make bench ARGS="{shlex.join(_without_files(words))}"'


def _without_files(words: Sequence[str]) -> Iterator[str]:
    remaining = iter(words)
    for word in remaining:
        if word in _FILE_OPTIONS:
            next(remaining)
        elif not word.startswith(tuple(f"{option}=" for option in _FILE_OPTIONS)):
            yield word


def _text(head: Mapping[str, object], table: Table) -> str:
    """Return the JSON of a record, with one row of the table on each line."""
    lines = [f"  {json.dumps(name)}: {_dump(value)}," for name, value in head.items()]
    lines.append(f'  "columns": {_dump(table.columns)},')
    rows = ",\n".join(f"    {_dump(row)}" for row in table.rows)
    return "\n".join(["{", *lines, '  "rows": [', rows, "  ]", "}"]) + "\n"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
