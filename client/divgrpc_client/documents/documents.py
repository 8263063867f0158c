"""Documents of one index: write, delete, read and search them, over either client."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt

from divgrpc.errors import (
    BuildUnderWayError,
    IndexExistsError,
    IndexNotFoundError,
    InvalidArgumentError,
    LimitExceededError,
    invalid,
)
from divgrpc.types import IndexInfo, WriteMode
from divgrpc.types.filters import Condition
from divgrpc.types.records import Record
from divgrpc_client.client import AsyncClient, Client
from divgrpc_client.documents.metadata import (
    Metadata,
    StoredDocument,
    TypeLike,
    Where,
    check_declared,
    condition_of,
    declare,
    parse_document,
)
from divgrpc_client.rpc import sync_stack

P = ParamSpec("P")
ResultT = TypeVar("ResultT")

# An index of fewer documents searches exactly, which is fast.
_RETRAIN_ROWS: Final = 20_000
_RETRAIN_GROWTH: Final = 4
# How long a write waits for a build by another writer, and how often it looks.
_BUILD_SECONDS: Final = 300.0
_PAUSE_SECONDS: Final = 0.2
# Maximum number of ids of one call.
_IDS_MAX: Final = 10_000
# The id of a point that a store of documents without embeddings is built with, and then deletes.
_PLACEHOLDER: Final = "divgrpc placeholder"


class DocumentHit(NamedTuple):
    """A result of a search.

    score: the cosine, the inner product, or the squared Euclidean distance, which is smaller for
        nearer documents.
    """

    document: StoredDocument
    score: float


class AsyncDocuments:
    """The documents of one index, which the first write builds.

    Before the first write, searches and reads return nothing and deletions delete nothing. If all
    documents are deleted, the index remains, with what its build has learned.

    client: an `AsyncClient`, of the running event loop, or a `Client`, whose calls block.
    name: name of the index.
    attributes: types of the metadata that filters may test, as in {"year": "integer"}. The type in
        a list, as in {"tags": ["keyword"]}, declares that a document may have several values.
        An index that exists must have these attributes; it may have more.
    dims: number of dimensions, needed only if the first documents have no vectors.
    build_options: options of `Client.build`, such as `metric`, which an index that exists must
        have.
    """

    def __init__(
        self,
        client: AsyncClient | Client,
        name: str,
        *,
        attributes: Mapping[str, TypeLike] | None = None,
        dims: int | None = None,
        build_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.client = client
        self.name = name
        self._declared = declare(attributes)
        self._dims = dims
        self._build_options = dict(build_options or {})
        self._info: IndexInfo | None = None
        self._is_metric_checked = "metric" not in self._build_options
        # Number of documents that the index was trained on, if known.
        self._rows_trained: int | None = None

    async def info(self) -> IndexInfo | None:
        """Return the description of the index; None if there is none yet."""
        try:
            info: IndexInfo = await self._call("get_index")
        except IndexNotFoundError:
            self._info = None
            return None
        check_declared(self._declared, info.attributes, self.name)
        self._check_metric(info)
        if self._rows_trained is None:
            # An index that searches exactly was trained on few points.
            self._rows_trained = 0 if info.auto_search == "exact" else info.rows
        self._info = info
        return info

    async def write(self, documents: Iterable[StoredDocument], mode: WriteMode = "upsert") -> int:
        """Insert or replace documents, and return their number.

        mode: "insert_only" raises `ConditionFailedError` if one of the documents exists.

        Of several documents with the same id, the last is written. An index that has grown to four
        times the number of documents it was trained on, and to 20,000, is retrained.
        """
        by_id = {document.id: document for document in documents}
        rows = list(by_id.values())
        if not rows:
            return 0
        deadline = time.monotonic() + _BUILD_SECONDS
        while True:
            try:
                await self._write_rows(rows, mode)
                break
            except (BuildUnderWayError, IndexExistsError, IndexNotFoundError):
                # Another writer builds, has built or deletes the index.
                if time.monotonic() > deadline:
                    raise
            except LimitExceededError as error:
                if error.reason != "BUILDS_FULL" or time.monotonic() > deadline:
                    raise
                await self._pause()
        return len(rows)

    async def update_metadata(self, documents: Sequence[StoredDocument]) -> int:
        """Replace all of the documents but their vectors; raises if one does not exist."""
        if not documents:
            return 0
        metadata = self._metadata(await self.info())
        await self._call(
            "upsert",
            [document.id for document in documents],
            attributes=metadata.columns(documents),
            attribute_types=metadata.types(),
            payloads=[document.payload() for document in documents],
            mode="update_only",
        )
        return len(documents)

    async def delete(self, ids: Sequence[str]) -> int:
        """Delete documents by their ids, and return how many existed."""
        count = 0
        for start in range(0, len(ids), _IDS_MAX):
            count += await self._delete(ids=list(ids[start : start + _IDS_MAX]))
        return count

    async def delete_where(self, where: Where) -> int:
        """Delete the documents that pass a filter, and return their number."""
        condition = await self._condition(where)
        if condition is None:
            ids = [document.id for document in await self.find()]
            return await self.delete(ids)
        return await self._delete(filter=condition)

    async def delete_index(self) -> None:
        """Delete the index, if there is one. The next write builds another."""
        self._info = self._rows_trained = None
        self._is_metric_checked = "metric" not in self._build_options
        try:
            await self._call("delete_index")
        except IndexNotFoundError:
            return

    async def get(self, ids: Sequence[str], *, with_vectors: bool = False) -> list[StoredDocument]:
        """Return documents in the order of their ids; ids that no document has are left out."""
        try:
            return [
                document
                for start in range(0, len(ids), _IDS_MAX)
                for document in await self._get(list(ids[start : start + _IDS_MAX]), with_vectors)
            ]
        except IndexNotFoundError:
            return []

    async def find(
        self, where: Where = None, *, with_vectors: bool = False
    ) -> list[StoredDocument]:
        """Return all documents that pass a filter, in a fixed order."""
        condition = await self._condition(where)
        pages = self.client.scroll(self.name, condition, with_vectors=with_vectors)
        documents: list[StoredDocument] = []
        try:
            if isinstance(pages, AsyncIterable):
                async for page in pages:
                    documents += map(_document, page)
            else:
                for page in pages:
                    documents += map(_document, page)
        except IndexNotFoundError:
            return []
        return documents

    async def count(self, where: Where = None) -> int:
        """Return the number of documents, or of those that pass a filter."""
        condition = await self._condition(where)
        try:
            return int(await self._call("count", condition))
        except IndexNotFoundError:
            return 0

    async def search(
        self,
        vector: npt.ArrayLike,
        where: Where = None,
        **options: Any,  # noqa: ANN401  # each option has a type of its own
    ) -> list[DocumentHit]:
        """Return up to `k` documents near a vector.

        vector: (dims,) numbers.
        where: a condition, or a function of the declared metadata that returns one.
        options: those of `Client.query`, such as `k` and `diversity`.
        """
        condition = await self._condition(where)
        if not self._is_metric_checked:
            await self._find_metric()
        query = np.asarray(vector, np.float32)
        try:
            result = await self._call(
                "query", query, filter=condition, with_payload=True, **options
            )
        except IndexNotFoundError:
            return []
        return [
            DocumentHit(parse_document(hit.id, hit.payload), float(hit.score)) for hit in result[0]
        ]

    async def add_attributes(self, types: Mapping[str, TypeLike]) -> None:
        """Declare further metadata of an index that exists, with the values of its documents."""
        attributes = declare(types)
        documents = await self.find()
        if not documents:
            raise invalid("attributes", "cannot be added: there is no document to add them to")
        added = Metadata(attributes)
        ids = [document.id for document in documents]
        columns = added.columns(documents)
        await self._call("add_attributes", columns, ids=ids, attribute_types=added.types())
        self._info = None

    async def _find_metric(self) -> None:
        """Check the metric of the index, if there is one. Its attributes do not matter."""
        with suppress(IndexNotFoundError):
            self._check_metric(await self._call("get_index"))

    def _check_metric(self, info: IndexInfo) -> None:
        """Raise `InvalidArgumentError` if scores are not those of the metric in `build_options`."""
        metric, present = self._build_options.get("metric"), info.parameters["metric"]
        if metric not in (None, present):
            raise invalid("metric", f"is {metric!r}, but the index {self.name!r} has {present!r}")
        self._is_metric_checked = True

    def _metadata(self, info: IndexInfo | None) -> Metadata:
        return Metadata(info.attributes if info else self._declared)

    async def _condition(self, where: Where) -> Condition | None:
        if where is None:
            return None
        try:
            return condition_of(where, self._metadata(self._info or await self.info()))
        except InvalidArgumentError:
            # Somebody may have added attributes since.
            return condition_of(where, self._metadata(await self.info()))

    async def _write_rows(self, rows: Sequence[StoredDocument], mode: WriteMode) -> None:
        info = await self.info()
        metadata = self._metadata(info)
        arguments: dict[str, Any] = {
            "ids": [row.id for row in rows],
            "attributes": metadata.columns(rows),
            "attribute_types": metadata.types(),
            "payloads": [row.payload() for row in rows],
        }
        vectors = _vectors(rows)
        if info is None and vectors is None:
            await self._build_placeholder()
            info = await self.info()
        if info is None:
            await self._call("build", vectors=vectors, **arguments, **self._build_options)
            self._rows_trained = len(rows)
            return
        await self._call("upsert", vectors=vectors, mode=mode, **arguments)
        await self._retrain_if_grown(info.rows + len(rows))

    async def _build_placeholder(self) -> None:
        """Build the index with one point and delete it, because no document has a vector yet."""
        if not self._dims or not self._build_options.get("vectors_optional"):
            rule = "must be in the first documents, or the number of dimensions must be set"
            raise invalid("vectors", rule)
        row = StoredDocument(_PLACEHOLDER, None, {}, np.eye(1, self._dims)[0])
        await self._write_rows([row], "upsert")
        await self._delete(ids=[_PLACEHOLDER])

    async def _get(self, ids: list[str], with_vectors: bool) -> list[StoredDocument]:
        """Return documents with as few calls as the maximum size of an answer allows."""
        try:
            records = await self._call("get", ids, with_vectors=with_vectors)
        except LimitExceededError as error:
            if error.reason != "REPLY_TOO_LARGE" or len(ids) == 1:
                raise
            middle = len(ids) // 2
            documents = await self._get(ids[:middle], with_vectors)
            return documents + await self._get(ids[middle:], with_vectors)
        return [_document(record) for record in records]

    async def _delete(self, **selection: Any) -> int:  # noqa: ANN401  # ids or a filter
        try:
            return int((await self._call("delete", **selection)).rows)
        except IndexNotFoundError:
            return 0

    async def _retrain_if_grown(self, rows: int) -> None:
        if rows < max(_RETRAIN_ROWS, _RETRAIN_GROWTH * (self._rows_trained or 0)):
            return
        try:
            await self._call("retrain")
        except (BuildUnderWayError, LimitExceededError):
            return  # the next write tries again
        self._rows_trained = rows

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
        """Call a method of the client, and await its result if the client is asynchronous."""
        result = getattr(self.client, method)(self.name, *arguments, **options)
        return await result if inspect.isawaitable(result) else result

    async def _pause(self) -> None:
        if isinstance(self.client, Client):
            time.sleep(_PAUSE_SECONDS)
        else:
            await asyncio.sleep(_PAUSE_SECONDS)


def _vectors(rows: Sequence[StoredDocument]) -> Any:  # noqa: ANN401  # what a build takes
    """Return vectors with None in place of missing ones; None if all are missing."""
    if all(row.vector is None for row in rows):
        return None
    vectors = [None if row.vector is None else np.asarray(row.vector, np.float32) for row in rows]
    sizes = {vector.size for vector in vectors if vector is not None}
    if len(sizes) > 1:
        rule = f"must have the same number of dimensions, got {min(sizes)} and {max(sizes)}"
        raise invalid("vectors", rule)
    return vectors if any(vector is None for vector in vectors) else np.stack(cast("Any", vectors))


def _document(record: Record) -> StoredDocument:
    return parse_document(record.id, record.payload, cast("Any", record.vector))


def _blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate["Documents", P], ResultT]:
    @wraps(method)
    def call(self: "Documents", /, *arguments: P.args, **options: P.kwargs) -> ResultT:
        return sync_stack.run(method(self._documents, *arguments, **options))

    return cast("Callable[Concatenate[Documents, P], ResultT]", call)


class Documents:
    """The methods of `AsyncDocuments` over a `Client`. They return their results."""

    def __init__(self, client: Client, name: str, **options: Any) -> None:  # noqa: ANN401
        """Take the arguments of `AsyncDocuments`."""
        self.client = client
        self._documents = AsyncDocuments(client, name, **options)

    info = _blocking(AsyncDocuments.info)
    write = _blocking(AsyncDocuments.write)
    update_metadata = _blocking(AsyncDocuments.update_metadata)
    delete = _blocking(AsyncDocuments.delete)
    delete_where = _blocking(AsyncDocuments.delete_where)
    delete_index = _blocking(AsyncDocuments.delete_index)
    get = _blocking(AsyncDocuments.get)
    find = _blocking(AsyncDocuments.find)
    count = _blocking(AsyncDocuments.count)
    add_attributes = _blocking(AsyncDocuments.add_attributes)

    def search(
        self,
        vector: npt.ArrayLike,
        where: Where = None,
        **options: Any,  # noqa: ANN401  # each option has a type of its own
    ) -> list[DocumentHit]:
        """Return up to `k` documents near a vector; see `AsyncDocuments.search`."""
        return sync_stack.run(self._documents.search(vector, where, **options))
