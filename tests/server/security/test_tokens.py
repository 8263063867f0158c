"""Tokens of a running server: changes of their file, quotas, logs, and running streams."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from divgrpc.errors import (
    InvalidArgumentError,
    LimitExceededError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from divgrpc_client import TLS, Client, Upsert
from divgrpc_protos.v1 import index_pb2
from support.data.certificates import Authority, Pair, tls_options
from support.processes.running_server import RunningServer, eventually
from support.requests.named_requests import naming
from support.requests.raw_security import entry, write

POINTS = np.eye(8, dtype=np.float32)
ADMIN = entry("admin", "admin", "admin", ["*"])
# A running call ends within this time after its token was removed: the page says so.
_END_SECONDS = 2.0


class Guarded:
    """A server with tokens, and its file."""

    def __init__(self, server: RunningServer, file: Path) -> None:
        self.server = server
        self.file = file

    def client(self, token: str) -> Client:
        """Return a client with a token."""
        return Client(self.server.target, token=token, timeout=30)

    def put(self, *entries: str) -> None:
        """Replace all tokens except the administrator's, and wait until they are in use."""
        write(self.file, ADMIN, *entries)
        time.sleep(1.3)

    def audit(self, **values: object) -> list[dict[str, Any]]:
        """Return the audit lines with these values."""
        lines = (line for line in self.server.log.splitlines() if '"audit"' in line)
        lines_of_audit: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [line for line in lines_of_audit if values.items() <= line.items()]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Run a server with the token of an administrator, without access lines."""
    folder = tmp_path_factory.mktemp("guarded")
    file = write(folder / "tokens.toml", ADMIN)
    words = ("--tokens", str(file), "--data-dir", str(folder / "data"), "--workers", "1")
    quiet = ("--no-access-log", "--log-level", "warning")
    with RunningServer(folder, *words, *quiet) as server:
        yield Guarded(server, file)


def test_tokens_come_and_go_without_a_restart(guarded: Guarded) -> None:
    with guarded.client("late") as client:
        with pytest.raises(UnauthenticatedError, match="not known or has expired") as refusal:
            client.list_indexes()
        assert refusal.value.reason == "TOKEN_REFUSED"
        guarded.put(entry("late", "late", "reader", ["*"]))
        assert client.list_indexes() == ()
        guarded.file.write_text("[[token]]\nrole = 'king'")
        time.sleep(1.3)
        assert client.list_indexes() == ()
        warnings = [line for line in guarded.server.log.splitlines() if "tokens are not" in line]
        assert len(warnings) == 1
        assert f"{guarded.file}, line 1" in warnings[0]
        guarded.put()
        with pytest.raises(UnauthenticatedError):
            client.list_indexes()


def test_a_client_reads_its_token_again(guarded: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("wrong\n")
    with Client(guarded.server.target, token=file, timeout=30) as client:
        with pytest.raises(UnauthenticatedError):
            client.server_info()
        file.write_text("admin\n")
        assert client.server_info().workers == 1


def paused(guarded: Guarded, kind: str, release: threading.Event) -> grpc.StatusCode:
    """Make a call of the token `stream` that pauses after a message; return its status."""
    header = index_pb2.BuildRequest(header=index_pb2.BuildHeader(index="slow")).SerializeToString()

    def items(item: Any) -> Iterator[Any]:  # noqa: ANN401  # of any stream
        yield item
        release.wait(20)

    with guarded.client("stream") as client, guarded.server.channel() as bare:
        channel: Any = bare
        build = channel.stream_stream("/divgrpc.v1.DiverseIndex/Build")
        token = (("authorization", "Bearer stream"),)
        calls: dict[str, Callable[[], object]] = {
            "query": lambda: list(client.query_stream("shop-stream", items(POINTS[0]), k=1)),
            "write": lambda: list(
                client.write_stream("shop-stream", items(Upsert([1], POINTS[:1])))
            ),
            "build": lambda: list(build(items(header), metadata=token, timeout=30)),
        }
        try:
            calls[kind]()
        except UnauthenticatedError:
            return grpc.StatusCode.UNAUTHENTICATED
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
        else:
            code = grpc.StatusCode.OK
    return code


@pytest.mark.parametrize("end", ["removed", "expired", "changed"])
@pytest.mark.parametrize("kind", ["query", "write", "build"])
def test_running_streams_end_with_their_token(guarded: Guarded, end: str, kind: str) -> None:
    with guarded.client("admin") as client:
        client.build("shop-stream", POINTS, replace=True)
    expiry: float = int(time.time()) + 6
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expiry))
    more = {"expires": text} if end == "expired" else {}
    guarded.put(entry("stream", "stream", "admin", ["*"], **more))
    release, end_times = threading.Event(), list[float]()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(paused, guarded, kind, release)
        call.add_done_callback(lambda _: end_times.append(time.time()))
        time.sleep(1.5)
        assert not call.done()
        if end != "expired":
            role = ("reader",) if end == "changed" else ()
            write(guarded.file, ADMIN, *(entry("stream", "stream", r, ["*"]) for r in role))
            expiry = time.time()
        wait([call], timeout=10)
        release.set()
        assert call.result() is grpc.StatusCode.UNAUTHENTICATED
    assert end_times[0] - expiry < _END_SECONDS


def test_each_message_of_a_stream_is_checked(guarded: Guarded) -> None:
    guarded.put(entry("shop", "shop", "writer", ["shop-*"]))
    with guarded.client("admin") as client:
        for name in ("shop-one", "news-one"):
            client.build(name, POINTS, replace=True)
    with guarded.server.channel() as bare:
        channel: Any = bare
        for method in ("QueryStream", "WriteStream"):
            path = f"/divgrpc.v1.DiverseIndex/{method}"
            messages = [naming(method, name) for name in ("shop-one", "news-one", "shop-one")]
            token = (("authorization", "Bearer shop"),)
            stream = channel.stream_stream(path)(iter(messages), metadata=token, timeout=30)
            with pytest.raises(Exception, match="does not cover the index 'news-one'"):
                list(stream)


def test_quotas_of_calls(guarded: Guarded) -> None:
    guarded.put(entry("few", "few", "reader", ["*"], calls=1))
    with guarded.client("admin") as client:
        client.build("shop-calls", POINTS, replace=True)
    release = threading.Event()

    def queries() -> Iterator[Any]:
        yield POINTS[0]
        release.wait(20)

    with guarded.client("few") as client, guarded.client("few") as second:
        assert client.server_info().limits["token_calls"] == 1
        stream = client.query_stream("shop-calls", queries(), k=1)
        next(stream)
        with pytest.raises(LimitExceededError, match="the quota calls of the token 'few' is 1"):
            second.server_info()
        release.set()
        list(stream)
        time.sleep(0.5)
        assert second.server_info().workers == 1


def test_quotas_of_indexes_rows_and_bytes(guarded: Guarded) -> None:
    with guarded.client("admin") as client:
        for info in client.list_indexes():
            client.delete_index(info.name)
    quotas = {"max_indexes": 2, "max_rows": 20}
    guarded.put(
        entry("quota", "quota", "admin", ["shop-*"], **quotas),
        entry("bytes", "bytes", "admin", ["big-*"], max_bytes=50_000_000),
    )
    with guarded.client("quota") as client:
        client.build("shop-a", POINTS)
        client.build("shop-b", POINTS)
        with pytest.raises(LimitExceededError, match="max_indexes of the token 'quota' is 2 ind"):
            client.build("shop-c", POINTS)
        client.build("shop-b", POINTS, replace=True)
        with pytest.raises(LimitExceededError, match=r"max_rows .* is 20 points.*make it 21"):
            client.build(
                "shop-b",
                replace=True,
                vectors=np.ones((13, 8), np.float32) + np.arange(13)[:, None],
            )
        client.upsert("shop-a", [100, 101, 102, 103], POINTS[:4])
        with pytest.raises(LimitExceededError, match="max_rows") as refusal:
            client.upsert("shop-a", [104], POINTS[:1])
        assert refusal.value.reason == "QUOTA_EXCEEDED"
        with pytest.raises(LimitExceededError, match="max_rows"):
            list(client.write_stream("shop-a", [Upsert([105], POINTS[:1])]))
        client.delete("shop-a", [100, 101])
        time.sleep(1.1)
        client.upsert("shop-a", [104], POINTS[:1])
        assert client.count("shop-a") == 11
    with guarded.client("bytes") as client:
        with pytest.raises(LimitExceededError, match="max_bytes"):
            client.build("big-a", np.random.default_rng(0).standard_normal((200_000, 64), "f4"))
        assert client.list_indexes() == ()


def test_every_write_has_an_audit_line(guarded: Guarded) -> None:
    guarded.put(entry("auditor", "auditor", "reader", ["*"]))
    with guarded.client("admin") as client:
        client.build("audit-a", POINTS, replace=True, request_id="build-1")
        client.build("audit-b", POINTS, replace=True)
        client.upsert("audit-a", [1, 2], POINTS[:2], request_id="upsert-1")
        list(client.write_stream("audit-a", [Upsert([3], POINTS[:1])]))
        client.delete("audit-a", [3])
        client.compact("audit-a")
        client.retrain("audit-a")
        client.add_attributes("audit-b", {"colour": ["red"] * 8})
        client.delete_index("audit-b")
        client.query("audit-a", POINTS[0], k=1)
    with guarded.client("auditor") as client, pytest.raises(PermissionDeniedError):
        client.upsert("audit-a", [1], POINTS[:1])
    with guarded.client("nobody") as client, pytest.raises(UnauthenticatedError):
        client.delete_index("audit-a")
    eventually(lambda: bool(guarded.audit(code="UNAUTHENTICATED", index="audit-a")))
    (build,) = guarded.audit(request_id="build-1")
    assert build["token"] == "admin"  # noqa: S105  # a name
    assert build["rows"] == 8
    assert build["generation"] == 1
    assert build["peer"].startswith("ipv4:127.0.0.1:")
    (upsert,) = guarded.audit(request_id="upsert-1")
    assert (upsert["method"], upsert["rows"], upsert["sequence"]) == ("Upsert", 2, 1)
    methods = {line["method"] for line in guarded.audit(code="OK")}
    assert methods >= {"Build", "Upsert", "WriteStream", "Delete", "Compact", "Retrain"}
    assert methods >= {"AddAttributes", "DeleteIndex"}
    assert "Query" not in methods
    assert guarded.audit(code="PERMISSION_DENIED", token="auditor", method="Upsert")  # noqa: S106
    assert "nobody" not in guarded.server.log
    assert '"call"' not in guarded.server.log


def test_lines_name_the_certificate(
    tmp_path: Path, server_pair: Pair, authority: Authority
) -> None:
    pair = authority.issue("shop.example")
    mutual = ("--tls-client-ca", str(authority.ca))
    tls = TLS(ca=authority.ca, cert=pair.cert, key=pair.key)
    with (
        RunningServer(tmp_path, *tls_options(server_pair), *mutual) as server,
        Client(server.target, tls=tls, timeout=30) as client,
    ):
        client.build("one", POINTS)
        client.server_info()
        eventually(lambda: "GetServerInfo" in server.log)
        lines = [json.loads(line) for line in server.log.splitlines()]
        methods = {line["method"]: line for line in lines if line["event"] == "call"}
        assert methods["GetServerInfo"]["certificate"] == "shop.example"
        (audit,) = [line for line in lines if line["event"] == "audit"]
        assert audit["certificate"] == "shop.example"


def test_a_token_does_not_leave_the_machine_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not sent to .* without TLS") as refusal:
        Client("192.0.2.1:1", token="secret-text")  # noqa: S106
    assert "secret-text" not in str(refusal.value)
    Client("192.0.2.1:1", token="secret-text", insecure=True).close()  # noqa: S106
    Client("192.0.2.1:1", token="secret-text", tls=True).close()  # noqa: S106
    monkeypatch.setenv("DIVGRPC_TOKEN", "secret-text")
    with pytest.raises(InvalidArgumentError, match="is not sent"):
        Client("192.0.2.1:1")
    monkeypatch.setenv("DIVGRPC_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidArgumentError, match="is in both"):
        Client("localhost:1")
    monkeypatch.delenv("DIVGRPC_TOKEN")
    with pytest.raises(InvalidArgumentError, match="none cannot be read"):
        Client("localhost:1")
    (tmp_path / "none").write_text("two words")
    with pytest.raises(InvalidArgumentError, match="one word of printable ASCII"):
        Client("localhost:1")
