"""A snapshot with any other byte is refused, and nothing is written outside of its folders."""

import io
import json
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from divgrpc.backup import restore_snapshot, write_snapshot
from divgrpc.backup.archive import ArchiveReader, ArchiveWriter, Member
from divgrpc.errors import IndexDamagedError, OtherFormatError
from support.data.damaged_indexes import stamps

_LONG_NAME: Final = f"{'a' * 90}/{'b' * 90}/{'c' * 90}"
_MEMBERS: Final = {"a": b"", "b/c": b"12345", "d": bytes(range(256)) * 3, "e": bytes(512)}


def archive_of(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    writer = ArchiveWriter(stream)
    for name, data in members.items():
        writer.add(Member(name, len(data)), [data[:3], data[3:]])
    writer.finish()
    return stream.getvalue()


def members_in(data: bytes) -> dict[str, bytes]:
    reader = ArchiveReader(io.BytesIO(data))
    members = {}
    while (member := reader.read_member()) is not None:
        members[member.name] = b"".join(reader.read_blocks(member))
    return members


def test_an_archive_is_read_as_it_was_written() -> None:
    assert members_in(archive_of(_MEMBERS)) == _MEMBERS
    assert members_in(archive_of({})) == {}


def test_an_archive_that_is_cut_at_any_byte_is_refused() -> None:
    data = archive_of(_MEMBERS)
    for size in range(len(data)):
        with pytest.raises(IndexDamagedError):
            members_in(data[:size])
    with pytest.raises(IndexDamagedError, match="digest"):
        members_in(data + b"\0")


def test_an_archive_with_any_other_bit_is_refused() -> None:
    data = archive_of(_MEMBERS)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        with pytest.raises(IndexDamagedError):
            members_in(bytes(changed))


def test_a_snapshot_that_is_cut_or_changed_restores_nothing(index: Path, tmp_path: Path) -> None:
    file = tmp_path / "points.tar"
    write_snapshot(index, file)
    data = file.read_bytes()
    rng = np.random.default_rng(5)
    other = tmp_path / "other"
    for number, position in enumerate(rng.integers(0, len(data), 60).tolist()):
        changed = bytearray(data)
        changed[position] ^= 1 << rng.integers(8)
        file.write_bytes(changed if number % 2 else data[:position])
        with pytest.raises(IndexDamagedError):
            restore_snapshot(file, other)
        assert not other.exists() or not list(other.iterdir())


def a_description(**changes: object) -> dict[str, bytes]:
    document = {
        "format": "divgrpc-snapshot",
        "format_version": 1,
        "version": "9.9.0",
        "name": "points",
        "generation": 1,
        "sequence": 0,
        "bytes": 3,
        "files": [["1/manifest.json", 3]],
    }
    return {"points/SNAPSHOT.json": json.dumps(document | changes).encode()}


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/evil",
        "1/../../evil",
        "1/./evil",
        "1//evil",
        "1/.evil",
        "CURRENT",
        "evil",
        "1/evil\0",
        "1/é",
        "1",
    ],
)
def test_files_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    members = a_description(files=[[name, 4]]) | {f"points/{name}": b"evil"}
    stream = tmp_path / "evil.tar"
    stream.write_bytes(archive_of({n: d for n, d in members.items() if "\0" not in n}))
    with pytest.raises(IndexDamagedError, match="invalid names"):
        restore_snapshot(stream, tmp_path / "data" / "indexes")
    assert not list(tmp_path.rglob("evil"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != stream]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a": b"b"}, "not a snapshot"),
        ({}, "holds no index"),
        ({"points/SNAPSHOT.json": b"{}"}, "a description is invalid"),
        ({"points/SNAPSHOT.json": b"\xff"}, "a description is invalid"),
        (a_description(name="boots"), "invalid names"),
        (a_description(name="../points"), "invalid names"),
        (a_description(format="zip"), "invalid names"),
        (a_description(files=[["1/manifest.json", -1]]), "invalid names"),
        (a_description(generation="../victim/1"), "invalid names"),
        (a_description(generation="1"), "invalid names"),
        (a_description(generation=True), "invalid names"),
        (a_description(sequence=-1), "invalid names"),
        (a_description(bytes=0.5), "invalid names"),
        (a_description(files=[["2/manifest.json", 3]]), "invalid names"),
        (a_description(files=[["2.default.json", 3]]), "invalid names"),
        (a_description(format_version=float("inf")), "a description is invalid"),
        ({"points/SNAPSHOT.json": b"[" * 100_000}, "a description is invalid"),
        (
            a_description(files=[["1/a", 0], ["1/a", 0]]) | {"points/1/a": b""},
            "a file is missing",
        ),
        (a_description(), "a file is missing"),
        (a_description() | {"points/1/manifest.json": b"1234"}, "a file is missing"),
        (a_description() | {"points/1/manifest.json": b"123"}, "manifest"),
        (a_description(files=[]), "manifest is missing"),
    ],
)
def test_other_contents_are_refused(
    members: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "points.tar"
    file.write_bytes(archive_of(members))
    with pytest.raises(IndexDamagedError, match=message):
        restore_snapshot(file, tmp_path / "data")
    assert not (tmp_path / "data" / "points").exists()


def test_names_that_contradict_one_another_are_refused(tmp_path: Path) -> None:
    members = a_description(files=[["1/a", 0], ["1/a/b", 0]])
    file = tmp_path / "points.tar"
    file.write_bytes(archive_of(members | {"points/1/a": b"", "points/1/a/b": b""}))
    with pytest.raises(IndexDamagedError, match="contradict one another"):
        restore_snapshot(file, tmp_path / "data")


def test_a_number_cannot_name_another_folder(index: Path, tmp_path: Path) -> None:
    """A description whose generation is a path would rename the folder of another index."""
    before = stamps(index)
    for generation in ("../points/1", str(index / "1")):
        members = a_description(name="evil", generation=generation, files=[])
        file = tmp_path / "evil.tar"
        file.write_bytes(archive_of({"evil/SNAPSHOT.json": members["points/SNAPSHOT.json"]}))
        with pytest.raises(IndexDamagedError, match="invalid names"):
            restore_snapshot(file, index.parent)
        assert stamps(index) == before


def test_a_manifest_of_another_number_is_refused(index: Path, tmp_path: Path) -> None:
    text = (index / "1" / "manifest.json").read_bytes()
    members = a_description(generation=2, files=[["2/manifest.json", len(text)]])
    file = tmp_path / "points.tar"
    file.write_bytes(archive_of(members | {"points/2/manifest.json": text}))
    with pytest.raises(IndexDamagedError, match="another number"):
        restore_snapshot(file, tmp_path / "other")


def test_a_later_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "points.tar"
    file.write_bytes(archive_of(a_description(format_version=2)))
    with pytest.raises(OtherFormatError, match=r"use release 9\.9\.0 or a later one"):
        restore_snapshot(file, tmp_path / "data")


def test_long_names_are_read() -> None:
    assert members_in(archive_of({_LONG_NAME: b"x"})) == {_LONG_NAME: b"x"}
