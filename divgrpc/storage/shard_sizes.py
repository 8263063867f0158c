"""How many bytes the shards of an index have."""

from pathlib import Path

from divgrpc.storage.generations import IndexFolder, read_manifest
from divgrpc.storage.shards import is_shared, read_shard_manifest


def read_shard_sizes(generation: Path) -> list[int]:
    """Return the bytes of the arrays of each shard, with those that all shards share.

    generation: its folder. Returns an empty list for a generation that is whole. Raises
    `IndexDamagedError` and `OtherFormatError`.
    """
    manifest = read_manifest(generation)
    shared = sum(entry.bytes for name, entry in manifest.arrays.items() if is_shared(name))
    numbers = range(len(manifest.shards))
    parts = [read_shard_manifest(generation, manifest, number) for number in numbers]
    return [shared + sum(entry.bytes for entry in part.arrays.values()) for part in parts]


def current_shard_sizes(index: IndexFolder) -> list[int]:
    """Return what `read_shard_sizes` does for the current generation of an index.

    Raises `IndexNotFoundError` too.
    """
    return index.read_current(read_shard_sizes)
