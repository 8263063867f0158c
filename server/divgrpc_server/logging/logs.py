"""Logging: structlog for rare events, and a buffered writer for access lines.

All logs go to standard error, as JSON or as text. structlog takes about ten microseconds per event,
which is too slow for a line per call. So `AccessLog` stores the values of each line in a tuple, and
formats the lines of each quarter of a second together.
"""

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, TextIO, cast

import structlog

from divgrpc.parameters import INDEX_NAME
from divgrpc_server.config import Config
from divgrpc_server.logging.nonblocking_pipe import WRITE_BYTES_MAX, LogSink

_STDERR: Final = 2
_FLUSH_SECONDS: Final = 0.25
_LINES_MAX: Final = 10_000
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}

Logger = structlog.typing.FilteringBoundLogger


def wants_json(config: Config) -> bool:
    """Return whether logs are JSON; `auto` means JSON unless standard error is a terminal."""
    if config.log_format == "auto":
        return not sys.stderr.isatty()
    return config.log_format == "json"


def configure(config: Config, role: str, serial: int = 0) -> Logger:
    """Set up structlog for this process and return its logger."""
    json = wants_json(config)
    fields = config.log_fields
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
        logger_factory=structlog.WriteLoggerFactory(
            cast("TextIO", LogSink(_STDERR, in_json=json, fields=fields))
        ),
        cache_logger_on_first_use=True,
    )
    return cast("Logger", structlog.get_logger(process=role, serial=serial, **fields))


@contextlib.contextmanager
def edge(log: Logger) -> Iterator[None]:
    """Log an exception that would end this process, with its traceback, and exit with code 1."""
    try:
        yield
    except Exception:
        log.exception("fault")
        raise SystemExit(1) from None


