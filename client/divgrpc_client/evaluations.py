"""Evaluate on the caller's side: its request, its events, and both stacks' way through them."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.types import EvaluateRow, Interval, Microseconds, Progress
from divgrpc_client import requests, responses
from divgrpc_client.batches import MESSAGE_BYTES
from divgrpc_client.calls import Call
from divgrpc_client.options import GRID_DEFAULTS, GridOptions, refuse_unknown
from divgrpc_client.stalls import AsyncWatchdog, StallError, Watchdog
from divgrpc_client.vectors import VectorsLike, as_matrix, encode
from divgrpc_protos.arrays import row_count
from divgrpc_protos.v1 import evaluate_pb2
from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexStub

if TYPE_CHECKING:
    # The name of the stub over grpc.aio is known to type checkers alone.
    from divgrpc_protos.v1.diverse_index_pb2_grpc import DiverseIndexAsyncStub

Tell = Callable[[Progress], object]
_STAGE: Final = "evaluating"
_REQUEST: Final = evaluate_pb2.EvaluateRequest.DESCRIPTOR


def request(
    name: str,
    queries: VectorsLike,
    categories: npt.ArrayLike | None,
    options: GridOptions,
    *,
    relevant: Sequence[npt.ArrayLike] | None,
    folds: int,
    set_default: bool,
    per_query: bool,
) -> evaluate_pb2.EvaluateRequest:
    """Return the message of one call.

    Raises `InvalidArgumentError` with the field for what the wire cannot carry, or not in one
    message, and TypeError for an unknown option.
    """
    refuse_unknown(GridOptions, options)
    matrix = as_matrix("queries", queries, one_row=True)
    told = GRID_DEFAULTS | options
    message = requests.build_message(
        evaluate_pb2.EvaluateRequest,
        {
            "index": name,
            "folds": folds,
            "set_default": set_default,
            "per_query": per_query,
            "seed": told.pop("seed"),
            **_asked(categories, relevant),
            **{axis: _axis(axis, values) for axis, values in told.items()},
        },
    )
    message.queries.CopyFrom(encode(matrix, 0, row_count(matrix)))
    if message.ByteSize() > MESSAGE_BYTES:
        raise InvalidArgumentError(
            "queries", f"queries and what is relevant to them must fit {MESSAGE_BYTES} bytes"
        )
    return message


def _asked(
    categories: npt.ArrayLike | None, relevant: Sequence[npt.ArrayLike] | None
) -> dict[str, object]:
    asked: dict[str, object] = {}
    if categories is not None:
        asked["categories"] = _whole("categories", categories)
    if relevant is not None:
        lists = (_whole("relevant", each) for each in relevant)
        asked["relevant"] = [evaluate_pb2.RelevantIds(ids=each) for each in lists]
    return asked


def _whole(field: str, numbers: npt.ArrayLike) -> list[int]:
    array = np.asarray(numbers)
    wide = array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max
    if array.ndim != 1 or wide or (array.dtype.kind not in "iu" and array.size):
        raise InvalidArgumentError(field, f"{field} must be whole numbers, in one dimension")
    found: list[int] = array.tolist()
    return found


def _axis(axis: str, values: Any) -> list[object]:  # noqa: ANN401  # whatever a caller takes for a list
    """Return an axis as the wire has it, where an empty one would be the default."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise InvalidArgumentError(axis, f"{axis} must be a list of values")
    given: list[Any] = [
        value.item() if isinstance(value, np.generic) else value for value in values
    ]
    if not given:
        raise InvalidArgumentError(axis, f"{axis} must have a value at least")
    if axis == "limits":
        return [_limits(pair) for pair in given]
    field = _REQUEST.fields_by_name[axis]
    if field.enum_type is not None:
        return [requests.enum_value(field, word) for word in given]
    if any(isinstance(value, bool) or value is None for value in given):
        raise InvalidArgumentError(axis, f"{axis} must be numbers, got {given!r}")
    return given


def _limits(pair: Any) -> evaluate_pb2.EvaluateLimits:  # noqa: ANN401  # as above
    names = [field.name for field in evaluate_pb2.EvaluateLimits.DESCRIPTOR.fields]
    try:
        told = dict(zip(names, pair, strict=True))
        return evaluate_pb2.EvaluateLimits(**told)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            "limits", f"limits must be pairs of hash_limit and candidates_limit, got {pair!r}"
        ) from None


def row(message: evaluate_pb2.EvaluateRow) -> EvaluateRow:
    """Return a row of a table."""
    plain = ("number", "h_of_means", "queries", "empty", "short", "on_front", "is_default")
    times = message.microseconds
    return EvaluateRow(
        **{name: getattr(message, name) for name in plain},
        search=responses.word(message, "search"),
        parameters=responses.effective(message.parameters),
        metrics={m.name: Interval(m.value, m.low, m.high) for m in message.metrics},
        microseconds=Microseconds(times.mean, times.p50, times.p90, times.p99),
        by_fold=tuple(message.by_fold),
        values={each.name: np.array(each.values, np.float64) for each in message.values},
    )


def _take(response: evaluate_pb2.EvaluateResponse, tell: Tell | None) -> EvaluateRow | None:
    """Return the row of an event, None for progress, which is told."""
    if response.HasField("row"):
        return row(response.row)
    if tell is not None:
        told = response.progress
        left = told.seconds_left if told.HasField("seconds_left") else None
        tell(Progress(_STAGE, told.queries_done, told.queries_total, left))
    return None


def rows(
    stub: DiverseIndexStub,
    call: Call,
    message: evaluate_pb2.EvaluateRequest,
    tell: Tell | None,
    idle_timeout: float,
) -> Iterator[EvaluateRow]:
    """Yield the rows on grpc's sync stack; whoever stops asking for them ends the call."""
    with Watchdog(idle_timeout, lambda: True) as watchdog:
        rpc = stub.Evaluate(message, timeout=call.seconds_left(), metadata=call.metadata)
        try:
            for response in watchdog.watched(rpc):
                found = _take(response, tell)
                if found is not None:
                    yield found
        except StallError as stall:
            raise call.stalled(idle_timeout) from stall
        except grpc.RpcError as error:
            raise call.failed(error) from error
        finally:
            rpc.cancel()


async def rows_async(
    stub: "DiverseIndexAsyncStub",
    call: Call,
    message: evaluate_pb2.EvaluateRequest,
    tell: Tell | None,
    idle_timeout: float,
) -> AsyncIterator[EvaluateRow]:
    """Yield the rows on grpc.aio."""
    watchdog = AsyncWatchdog(idle_timeout, lambda: True)
    rpc = stub.Evaluate(message, timeout=call.seconds_left(), metadata=call.metadata)
    try:
        async for response in watchdog.watched(rpc):
            found = _take(response, tell)
            if found is not None:
                yield found
    except StallError as stall:
        raise call.stalled(idle_timeout) from stall
    except grpc.RpcError as error:
        raise call.failed(error) from error
    finally:
        rpc.cancel()
