"""Logs: structlog for what happens now and then, a buffered writer for the line of each call.

Everything goes to standard error, as JSON or for people. structlog costs some ten microseconds per
event, which is too much for one line per call: `AccessLog` keeps what a line needs in a tuple and
formats a quarter of a second's calls at once.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

import structlog

from divgrpc_server.config import Config

_STDERR: Final = 2
_FLUSH_SECONDS: Final = 0.25
_LINES_MAX: Final = 10_000
# Writes up to this size stay whole when several processes share a pipe.
_WRITE_BYTES: Final = 4096
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Logger = structlog.typing.FilteringBoundLogger


def wants_json(config: Config) -> bool:
    """Tell whether logs are JSON, which `auto` decides by looking for a terminal."""
    if config.log_format == "auto":
        return not sys.stderr.isatty()
    return config.log_format == "json"


def configure(config: Config, role: str, serial: int = 0) -> Logger:
    """Set up structlog for this process and return its logger."""
    json = wants_json(config)
    last: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[config.log_level]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    return cast("Logger", structlog.get_logger(process=role, serial=serial))


@contextlib.contextmanager
def edge(log: Logger) -> Iterator[None]:
    """Log whatever would end this process, whole, and end it with exit code 1."""
    try:
        yield
    except Exception:
        log.exception("fault")
        raise SystemExit(1) from None


def log_faults_of(loop: asyncio.AbstractEventLoop, log: Logger) -> None:
    """Have the loop log what nobody else caught as all else is logged."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        log.error("fault", reason=context["message"], exc_info=error if error else None)

    loop.set_exception_handler(handle)


class AccessLine(NamedTuple):
    """What the line of one call is made of; `ended` in seconds since 1970."""

    ended: float
    method: str
    code: str
    seconds: float
    request_id: str
    peer: str


class AccessLog:
    """Writes one line per call, a quarter of a second's at a time.

    The texts of a line come from us or were checked by us, so none needs escaping.
    """

    def __init__(self, config: Config, *, descriptor: int = _STDERR) -> None:
        self._enabled = config.access_log and _LEVELS[config.log_level] <= _LEVELS["info"]
        self._format = _json_line if wants_json(config) else _console_line
        self._descriptor = descriptor
        self._lines: list[AccessLine] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, method: str, code: str, seconds: float, request_id: str, peer: str) -> None:
        """Take note of a call that ended now."""
        if not self._enabled:
            return
        self._lines.append(AccessLine(time.time(), method, code, seconds, request_id, peer))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_SECONDS, self.flush)
        elif len(self._lines) >= _LINES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        block: list[str] = []
        size = 0
        for line in map(self._format, lines):
            if size + len(line) > _WRITE_BYTES:
                self._write(block)
                block, size = [], 0
            block.append(line)
            size += len(line)
        self._write(block)

    def _write(self, block: list[str]) -> None:
        rest = "".join(block).encode()
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            pass  # whoever read the log is gone, or reads too slowly; calls matter more


def _timestamp(seconds: float) -> str:
    whole = int(seconds)
    return f"{_second(whole)}.{int((seconds - whole) * 1e6):06d}Z"


_last_second: tuple[int, str] = (0, "")


def _second(whole: int) -> str:
    global _last_second  # noqa: PLW0603  # the lines of one flush share a second or two
    if _last_second[0] != whole:
        _last_second = whole, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return _last_second[1]


def _json_line(line: AccessLine) -> str:
    return (
        f'{{"event": "call", "method": "{line.method}", "code": "{line.code}", '
        f'"duration_ms": {line.seconds * 1e3:.3f}, "request_id": "{line.request_id}", '
        f'"peer": "{line.peer}", "level": "info", "timestamp": "{_timestamp(line.ended)}"}}\n'
    )


def _console_line(line: AccessLine) -> str:
    return (
        f"{_timestamp(line.ended)} [info     ] {line.method} {line.code} "
        f"{line.seconds * 1e3:.3f} ms request_id={line.request_id} peer={line.peer}\n"
    )
