"""Records of a run: its environment, and its tables as the documentation renders them."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.harness.runner import Table
from divgrpc_lab.records import Record, commit, machine, record_text, without_options

_PACKAGES: Final = ("numpy", "scipy", "numba", "llvmlite", "grpcio", "protobuf")
# Options about the files that a run writes, not about its figures.
_FILE_OPTIONS: Final = ("--record", "--note")


def environment() -> dict[str, str]:
    """Return machine, versions, commit, command and date of this run, each by its name."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "load average before": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
    }


def write(
    path: Path, title: str, words: Sequence[str], tables: Sequence[Table], *, notes: Sequence[str]
) -> list[Path]:
    """Write a record per table, to NAME.json, NAME-2.json and so on, and return the paths.

    `words` are the arguments of the run, and `notes` are facts that the tables do not show.
    """
    paths = []
    for number, table in enumerate(tables, start=1):
        paths.append(path if number == 1 else path.with_stem(f"{path.stem}-{number}"))
        record = Record(path.stem, title, table.columns, table.cells())
        paths[-1].write_text(record_text(record, command(words), notes), encoding="utf-8")
    return paths


def command(words: Sequence[str]) -> str:
    """Return the make command of a run, without options about the files it writes."""
    return f'make bench ARGS="{shlex.join(without_options(words, _FILE_OPTIONS))}"'
