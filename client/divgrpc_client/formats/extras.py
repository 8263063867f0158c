"""What a command needs of the extras that not everybody installs."""

from collections.abc import Iterator
from contextlib import contextmanager

from divgrpc.errors import UnsupportedError


@contextmanager
def extra(field: str, what: str, name: str) -> Iterator[None]:
    """Say which extra to install where an import finds something missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise UnsupportedError(field, f"{what} needs {missing}: install divgrpc[{name}]") from None
