"""Another number of shards: files and answers are those of a division of the whole index."""

from pathlib import Path

import pytest

from divgrpc import Collection, Index
from divgrpc.errors import (
    IndexDamagedError,
    InvalidArgumentError,
    LimitExceededError,
    UnsupportedError,
)
from divgrpc.parameters import LIMITS
from divgrpc.sharding import cutting, joining
from divgrpc.sharding.files import divide_index
from divgrpc.types import Progress
from support.data.index_kinds import KINDS, POINTS


def build(path: Path, kind: str) -> None:
    options = {"vectors": POINTS, **KINDS[kind]}
    Index.build(options.pop("vectors"), path=path, **options)


def files_of(path: Path) -> dict[Path, bytes]:
    """Return the files of the current generation, except its number."""
    folder = path / (path / "CURRENT").read_text().strip()
    files = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {name: data for name, data in files.items() if "writes" not in name.parts}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [10**6, 50])
def test_a_new_number_of_shards_has_the_files_of_a_division(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, blocks: int
) -> None:
    """Byte for byte, also of a generation that is whole again."""
    monkeypatch.setattr(joining, "_BLOCK_ROWS_MAX", blocks)
    one, other = tmp_path / "one", tmp_path / "other"
    build(one, kind)
    before = files_of(one)
    for shards in (2, 1):
        divide_index(one, shards)
    after = files_of(one)
    assert set(after) == set(before)
    different = [name for name in before if after[name] != before[name]]
    # It has the number of the generation, and a checksum.
    assert list(map(str, different)) == ["manifest.json"]
    build(other, kind)
    # As many changes as of the first one, because files have the number of the generation.
    for shards in (2, 5, 3):
        divide_index(other, shards)
    divide_index(one, 3)
    assert files_of(one) == files_of(other)


def test_answers_are_those_of_the_index_before(tmp_path: Path) -> None:
    build(tmp_path / "points", "texts")
    before = Index.open(tmp_path / "points").query(POINTS[:9] + 0.1, k=7, with_attributes=True)
    for shards in (4, 3, 1):
        info = divide_index(tmp_path / "points", shards)
        assert (info.rows, len(info.shards)) == (len(POINTS), 0 if shards == 1 else shards)
    after = Index.open(tmp_path / "points").query(POINTS[:9] + 0.1, k=7, with_attributes=True)
    assert after.generation == 4
    assert after.ids.tolist() == before.ids.tolist()
    assert after.scores.tobytes() == before.scores.tobytes()


def test_an_index_that_is_whole_again_takes_writes(tmp_path: Path) -> None:
    """Encoding a point needs arrays that no query reads."""
    build(tmp_path / "points", "cells")
    build(tmp_path / "same", "cells")
    divide_index(tmp_path / "points", 3)
    divide_index(tmp_path / "points", 1)
    answers = []
    for name in ("points", "same"):
        with Collection.open(tmp_path / name) as collection:
            collection.upsert([1, 2], POINTS[:2] + 0.5)
            answers.append(collection.query(POINTS[:9] + 0.1, k=7, search="tables"))
    assert answers[0].ids.tolist() == answers[1].ids.tolist()
    assert answers[0].scores.tobytes() == answers[1].scores.tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the folder of an index on two shards."""
    build(tmp_path / "points", "cells")
    divide_index(tmp_path / "points", 2)
    return tmp_path / "points"


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.parametrize("name", ["shards/0/vectors.npy", "shared/hyperplanes.npy"])
@pytest.mark.parametrize("shards", [1, 3])
def test_damage_is_not_hidden_by_new_checksums(path: Path, name: str, shards: int) -> None:
    before = files_of(path)
    flip(path / "2" / name)
    with pytest.raises(IndexDamagedError, match="does not match its checksum"):
        divide_index(path, shards)
    flip(path / "2" / name)
    assert files_of(path) == before
    assert [entry.name for entry in path.parent.iterdir() if "staging" in entry.name] == []


def test_shards_without_the_order_of_their_rows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version did not store it."""
    build(tmp_path / "points", "cells")
    with monkeypatch.context() as patch:
        patch.setattr(cutting, "ascends", lambda _: True)
        divide_index(tmp_path / "points", 2)
    before = files_of(tmp_path / "points")
    with pytest.raises(UnsupportedError, match=r"vectors that were divided.*build the index again"):
        divide_index(tmp_path / "points", 1)
    assert files_of(tmp_path / "points") == before


def test_shards_without_arrays_that_were_divided_are_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without those that have no checksum."""
    before = files_of(path)
    monkeypatch.setattr(joining._Joint, "join_codes", lambda _: None)
    with pytest.raises(UnsupportedError, match="arrays cell_rows, codes, scan_terms that were"):
        divide_index(path, 1)
    assert files_of(path) == before


def test_what_is_not_changed_is_refused(path: Path) -> None:
    for shards in (0, 257):
        with pytest.raises(InvalidArgumentError, match="between 1 and 256"):
            divide_index(path, shards)
    with pytest.raises(UnsupportedError, match="is divided among 2 shards already"):
        divide_index(path, 2)
    divide_index(path, 1)
    with pytest.raises(UnsupportedError, match="is whole already"):
        divide_index(path, 1)


def test_an_index_that_cannot_be_whole_is_not_divided_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(path)
    monkeypatch.setitem(LIMITS, "rows_max", len(POINTS) - 1)
    for shards in (1, 3):
        with pytest.raises(
            LimitExceededError, match="an index of more than 699 cannot be made whole"
        ):
            divide_index(path, shards)
    assert files_of(path) == before


def test_progress_counts_shards(path: Path) -> None:
    stages: list[tuple[str, int, int]] = []

    def note(progress: Progress) -> None:
        stages.append((progress.stage, progress.rows_done, progress.rows_total))

    divide_index(path, 3, on_progress=note)
    dividing = [("dividing", number, 3) for number in (1, 2, 3)]
    assert stages == [("reading", 1, 2), ("reading", 2, 2), *dividing]
