"""The sources of the configuration, and the values that the server refuses."""

import dataclasses
import json
import os
import socket
from pathlib import Path
from typing import Any, Final

import pytest

from divgrpc.errors import InvalidArgumentError
from divgrpc_server.__main__ import parser, run
from divgrpc_server.config import Config, load
from divgrpc_server.ipc import control
from divgrpc_server.security.cluster import secret_of
from divgrpc_server.security.options import check
from support.checks.refusals import refused, wrong


def test_defaults_are_for_one_machine() -> None:
    """By default the server listens on the loopback address only."""
    config = load({}, {}, None)
    assert config == Config()
    assert (config.host, config.port) == ("127.0.0.1", 50051)
    assert config.workers >= 1
    assert config.fronts == max(1, len(os.sched_getaffinity(0)) // 4)


def test_arguments_win_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('workers = 2\nfronts = 2\ngrace = 2\nlog_level = "debug"\naccess_log = false\n')
    environment = {"DIVGRPC_FRONTS": "3", "DIVGRPC_GRACE": "3.5", "DIVGRPC_REFLECTION": "no"}
    config = load({"grace": "4"}, environment, file)
    assert (config.workers, config.fronts, config.grace) == (2, 3, 4.0)
    assert (config.log_level, config.access_log, config.reflection) == ("debug", False, False)


def test_children_get_the_same_configuration() -> None:
    config = Config(listen="[::1]:0", workers=3, grace=1.5, reflection=False)
    _, options, secret = json.loads(control.hello(config, Path("/indexes"), 1, "secret").text)
    assert (Config(**options), secret) == (config, "secret")
    assert config.host == "::1"


@wrong(
    listen=("nowhere", ":50051", "host:99999"),
    workers=("0", "many"),
    grace=("-1", "nan"),
    log_format=("xml",),
    reflection=("perhaps",),
)
def test_a_wrong_option_is_named(field: str, value: str) -> None:
    with refused(field):
        load({field: value}, {}, None)


@pytest.mark.parametrize("text", ["wokers = 2\n", "workers = true\n", "workers =\n"])
def test_a_wrong_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "server.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError):
        load({}, {}, file)


def test_a_wrong_option_ends_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 2, and one line on stderr gives the valid range of the option."""
    assert run(["--workers", "0"], {}) == 2
    assert "workers must be between 1 and 1024" in capsys.readouterr().err
    assert run([], {"DIVGRPC_CONFIG": "/nowhere"}) == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "read_only"),
        ({"data_dir": "indexes", "durability": "sync"}, "durability"),
        ({"data_dir": "indexes", "max_builds": "2"}, "max_builds"),
        ({"data_dir": "indexes", "upload_idle": "1"}, "upload_idle"),
        ({"data_dir": "indexes", "retain": "1"}, "retain"),
    ],
)
def test_a_read_only_server_has_no_options_of_writes(options: dict[str, str], field: str) -> None:
    """Even a default is refused, because whoever sets it expects an effect."""
    with refused(field):
        load({**options, "read_only": True}, {}, None)
    if field != "read_only":
        assert load(options, {}, None)
        with refused(field):
            load(
                {"data_dir": "indexes", "read_only": True}, {f"DIVGRPC_{field.upper()}": "2"}, None
            )


def test_help_names_every_option() -> None:
    text = parser().format_help()
    for field in dataclasses.fields(Config):
        is_shown = not field.metadata["is_internal"]
        assert ("--" + field.name.replace("_", "-") in text) == is_shown
        assert field.metadata["help"]


_SHARD: Final = {"role": "shard", "data_dir": "d", "read_only": True, "cluster_token": "t"}
_RAY: Final = {"engine": "ray", "ray_address": "127.0.0.1:6379", "shards": 2, "data_dir": "d"}
_ROUTER: Final = {"shards": 2, "shard_servers": "one:1|two:2, three:3", "cluster_token": "t"}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"replicas": 2}, "replicas"),
        ({"hedge_ms": 5.0}, "hedge_ms"),
        ({"cluster_token": "t"}, "cluster_token"),
        ({**_SHARD, "read_only": False}, "role"),
        ({**_SHARD, "cluster_token": ""}, "role"),
        ({**_SHARD, "shards": 2}, "shards"),
        ({**_SHARD, "tokens": "file"}, "tokens"),
        ({**_ROUTER, "shards": 1}, "shard_servers"),
        ({**_ROUTER, "cluster_token": ""}, "shard_servers"),
        ({**_ROUTER, "replicas": 2}, "replicas"),
        ({**_ROUTER, "shard_servers": "one:1|two"}, "shard_servers"),
        ({**_ROUTER, "shard_servers": "one:1|two:2, three:3|three:3"}, "shard_servers"),
        ({**_ROUTER, "shard_servers": ",".join(["shard.example:1"] * 7_000)}, "shard_servers"),
        ({"shards": 2, "cluster_ca": "file"}, "cluster_ca"),
        ({**_ROUTER, "cluster_name": "shards"}, "cluster_name"),
        ({"data_dir": "d", "cache_dir": "c"}, "cache_dir"),
        ({"shards": 2, "cache_dir": "c"}, "cache_dir"),
        ({**_ROUTER, "data_dir": "d", "cache_dir": "c"}, "cache_dir"),
        ({**_SHARD, "cache_dir": "d/c"}, "cache_dir"),
        ({**_SHARD, "cache_dir": "."}, "cache_dir"),
        ({"log_place": "1/0"}, "log_place"),
        ({**_SHARD, "log_place": "1"}, "log_place"),
        ({**_RAY, "shards": 1}, "engine"),
        ({**_RAY, "data_dir": ""}, "engine"),
        ({**_RAY, **_ROUTER}, "engine"),
        ({**_RAY, "engine": "another"}, "engine"),
        ({**_RAY, "ray_address": ""}, "ray_address"),
        ({**_RAY, "ray_address": "head"}, "ray_address"),
        ({"shards": 2, "ray_address": "head:6379"}, "ray_address"),
    ],
)
def test_options_of_shards_that_contradict_one_another(options: dict[str, Any], field: str) -> None:
    with refused(field):
        Config(**options)


def test_replaced_files_stay_for_shard_servers_on_other_machines() -> None:
    servers = {**_ROUTER, "data_dir": "indexes"}
    assert load(servers, {}, None).retain == 600
    assert load({**servers, "retain": 0.0}, {}, None).retain == 0
    ray = {"engine": "ray", "ray_address": "a:1", "data_dir": "indexes", "shards": 2}
    assert load(ray, {}, None).retain == 600
    for local in ({"data_dir": "indexes"}, {"data_dir": "indexes", "shards": 2}, _ROUTER):
        assert load(local, {}, None).retain == 0
    assert load({**servers, "read_only": True}, {}, None).retain == 0


def test_a_cluster_of_ray_takes_what_shard_servers_of_others_take() -> None:
    options: dict[str, Any] = {**_RAY, "cluster_token": "t", "replicas": 2}
    config = Config(**options, cluster_ca="file")
    assert config.starts_shard_servers
    assert config.far_places == config.shards


def test_shard_servers_have_places_and_replicas() -> None:
    config = Config(**_ROUTER)  # type: ignore[arg-type]  # of any option
    assert config.shard_places == (("one:1", "two:2"), ("three:3",))
    assert not config.starts_shard_servers
    assert Config(shards=2).starts_shard_servers
    assert (config.far_places, Config(shards=2).far_places) == (2, 0)
    assert Config(shards=2, data_dir="d", cache_dir="c").cache_dir == "c"
    assert Config(**_SHARD, cache_dir="c").cache_dir == "c"  # type: ignore[arg-type]  # of any option


def test_children_learn_of_as_many_shard_servers_as_an_index_may_have() -> None:
    """Four of long names at each of 256 places."""
    suffix = "divgrpc-shard.production.svc.cluster.local:50061"
    names = [f"divgrpc-shard-{number}.{suffix}" for number in range(1_024)]
    places = ",".join("|".join(names[first : first + 4]) for first in range(0, 1_024, 4))
    config = Config(**{**_ROUTER, "shards": 256, "shard_servers": places})  # type: ignore[arg-type]  # of any option
    parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with parent, child:
        control.Channel(parent).send(control.hello(config, Path("/indexes"), 1, "secret"))
        delivery = control.Channel(child).receive()
    assert delivery is not None
    _, options, _ = json.loads(delivery[0].text)
    assert len(Config(**options).shard_places) == 256


def test_shard_servers_elsewhere_need_tls(tmp_path: Path) -> None:
    """Also a secret of some length in a file that can be read."""
    secret = tmp_path / "secret"
    secret.write_text("sixteen characters or more\n")
    options: dict[str, Any] = {"shards": 2, "cluster_token": str(secret)}
    check(Config(**options, shard_servers="127.0.0.1:1,[::1]:2"))
    far = Config(**options, shard_servers="127.0.0.1:1,192.0.2.1:2")
    with refused("shard_servers", match="192.0.2.1"):
        check(far)
    check(dataclasses.replace(far, insecure=True))
    with refused("cluster_ca"):
        check(dataclasses.replace(far, cluster_ca=str(tmp_path / "none")))
    token = "of twenty characters"  # noqa: S105  # of this test alone
    secret.write_text(f"{token}\n{token[::-1]}\n")
    assert secret_of(far) == f"{token}\n{token[::-1]}"
    wrong = ("short", "with\x07a bell of sixteen characters", "", f"{token}\nshort")
    for text in (*wrong, "\n".join([token] * 3), f"{token}\n\n{token}"):
        secret.write_text(text)
        with refused("cluster_token"):
            check(dataclasses.replace(far, insecure=True))
