"""Measures searches of a shard of a build that is under way, on any machine that has its folder.

While a builder tunes searches, it offers the codes of all shards (`staged_arrays`). Whoever has the
folder of a shard then answers which of its points a search hashes, with the same bytes as the
builder itself.

An answer reads all codes of the shard. Files of another machine are not mapped, so the codes are
read from a copy on a disk of this machine (`copies.StagedCopies`). Without copies, each process
reads them into its memory, and those of a large shard are refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np

from divgrpc.arrays import Array, read_only
from divgrpc.errors import IndexNotFoundError
from divgrpc.parameters import BuildParameters
from divgrpc.sharding import staged_arrays
from divgrpc.sharding.core import CODE_ARRAYS, ShardCore
from divgrpc.sharding.layouts import STAGED_QUESTION
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_arrays import StagedArrays
from divgrpc.storage.arrays import ArrayEntry, ArrayFolder

# The operation of `StagedBuild` that these shards answer.
MEASURE: Final = "measure_staged"
# The file that describes the offer.
OFFER: Final = "measuring.json"
# Maximum number of bytes of a shard that a process without copies reads into its memory.
_READ_BYTES_MAX: Final = 64 << 20


# Syncs an array; returns its file and its entry.
SyncArray: TypeAlias = Callable[[], tuple[Path, ArrayEntry]]


class ShardFiles(NamedTuple):
    """The files of a shard, which are finished.

    folder: path of the folder of the shard.
    entries: the entries of the arrays in it.
    sync_ids: syncs the array of the ids of the points.
    """

    folder: Path
    entries: Mapping[str, ArrayEntry]
    sync_ids: SyncArray


@contextmanager
def offered(
    stage: ArrayFolder,
    shared: Iterable[str],
    shards: Sequence[ShardFiles],
    parameters: BuildParameters,
    dims: int,
) -> Iterator[None]:
    """In the block, let others measure searches of shards.

    stage: the staging folder, which has the arrays `shared` that all shards share.

    Raises `StorageFullError`.
    """
    # Each shard has points of its own in each cell.
    names = CODE_ARRAYS.intersection(shared) - {"cell_starts"}
    common = {name: staged_arrays.sync(stage, name) for name in sorted(names)}
    document = {"dims": dims, "parameters": asdict(parameters)}
    with ExitStack() as offers:
        for folder, entries, sync_ids in shards:
            arrays = {**common, "ids": sync_ids()}
            for name in sorted(CODE_ARRAYS & entries.keys()):
                arrays[name] = folder / f"{name}.npy", entries[name]
            offers.enter_context(staged_arrays.offered(folder, OFFER, arrays, document))
        yield


def pack_question(folder: str, messages: Buffer) -> bytes:
    """Return the message that asks a shard what `ShardCore.ask` is asked with "measure".

    folder: path of the folder of the shard; it begins with the name of the staging folder.
    """
    texts = {"folder": folder.encode(), "messages": messages}
    return STAGED_QUESTION.pack(
        {name: np.frombuffer(text, np.uint8) for name, text in texts.items()}
    )


class OpenCopy(Protocol):
    """Opens a copy of the arrays of a shard."""

    def __call__(self, staged: StagedArrays) -> Mapping[str, Array]:
        """Return the arrays; raises `IndexNotFoundError` if there is no copy, perhaps not yet."""


class StagedShard:
    """A shard that is being built, for one thread."""

    def __init__(self, folder: Path, open_copy: OpenCopy | None = None) -> None:
        """Open the shard, without `open_copy` in memory.

        Raises `IndexNotFoundError` as `StagedArrays` and `open_copy` do, and if the shard is too
        large for memory.
        """
        staged = StagedArrays(folder, OFFER)
        arrays = (open_copy or _read)(staged)
        document = staged.document
        parameters = BuildParameters(**document["parameters"])
        self._core = ShardCore.of_codes(arrays, parameters, document["dims"])

    def answer(self, message: Buffer) -> bytes:
        """Answer a message of `pack_question`; raises as `ShardCore.ask` does."""
        question = STAGED_QUESTION.unpack(message)["messages"]
        return self._core.ask("measure", question.tobytes())


def _read(staged: StagedArrays) -> dict[str, Array]:
    """Read the arrays of a shard into memory."""
    size = sum(entry.bytes for _, entry in staged.files.values())
    if size > _READ_BYTES_MAX:
        reason = f"a shard has codes of {size} bytes, and a server without --cache-dir reads"
        raise IndexNotFoundError(f"{reason} at most {_READ_BYTES_MAX}")
    return {name: read_only(staged.read(name)) for name in staged.files}
