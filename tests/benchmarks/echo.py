"""The floor: a bare grpc.aio server whose handler answers with so many zero bytes.

No message is parsed or made, so this is what gRPC itself costs for messages of a Query's size.
"""

import asyncio
import signal
import sys

import grpc
from grpc import aio

from benchmarks.tables import show


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, reply: bytes) -> None:
        async def answer(_request: bytes, _context: object) -> bytes:
            return reply

        self._handler: grpc.RpcMethodHandler[bytes, bytes]
        self._handler = grpc.unary_unary_rpc_method_handler(answer)

    def service(
        self,
        handler_call_details: grpc.HandlerCallDetails,  # noqa: ARG002  # gRPC names it
    ) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return self._handler


async def main(reply_bytes: int) -> None:
    """Serve on a free port of the loopback address until told to stop; print the address."""
    server = aio.server()
    server.add_generic_rpc_handlers((_Handlers(bytes(reply_bytes)),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    show(f"127.0.0.1:{port}")
    await told.wait()
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
