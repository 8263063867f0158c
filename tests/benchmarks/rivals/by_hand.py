"""What a good engineer would write instead: a grpc.aio service around hnswlib and pyversity.

It answers Query with ids and scores, of one dense vector a call, with the settings it was started
with. Any number of them may listen on one port: the kernel shares the connections out.
"""

import argparse
import asyncio
import signal
from pathlib import Path

import grpc
import hnswlib
import numpy as np
import pyversity
from grpc import aio

from benchmarks.harness.tables import show
from divgrpc_protos.v1 import query_pb2


class Service:
    """Query alone."""

    def __init__(self, folder: Path, ef: int, fetched: int, dial: float) -> None:
        """Map the vectors and load the graph from `folder`."""
        self._vectors = np.load(folder / "vectors.npy", mmap_mode="r")
        self._index = hnswlib.Index("ip", self._vectors.shape[1])
        self._index.load_index(str(folder / "graph"))
        self._index.set_ef(ef)
        self._fetched, self._dial = fetched, dial

    async def query(
        self,
        request: query_pb2.QueryRequest,
        context: object,  # noqa: ARG002  # gRPC gives it
    ) -> query_pb2.QueryResponse:
        """Return k diverse results; a query takes too little time to hand it to a thread."""
        query = np.frombuffer(request.queries.dense.data, np.float32)
        rows, far = self._index.knn_query(query, k=self._fetched, num_threads=1)
        scores = 1 - far[0]
        chosen = pyversity.diversify(
            embeddings=self._vectors[rows[0]],
            scores=scores,
            k=request.k,
            strategy=pyversity.Strategy.MSD,
            diversity=self._dial,
            normalize=False,
        ).indices
        return query_pb2.QueryResponse(
            offsets=(0, len(chosen)), ids=rows[0][chosen].tolist(), scores=scores[chosen].tolist()
        )


async def main(arguments: argparse.Namespace) -> None:
    """Serve on a port of the loopback address until told to stop; print the address."""
    server = aio.server()
    service = Service(arguments.folder, arguments.ef, arguments.fetched, arguments.dial)
    handler = grpc.unary_unary_rpc_method_handler(
        service.query,
        request_deserializer=query_pb2.QueryRequest.FromString,
        response_serializer=query_pb2.QueryResponse.SerializeToString,
    )
    methods = {"Query": handler}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("divgrpc.v1.DiverseIndex", methods),)
    )
    port = server.add_insecure_port(f"127.0.0.1:{arguments.port}")
    await server.start()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    show(f"127.0.0.1:{port}")
    await told.wait()
    await server.stop(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ef", type=int, required=True)
    parser.add_argument("--fetched", type=int, required=True)
    parser.add_argument("--dial", type=float, required=True)
    asyncio.run(main(parser.parse_args()))