def log_faults_of(loop: asyncio.AbstractEventLoop, log: Logger) -> None:
    """Log the exceptions that no code in the event loop handles."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        log.error("fault", reason=context["message"], exc_info=error if error else None)

    loop.set_exception_handler(handle)


# The index, the number of rows, and k of a call; "" and None for values that it does not have.
# The index is "*" if the queries of a stream use several indexes.
SubjectFields = tuple[str, int | None, int | None]

# The values of an access line: end of the call in seconds since 1970, method, code, duration in
# seconds, request id, peer, text of the subject. Tuples and % templates are used because they are
# the fastest way in Python to write a line for every call.
_Call = tuple[float, str, str, float, str, str, str]
# Maximum number of characters in the name of an index.
_NAME_CHARACTERS_MAX: Final = 63
_JSON: Final = (
    '{"event": "call", "method": "%s", "code": "%s", "duration_ms": %.3f, %s"request_id": "%s", '
    '"peer": "%s", "level": "info", "timestamp": "%s.%06dZ"}\n'
)
_CONSOLE: Final = "%s.%06dZ [info     ] %s %s %.3f ms%s request_id=%s peer=%s\n"
_REASON: Final = re.compile("[A-Z][A-Z_]*")
_NUMBERS: Final = re.compile("[0-9,]+")
_JSON_TRACE: Final = '"trace_id": "%s", "span_id": "%s", '
_CONSOLE_TRACE: Final = " trace_id=%s span_id=%s"


class AccessLog:
    """Writes one line per call; the lines of each quarter of a second are written together.

    Values are not escaped, because the server creates or validates all of them. The name of an
    index, which the caller sends, is written only if it is valid.
    """

    def __init__(self, config: Config, *, descriptor: int = _STDERR) -> None:
        # Whether access lines are written. If not, callers need not parse requests for their
        # subjects.
        self.enabled = config.access_log and _LEVELS[config.log_level] <= _LEVELS["info"]
        self._in_json = wants_json(config)
        fields = config.log_fields
        self._sink = LogSink(descriptor, in_json=self._in_json, fields=fields)
        form = '"%s": %d, ' if self._in_json else " %s=%d"
        self._fields_text = "".join(form % field for field in fields.items())
        self._calls: list[_Call] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(
        self,
        method: str,
        code: str,
        seconds: float,
        request_id: str,
        peer: str,
        *,
        subject: SubjectFields = ("", None, None),
        refusal: tuple[str, str] = ("", ""),
        trace: tuple[str, str, bool] | None = None,
        caller: tuple[str, str] = ("", ""),
    ) -> None:
        """Add the line of a call that has just ended after `seconds`.

        refusal: the reason of an error, and the shards that it names; "" for none.
        trace: the ids of its trace and its span, and whether it is sampled.
        caller: the name of the token and of the certificate, "" for none.
        """
        if not self.enabled:
            return
        # Do not keep a text that is too long to be a name in memory.
        is_short = len(subject[0]) <= _NAME_CHARACTERS_MAX
        text = self._fields_text
        if is_short:
            text += _subject_text(self._in_json, *subject)
        if refusal != ("", ""):
            text += _refusal_text(self._in_json, *refusal)
        if trace is not None:
            text += (_JSON_TRACE if self._in_json else _CONSOLE_TRACE) % trace[:2]
        if caller != ("", ""):
            text += _caller_text(self._in_json, *caller)
        self._calls.append((time.time(), method, code, seconds, request_id, peer, text))
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_FLUSH_SECONDS, self.flush)
        elif len(self._calls) >= _LINES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls = self._calls, []
        block: list[str] = []
        size = 0
        for line in map(self._format, calls):
            if size + len(line) > WRITE_BYTES_MAX:
                self._sink.write("".join(block))
                block, size = [], 0
            block.append(line)
            size += len(line)
        if block:
            self._sink.write("".join(block))

    def _format(self, call: _Call) -> str:
        end, method, code, seconds, request_id, peer, subject = call
        second = int(end)
        stamp, fraction, duration = _timestamp(second), (end - second) * 1e6, seconds * 1e3
        if self._in_json:
            return _JSON % (method, code, duration, subject, request_id, peer, stamp, fraction)
        return _CONSOLE % (stamp, fraction, method, code, duration, subject, request_id, peer)

    def close(self) -> None:
        """Write the buffered lines, and close the sink."""
        self.flush()
        self._sink.close()


@lru_cache(maxsize=4096)  # most calls repeat the subject of an earlier call
def _subject_text(in_json: bool, index: str, rows: int | None, k: int | None) -> str:
    """Return the subject as a part of a line, or "" if the index is not a valid name."""
    if index != "*" and not INDEX_NAME.fullmatch(index):
        return ""
    numbers = [(name, number) for name, number in (("rows", rows), ("k", k)) if number is not None]
    if in_json:
        return "".join((f'"index": "{index}", ', *(f'"{name}": {n}, ' for name, n in numbers)))
    return "".join((f" index={index}", *(f" {name}={n}" for name, n in numbers)))


@lru_cache(maxsize=256)
def _refusal_text(in_json: bool, reason: str, shards: str) -> str:
    """Return the reason of an error as a part of a line.

    A reason or a list of shards with unexpected characters is left out, because nothing is escaped.
    """
    fields = [("reason", reason if _REASON.fullmatch(reason) else "")]
    fields.append(("shards", shards if _NUMBERS.fullmatch(shards) else ""))
    form = '"%s": "%s", ' if in_json else " %s=%s"
    return "".join(form % field for field in fields if field[1])


@lru_cache(maxsize=4096)
def _caller_text(in_json: bool, token: str, certificate: str) -> str:
    """Return the caller as a part of a line; neither name has a quotation mark or a backslash."""
    names = [(key, name) for key, name in (("token", token), ("certificate", certificate)) if name]
    if in_json:
        return "".join(f'"{key}": "{name}", ' for key, name in names)
    return "".join(f' {key}="{name}"' for key, name in names)


@lru_cache(maxsize=2)  # a flush spans a second or two
def _timestamp(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
