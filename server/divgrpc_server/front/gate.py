"""Lets calls in: who calls, whether the caller may, and whether a quota is used up.

A call is checked at its begin, and each of its messages before work is done for it. Once a second
the files of tokens are looked at; running calls whose token was removed, changed or has expired
end.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from grpc import aio

from divgrpc.errors import InvalidArgumentError, PermissionDeniedError
from divgrpc.parameters import check_index_name
from divgrpc_server.codec.statuses import (
    ClusterTokenRefusedError,
    QuotaError,
    ReadOnlyError,
    TokenMalformedError,
    TokenMissingError,
    TokenRefusedError,
)
from divgrpc_server.codec.subjects import IncomingMessage
from divgrpc_server.config import Config
from divgrpc_server.logging.logs import Logger
from divgrpc_server.security import requests
from divgrpc_server.security.cluster import ClusterTokens
from divgrpc_server.security.requests import Request
from divgrpc_server.security.roles import (
    RANK_OF_METHOD,
    ROLE_OF_METHOD,
    ROLES,
    SETTING_DEFAULTS,
    includes,
    is_write,
)
from divgrpc_server.security.tokens import Token, TokenFile
from divgrpc_server.security.usage import Build, Usage

_T = TypeVar("_T")
_Context = aio.ServicerContext[Any, Any]
_Metadata = Iterable[tuple[str, str | bytes]]
_CHECK_SECONDS: Final = 1.0
# Calls that end soon by themselves, so that nothing ends them when their token is removed.
_SHORT: Final = frozenset(
    (
        *("Query", "PredictLabels", "Diversify", "Get", "Count", "Scroll", "Upsert", "Delete"),
        *("GetIndex", "ListIndexes", "DeleteIndex", "GetServerInfo"),
    )
)
_KEY: Final = "authorization"
_SCHEME: Final = "bearer"
_COMMON_NAME: Final = "x509_common_name"
_NAME_CHARACTERS_MAX: Final = 128


class Call:
    """One call at the gate.

    tag: the request id and the trace, as packets carry them.
    deadline: in seconds of `time.monotonic`.
    token: the token, once the call was admitted, None if the server has no tokens.
    certificate: the common name of the client's certificate, "" if there is none.
    is_checked: whether a message of the call passed all checks.
    is_write: whether the call changes an index, or would change it.
    refused_index: the index that the token does not cover, "" if the call was not refused for it.
    result: the outcome of a job, None until it is done.
    rows_of_indexes: the rows of the messages so far by index, None for a single message.
    """

    __slots__ = (
        *("_build", "_gate", "certificate", "deadline", "is_checked", "is_write", "limit"),
        *("method", "refused_index", "tag", "result", "rows_of_indexes", "token"),
    )

    def __init__(self, gate: "Gate", method: str, tag: str, deadline: float) -> None:
        self._gate = gate
        self._build: Build | None = None
        self.method = method
        self.tag = tag
        self.deadline = deadline
        self.token: Token | None = None
        self.certificate = ""
        self.limit: asyncio.Timeout | None = None
        self.is_checked = False
        self.is_write = is_write(method)
        self.refused_index = ""
        self.result: Message | None = None
        self.rows_of_indexes: Mapping[str, int] | None = None

    @property
    def caller(self) -> tuple[str, str]:
        """The name of the token and of the certificate, "" where there is none."""
        return self.token.name if self.token is not None else "", self.certificate

    @property
    def quotas(self) -> Mapping[str, int]:
        """The quotas of the token by name."""
        return {} if self.token is None else self.token.quotas()

    def covers(self, index: str) -> bool:
        """Return whether the caller may know of an index."""
        return self.token is None or self.token.covers(index)

    async def check(self, message: IncomingMessage) -> None:
        """Check a message before work is done for it.

        Raises `PermissionDeniedError`, `QuotaError`, `ReadOnlyError`, and `InvalidArgumentError`
        for a name that is none of an index.
        """
        if self.is_write and self._gate.is_read_only:
            raise ReadOnlyError
        token = self.token
        if token is None:
            return
        if token.covers_all and token.role == ROLES[-1] and not token.limits_storage:
            return
        request = requests.read(message)
        if request.needs_admin and not includes(token.role, SETTING_DEFAULTS):
            raise PermissionDeniedError(
                f"the token {token.name!r} has the role {token.role}, and set_default needs the"
                f" role {SETTING_DEFAULTS}"
            )
        if request.index and not token.covers(check_index_name(request.index)):
            self.refused_index = request.index
            raise PermissionDeniedError(
                f"the token {token.name!r} with the role {token.role} does not cover the index"
                f" {request.index!r}"
            )
        if token.limits_storage and is_write(self.method):
            await self._check_quotas(token, request, len(message.payload))

    async def _check_quotas(self, token: Token, request: Request, size: int) -> None:
        usage = self._gate.usage
        if request.creates and self._build is None:
            self._build = await usage.begin(token, request.index)
        if self._build is not None:
            await usage.grow(token, self._build, request.rows, size)
        elif request.rows or self.method == "AddAttributes":
            await usage.write(token, request.index, request.rows, size)

    def leave(self) -> None:
        """Release what the call holds; call it once, at the end of the call."""
        if self.token is not None:
            self._gate.leave(self, self.token)
        if self._build is not None:
            self._gate.usage.end(self._build)


class Gate:
    """Admits calls.

    root: the folder of the indexes.
    cluster: the tokens of the cluster, one of which all callers of a shard server must send; None
        elsewhere.

    Raises `InvalidArgumentError` if the file of tokens is broken.
    """

    def __init__(
        self, config: Config, root: Path, log: Logger, cluster: ClusterTokens | None = None
    ) -> None:
        self._cluster = cluster
        self._tokens = TokenFile(config.tokens) if config.tokens else None
        self._has_certificates = bool(config.tls_client_ca)
        self._log = log
        self._calls: Counter[str] = Counter()
        self._running: set[Call] = set()
        self.usage = Usage(root)
        self.is_read_only = config.read_only

    def call(self, method: str, context: _Context, tag: str, deadline: float) -> Call:
        """Return a call that is not admitted yet."""
        call = Call(self, method, tag, deadline)
        if self._has_certificates:
            call.certificate = _certificate(context)
        return call

    async def serve(
        self, call: Call, metadata: _Metadata, serve: Callable[[Call], Awaitable[_T]]
    ) -> _T:
        """Admit a call and serve it.

        Raises `UnauthenticatedError`, `PermissionDeniedError` and `QuotaError` for a call that is
        not admitted, and `TokenRefusedError` if its token loses its validity meanwhile.
        """
        if self._cluster is not None:
            _check_cluster(metadata, self._cluster)
        if self._tokens is None:
            return await serve(call)
        self._admit(call, _token(self._tokens, metadata))
        if call.method in _SHORT:
            return await serve(call)
        self._running.add(call)
        try:
            async with asyncio.timeout(None) as call.limit:
                return await serve(call)
        except TimeoutError:
            if call.limit is not None and call.limit.expired():
                raise TokenRefusedError from None
            raise

    def authenticate(self, context: _Context) -> None:
        """Check the token of a call of another service; raises `UnauthenticatedError`."""
        if self._tokens is not None:
            _token(self._tokens, context.invocation_metadata() or ())

    def leave(self, call: Call, token: Token) -> None:
        """Count a call of a token as ended."""
        self._calls[token.name] -= 1
        self._running.discard(call)

    async def keep(self) -> None:
        """Follow the files of tokens until this task is cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if self._cluster is not None:
                self._cluster.refresh()
            if self._tokens is not None:
                self._follow(self._tokens)

    def _follow(self, tokens: TokenFile) -> None:
        """Read the file of tokens if it has changed; end calls whose tokens are not valid."""
        try:
            if tokens.refresh():
                self._log.info("tokens are read again")
        except InvalidArgumentError as error:
            self._log.warning("new tokens are not used", reason=str(error))
        finally:
            for call in self._running:
                is_valid = call.token is not None and tokens.is_valid(call.token)
                if not is_valid and call.limit is not None and not call.limit.expired():
                    call.limit.reschedule(asyncio.get_running_loop().time())

    def _admit(self, call: Call, token: Token) -> None:
        # The call has the token even if it is refused, so that the access line names it.
        call.token = token
        self._calls[token.name] += 1
        if token.rank < RANK_OF_METHOD[call.method]:
            needed = ROLE_OF_METHOD[call.method]
            raise PermissionDeniedError(
                f"the token {token.name!r} has the role {token.role}, and {call.method} needs the"
                f" role {needed}"
            )
        if token.calls is not None and self._calls[token.name] > token.calls:
            raise QuotaError(
                f"the quota calls of the token {token.name!r} is {token.calls} calls in flight;"
                " wait for the answer of an earlier call"
            )


def _check_cluster(metadata: _Metadata, cluster: ClusterTokens) -> None:
    """Raise `UnauthenticatedError` unless the metadata of a call has a token of the cluster."""
    values = [str(value) for key, value in metadata if key == _KEY]
    if not values:
        raise TokenMissingError
    if not cluster.accept(values[0]):
        raise ClusterTokenRefusedError


def _token(tokens: TokenFile, metadata: _Metadata) -> Token:
    values = [value for key, value in metadata if key == _KEY]
    if not values:
        raise TokenMissingError
    scheme, _, secret = str(values[0]).partition(" ")
    if len(values) > 1 or scheme.lower() != _SCHEME or not secret:
        raise TokenMalformedError
    token = tokens.find(secret)
    if token is None:
        raise TokenRefusedError
    return token


def _certificate(context: _Context) -> str:
    """Return the common name of the client's certificate, without characters that logs reserve."""
    names = context.auth_context().get(_COMMON_NAME, ())
    text = next(iter(names), b"").decode(errors="replace")
    safe = (c if c.isascii() and c.isprintable() and c not in '"\\' else "?" for c in text)
    return "".join(safe)[:_NAME_CHARACTERS_MAX]
