"""One interface to both clients, so that one test covers both."""

import asyncio
from collections.abc import Callable
from typing import Any

from divgrpc_client import AsyncClient, Client

# Methods that yield results.
STREAMS = ("query_stream", "write_stream", "pages")


class Stack:
    """Calls methods of either `Client` or `AsyncClient` and returns their results."""

    def __init__(self, target: str, *, is_async: bool) -> None:
        self._target = target
        self.is_async = is_async

    def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # any method's
        """Make a client, call one of its methods and return the result.

        `settings` are the arguments of the client. Unless they set a timeout, it is long enough for
        a busy machine. If `settings` is None, the client has its defaults. `on_result` is called
        with every result of a stream.
        """
        settings = options.pop("settings", {})
        settings = {} if settings is None else {"timeout": 30.0} | settings
        on_result = options.pop("on_result", lambda _: None)
        if self.is_async:
            return asyncio.run(self._call_async(settings, on_result, method, *arguments, **options))
        with Client(self._target, **settings) as client:
            result = getattr(client, method)(*arguments, **options)
            if method in STREAMS:
                return [(on_result(item), item)[1] for item in result]
            return result

    async def _call_async(
        self,
        settings: dict[str, Any],
        on_result: Callable[[Any], object],
        method: str,
        *arguments: object,
        **options: object,
    ) -> Any:  # noqa: ANN401  # any method's
        async with AsyncClient(self._target, **settings) as client:
            result = getattr(client, method)(*arguments, **options)
            if method in STREAMS:
                return [(on_result(item), item)[1] async for item in result]
            return await result
