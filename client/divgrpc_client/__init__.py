"""The client: `Client` and `AsyncClient`, their errors and results.

    from divgrpc_client import Client
    with Client("localhost:50051") as client:
        client.build("images", vectors)
        result = client.query("images", queries, k=10, diversity=0.3)

Lives here: both clients, and the command line in `cli`. May import grpc, protobuf, numpy, and the
core's types, parameters, errors and metrics. May not import numba or scipy.
"""

from typing import TYPE_CHECKING, Any

from divgrpc.errors import DivgrpcError
from divgrpc.types import (
    EvaluateLabelRow,
    EvaluateRow,
    IndexInfo,
    LabelResult,
    Progress,
    QueryResult,
)
from divgrpc_client.client import Client
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.rpc.errors import ClientStateError, RpcError

if TYPE_CHECKING:
    from divgrpc_client.async_client import AsyncClient

__all__ = [
    "AsyncClient",
    "Client",
    "ClientStateError",
    "DivgrpcError",
    "EvaluateLabelRow",
    "EvaluateRow",
    "IndexInfo",
    "LabelResult",
    "Progress",
    "QueryResult",
    "RpcError",
    "ServerInfo",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401  # what a module's attribute may be
    """Import `AsyncClient` at its first use: asyncio and grpc.aio take as long as numpy."""
    if name != "AsyncClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from divgrpc_client.async_client import AsyncClient

    globals()[name] = AsyncClient
    return AsyncClient
