"""Errors that name the argument at fault."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from divgrpc.errors import InvalidArgumentError


@contextmanager
def refused(
    field: str, match: str | None = None, *, error: type[Exception] = InvalidArgumentError
) -> Iterator[None]:
    """Expect an error in the block whose message matches and which names `field`."""
    with pytest.raises(error, match=match) as caught:
        yield
    assert getattr(caught.value, "field", None) == field


def wrong(**values: Sequence[object]) -> pytest.MarkDecorator:
    """Parametrize a test by `field` and `value`, from the wrong values of each field."""
    pairs = [(field, value) for field, some in values.items() for value in some]
    return pytest.mark.parametrize(("field", "value"), pairs)
