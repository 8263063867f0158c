"""Client library of divgrpc: `Client`, `AsyncClient`, their errors and their results.

    from divgrpc_client import Client
    with Client("localhost:50051") as client:
        client.build("images", vectors)
        result = client.query("images", queries, k=10, diversity=0.3)

This package holds both clients and, in `cli`, the command line. It may import grpc, protobuf,
numpy, and the types, parameters, errors, metrics, `columns`, `evaluation` and `search.results` of
the core (the package `divgrpc`). The command line, tables and reports may also import rich and
jinja2. The client may not import numba, scipy or the core's engine. The only exception is the
command `divgrpc warm`, which imports `divgrpc.warmup`.
"""

from typing import TYPE_CHECKING, Any, Final

from divgrpc.errors import DivgrpcError
from divgrpc.types import (
    Diversification,
    EvaluateLabelRow,
    EvaluateRow,
    IndexInfo,
    LabelResult,
    Pick,
    Progress,
    QueryResult,
)
from divgrpc.types.filters import Field, Filter, HasId
from divgrpc.types.quotas import GroupBy, Quota
from divgrpc.types.records import Attribute, Record, Records

if TYPE_CHECKING:
    from divgrpc_client.client import AsyncClient, Client
    from divgrpc_client.messages.responses import ServerInfo
    from divgrpc_client.messages.stream_items import Withdrawal
    from divgrpc_client.messages.write_streams import Delete, Upsert
    from divgrpc_client.rpc.errors import ClientStateError, RpcError
    from divgrpc_client.rpc.security import TLS

__all__ = [
    "TLS",
    "AsyncClient",
    "Attribute",
    "Client",
    "ClientStateError",
    "Delete",
    "Diversification",
    "DivgrpcError",
    "EvaluateLabelRow",
    "EvaluateRow",
    "Field",
    "Filter",
    "GroupBy",
    "HasId",
    "IndexInfo",
    "LabelResult",
    "Pick",
    "Progress",
    "QueryResult",
    "Quota",
    "Record",
    "Records",
    "RpcError",
    "ServerInfo",
    "Upsert",
    "Withdrawal",
]


# These names are imported when they are first used, because importing gRPC and protobuf takes as
# long as importing numpy.
_HOMES: Final = {
    "AsyncClient": "client",
    "Client": "client",
    "ClientStateError": "rpc.errors",
    "Delete": "messages.write_streams",
    "RpcError": "rpc.errors",
    "ServerInfo": "messages.responses",
    "TLS": "rpc.security",
    "Upsert": "messages.write_streams",
    "Withdrawal": "messages.stream_items",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  # what a module's attribute may be
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
