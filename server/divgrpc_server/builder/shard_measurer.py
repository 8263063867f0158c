"""Measures searches of a build on shard servers, while its parameters are tuned."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from divgrpc.parameters import BuildParameters
from divgrpc.sharding.best_points import FoundPoints
from divgrpc.sharding.measuring import AskShards, Question
from divgrpc.sharding.messages import Buffer, join
from divgrpc.sharding.staged_shards import MEASURE, ShardFiles, offered, pack_question
from divgrpc.storage.arrays import ArrayFolder
from divgrpc_server.builder.shard_work import ShardWork

# One core scans the codes of so many points in about 20 ms, and a message takes about 4 ms. With
# fewer, little is won by copies of the codes.
_ROWS_MIN: Final = 4_000_000


class ShardMeasurer:
    """Measures searches for `DividedBuild`; see `divgrpc.sharding.divided_build.MeasureIn`."""

    def __init__(self, work: ShardWork, stage: ArrayFolder) -> None:
        """Take what divides the work, and the staging folder of the build."""
        self._work, self._stage = work, stage

    @contextmanager
    def __call__(
        self,
        shards: Sequence[ShardFiles],
        shared: Collection[str],
        parameters: BuildParameters,
        shape: tuple[int, int],
    ) -> Iterator[AskShards | None]:
        """In the block, have what asks shard servers; None for few points."""
        rows, dims = shape
        if rows < _ROWS_MIN:
            yield None
            return
        root = self._stage.folder.parent
        folders = [str(shard.folder.relative_to(root)) for shard in shards]
        with offered(self._stage, shared, shards, parameters, dims):
            # Shard servers copy the codes while this process finds the true nearest points.
            no_question = join([])
            messages = [pack_question(folder, no_question) for folder in folders]
            self._work.prepare(MEASURE, dict(enumerate(messages)))

            def ask(question: Question, shards: Sequence[int]) -> list[list[FoundPoints]]:
                return self._work.ask(_MeasuringTask(folders, question), shards)

            yield ask


class _MeasuringTask:
    """Finds the points of shards that searches hash."""

    operation = MEASURE
    verb = "measure searches of"

    def __init__(self, folders: Sequence[str], question: Question) -> None:
        self._folders, self._question = folders, question

    def pack(self, shard: int) -> bytes:
        """See `Task`."""
        return pack_question(self._folders[shard], self._question.messages)

    def unpack(self, shard: int, reply: Buffer) -> list[FoundPoints]:
        """See `Task`."""
        return self._question.unpack(shard, reply)

    def work(self, shard: int) -> list[FoundPoints]:
        """See `Task`."""
        return self._question.work(shard)
