"""Refuses builds for whose shards the machines of shard servers lack memory."""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from divgrpc.errors import DivgrpcError
from divgrpc.storage.generations import IndexFolder
from divgrpc.storage.shard_sizes import current_shard_sizes, read_shard_sizes
from divgrpc_protos.v1 import index_pb2
from divgrpc_server.codec.statuses import MemoryMissingError
from divgrpc_server.ipc.job_frames import StagedGeneration

# Bytes of a point beside what the caller sends of it, as `divgrpc.sharding.sizing` has them.
POINT_BYTES: Final = 48
# Within this time after a build, the engine sees it, keeps memory for it, and says what is left.
_COUNTED_SECONDS: Final = 5.0


class Promises:
    """The memory that builds may take while they run, in bytes of their largest shards."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        """Take what tells the other fronts of this server the bytes of all builds of this one."""
        self._tell = tell
        self._bytes: dict[RoomCheck, int] = {}
        # Those of the other fronts, by their numbers.
        self._bytes_of_fronts: dict[int, int] = {}

    def follow(self, front: int, size: int) -> None:
        """Take the bytes of all builds of another front."""
        self._bytes_of_fronts[front] = size

    def bytes_of_others(self, build: "RoomCheck") -> int:
        """Return the bytes of all builds but one."""
        total = sum(self._bytes.values()) + sum(self._bytes_of_fronts.values())
        return total - self._bytes.get(build, 0)

    def set(self, build: "RoomCheck", size: int) -> None:
        """Promise bytes to a build, instead of those that it has; 0 when it has ended."""
        before = sum(self._bytes.values())
        self._bytes[build] = size
        if not size:
            del self._bytes[build]
        if (total := sum(self._bytes.values())) != before:
            self._tell(total)


class RoomCheck:
    """Compares the size of a build with the memory that there is for its shards.

    A build that has room is promised it until `close`, so that no other one gets it too.
    """

    def __init__(
        self,
        index: str,
        root: Path,
        shards: int,
        room_bytes: Callable[[], int | None],
        promises: Promises,
        *,
        reads_upload: bool,
    ) -> None:
        """Take how many shards the build has.

        The build gets the memory of the index that it replaces too. root: the folder of the
        indexes. room_bytes: returns the largest shard that there is memory for now, None if that is
        not known. promises: those of all builds. reads_upload: whether `check_message` can read the
        upload.
        """
        self._root, self._shards, self._room_bytes = root, shards, room_bytes
        self._promises = promises
        self._replaced_bytes = _largest_shard(IndexFolder(root / index))
        self._expected_rows = 0
        # Whether `check_message` is to have the next message.
        self.reads_upload = reads_upload

    def check_message(self, message: bytes) -> None:
        """Read a message of an upload, until the first one that has rows.

        If the header says how many rows will come, they are taken to be as large as the first ones.
        Raises `MemoryMissingError`.
        """
        request = index_pb2.BuildRequest.FromString(message)
        step = request.WhichOneof("step")
        if step == "header":
            self._expected_rows = request.header.expected_rows
        self.reads_upload = step in ("header", "label_chunk")
        vectors = request.chunk.vectors
        if rows := vectors.dense.rows or vectors.sparse.rows:
            row_bytes = len(message) / rows + POINT_BYTES
            self._check(math.ceil(self._expected_rows * row_bytes / self._shards))

    async def check_build(self, generation: StagedGeneration) -> None:
        """Raise `MemoryMissingError` if a shard of a build that is not published is too large."""
        sizes = await asyncio.to_thread(read_shard_sizes, self._root / generation.folder)
        self._check(max(sizes, default=0))

    def close(self, *, is_built: bool) -> None:
        """Give back what was promised to the build, which has ended.

        is_built: whether the engine is about to keep memory for its shards.
        """
        end = partial(self._promises.set, self, 0)
        if is_built:
            asyncio.get_running_loop().call_later(_COUNTED_SECONDS, end)
        else:
            end()

    def _check(self, shard_bytes: int) -> None:
        room_bytes, promised_bytes = self._room_bytes(), self._promises.bytes_of_others(self)
        if room_bytes is not None:
            room_bytes = max(0, room_bytes - promised_bytes) + self._replaced_bytes
            if shard_bytes > room_bytes:
                raise MemoryMissingError(shard_bytes, room_bytes, promised_bytes)
        self._promises.set(self, max(0, shard_bytes - self._replaced_bytes))


def _largest_shard(index: IndexFolder) -> int:
    # The builder reports damage.
    with suppress(DivgrpcError, OSError):
        return max(current_shard_sizes(index), default=0)
    return 0
