"""How engines start shard servers."""

from pathlib import Path

import pytest

from divgrpc_server.__main__ import parser
from divgrpc_server.config import Config, load
from divgrpc_server.engines import shard_process


@pytest.mark.parametrize(
    ("config", "is_logged"),
    [
        (Config(shards=2, log_level="debug"), True),
        (Config(shards=2, log_level="debug", access_log=False), False),
        (Config(shards=2), False),
    ],
)
def test_shard_servers_write_lines_of_calls_for_debugging(config: Config, is_logged: bool) -> None:
    """A call of a client would otherwise have a line for each shard."""
    arguments = shard_process.arguments_of(config, Path("/nowhere"))
    arguments.append(shard_process.place_argument(1, 0))
    started = load(vars(parser().parse_args(arguments)), {}, None)
    assert (started.role, started.access_log) == ("shard", is_logged)
    assert started.log_fields == {"place": 1, "replica": 0}
