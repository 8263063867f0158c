"""The calls that a front answers without a worker: the list of indexes, and the server's state.

This module reads manifests, but no points. It reads files in threads, so that a slow disk does not
delay other calls.
"""

import asyncio
import platform
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final, TypeAlias

import divgrpc
from divgrpc.errors import DivgrpcError, IndexDamagedError, IndexNotFoundError, invalid
from divgrpc.parameters import LIMITS, check_index_name
from divgrpc.storage.generations import IndexFolder, list_indexes
from divgrpc.storage.layouts import read_merged
from divgrpc.storage.published import read_writes
from divgrpc.types.shards import REPLYING, ReplicaInfo
from divgrpc_protos.records import to_message
from divgrpc_protos.v1 import index_pb2, query_pb2
from divgrpc_server.codec.statuses import expected
from divgrpc_server.config import EVALUATIONS_MAX, Config
from divgrpc_server.front.pool import Pool

# Describes the servers that have a shard of an index, given its name and the number of the shard.
Replicas: TypeAlias = Callable[[str, int], Sequence[ReplicaInfo]]
_PAGE_SIZE: Final = 100
# Four times `message_bytes_max`, so that gRPC accepts most messages above `message_bytes_max` and
# `service` can refuse them with an error that names an alternative. gRPC's own error gives only
# sizes.
RECEIVED_BYTES_MAX: Final = 4 * LIMITS["message_bytes_max"]
# Disconnect a peer that connects and sends nothing, because each connection uses a descriptor.
HANDSHAKE_MS: Final = 5_000
CONNECTION_IDLE_MS: Final = 3_600_000
_LIBRARIES: Final = ("numpy", "scipy", "numba", "llvmlite", "grpcio", "protobuf")


