"""How many shards and machines an index needs, and what a query costs.

Sizes follow from the files of an index of dense points in cells. Times follow from
`make bench ARGS="shard_costs --shards 2 4 8"`, recorded in docs/records/shard-costs.json, where all
processes share two cores.
"""

import math
from dataclasses import dataclass
from typing import Final

from divgrpc.errors import LimitExceededError, invalid
from divgrpc.hashing.hyperplanes import CELLS_ROWS_MIN, code_bits, code_depth, fill_defaults
from divgrpc.hashing.partition import cell_count
from divgrpc.parameters import BuildParameters
from divgrpc.parameters.limits import LIMITS
from divgrpc.sharding.finding import share_of

# Sizes are those of an index in cells, which Build makes of so many points or more.
CELL_POINTS_MIN: Final = CELLS_ROWS_MIN
# Bytes of a point beside its vector: code 32, id 8, scan term 4, row number in its cell 4.
POINT_BYTES: Final = 48
# Bytes of a cell beside its centre, in every server.
CELL_BYTES: Final = 52
# Supervisor, front, process that loads the kernels, and one worker.
SERVER_BYTES: Final = 330 * 2**20
# A server has two generations open while it changes from one to the other.
GENERATIONS: Final = 2
# The rest of the memory of a machine is for the system.
USED_SHARE: Final = 0.8
# A query of 10 results by default, and the most points that Build chooses to hash.
CANDIDATES: Final = 200
HASH_LIMIT: Final = 1_200
# Open files of a worker for a shard of a generation, and of a builder for each shard, of an index
# with ATTRIBUTES attributes and a label model.
WORKER_FILES: Final = 90
ATTRIBUTES: Final = 10
BUILDER_FILES: Final = 13 + 2 * ATTRIBUTES
_KEY_BYTES: Final = 16
_MESSAGE_BYTES: Final = 1_200
_FLOAT32_BYTES: Final = 4
# A query over shards takes a time of its own and a time for each shard, in milliseconds.
P50_MS: Final = 1.7
P50_MS_PER_SHARD: Final = 1.0
# The 99th percentile as a multiple of the median.
P99_FACTOR: Final = 1.5
# The number of points of a shard at which these times were measured.
TIMED_POINTS_PER_SHARD: Final = 25_000
# A search through cells takes 4 times as long in 100 times as many points (benchmark `large`).
_TIME_EXPONENT: Final = math.log(3.96) / math.log(100)
# The part of the median in which a shard searches, in milliseconds.
SEARCH_MS: Final = 0.3


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an index needs.

    rows, dims, replicas, machine_bytes: as in `plan`.
    point_bytes: of a point on its shard.
    points_per_shard: the number of points of a shard.
    shard_bytes: the memory of a server that has a shard, with room for a new generation.
    whole_machine_bytes: the memory of a machine that holds the whole index.
    router_bytes: the memory of the server that routes; 0 if one machine holds the index.
    disk_bytes: of the data directory, while a build replaces the index.
    cache_bytes: of the folder of `--cache-dir` on the machine of a shard server, while a build
        replaces the index; 0 if one machine holds it.
    worker_files, builder_files: open files of a worker of a shard server, while a new generation
        opens, and of the builder; 0 if one machine holds the index.
    shards: 1 if one machine holds the index.
    machines: those of shard servers, and one for the server that routes.
    query_bytes: sent and received by the router for a query.
    p50_ms, p99_ms: expected times of a query over shards; None if one machine holds the index.
    """

    rows: int
    dims: int
    replicas: int
    machine_bytes: int
    point_bytes: int
    points_per_shard: int
    shard_bytes: int
    whole_machine_bytes: int
    router_bytes: int
    disk_bytes: int
    cache_bytes: int
    worker_files: int
    builder_files: int
    shards: int
    machines: int
    query_bytes: int
    p50_ms: float | None
    p99_ms: float | None


def plan(
    rows: int, dims: int, machine_bytes: int, *, replicas: int = 2, payload_bytes: int = 0
) -> Plan:
    """Return what an index of dense float32 vectors needs.

    machine_bytes: the memory of a machine. payload_bytes: the bytes of attributes, labels and
    payloads of a point. Raises `InvalidArgumentError`, and `LimitExceededError` if more shards
    would be needed than an index may have.
    """
    for name, value in (("rows", rows), ("dims", dims), ("replicas", replicas)):
        if value < 1:
            raise invalid(name, f"must be 1 or more, got {value:,}")
    point_bytes = _FLOAT32_BYTES * dims + POINT_BYTES + payload_bytes
    cells = cell_count(rows, dims) * (_FLOAT32_BYTES * dims + CELL_BYTES)
    usable = math.floor(USED_SHARE * machine_bytes) - SERVER_BYTES - GENERATIONS * cells
    points_max = min(usable // (GENERATIONS * point_bytes), LIMITS["rows_max"])
    if points_max < 1:
        rule = "must have room for a server and the cells of the index"
        raise invalid("machine_bytes", f"{rule}, got {machine_bytes:,} bytes")
    shards = -(-rows // points_max)
    if shards > LIMITS["shards_max"]:
        raise LimitExceededError(
            f"the index needs {shards:,} shards, but may have {LIMITS['shards_max']} at most: take"
            " machines with more memory"
        )
    points = -(-rows // shards)
    shard_bytes = SERVER_BYTES + GENERATIONS * (points * point_bytes + cells)
    files = cells + _encoder_bytes(rows, dims)
    whole_bytes = SERVER_BYTES + GENERATIONS * (rows * point_bytes + cells)
    is_divided = shards > 1
    p50 = P50_MS + P50_MS_PER_SHARD * shards
    p50 += SEARCH_MS * ((points / TIMED_POINTS_PER_SHARD) ** _TIME_EXPONENT - 1)
    return Plan(
        rows=rows, dims=dims, replicas=replicas, machine_bytes=machine_bytes,
        point_bytes=point_bytes, points_per_shard=points, shard_bytes=shard_bytes,
        whole_machine_bytes=math.ceil(whole_bytes / USED_SHARE),
        router_bytes=SERVER_BYTES + GENERATIONS * cells if is_divided else 0,
        disk_bytes=GENERATIONS * (rows * point_bytes + files),
        cache_bytes=GENERATIONS * (points * point_bytes + files) if is_divided else 0,
        worker_files=GENERATIONS * WORKER_FILES if is_divided else 0,
        builder_files=BUILDER_FILES * shards if is_divided else 0, shards=shards,
        machines=shards * replicas + 1 if is_divided else replicas,
        query_bytes=query_bytes(dims, shards),
        p50_ms=p50 if is_divided else None, p99_ms=P99_FACTOR * p50 if is_divided else None,
    )  # fmt: skip


def _encoder_bytes(rows: int, dims: int) -> int:
    """Return the bytes of the files that no query reads: for each cell a centre, and margins."""
    parameters = fill_defaults(BuildParameters(hash_family="cells"), rows, dims)
    margins = code_bits(parameters) // code_depth(parameters)
    return cell_count(rows, dims) * _FLOAT32_BYTES * (dims + margins)


def query_bytes(dims: int, shards: int) -> int:
    """Return the bytes of the messages and replies of all shards for a query; 0 for one shard."""
    if shards == 1:
        return 0
    vectors = share_of(CANDIDATES, shards) * _FLOAT32_BYTES * dims
    keys = share_of(HASH_LIMIT, shards) * _KEY_BYTES
    return shards * (vectors + keys + _MESSAGE_BYTES + _FLOAT32_BYTES * dims)
