"""How batches of sparse queries are cut into slices without ever being made dense."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from divgrpc import Index
from divgrpc.parameters import LIMITS, QueryParameters
from divgrpc.types import FloatArray
from divgrpc.vectors import SparseRows
from divgrpc_client import Client
from divgrpc_client.messages.responses import query_result
from divgrpc_protos.v1 import query_pb2
from divgrpc_server.codec import requests
from divgrpc_server.ipc.packets import Op, Request
from divgrpc_server.worker.batches import QueryBatch
from support.data.served_index import place
from support.processes.running_server import RunningServer

# The hash family needs neither principal components nor orthogonal hyperplanes, which take long to
# compute in 4,194,304 dimensions.
RANDOM: Any = {"hash_family": "lsh_div", "hyperplanes": "gaussian"}
WIDE = LIMITS["sparse_dims_max"]


def few_numbers(rows: int, nonzeros: int, seed: int) -> csr_array:
    """Return sparse rows with `nonzeros` values each and the maximum number of dimensions."""
    rng = np.random.default_rng(seed)
    columns = np.sort(
        rng.integers(0, WIDE // nonzeros, (rows, nonzeros))
        + np.arange(nonzeros) * (WIDE // nonzeros)
    )
    values = rng.standard_normal(rows * nonzeros).astype(np.float32)
    return csr_array((values, columns.ravel(), np.arange(rows + 1) * nonzeros), (rows, WIDE))


def answer_in_slices(index: Index, queries: SparseRows) -> tuple[list[int], FloatArray]:
    """Answer a batch as a worker does, and return the rows of each slice and all scores."""
    query = requests.Query("any", queries, QueryParameters(k=2), (("k", 2),))
    batch = QueryBatch(Request(1, 1e9, Op.QUERY, "", b""), 0, query)
    ends = [0]
    reply = batch.start(index.engine)
    while reply is None:
        ends.append(batch._pace.stop())
        reply = batch.answer_slice()
    result = query_result(query_pb2.QueryResponse.FromString(reply.payload))
    return np.diff(ends).tolist(), result.scores


def test_slices_are_cut_by_stored_values() -> None:
    """A slice has fewer rows if rows have more values, and slices do not change the answer."""
    rng = np.random.default_rng(0)
    index = Index.build(rng.standard_normal((50, 20_000)).astype(np.float32), **RANDOM)
    full = rng.standard_normal((4, 20_000)).astype(np.float32)
    thin = np.where(np.arange(20_000) < 3, rng.standard_normal((20, 20_000)), 0)
    rows = SparseRows.of(csr_array(np.concatenate([full, thin.astype(np.float32)])))
    sizes, scores = answer_in_slices(index, rows)
    assert sizes[0] == 3
    assert sum(sizes) == 24
    assert scores.tobytes() == index.query(rows, k=2).scores.tobytes()


def peak_bytes(pid: int) -> int:
    """Return the peak memory use of a process."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def test_sparse_queries_are_never_made_dense(server: RunningServer, client: Client) -> None:
    """4,000 rows of 4,194,304 dimensions would take 64 GiB if dense, but need less than 256 MiB."""
    index = place(server, "wide-sparse", few_numbers(300, 20, 1), **RANDOM)
    queries = few_numbers(4_000, 20, 2)
    client.query("wide-sparse", queries[:100])
    before = sum(map(peak_bytes, server.pids("worker")))
    result = client.query("wide-sparse", queries, k=3, selector="nearest")
    after = sum(map(peak_bytes, server.pids("worker")))
    assert after - before < 256 * 2**20
    core = index.query(queries[3_000:3_020], k=3, selector="nearest")
    assert result.ids[3_000:3_020].tobytes() == core.ids.tobytes()
    assert result.scores[3_000:3_020].tobytes() == core.scores.tobytes()
