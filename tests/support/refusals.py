"""Errors that name the argument at fault."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from divgrpc.errors import InvalidArgumentError


@contextmanager
def refused(
    field: str, match: str | None = None, *, error: type[Exception] = InvalidArgumentError
) -> Iterator[None]:
    """Expect an error of this field in the block, with a message that matches."""
    with pytest.raises(error, match=match) as caught:
        yield
    assert getattr(caught.value, "field", None) == field


def wrong(**values: Sequence[Any]) -> Any:  # noqa: ANN401  # a mark of pytest
    """Parametrize a test by `field` and each of its wrong `value`s."""
    pairs = [(field, value) for field, some in values.items() for value in some]
    return pytest.mark.parametrize(("field", "value"), pairs)
