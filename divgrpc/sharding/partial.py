"""What a router reads of a generation some of whose shards are missing.

The answer is that of an index that has the points of the other shards alone, with the hash
functions and the parameters of the whole index.
"""

from collections.abc import Iterable
from dataclasses import replace

from divgrpc.arrays import Array, read_only
from divgrpc.storage.generations import Generation

_CELL_STARTS = "cell_starts"


def without(whole: Generation, missing: Iterable[Generation]) -> Generation:
    """Return what a router reads of a generation without some shards.

    whole: what it reads of the whole generation.
    missing: the manifests of the missing shards, and their `cell_starts` if they have any; other
        arrays are not read.
    """
    manifest, arrays = whole.manifest, dict(whole.arrays)
    rows, nonzeros = manifest.rows, manifest.nonzeros
    for part in missing:
        rows, nonzeros = rows - part.manifest.rows, nonzeros - part.manifest.nonzeros
        if _CELL_STARTS in arrays:
            starts: Array = arrays[_CELL_STARTS] - part.arrays[_CELL_STARTS]
            arrays[_CELL_STARTS] = read_only(starts)
    return replace(whole, manifest=replace(manifest, rows=rows, nonzeros=nonzeros), arrays=arrays)
