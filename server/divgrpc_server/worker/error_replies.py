"""Replies that carry errors."""

from divgrpc_server.codec.statuses import explain
from divgrpc_server.ipc.packets import Outcome, Reply
from divgrpc_server.logging.logs import Logger


def pack_error(number: int, tag: str, error: Exception, log: Logger) -> Reply:
    """Return the reply to request `number` that says why it has failed."""
    return Reply(number, Outcome.STATUS, explain(error, tag, log).SerializeToString())
