"""What the indexes of a token hold, compared with its quotas.

Points and bytes are measured at most once a second, from the files of the indexes, and less often
if there are many. What callers send after a measurement is added to it until the next one. A build
is added until its call ends, because its index is measured only then. So a front exceeds a quota at
most by the calls in flight at a measurement; several fronts measure for themselves.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

from divgrpc.errors import DivgrpcError
from divgrpc.storage.generations import IndexFolder, list_indexes
from divgrpc.storage.published import bytes_below
from divgrpc_server.codec.statuses import QuotaError
from divgrpc_server.security.tokens import Token

_MEASURE_SECONDS: Final = 1.0
# A measurement of many indexes is followed by a pause of this multiple of its duration.
_PAUSES: Final = 10
_ADVICE: Final = "delete points or indexes, or ask the operator for a larger quota"


class Size(NamedTuple):
    """The points of an index, and the bytes of its files."""

    rows: int
    bytes: int


class Build:
    """An index that a call is building."""

    __slots__ = ("bytes", "name", "rows")

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self.bytes = 0


class Usage:
    """The sizes of all indexes in the folder `root`, with the points that calls are adding."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sizes: dict[str, Size] = {}
        self._next_start = 0.0
        self._measuring = asyncio.Lock()
        # What was written since the last measurement, by index.
        self._rows: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._builds: set[Build] = set()

    async def write(self, token: Token, index: str, rows: int, size: int) -> None:
        """Admit a write of points to an index; raises `QuotaError`."""
        await self._measure()
        self._check(token, rows, size)
        self._rows[index] += rows
        self._bytes[index] += size

    async def begin(self, token: Token, index: str) -> Build:
        """Admit the begin of a build; raises `QuotaError`."""
        await self._measure()
        names = {build.name for build in self._builds} | self._sizes.keys()
        count = sum(map(token.covers, names - {index})) + 1
        if token.max_indexes is not None and count > token.max_indexes:
            raise _refusal(token, "max_indexes", token.max_indexes, "indexes", count)
        build = Build(index)
        self._builds.add(build)
        return build

    async def grow(self, token: Token, build: Build, rows: int, size: int) -> None:
        """Admit a message of a build; raises `QuotaError`.

        An index that is replaced does not count, because its points go away.
        """
        await self._measure()
        self._check(token, rows, size, replaced=build.name)
        build.rows += rows
        build.bytes += size

    def end(self, build: Build) -> None:
        """Forget a build; the next check measures its index."""
        self._builds.discard(build)
        self._next_start = 0.0

    def _check(self, token: Token, rows: int, size: int, replaced: str = "") -> None:
        names = [name for name in self._sizes if name != replaced and token.covers(name)]
        builds = [build for build in self._builds if token.covers(build.name)]
        if token.max_rows is not None:
            rows += sum(self._sizes[name].rows + self._rows[name] for name in names)
            rows += sum(build.rows for build in builds)
            if rows > token.max_rows:
                raise _refusal(token, "max_rows", token.max_rows, "points", rows)
        if token.max_bytes is not None:
            size += sum(self._sizes[name].bytes + self._bytes[name] for name in names)
            size += sum(build.bytes for build in builds)
            if size > token.max_bytes:
                raise _refusal(token, "max_bytes", token.max_bytes, "bytes", size)

    async def _measure(self) -> None:
        async with self._measuring:
            start = time.monotonic()
            if start < self._next_start:
                return
            self._rows.clear()
            self._bytes.clear()
            self._sizes = await asyncio.to_thread(_sizes, self._root)
            end = time.monotonic()
            self._next_start = end + max(_MEASURE_SECONDS, _PAUSES * (end - start))


def _refusal(token: Token, quota: str, limit: int, unit: str, count: int) -> QuotaError:
    return QuotaError(
        f"the quota {quota} of the token {token.name!r} is {limit} {unit}, and this call would make"
        f" it {count}; {_ADVICE}"
    )


def _sizes(root: Path) -> dict[str, Size]:
    return {name: _size(root / name) for name in list_indexes(root)}


def _size(folder: Path) -> Size:
    try:
        rows = IndexFolder(folder).read_info().rows
    except (DivgrpcError, OSError):
        rows = 0  # deleted meanwhile, or damaged
    return Size(rows, bytes_below(folder))
