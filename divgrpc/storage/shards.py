"""The files of a generation that is divided among shards.

    <index>/<number>/manifest.json       the whole generation, with an entry for each shard
    <index>/<number>/shared/             arrays that routers and all shards read
    <index>/<number>/shards/<shard>/     manifest.json and the arrays of the points of a shard

A shard is numbered from 0. Its folder is complete without the others, except for `shared`.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from divgrpc.arrays import Array
from divgrpc.errors import IndexDamagedError, UnsupportedError
from divgrpc.storage.arrays import (
    HEADER_BYTES,
    ArrayEntry,
    checksum_in_file,
    damage_errors,
    open_array,
)
from divgrpc.storage.manifest import MANIFEST, Manifest

SHARED: Final = "shared"
SHARDS: Final = "shards"
# The hash functions, and the centres of the cells.
_SHARED_ARRAYS: Final = frozenset(
    (
        *("hyperplanes", "thresholds", "sketch"),
        *("cell_codes", "cell_terms", "cell_centres", "cell_squares", "cell_reaches"),
        "feature_map",
        # The points of all shards by cell. A shard has an array of this name too.
        "cell_starts",
    )
)


def is_shared(name: str) -> bool:
    """Return whether all shards and routers read the array of this name."""
    is_words = name.startswith("attribute.") and name.split(".")[2].startswith("words")
    # The model, the names and the hierarchy of the labels; and what only encoding reads.
    is_labels = name.startswith("label_") and not name.startswith("label_sets.")
    is_model = name.startswith("model_")
    return name in _SHARED_ARRAYS or is_words or is_labels or is_model


def is_received(name: str) -> bool:
    """Return whether the array of this name follows from what a build receives, without codes."""
    kinds = ("vectors", "indptr", "indices", "values", "categories", "subtopics")
    has_prefix = name.startswith(("attribute.", "id_texts.", "payload.", "label_sets."))
    return name in {*kinds, "ids", "id_order"} or (has_prefix and not is_shared(name))


def is_order(name: str) -> bool:
    """Return whether the array of this name has the order of ids, or of values of an attribute."""
    is_of_values = name.startswith("attribute.") and name.endswith(".order")
    return name == "id_order" or (is_of_values and not is_shared(name))


def check_whole(manifest: Manifest) -> None:
    """Raise `UnsupportedError` for a generation that is divided among shards."""
    if manifest.shards:
        raise UnsupportedError(
            "index",
            f"the index is divided among {len(manifest.shards)} shards: to read it, start the"
            " server with --shards; to write to it or to diagnose it, build it again without"
            " --shards, or make it whole with divgrpc reshard FOLDER --shards 1 (after a write, it"
            " cannot be divided again)",
        )


def open_shared(folder: Path, manifest: Manifest, *, verify: bool = True) -> dict[str, Array]:
    """Map the arrays that all shards of the generation in `folder` share.

    Raises `IndexDamagedError`.
    """
    return {
        name: open_array(folder / SHARED / f"{name}.npy", entry, verify=verify)
        for name, entry in manifest.arrays.items()
        if is_shared(name)
    }


def open_shard(
    folder: Path, manifest: Manifest, shard: int, *, verify: bool = True
) -> tuple[Manifest, dict[str, Array]]:
    """Map the arrays of a shard, and those that it shares.

    folder: the folder of the whole generation, whose manifest is `manifest`.

    Returns them with the manifest of the shard. Raises `IndexDamagedError` and `OtherFormatError`.
    """
    part = read_shard_manifest(folder, manifest, shard)
    arrays = open_shared(folder, manifest, verify=verify)
    for name, entry in part.arrays.items():
        path = folder / SHARDS / str(shard) / f"{name}.npy"
        arrays[name] = open_array(path, entry, verify=verify)
    return part, arrays


def array_files(folder: Path, manifest: Manifest) -> Iterator[tuple[Path, ArrayEntry]]:
    """Yield the files of all arrays of a divided generation, those of shards after the shared ones.

    Raises `IndexDamagedError` and `OtherFormatError` for the manifest of a shard.
    """
    for name, entry in manifest.arrays.items():
        if is_shared(name):
            yield folder / SHARED / f"{name}.npy", entry
    for shard in range(len(manifest.shards)):
        for name, entry in read_shard_manifest(folder, manifest, shard).arrays.items():
            yield folder / SHARDS / str(shard) / f"{name}.npy", entry


def shard_files(folder: Path, manifest: Manifest, shard: int) -> Iterator[Path]:
    """Yield the files of a shard and those that it shares, relative to `folder`.

    The manifest of the whole generation is not among them. Raises `IndexDamagedError` and
    `OtherFormatError` for the manifest of the shard.
    """
    home = Path(SHARDS) / str(shard)
    yield home / MANIFEST
    for name in read_shard_manifest(folder, manifest, shard).arrays:
        yield home / f"{name}.npy"
    for name in filter(is_shared, manifest.arrays):
        yield Path(SHARED) / f"{name}.npy"


def check_shard(folder: Path, manifest: Manifest, shard: int) -> None:
    """Compare the checksums of the files of a shard, and of those that it shares.

    The files are read and not mapped: to read a mapped file that another machine has removed ends
    the process. Raises `IndexDamagedError` and `OtherFormatError`.
    """
    part = read_shard_manifest(folder, manifest, shard)
    shared = {name: entry for name, entry in manifest.arrays.items() if is_shared(name)}
    for home, entries in ((SHARED, shared), (f"{SHARDS}/{shard}", part.arrays)):
        for name, entry in entries.items():
            path = folder / home / f"{name}.npy"
            try:
                with damage_errors(f"array {name}"):
                    checksum = checksum_in_file(path, HEADER_BYTES, entry.bytes)
            except (FileNotFoundError, NotADirectoryError):
                raise IndexDamagedError(f"array {name} is missing") from None
            if checksum != entry.crc32:
                raise IndexDamagedError(f"array {name} does not match its checksum")


def read_shard_manifest(folder: Path, manifest: Manifest, shard: int) -> Manifest:
    """Read the manifest of a shard, and compare its checksum with that in `manifest`.

    Raises `IndexDamagedError` and `OtherFormatError`.
    """
    text = check_shard_manifest(folder, manifest, shard)
    # A generation may get another number when it is restored.
    return replace(Manifest.from_json(text), generation=manifest.generation)


def check_shard_manifest(folder: Path, manifest: Manifest, shard: int) -> bytes:
    """Compare the checksum of the manifest of a shard with that in `manifest`; return its text.

    Raises `IndexDamagedError`.
    """
    subject = f"the manifest of shard {shard}"
    try:
        with damage_errors(subject):
            text = (folder / SHARDS / str(shard) / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise IndexDamagedError(f"{subject} is missing") from None
    if zlib.crc32(text) != manifest.shards[shard].crc32:
        raise IndexDamagedError(f"{subject} does not match its checksum")
    return text
