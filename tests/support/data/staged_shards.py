"""Builds on shards whose searches are measured elsewhere, and what is known of them."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from divgrpc.build_rows import BuildRows
from divgrpc.builder.builder import IndexBuilder
from divgrpc.builder.nearest import find_nearest
from divgrpc.parameters import BuildParameters
from divgrpc.sharding.best_points import FoundPoints
from divgrpc.sharding.divided_build import DividedBuild, Elsewhere
from divgrpc.sharding.measuring import Question
from divgrpc.sharding.staged_shards import ShardFiles, offered, pack_question
from divgrpc.storage.generations import IndexFolder, read_manifest, staging
from divgrpc.storage.manifest import Manifest

# Returns the reply of a shard, given its folder and a message of `pack_question`.
Answer = Callable[[Path, bytes], bytes]


def built_on_shards(
    path: Path,
    points: object,
    parameters: BuildParameters,
    shards: int,
    answer: Answer | None = None,
) -> Manifest:
    """Build an index on shards, and return its manifest.

    answer: measures searches in place of the process that builds.
    """
    with staging(path, replace=False) as stage:

        @contextmanager
        def tune_in(
            files: Sequence[ShardFiles],
            shared: Collection[str],
            parameters: BuildParameters,
            points: BuildRows,
        ) -> Iterator[Elsewhere]:
            def ask(question: Question, shards: Sequence[int]) -> list[list[FoundPoints]]:
                assert answer is not None
                results = []
                for shard in shards:
                    folder = files[shard].folder
                    name = str(folder.relative_to(stage.folder.parent))
                    reply = answer(folder, pack_question(name, question.messages))
                    assert reply == question.cores[shard].ask("measure", question.messages)
                    results.append(question.unpack(shard, reply))
                return results

            with offered(stage, shared, files, parameters, points.shape[1]):
                yield Elsewhere(ask, find_nearest)

        division = DividedBuild(stage, shards)
        if answer is not None:
            division.tune_in = tune_in
        builder = IndexBuilder(stage, parameters, points=division)
        builder.append(points)
        builder.build()
    return read_manifest(path / str(IndexFolder(path).current()))
