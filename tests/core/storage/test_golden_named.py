"""A stored index with text ids, attributes and payloads, which must stay readable.

Run as a script, this file records the index again; review the changes before you commit them:

    PYTHONPATH=tests .venv/bin/python tests/core/storage/test_golden_named.py
"""

import shutil
from pathlib import Path
from typing import Any, Final

import numpy as np

from divgrpc.index import Index
from divgrpc.types import FloatArray
from divgrpc.types.records import Attribute
from support.data.recorded_answers import opened

_FOLDER: Final = Path(__file__).parent.parent.parent / "golden" / "named"
ROWS: Final = 60
NAMES: Final = [f"n{37 * row % ROWS}" for row in range(ROWS)]
ATTRIBUTES: Final[dict[str, Any]] = {
    "brand": [f"b{row % 4}" if row % 5 else None for row in range(ROWS)],
    "count": [row * 10**12 if row % 7 else None for row in range(ROWS)],
    "price": [row / 8 if row % 3 else None for row in range(ROWS)],
    "sold": [row % 2 == 0 if row % 11 else None for row in range(ROWS)],
    "tags": [["x", "y", "z"][: row % 4] for row in range(ROWS)],
}
PAYLOADS: Final = [f"payload {row}".encode() if row % 2 else b"" for row in range(ROWS)]


def points() -> FloatArray:
    return np.random.default_rng(31).standard_normal((ROWS, 5)).astype(np.float32)


def build(folder: Path) -> None:
    """Build the index in a folder."""
    Index.build(
        points(),
        ids=NAMES,
        attributes=ATTRIBUTES,
        payloads=PAYLOADS,
        path=folder,
        hash_family="lsh_div",
        metric="euclidean",
    )


def test_a_stored_index_returns_its_points() -> None:
    index = opened(_FOLDER)
    records = index.get(NAMES, with_vectors=True)
    assert records.ids.tolist() == NAMES
    assert isinstance(records.vectors, np.ndarray)
    assert records.vectors.tobytes() == points().tobytes()
    expected = ATTRIBUTES | {"tags": list(map(tuple, ATTRIBUTES["tags"]))}
    assert {name: list(values) for name, values in records.attributes.items()} == expected
    assert list(records.payloads) == PAYLOADS
    assert index.info.attributes[0] == Attribute("brand", "keyword")
    hit = index.query(points()[7], k=1, with_payload=True)[0][0]
    assert (hit.id, hit.payload) == (NAMES[7], PAYLOADS[7])


def test_a_build_writes_the_files_recorded(tmp_path: Path) -> None:
    build(tmp_path)
    files = {file.relative_to(tmp_path): file for file in tmp_path.rglob("*") if file.is_file()}
    assert files.keys() == {f.relative_to(_FOLDER) for f in _FOLDER.rglob("*") if f.is_file()}
    for name, file in files.items():
        assert file.read_bytes() == (_FOLDER / name).read_bytes(), name


if __name__ == "__main__":
    shutil.rmtree(_FOLDER, ignore_errors=True)
    build(_FOLDER)
