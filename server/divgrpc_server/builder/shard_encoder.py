"""Encodes the points of a build on shard servers, and on the cores of this machine."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from divgrpc.builder.encoder import EncodedRows, encode_on_all_cores
from divgrpc.builder.hash_functions import HashFunctions
from divgrpc.builder.row_encoder import RowEncoder
from divgrpc.sharding.messages import Buffer
from divgrpc.sharding.staged_points import ENCODE, offered, pack_block, unpack_encoded
from divgrpc.storage.arrays import ArrayFolder
from divgrpc.vectors import Rows
from divgrpc_server.builder.shard_work import ShardWork

# Fewer blocks are encoded before shard servers see the files.
_BLOCKS_MIN: Final = 4


class ShardEncoder:
    """Encodes blocks for `DividedBuild`; see `divgrpc.builder.encoder.EncodeBlocks`."""

    def __init__(self, work: ShardWork, stage: ArrayFolder, folder: Path) -> None:
        """Take what divides the work, the staging folder of the build, and that of the points."""
        self._work, self._stage, self._folder = work, stage, folder

    def __call__(
        self, functions: HashFunctions, points: Rows, blocks: Sequence[range]
    ) -> Iterable[tuple[range, EncodedRows]]:
        """Yield all blocks in any order, each with its encoded rows."""
        if len(blocks) < _BLOCKS_MIN:
            return encode_on_all_cores(functions, points, blocks)
        return self._encode(functions, points, blocks)

    def _encode(
        self, functions: HashFunctions, points: Rows, blocks: Sequence[range]
    ) -> Iterator[tuple[range, EncodedRows]]:
        name = str(self._folder.relative_to(self._stage.folder.parent))
        with offered(self._folder, self._stage, functions, points):
            yield from self._work.run(_EncodingTask(name, functions, points), blocks)


class _EncodingTask:
    """Encodes rows."""

    operation = ENCODE
    verb = "hash"

    def __init__(self, folder: str, functions: HashFunctions, points: Rows) -> None:
        self._folder, self._functions, self._points = folder, functions, points
        self._encoder = RowEncoder(functions.arrays, functions.parameters)

    def pack(self, rows: range) -> bytes:
        """See `Task`."""
        return pack_block(self._folder, rows)

    def unpack(self, rows: range, reply: Buffer) -> EncodedRows:
        """See `Task`."""
        functions = self._functions
        cells, terms, codes = unpack_encoded(reply)
        count, code_bytes = len(rows), functions.code_bits // 8
        if not len(cells) == len(terms) == count or codes.shape != (count, code_bytes):
            raise ValueError("it has encoded other rows, or is of another version")
        numbers = range(-1, 0)
        if functions.has_cells:
            numbers = range(len(functions.arrays["cell_centres"]))
        if cells.min() < numbers.start or cells.max() >= numbers.stop:
            raise ValueError("it has found cells that the build does not have")
        return cells, terms, codes

    def work(self, rows: range) -> EncodedRows:
        """See `Task`."""
        return self._encoder.encode(self._points[rows.start : rows.stop])
