"""The floor: a bare grpc.aio server whose handler answers with so many zero bytes.

No message is parsed or made, so this is what gRPC itself costs for messages of a Query's size.
"""

import asyncio
import signal
import sys

import grpc
from grpc import aio

from benchmarks.harness.tables import show


async def main(reply_bytes: int) -> None:
    """Serve on a free port of the loopback address until told to stop; print the address."""
    server, reply = aio.server(), bytes(reply_bytes)

    async def answer(_request: bytes, _context: object) -> bytes:
        return reply

    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]]
    methods = {"Query": grpc.unary_unary_rpc_method_handler(answer)}
    handlers = grpc.method_handlers_generic_handler("divgrpc.v1.DiverseIndex", methods)
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    show(f"127.0.0.1:{port}")
    await told.wait()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
