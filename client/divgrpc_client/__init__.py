"""The caller: `Client` and `AsyncClient`, their errors and results.

    from divgrpc_client import Client
    with Client("localhost:50051") as client:
        client.build("images", vectors)
        result = client.query("images", queries, k=10, diversity=0.3)

It loads grpc, protobuf and numpy; neither numba nor scipy.
"""

from divgrpc.errors import DivgrpcError
from divgrpc.types import (
    EvaluateLabelRow,
    EvaluateRow,
    IndexInfo,
    LabelResult,
    Progress,
    QueryResult,
)
from divgrpc_client.async_client import AsyncClient
from divgrpc_client.client import Client
from divgrpc_client.messages.responses import ServerInfo
from divgrpc_client.rpc.errors import ClientStateError, RpcError

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
