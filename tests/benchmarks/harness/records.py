"""Records of a run: its environment, and its tables as the documentation renders them."""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.harness.runner import Table

ROOT: Final = Path(__file__).parents[3]
_PACKAGES: Final = ("numpy", "scipy", "numba", "llvmlite", "grpcio", "protobuf")
# Options about the files that a run writes, not about its figures.
_FILE_OPTIONS: Final = ("--record", "--note")


def environment() -> dict[str, str]:
    """Return machine, versions, commit, command and date of this run, each by its name."""
    cpu = Path("/proc/cpuinfo").read_text()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "commit": _commit(),
        "processor": _cpu_field(cpu, "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "avx512_vpopcntdq": "yes" if "avx512_vpopcntdq" in _cpu_field(cpu, "flags") else "no",
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def _cpu_field(cpu: str, field: str) -> str:
    match = re.search(rf"^{field}\s*: (.*)$", cpu, re.MULTILINE)
    return match[1] if match else "unknown"


def _commit() -> str:
    """Return the short name of the commit, with a mark if tracked files have changes."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        return result.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{commit} with changes" if git("status", "--porcelain", "-uno") else commit


def write(
    path: Path,
    title: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    tables: Sequence[Table],
    *,
    notes: Sequence[str] = (),
) -> list[Path]:
    """Write a record per table, to NAME.json, NAME-2.json and so on, and return the paths.

    `words` are the arguments of the run, `notes` facts about it that the tables do not show.
    """
    vector = "" if environment["avx512_vpopcntdq"] == "yes" else "no "
    head = {
        "title": title,
        "command": command(words),
        "commit": environment["commit"],
        "date": environment["date"].split()[0],
        "machine": f"{environment['processor']}, {environment['cores']} cores, "
        f"{vector}AVX-512 vpopcntdq",
        "notes": [f"load average before the run {environment['load average before']}", *notes],
    }
    paths = []
    for number, table in enumerate(tables, start=1):
        paths.append(path if number == 1 else path.with_stem(f"{path.stem}-{number}"))
        paths[-1].write_text(_text(head, table), encoding="utf-8")
    return paths


def command(words: Sequence[str]) -> str:
    """Return the make command of a run, without options about the files it writes."""
    remaining = iter(words)
    kept = []
    for word in remaining:
        if word in _FILE_OPTIONS:
            next(remaining)
        elif not word.startswith(tuple(f"{option}=" for option in _FILE_OPTIONS)):
            kept.append(word)
    return f'make bench ARGS="{shlex.join(kept)}"'


def _text(head: Mapping[str, object], table: Table) -> str:
    """Return the JSON of a record, with one row of the table on each line."""
    lines = [f"  {json.dumps(name)}: {_dump(value)}," for name, value in head.items()]
    lines.append(f'  "columns": {_dump(table.columns)},')
    rows = ",\n".join(f"    {_dump(cells)}" for cells in table.cells())
    return "\n".join(["{", *lines, '  "rows": [', rows, "  ]", "}"]) + "\n"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
