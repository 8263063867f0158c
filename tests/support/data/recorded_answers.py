"""Recorded answers of stored indexes, and results in a form that can be recorded."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from divgrpc.index import Index


@cache
def opened(folder: Path) -> Index:
    """Return the index that is stored in a folder, opened once."""
    return Index.open(folder)


@cache
def recorded(file: Path) -> dict[str, Any]:
    """Return the recorded answers by name."""
    answers: dict[str, Any] = json.loads(file.read_text())
    return answers


def in_hexadecimal(result: Any, columns: tuple[str, ...]) -> list[str]:  # noqa: ANN401  # a result
    """Return the columns of a result in hexadecimal, so that every bit counts."""
    arrays = [np.asarray(getattr(result, column)) for column in columns]
    return [array.astype(array.dtype.newbyteorder("<")).tobytes().hex() for array in arrays]


def write_answers(file: Path, answers: dict[str, Any]) -> None:
    """Record answers, one a line, ordered by name."""
    lines = [f" {json.dumps(name)}: {json.dumps(answers[name])}" for name in sorted(answers)]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
