"""Both clients behind one face, so that a test says once what holds for each."""

import asyncio
from collections.abc import Iterable
from typing import Any

from divgrpc_client import AsyncClient, Client


class Stack:
    """Calls a method of one of the two clients and returns its result, whichever it is."""

    def __init__(self, target: str, *, awaited: bool) -> None:
        self._target = target
        self._awaited = awaited

    def __call__(self, method: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401  # any method's
        """Call a method of a client made for this call.

        `settings` are the client's own; `each` is told every result of a stream as it comes.
        """
        settings = options.pop("settings", {})
        if self._awaited:
            return asyncio.run(self._call_async(method, settings, arguments, options))
        with Client(self._target, **settings) as client:
            each = options.pop("each", lambda _: None)
            result = getattr(client, method)(*arguments, **options)
            return (
                [(each(item), item)[1] for item in result] if method == "query_stream" else result
            )

    async def _call_async(
        self,
        method: str,
        settings: dict[str, Any],
        arguments: Iterable[Any],
        options: dict[str, Any],
    ) -> Any:  # noqa: ANN401  # any method's
        async with AsyncClient(self._target, **settings) as client:
            each = options.pop("each", lambda _: None)
            result = getattr(client, method)(*arguments, **options)
            if method == "query_stream":
                return [(each(item), item)[1] async for item in result]
            return await result
