"""The replies and the credits of the writer process."""

import math
import select
import socket
import threading
from pathlib import Path

import pytest
from google.rpc import code_pb2, status_pb2

from divgrpc_protos.v1 import writes_pb2
from divgrpc_server.config import Config
from divgrpc_server.ipc import control, packets
from divgrpc_server.ipc.packets import Op, Outcome, Reply, Request
from divgrpc_server.logging import logs
from divgrpc_server.worker import process as worker_process
from divgrpc_server.worker.front_link import FrontLink
from divgrpc_server.writer import process as writer_process
from divgrpc_server.writer.process import Writer
from support.processes.fake_front import Front

SMALL = writes_pb2.DeleteRequest(index="absent", ids=[1]).SerializeToString()
LARGE = writes_pb2.DeleteRequest(index="absent", ids=[2**62] * 10_000).SerializeToString()


@pytest.mark.parametrize(
    ("op", "payload", "credit", "code"),
    [
        (Op.DELETE, SMALL, (1, 0, 0), code_pb2.NOT_FOUND),
        (Op.DELETE, LARGE, (0, 1, 0), code_pb2.NOT_FOUND),
        # A large request whose memfd was lost has no payload.
        (Op.LOST, b"", (0, 1, 0), code_pb2.RESOURCE_EXHAUSTED),
    ],
)
def test_each_packet_gets_its_credit_back(
    tmp_path: Path, op: Op, payload: bytes, credit: tuple[int, int, int], code: int
) -> None:
    supervisor_end, writer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    front_end, link_end = packets.pair()
    with supervisor_end, writer_end, front_end:
        config = Config(log_level="error")
        process = control.Process(control.Channel(writer_end), config, tmp_path, 1)
        writer = Writer(process, logs.configure(config, "writer"))
        front = FrontLink(packets.Link(link_end))
        request = Request(7, math.inf, op, "tag", payload)
        front.pending[request.id] = request
        assert writer._serve_packet(front, [request]) == (credit[1] == 1)
        link = packets.Link(front_end)
        view, memfd = link.receive()
        (reply,) = packets.unpack_replies(view, memfd)
        # On a busy machine, a reply that took long is sent before the end of its packet.
        if packets.unpack_credits(view) == (0, 0, 0):
            view, _ = link.receive()
        assert packets.unpack_credits(view) == credit
        front.link.close()
    assert (reply.id, reply.outcome) == (7, Outcome.STATUS)
    assert status_pb2.Status.FromString(reply.payload).code == code


def test_a_long_write_does_not_keep_new_fronts_from_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a front that was just connected would report the writer as silent."""
    monkeypatch.setattr(writer_process, "_LIFE_SECONDS", 0.01)
    monkeypatch.setattr(worker_process, "_ALIVE_SECONDS", 0.01)
    supervisor_end, writer_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    config = Config(log_level="error")
    process = control.Process(control.Channel(writer_end), config, tmp_path, 1)
    writer = Writer(process, logs.configure(config, "writer"))
    has_begun, may_end = threading.Event(), threading.Event()

    def answer_late(_: object) -> list[Reply]:
        has_begun.set()
        may_end.wait(20)
        return []

    monkeypatch.setattr(writer._collections, "answer", answer_late)
    thread = threading.Thread(target=writer.run)
    thread.start()
    with writer_end, supervisor_end:
        channel = control.Channel(supervisor_end)
        first = Front(channel)
        first.send(Request(1, math.inf, Op.DELETE, "tag", SMALL))
        assert has_begun.wait(20)
        second = Front(channel)
        readable, _, _ = select.select([second.link.fileno()], [], [], 10)
        may_end.set()
        supervisor_end.close()
        thread.join(20)
    for front in (first, second):
        front.link.close()
    assert readable
