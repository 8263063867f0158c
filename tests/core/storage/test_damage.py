"""Changed, truncated or missing files of an index are noticed, and the index can be replaced."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from divgrpc.errors import IndexDamagedError, OtherFormatError
from divgrpc.index import Index
from divgrpc.storage.generations import IndexFolder, sweep
from divgrpc.storage.manifest import FORMAT_VERSION, Manifest
from support.data.small_index import publish, vectors


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def refused(folder: Path) -> None:
    with pytest.raises(IndexDamagedError) as error_info:
        IndexFolder(folder).open()
    assert str(folder.parent) not in str(error_info.value)


@pytest.mark.parametrize("name", ["vectors", "codes"])
def test_a_flipped_bit_in_an_array_is_damage(folder: Path, name: str) -> None:
    path = folder / "1" / f"{name}.npy"
    whole = path.read_bytes()
    for position in range(len(whole)):
        flip(path, position, bit=position % 8)
        refused(folder)
        path.write_bytes(whole)
    IndexFolder(folder).open()


def test_a_flipped_bit_in_the_manifest_is_damage(folder: Path) -> None:
    """A flip is noticed in every byte, even in a digit, where the manifest still parses."""
    path = folder / "1" / "manifest.json"
    whole = path.read_bytes()
    truth = json.loads(whole)
    for position in range(len(whole)):
        flip(path, position, bit=position % 7)
        with contextlib.suppress(ValueError):
            if json.loads(path.read_bytes()) == truth:
                continue  # A change of white space does not change the content.
        with pytest.raises((IndexDamagedError, OtherFormatError)):
            IndexFolder(folder).open()
    path.write_bytes(whole)
    IndexFolder(folder).open()


@pytest.mark.parametrize("name", ["vectors.npy", "codes.npy", "manifest.json"])
@pytest.mark.parametrize("length", [0, 7, 64, -2])
def test_a_truncated_file_is_damage(folder: Path, name: str, length: int) -> None:
    path = folder / "1" / name
    path.write_bytes(path.read_bytes()[:length])
    refused(folder)


@pytest.mark.parametrize("name", ["vectors.npy", "codes.npy", "manifest.json", "."])
def test_a_missing_file_is_damage(folder: Path, name: str) -> None:
    target = folder / "1" / name
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    refused(folder)


@pytest.mark.parametrize("text", ["", "one", "1.5", "-1", "../other", "1\n2\n", "\ufffd", "9"])
def test_a_pointer_to_no_generation_is_damage(folder: Path, text: str) -> None:
    (folder / "CURRENT").write_text(text)
    refused(folder)


@pytest.mark.parametrize("name", ["CURRENT", "1/manifest.json", "1/vectors.npy"])
def test_a_folder_in_place_of_a_file_is_damage(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    refused(folder)
    assert sweep(folder.parent) == []


INFINITE = '{"format": "divgrpc-index", "format_version": 1e999}'
DEEP_LISTS = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"format": 1}', "\x00", INFINITE, DEEP_LISTS]
)
def test_a_manifest_of_other_content_is_damage(folder: Path, text: str) -> None:
    (folder / "1" / "manifest.json").write_text(text)
    refused(folder)


def test_a_newer_format_is_refused(folder: Path) -> None:
    path = folder / "1" / "manifest.json"
    later = {"format": "divgrpc-index", "format_version": FORMAT_VERSION + 1, "new": "things"}
    path.write_text(json.dumps(later))
    with pytest.raises(OtherFormatError, match=f"up to {FORMAT_VERSION}"):
        IndexFolder(folder).read_info()
    with pytest.raises(OtherFormatError):
        IndexFolder(folder).open()


def test_an_older_format_opens_unless_its_arrays_differ(tmp_path: Path) -> None:
    """Format 5 changed cells and scan terms, so older indexes that have either are refused."""
    points = np.random.default_rng(0).standard_normal((40, 8))
    kinds: list[tuple[str, dict[str, Any], bool]] = [
        ("tables", {"hash_family": "lsh_div"}, True),
        ("cells", {"hash_family": "cells"}, False),
        ("terms", {"hash_family": "lsh_div", "metric": "euclidean"}, False),
    ]
    for name, options, opens in kinds:
        Index.build(points, path=tmp_path / name, **options)
        path = tmp_path / name / "1" / "manifest.json"
        manifest = Manifest.from_json(path.read_bytes())
        with mock.patch("divgrpc.storage.manifest._WHOLE_VERSION", 4):
            path.write_text(manifest.to_json())
        if opens:
            assert Index.open(tmp_path / name).rows == 40
        else:
            with pytest.raises(OtherFormatError, match=r"format 4.*build it again"):
                Index.open(tmp_path / name)


def test_a_damaged_index_can_be_replaced_and_deleted(folder: Path) -> None:
    flip(folder / "1" / "vectors.npy", -1)
    (folder / "1" / "manifest.json").write_text("{")
    assert publish(folder, 2.0, replace=True) == 2
    assert IndexFolder(folder).open().arrays["vectors"].tolist() == vectors(2.0).tolist()
    (folder / "CURRENT").write_text("nothing")
    assert publish(folder, 3.0, replace=True) == 3
    (folder / "3" / "manifest.json").unlink()
    (folder / "CURRENT").write_text("nothing")
    assert IndexFolder(folder).delete() == 3
    assert list(folder.parent.iterdir()) == []