class Catalog:
    """Serves GetIndex, ListIndexes, DeleteIndex and GetServerInfo with serialised messages."""

    def __init__(
        self,
        config: Config,
        root: Path,
        pool: Pool,
        is_serving: Callable[[], bool],
        kernels: Callable[[], tuple[int, int]],
        *,
        replicas: Replicas | None = None,
        await_engine: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Create a catalog.

        kernels: returns the number of compiled kernels and of all kernels.
        replicas: describes the servers that have a shard; None for a server without `--shards`.
        await_engine: waits until the engine can be reached, and raises `EngineUnreachableError`;
            None for a server without `--shards`.
        """
        self._replicas = replicas
        self._await_engine = await_engine
        self._config = config
        self._root = root
        self._pool = pool
        self._is_serving = is_serving
        self._kernels = kernels

    async def get_index(self, request: bytes) -> bytes:
        """Describe one index."""
        name = check_index_name(index_pb2.GetIndexRequest.FromString(request).index)
        info = await asyncio.to_thread(self._read_info, name)
        self._complete(info, with_servers=True)
        return index_pb2.GetIndexResponse(index=info).SerializeToString()

    async def list_indexes(self, request: bytes, covers: Callable[[str], bool]) -> bytes:
        """Describe one page of the indexes, sorted by name.

        A page token is the last name of the previous page, so it stays valid if indexes are added
        or deleted. `covers` says which indexes the caller may know of.
        """
        message = index_pb2.ListIndexesRequest.FromString(request)
        if message.page_size < 0:
            raise invalid("page_size", f"must be 0 (the default) or more, got {message.page_size}")
        size = min(message.page_size or _PAGE_SIZE, LIMITS["page_size_max"])
        response = await asyncio.to_thread(self._read_page, message.page_token, size, covers)
        for info in response.indexes:
            self._complete(info)
            await asyncio.sleep(0)  # other calls go on
        return response.SerializeToString()

    async def delete_index(self, request: bytes) -> bytes:
        """Delete an index; calls that are already running finish with their generation."""
        name = check_index_name(index_pb2.DeleteIndexRequest.FromString(request).index)
        if self._await_engine is not None:
            await self._await_engine()
        generation = await asyncio.to_thread(IndexFolder(self._root / name).delete)
        self._pool.refresh(name)
        return index_pb2.DeleteIndexResponse(generation=generation).SerializeToString()

    async def get_server_info(self, request: bytes, quotas: Mapping[str, int]) -> bytes:
        """Describe the server, including its version, state and limits.

        quotas: the quotas of the caller.
        """
        index_pb2.GetServerInfoRequest.FromString(request)
        config = self._config
        ready, total = self._kernels()
        response = index_pb2.GetServerInfoResponse(
            version=divgrpc.__version__,
            durable=bool(config.data_dir),
            fronts=config.fronts,
            workers_ready=self._pool.workers,
            workers=config.workers,
            kernels_ready=self._is_serving(),
            kernels_compiled=ready,
            kernels_total=total,
            limits=limits(config, quotas),
            versions=_versions(),
            read_only=config.read_only,
        )
        return response.SerializeToString()

    def _complete(self, info: index_pb2.IndexInfo, *, with_servers: bool = False) -> None:
        """Add to the description of an index whether queries can be answered from its shards.

        with_servers: as in `_add_states`.
        """
        if self._replicas is not None:
            _add_states(info, self._replicas, with_servers=with_servers)
        elif info.shards:
            message = (
                f"queries fail, because the index is divided among {len(info.shards)} shards and"
                " this server has none: send them to a server with --shards, or make the index"
                " whole with divgrpc reshard --shards 1"
            )
            info.warnings.append(query_pb2.WarningInfo(code="NO_SHARD_SERVERS", message=message))

    def _read_info(self, name: str) -> index_pb2.IndexInfo:
        try:
            writes_of = read_merged if self._config.read_only else read_writes
            info = IndexFolder(self._root / name).read_info(writes_of)
            return to_message(info, index_pb2.IndexInfo)
        except Exception as error:
            # An unexpected error means that a file of the index is damaged.
            raise (expected(error) or IndexDamagedError("the index cannot be read")) from error

    def _read_page(
        self, after: str, size: int, covers: Callable[[str], bool]
    ) -> index_pb2.ListIndexesResponse:
        names = [name for name in list_indexes(self._root) if name > after and covers(name)]
        indexes = []
        for name in names[:size]:
            try:
                indexes.append(self._read_info(name))
            except IndexNotFoundError:
                continue  # deleted meanwhile
            except DivgrpcError as error:
                # List the damaged index nevertheless, and give the error as its warning.
                warning = query_pb2.WarningInfo(code=error.reason, message=str(error))
                indexes.append(index_pb2.IndexInfo(name=name, warnings=[warning]))
        token = names[size - 1] if len(names) > size else ""
        return index_pb2.ListIndexesResponse(indexes=indexes, next_page_token=token)


def _add_states(
    info: index_pb2.IndexInfo, replicas: Replicas, *, with_servers: bool = False
) -> None:
    """Add whether the servers of the shards of an index reply to its description.

    with_servers: whether to add the servers too; else warnings have those that are faulty.
    """
    faults: dict[tuple[str, str], list[int]] = defaultdict(list)
    for shard, message in enumerate(info.shards):
        servers = replicas(info.name, shard)
        for server in servers:
            if server.state == "faulty":
                faults[server.address, server.reason].append(shard)
        replies = [server.state in REPLYING for server in servers]
        info.degraded = info.degraded or not replies or not all(replies)
        if message.rows and not any(replies):
            info.missing_shards.append(shard)
        if with_servers:
            message.replicas.extend(to_message(one, index_pb2.ReplicaInfo) for one in servers)
    if not with_servers:
        info.warnings.extend(_warning_of(*fault, shards) for fault, shards in faults.items())


def _warning_of(address: str, reason: str, shards: Sequence[int]) -> query_pb2.WarningInfo:
    """Return a warning about the shards that a server cannot answer from, for one reason."""
    nouns = ("shard", "is") if len(shards) == 1 else ("shards", "are")
    numbers = ", ".join(map(str, shards))
    message = f"{nouns[0]} {numbers} {nouns[1]} faulty at {address}: {reason}"
    return query_pb2.WarningInfo(code="SHARD_FAULTY", message=message)


def limits(config: Config, quotas: Mapping[str, int]) -> dict[str, int]:
    """Return all limits by name: of requests, of this server, and of the caller's token."""
    return {
        **LIMITS,
        "builds_max": config.max_builds,
        "evaluations_max": EVALUATIONS_MAX,
        "queue_calls_max": config.queue_calls,
        "queue_bytes_max": config.queue_bytes,
        "stream_window": config.stream_window,
        "pending_calls_max": config.pending_calls,
        "upload_idle_ms": round(config.upload_idle * 1e3),
        "worker_wait_ms": round(config.worker_wait * 1e3),
        "grace_ms": round(config.grace * 1e3),
        "received_bytes_max": RECEIVED_BYTES_MAX,
        "handshake_ms": HANDSHAKE_MS,
        "connection_idle_ms": CONNECTION_IDLE_MS,
        **{f"token_{name}": value for name, value in quotas.items()},
    }


@cache
def _versions() -> dict[str, str]:
    versions = {library: metadata.version(library) for library in _LIBRARIES}
    return {"python": platform.python_version(), **versions}
