"""The items of `query_stream`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from divgrpc_client.messages.vectors import VectorsLike


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """An item of `query_stream` that withdraws a query which was an item before it.

    number: the number of the query, from 0; withdrawals do not count.

    If the query has no result yet, no worker goes on with it, and it ends with the error CANCELLED
    and the reason WITHDRAWN. Otherwise the withdrawal has no effect.
    """

    number: int


StreamItem: TypeAlias = VectorsLike | Withdrawal
# A function that is called with the number and the `RpcError` of an item. This package may not
# import the class of the error.
OnError: TypeAlias = Callable[[int, Any], object] | None
