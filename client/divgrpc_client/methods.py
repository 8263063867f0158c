"""Gives both clients the same methods, which are coroutine functions in `AsyncClient`."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper, wraps
from types import FunctionType, GenericAlias
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    overload,
)

from divgrpc.errors import InvalidArgumentError
from divgrpc.parameters.signatures import declare_return_type
from divgrpc_client.rpc.errors import add_call_attributes, with_call_attributes

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
SyncT = TypeVar("SyncT")
AsyncT = TypeVar("AsyncT")


class Blocking:
    """The base of a client whose methods return their results."""


class Awaited:
    """The base of a client whose methods return coroutines and asynchronous iterators."""


BlockingT = TypeVar("BlockingT", bound=Blocking)
AwaitedT = TypeVar("AwaitedT", bound=Awaited)


class Method(Generic[P, SyncT, AsyncT]):
    """The type of a method for type checkers: it returns SyncT or, in an `Awaited`, AsyncT."""

    @overload
    def __get__(self, client: Blocking, owner: type) -> Callable[P, SyncT]: ...
    @overload
    def __get__(self, client: Awaited, owner: type) -> Callable[P, AsyncT]: ...
    @overload
    def __get__(
        self, client: None, owner: type[BlockingT]
    ) -> Callable[Concatenate[BlockingT, P], SyncT]: ...
    @overload
    def __get__(
        self, client: None, owner: type[AwaitedT]
    ) -> Callable[Concatenate[AwaitedT, P], AsyncT]: ...
    def __get__(self, client: object, owner: type) -> object:
        """Do nothing: only type checkers use this class, and methods are plain functions."""


_NAMES_OF_ONE: list[str] = []
_NAMES_OF_MANY: list[str] = []


def one_result(
    method: Callable[Concatenate[Any, P], ResultT],
) -> Method[P, ResultT, Coroutine[Any, Any, ResultT]]:
    """Mark a method that is a coroutine function in `AsyncClient`."""
    _NAMES_OF_ONE.append(method.__name__)
    return cast("Method[P, ResultT, Coroutine[Any, Any, ResultT]]", method)


def many_results(
    method: Callable[Concatenate[Any, P], Iterator[ResultT]],
) -> Method[P, Iterator[ResultT], AsyncIterator[ResultT]]:
    """Mark a method that returns an asynchronous iterator in `AsyncClient`."""
    _NAMES_OF_MANY.append(method.__name__)
    return cast("Method[P, Iterator[ResultT], AsyncIterator[ResultT]]", method)


def copy_methods(client: type, source: type) -> None:
    """Give a client class its own copies of the methods of `source`.

    The qualified names of the copies begin with the name of the class, for errors and `help`.
    """
    for name, method in vars(source).items():
        if isinstance(method, FunctionType):
            copy = FunctionType(
                method.__code__, method.__globals__, name, method.__defaults__, method.__closure__
            )
            update_wrapper(copy, method)
            del copy.__dict__["__wrapped__"]
            copy.__kwdefaults__ = method.__kwdefaults__
            copy.__qualname__ = f"{client.__name__}.{name}"
            setattr(client, name, with_call_attributes(copy))


def make_asynchronous(client: type) -> None:
    """Turn methods that return one result into coroutine functions.

    Declare that the other methods return asynchronous iterators.
    """
    for name in _NAMES_OF_ONE:
        setattr(client, name, _awaiting(getattr(client, name)))
    for name in _NAMES_OF_MANY:
        method = getattr(client, name)
        items = get_args(method.__annotations__["return"])
        declare_return_type(method, GenericAlias(AsyncIterator, items))


def _awaiting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def awaiting(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # any method's
        try:
            return await method(*arguments, **options)
        except InvalidArgumentError as error:
            add_call_attributes(error)
            raise

    return awaiting
