"""The HTTP side of the explorer: a WSGI application, and the server that runs it.

All requests only read. The application answers browsers on this machine alone: the server listens
on the loopback interface, and a request with the name of another host, which a foreign page could
send, is refused. Pages may load scripts, styles and pictures from this server alone.

Werkzeug was chosen because it parses requests and checks hosts, is kept by many people, is pure
Python, and needs only a package that the pages need anyway. The server of the standard library,
which Werkzeug's is made from, would leave these checks to this module.
"""

import json
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc
from werkzeug.exceptions import BadRequest, HTTPException, MethodNotAllowed, NotFound, SecurityError
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from divgrpc.errors import DivgrpcError, IndexNotFoundError, InvalidArgumentError, invalid
from divgrpc_client.explorer.explorer import Explorer
from divgrpc_client.rpc.errors import RpcError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOOPBACK: Final = "127.0.0.1"
_HOSTS: Final = ("localhost", LOOPBACK)
_FOLDER: Final = Path(__file__).parent / "static"
_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/explorer.js": ("explorer.js", "text/javascript; charset=utf-8"),
    "/curve.js": ("curve.js", "text/javascript; charset=utf-8"),
    "/explorer.css": ("explorer.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_PICTURE_SECONDS: Final = 300


class Application:
    """The WSGI application of the page; see the module."""

    def __init__(self, explorer: Explorer) -> None:
        self._files = {
            path: Response((_FOLDER / name).read_bytes(), content_type=kind)
            for path, (name, kind) in _FILES.items()
        }
        self._answers: dict[str, Callable[[Mapping[str, str]], Response]] = {
            "/api/index": lambda _: _json(explorer.describe()),
            "/api/random": lambda _: _json(explorer.random_id()),
            "/api/answer": lambda values: _json(explorer.answer(values)),
            "/api/curve": lambda values: _json(explorer.curve(values)),
            "/thumbnail": lambda values: _picture(explorer, values),
        }

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer one request."""
        request = Request(environ)
        request.trusted_hosts = list(_HOSTS)
        response = self._respond(request)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response(environ, start_response)

    def _respond(self, request: Request) -> Response:
        try:
            return self._route(request)
        except HTTPException as error:
            return _failure(error.code or 500, error.description or error.name, "")
        except InvalidArgumentError as error:
            return _failure(400, str(error), error.field)
        except DivgrpcError as error:
            return _failure(_status(error), str(error), "")

    def _route(self, request: Request) -> Response:
        _check_host(request)
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(["GET", "HEAD"])
        if request.path in self._files:
            file = self._files[request.path]
            return Response(file.get_data(), content_type=file.content_type)
        if request.path not in self._answers:
            raise NotFound(f"there is no {request.path:.80}")
        for name, values in request.args.lists():
            if len(values) > 1:
                raise BadRequest(f"{name:.80} may be set once")
        return self._answers[request.path](request.args.to_dict())


class _Server(WSGIRequestHandler):
    """A handler of connections that writes no line for each request."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def start(application: Application, port: int) -> BaseWSGIServer:
    """Return a server that listens on the loopback interface, on any free port if `port` is 0.

    `serve_forever` of the server answers requests in threads until Ctrl-C. Raises
    `InvalidArgumentError` with the field port.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen()
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or "a port is 0 to 65535"
            raise invalid("port", f"{port} cannot be used: {reason}") from None
        return make_server(
            *(LOOPBACK, port, application),
            threaded=True,
            request_handler=_Server,
            fd=listener.fileno(),
        )


def _check_host(request: Request) -> None:
    try:
        _ = request.host
    except SecurityError:
        raise BadRequest(f"open the page at {' or '.join(_HOSTS)}") from None


def _status(error: DivgrpcError) -> int:
    if isinstance(error, IndexNotFoundError):
        return 404
    if isinstance(error, RpcError) and error.code is grpc.StatusCode.INVALID_ARGUMENT:
        return 400
    return 502


def _json(value: Any, status: int = 200) -> Response:  # noqa: ANN401  # anything that JSON has
    text = json.dumps(value, allow_nan=False)
    return Response(text, status, content_type="application/json")


def _failure(status: int, message: str, field: str) -> Response:
    return _json({"error": {"message": message, "field": field}}, status)


def _picture(explorer: Explorer, values: Mapping[str, str]) -> Response:
    if not values.get("id"):
        raise invalid("id", "must say whose picture is shown")
    content = explorer.picture(values["id"])
    if content is None:
        raise NotFound("the point has no picture")
    response = Response(content, content_type="image/png")
    response.headers["Cache-Control"] = f"private, max-age={_PICTURE_SECONDS}"
    return response
