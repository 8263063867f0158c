"""Logs: structlog for what happens now and then, a buffered writer for the line of each call.

Everything goes to standard error, as JSON or for people. structlog costs some ten microseconds per
event, which is too much for one line per call: `AccessLog` keeps what a line needs in a tuple and
formats a quarter of a second's calls at once.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Final, TextIO, cast

import structlog

from divgrpc_server.config import Config
from divgrpc_server.ipc.subject_lines import NO_SUBJECT, Subject
from divgrpc_server.logging.nonblocking_pipe import WRITE_BYTES, Outlet

_STDERR: Final = 2
_FLUSH_SECONDS: Final = 0.25
_LINES_MAX: Final = 10_000
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
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", Outlet(_STDERR, in_json=json))),
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


# When a call ended in seconds since 1970, its method and code, the seconds it took, its request id,
# its peer and its subject: a bare tuple, since one is made for every call. Filling in a template
# with % is the fastest that Python has for so few texts and numbers.
_AccessLine = tuple[float, str, str, float, str, str, Subject]
_JSON: Final = (
    '{"event": "call", "method": "%s", "code": "%s", "duration_ms": %.3f, %s"request_id": "%s", '
    '"peer": "%s", "level": "info", "timestamp": "%s.%06dZ"}\n'
)
_CONSOLE: Final = "%s.%06dZ [info     ] %s %s %.3f ms%s request_id=%s peer=%s\n"


class AccessLog:
    """Writes one line per call, a quarter of a second's at a time.

    The texts of a line come from us or were checked by us, so none needs escaping.
    """

    def __init__(self, config: Config, *, descriptor: int = _STDERR) -> None:
        json = wants_json(config)
        # Whether lines are written at all. Where none are, subjects of calls are not worth reading.
        self.enabled = config.access_log and _LEVELS[config.log_level] <= _LEVELS["info"]
        self._format = _json_line if json else _console_line
        self._outlet = Outlet(descriptor, in_json=json)
        self._lines: list[_AccessLine] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self,
        method: str,
        code: str,
        seconds: float,
        request_id: str,
        peer: str,
        *,
        subject: Subject = NO_SUBJECT,
    ) -> None:
        """Take note of a call that ended now."""
        if not self.enabled:
            return
        self._lines.append((time.time(), method, code, seconds, request_id, peer, subject))
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
            if size + len(line) > WRITE_BYTES:
                self._outlet.write("".join(block))
                block, size = [], 0
            block.append(line)
            size += len(line)
        if block:
            self._outlet.write("".join(block))

    def close(self) -> None:
        """Write what there is, as the last."""
        self.flush()
        self._outlet.close()


_last_second: tuple[int, str] = (0, "")


def _second(whole: int) -> str:
    global _last_second  # noqa: PLW0603  # the lines of one flush share a second or two
    if _last_second[0] != whole:
        _last_second = whole, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return _last_second[1]


def _json_line(line: _AccessLine) -> str:
    ended, method, code, seconds, request_id, peer, subject = line
    second = int(ended)
    part = (ended - second) * 1e6
    about, stamp = subject.in_json, _second(second)
    return _JSON % (method, code, seconds * 1e3, about, request_id, peer, stamp, part)


def _console_line(line: _AccessLine) -> str:
    ended, method, code, seconds, request_id, peer, subject = line
    second = int(ended)
    part = (ended - second) * 1e6
    about, stamp = subject.for_people, _second(second)
    return _CONSOLE % (stamp, part, method, code, seconds * 1e3, about, request_id, peer)
