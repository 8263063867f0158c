"""Connections to the documents of an index, for threads and for event loops."""

import asyncio
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from divgrpc_client.client import AsyncClient, Client
from divgrpc_client.documents.documents import AsyncDocuments, Documents
from divgrpc_client.documents.metadata import TypeLike


class DocumentIndex:
    """The documents of one index on a server; connects at the first call.

    target: the server's host:port, such as "localhost:50051".
    name, attributes, dims, build_options: as in `AsyncDocuments`.
    client_options: options of `Client` and `AsyncClient`, such as `timeout` and `credentials`.
    """

    def __init__(
        self,
        target: str,
        name: str,
        *,
        attributes: Mapping[str, TypeLike] | None = None,
        dims: int | None = None,
        build_options: Mapping[str, Any] | None = None,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.target = target
        self.name = name
        self._client_options = dict(client_options or {})
        self._options: dict[str, Any] = {
            "attributes": attributes,
            "dims": dims,
            "build_options": build_options,
        }
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncDocuments] = (
            WeakKeyDictionary()
        )

    @cached_property
    def blocking(self) -> Documents:
        """The documents, with methods that any thread may call."""
        return Documents(Client(self.target, **self._client_options), self.name, **self._options)

    @property
    def asynchronous(self) -> AsyncDocuments:
        """The documents, with methods for the running event loop."""
        loop = asyncio.get_running_loop()
        documents = self._by_loop.get(loop)
        if documents is None:
            client = AsyncClient(self.target, **self._client_options)
            documents = AsyncDocuments(client, self.name, **self._options)
            self._by_loop[loop] = documents
        return documents

    def close(self) -> None:
        """Close the connection of `blocking`. Connections of event loops end with them."""
        if "blocking" in self.__dict__:
            self.blocking.client.close()

    async def aclose(self) -> None:
        """Close the connections of `blocking` and of the running event loop."""
        self.close()
        documents = self._by_loop.pop(asyncio.get_running_loop(), None)
        if documents is not None and isinstance(documents.client, AsyncClient):
            await documents.client.close()
