"""Indexes with writes, the points that they have after each write, and ways to damage a file."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from divgrpc import Collection, Index
from divgrpc.types import HashFamily, Points
from support.data.written_points import (
    DIMS,
    Model,
    a_collection,
    check_exact,
    check_points,
    drawn_points,
    upsert,
)

_POINTS: Final = drawn_points(120, 9)
# Number of the last write that is merged, and of the last one of all.
MERGED, LAST = 3, 9
QUERIES: Final = np.random.default_rng(4).normal(size=(2, DIMS)).astype(np.float32)


# Hash families and kinds of points, for the fixture `index`.
every_kind = pytest.mark.parametrize(
    "index", [("cells", "dense"), ("lsh_div", "dense"), ("lsh_div", "sparse")], indirect=True
)


def _ids_deleted(number: int, model: Model) -> list[int]:
    return list(model)[number::11]


def _points_written(number: int) -> Model:
    points = {7 * number % 40 + row: _POINTS[40 + 3 * number + row] for row in range(3)}
    return points | {100 + number: _POINTS[100 + number]}


def _models() -> list[Model]:
    models = [dict(enumerate(_POINTS[:40]))]
    for number in range(1, LAST + 2):
        model = dict(models[-1])
        if number % 3 == 0:
            for name in _ids_deleted(number, model):
                del model[name]
        else:
            model |= _points_written(number)
        models.append(model)
    return models


# The points after each write, by its number.
MODELS: Final = _models()


def write(collection: Collection, number: int) -> None:
    """Make the write of a number, after those before it."""
    if number % 3 == 0:
        collection.delete(_ids_deleted(number, MODELS[number - 1]))
    else:
        upsert(collection, _points_written(number))
    assert collection.sequence == number


def written_index(path: Path, family: HashFamily, kind: Points) -> Path:
    """Make an index with writes that are merged, and with later ones; return its folder."""
    with a_collection(path, MODELS[0], family, points=kind) as collection:
        for number in range(1, LAST + 1):
            write(collection, number)
            if number == MERGED:
                collection.compact()
    return path


def requested_index(folder: Path, request: pytest.FixtureRequest) -> Path:
    """Make the index `points` in a data folder within `folder`; return its folder.

    The parameter of the fixture, if there is one, is the hash family and the kind of the points.
    """
    default: tuple[HashFamily, Points] = ("cells", "dense")
    family, kind = getattr(request, "param", default)
    return written_index(folder / "data" / "points", family, kind)


def check_state(index: Path, number: int) -> None:
    """Check that an index has the points after a write, and is written to again."""
    with Collection.open(index) as collection:
        assert collection.sequence == number
        for opened in (collection, Index.open(index)):
            check_points(opened, MODELS[number])
            check_exact(opened, MODELS[number], "cosine", QUERIES)
        if number <= LAST:
            write(collection, number + 1)
            check_points(Index.open(index), MODELS[number + 1])
            collection.compact()
        check_points(Index.open(index), MODELS[min(number + 1, LAST + 1)])


def flip(file: Path) -> None:
    """Flip a bit in the middle of what a file holds."""
    data = bytearray(file.read_bytes())
    size = len(bytes(data).rstrip(b"\0"))
    data[size // 2 if size > 200 else max(0, size - 3)] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    """Leave the first half of what a file holds."""
    data = file.read_bytes()
    file.write_bytes(data[: len(data.rstrip(b"\0")) // 2])


DAMAGES: Final[dict[str, Callable[[Path], None]]] = {
    "flip": flip,
    "cut": cut,
    "remove": Path.unlink,
}


def stamps(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the time of the last change of all files and folders."""
    return {
        str(path.relative_to(root)): (
            path.read_bytes() if path.is_file() else b"",
            path.stat().st_mtime_ns,
        )
        for path in (root, *root.rglob("*"))
    }
