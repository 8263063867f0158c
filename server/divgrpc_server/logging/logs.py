"""Logs: structlog for rare events, a buffered writer for the access line of each call.

Everything goes to standard error, as JSON or as text for a console. structlog takes some ten
microseconds per event, which is too much for every call. `AccessLog` keeps the values of a line in
a tuple, and formats the calls of a quarter of a second at once.
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
from divgrpc_server.logging.nonblocking_pipe import WRITE_BYTES_MAX, LogSink

_STDERR: Final = 2
_FLUSH_SECONDS: Final = 0.25
_LINES_MAX: Final = 10_000
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Logger = structlog.typing.FilteringBoundLogger


def wants_json(config: Config) -> bool:
    """Return whether logs are JSON; with `auto` they are, unless standard error is a terminal."""
    if config.log_format == "auto":
        return not sys.stderr.isatty()
    return config.log_format == "json"


def configure(config: Config, role: str, serial: int = 0) -> Logger:
    """Set up structlog for this process and return its logger."""
    json = wants_json(config)
    renderers: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[config.log_level]),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", LogSink(_STDERR, in_json=json))),
        cache_logger_on_first_use=True,
    )
    return cast("Logger", structlog.get_logger(process=role, serial=serial))


@contextlib.contextmanager
def edge(log: Logger) -> Iterator[None]:
    """Log an exception that would end this process with its traceback; exit with code 1."""
    try:
        yield
    except Exception:
        log.exception("fault")
        raise SystemExit(1) from None


def log_faults_of(loop: asyncio.AbstractEventLoop, log: Logger) -> None:
    """Log the exceptions that nothing in the event loop caught."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        log.error("fault", reason=context["message"], exc_info=error if error else None)

    loop.set_exception_handler(handle)


# End of a call in seconds since 1970, method, code, duration in seconds, request id, peer, subject.
# Every call needs one, and a tuple and a % template are the cheapest way in Python.
_AccessLine = tuple[float, str, str, float, str, str, Subject]
_JSON: Final = (
    '{"event": "call", "method": "%s", "code": "%s", "duration_ms": %.3f, %s"request_id": "%s", '
    '"peer": "%s", "level": "info", "timestamp": "%s.%06dZ"}\n'
)
_CONSOLE: Final = "%s.%06dZ [info     ] %s %s %.3f ms%s request_id=%s peer=%s\n"


class AccessLog:
    """Writes one line per call, the calls of a quarter of a second at a time.

    No text of a line needs escaping: the server made it or checked it.
    """

    def __init__(self, config: Config, *, descriptor: int = _STDERR) -> None:
        json = wants_json(config)
        # Whether lines are written. If not, callers need not find out the subjects of calls.
        self.enabled = config.access_log and _LEVELS[config.log_level] <= _LEVELS["info"]
        self._format = _json_line if json else _console_line
        self._sink = LogSink(descriptor, in_json=json)
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
        """Add the line of a call that has just ended and took `seconds`."""
        if not self.enabled:
            return
        self._lines.append((time.time(), method, code, seconds, request_id, peer, subject))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_SECONDS, self.flush)
        elif len(self._lines) >= _LINES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the lines that are waiting."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        block: list[str] = []
        size = 0
        for line in map(self._format, lines):
            if size + len(line) > WRITE_BYTES_MAX:
                self._sink.write("".join(block))
                block, size = [], 0
            block.append(line)
            size += len(line)
        if block:
            self._sink.write("".join(block))

    def close(self) -> None:
        """Write the lines that are waiting, and close the sink."""
        self.flush()
        self._sink.close()


_last_second: tuple[int, str] = (0, "")


def _second(whole: int) -> str:
    global _last_second  # noqa: PLW0603  # a flush spans a second or two
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
