"""Reference servers, run as programs: an empty echo, and a hand-written service.

`echo BYTES` answers every Query with that many zero bytes. It neither parses nor builds messages,
so its cost is the cost of gRPC.

`fan-out BYTES ADDRESS...` sends a message of that many bytes to all addresses for every Query. When
all have answered, it answers without content.

`by-hand FOLDER` is a grpc.aio service around hnswlib and pyversity, as a good engineer would write
it. It answers Query calls of one dense vector with ids and scores. Its search settings are
command-line options. Several of these processes may listen on one port, and the kernel distributes
the connections.
"""

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import grpc
import numpy as np
from grpc import aio

from benchmarks.harness.runner import show
from divgrpc_protos.v1 import query_pb2

Answer = Callable[[bytes, object], Awaitable[bytes]]
_SERVICE: Final = "divgrpc.v1.DiverseIndex"
METHOD: Final = f"/{_SERVICE}/Query"


def echo(reply_bytes: int) -> Answer:
    """Return a handler that answers every call with `reply_bytes` zero bytes."""
    reply = bytes(reply_bytes)

    async def answer(_request: bytes, _context: object) -> bytes:
        return reply

    return answer


def fan_out(message_bytes: int, addresses: list[str]) -> Answer:
    """Return a handler that asks all addresses for each call."""
    message = bytes(message_bytes)
    calls: list[aio.UnaryUnaryMultiCallable[bytes, bytes]] = []

    async def answer(_request: bytes, _context: object) -> bytes:
        if not calls:  # a channel belongs to the event loop
            calls.extend(aio.insecure_channel(one).unary_unary(METHOD) for one in addresses)
        await asyncio.gather(*(call(message) for call in calls))
        return b""

    return answer


def by_hand(folder: Path, ef: int, candidates: int, dial: float) -> Answer:
    """Return a handler that searches the graph in `folder`, on the event loop to save a thread."""
    import hnswlib
    import pyversity

    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    index = hnswlib.Index("ip", vectors.shape[1])
    index.load_index(str(folder / "graph"))
    index.set_ef(ef)

    async def answer(payload: bytes, _context: object) -> bytes:
        request = query_pb2.QueryRequest.FromString(payload)
        query = np.frombuffer(request.queries.dense.data, np.float32)
        rows, distances = index.knn_query(query, k=candidates, num_threads=1)
        scores = 1 - distances[0]
        places = pyversity.diversify(
            embeddings=vectors[rows[0]],
            scores=scores,
            k=request.k,
            strategy=pyversity.Strategy.MSD,
            diversity=dial,
            normalize=False,
        ).indices
        return query_pb2.QueryResponse(
            offsets=(0, len(places)), ids=rows[0][places].tolist(), scores=scores[places].tolist()
        ).SerializeToString()

    return answer


async def serve(answer: Answer, port: int = 0) -> None:
    """Print the address and serve on a port of the loopback interface until SIGTERM."""
    server = aio.server()
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    methods = {"Query": grpc.unary_unary_rpc_method_handler(answer)}
    handlers = grpc.method_handlers_generic_handler(_SERVICE, methods)
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    show(f"127.0.0.1:{port}")
    await end.wait()
    await server.stop(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    programs = parser.add_subparsers(dest="program", required=True)
    programs.add_parser("echo").add_argument("bytes", type=int)
    service = programs.add_parser("fan-out")
    service.add_argument("bytes", type=int)
    service.add_argument("addresses", nargs="+")
    service = programs.add_parser("by-hand")
    service.add_argument("folder", type=Path)
    for name, kind in (("port", int), ("ef", int), ("candidates", int), ("dial", float)):
        service.add_argument(f"--{name}", type=kind, required=True)
    options = vars(parser.parse_args())
    program = options.pop("program")
    if program == "echo":
        asyncio.run(serve(echo(options["bytes"])))
    elif program == "fan-out":
        asyncio.run(serve(fan_out(options["bytes"], options["addresses"])))
    else:
        port = options.pop("port")
        asyncio.run(serve(by_hand(**options), port))
