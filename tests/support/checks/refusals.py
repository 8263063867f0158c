"""Errors that name the argument at fault."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_client import RpcError


@contextmanager
def refused(
    field: str, match: str | None = None, *, error: type[Exception] = InvalidArgumentError
) -> Iterator[None]:
    """Expect that the block raises an error that names `field`, with a matching message."""
    with pytest.raises(error, match=match) as error_info:
        yield
    assert getattr(error_info.value, "field", None) == field


@contextmanager
def failing(
    code: grpc.StatusCode,
    kind: type[Exception] = RpcError,
    *,
    reason: str | None = None,
    field: str | None = None,
    match: str | None = None,
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect that a call fails in the block with this code and, if given, reason and field."""
    with pytest.raises(kind, match=match) as error_info:
        yield error_info
    assert isinstance(error_info.value, RpcError)
    assert error_info.value.code is code
    assert reason in (None, error_info.value.reason)
    assert field in (None, error_info.value.field)


def cases_of(**values: Sequence[object]) -> list[tuple[dict[str, object], str]]:
    """Return a case for each wrong value: the value by its field, and the field at fault."""
    return [
        ({field: value}, field) for field, field_values in values.items() for value in field_values
    ]


def wrong(**values: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by `field` and `value`, from the wrong values of each field."""
    pairs = [(field, value) for field, field_values in values.items() for value in field_values]
    return pytest.mark.parametrize(("field", "value"), pairs)
