"""The configuration of the server, an immutable object that is created at startup.

The value of an option is taken from the first source that sets it: the command line, the
environment, the TOML file. Otherwise the option has its default. An option has the same name in all
sources, such as ``--data-dir``, ``DIVGRPC_DATA_DIR`` and ``data_dir = "..."``. Child processes
receive the object as JSON. Only `__main__` reads the environment.
"""

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from divgrpc.errors import invalid
from divgrpc.parameters.limits import LIMITS

ENVIRONMENT_PREFIX: Final = "DIVGRPC_"
# The maximum number of evaluations that a server runs at the same time.
EVALUATIONS_MAX: Final = 2
# Options about what a read-only server refuses.
_OF_WRITES: Final = ("durability", "retain", "max_builds", "upload_idle")
_RETAIN_SECONDS: Final = 600.0
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")
# Each process gets the configuration in one message (`control`).
_ADDRESSES_LENGTH_MAX: Final = 96 << 10
_PLACE: Final = re.compile(r"[0-9]{1,3}/[0-9]{1,3}")


def _option(
    default: object,
    help_text: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    choices: tuple[str, ...] = (),
    is_internal: bool = False,
) -> Any:  # noqa: ANN401  # like dataclasses.field, of the type of its field
    metadata = {
        "help": help_text, "low": low, "high": high, "choices": choices, "is_internal": is_internal,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The options of the server; the help text of each option explains it.

    Raises `InvalidArgumentError`, which names the option, for an out-of-range value.
    """

    listen: str = _option("127.0.0.1:50051", "host:port to listen on; port 0 takes a free one")
    data_dir: str = _option(
        "", "folder of the indexes; without it they live in memory and end with the server"
    )
    read_only: bool = _option(
        False,
        "answer from a data directory that another server writes to, and change nothing in it",
    )
    shards: int = _option(
        1,
        "parts among which builds divide an index; above 1, this server starts a shard server for"
        " each part, and asks them",
        low=1,
        high=LIMITS["shards_max"],
    )
    replicas: int = _option(
        1,
        "shard servers that are started for each shard, so that one of them may be down",
        low=1,
        high=16,
    )
    hedge_ms: float = _option(
        0.0,
        "milliseconds after which another replica of a shard is asked too; 0: the time in which 95"
        " of 100 calls are answered",
        low=0,
    )
    engine: str = _option(
        "local",
        "what starts the shard servers: local, on this machine; ray, on the nodes of a Ray cluster",
        choices=("local", "ray"),
    )
    ray_address: str = _option("", "host:port of the head of the Ray cluster")
    engine_wait: float = _option(
        10.0,
        "seconds in which the Ray cluster must let this server in and have enough nodes",
        low=1,
    )
    shard_memory: int = _option(
        512 * 2**20,
        "bytes that Ray keeps free for each shard server; more if its shards are larger",
        low=1,
    )
    role: str = _option(
        "index",
        "index: serve clients; shard: answer routers that have the cluster token, which needs"
        " --read-only",
        choices=("index", "shard"),
    )
    shard_servers: str = _option(
        "",
        "addresses of shard servers that run already, instead of those that this server would"
        " start: a comma between places, | between the replicas at a place",
    )
    cluster_token: str = _option("", "file of the secret that the servers of a cluster share")
    cluster_ca: str = _option(
        "", "PEM file of the authorities that have signed the certificates of shard servers"
    )
    cluster_name: str = _option(
        "",
        "name in the certificates of all shard servers; by default the host in the address of each",
    )
    cache_dir: str = _option(
        "", "folder in which shard servers keep copies of their shards, on a disk of their machine"
    )
    workers: int = _option(
        max(1, _cores() - 1),
        "processes that answer queries; by default one fewer than the cores",
        low=1,
        high=1024,
    )
    fronts: int = _option(
        max(1, _cores() // 4),
        "processes that speak gRPC, sharing the port; by default one for each four cores",
        low=1,
        high=256,
    )
    tls_cert: str = _option("", "PEM file of the server's certificate, read again when it changes")
    tls_key: str = _option("", "PEM file of the key of tls_cert, without a passphrase")
    tls_client_ca: str = _option(
        "", "PEM file of the authorities whose certificates clients must show (mutual TLS)"
    )
    tokens: str = _option("", "TOML file of the tokens that callers must send")
    insecure: bool = _option(False, "listen without TLS where other machines can connect")
    log_format: str = _option(
        "auto", "json, console, or auto: console on a terminal", choices=("auto", "json", "console")
    )
    log_level: str = _option(
        "info", "lowest level of log lines", choices=("debug", "info", "warning", "error")
    )
    # Not in the help and the pages: only an engine knows where a server is.
    log_place: str = _option(
        "",
        "place and replica of a shard server, such as 2/0, which all lines of its log then have",
        is_internal=True,
    )
    access_log: bool = _option(True, "one line per call, at level info")
    reflection: bool = _option(
        True, "let tools such as grpcurl list the methods; with TLS or tokens, off unless asked for"
    )
    metrics: str = _option(
        "",
        "host:port of metrics and probes over HTTP; port 0 takes a free one, which is logged;"
        " without it there are none",
    )
    recall_sample: float = _option(
        0.0,
        "share of queries whose recall workers measure when they have time; needs --metrics",
        low=0,
        high=1,
    )
    ready_file: str = _option("", "file that gets host:port once the server serves")
    grace: float = _option(10.0, "seconds to finish running calls after a signal to stop", low=0)
    durability: str = _option(
        "sync",
        "when a write is acknowledged: sync, once it is on the disk; interval, 50 ms before;"
        " process, once it outlives the server's processes, but not a loss of power",
        choices=("sync", "interval", "process"),
    )
    retain: float = _option(
        0.0,
        "seconds for which replaced files stay, for servers on other machines that mount data_dir"
        " by NFS; by default 600 with engine ray or shard_servers",
        low=0,
    )
    max_builds: int = _option(
        2, "builds at a time, over all indexes; and as many vacuums and retrainings", low=1, high=64
    )
    upload_idle: float = _option(
        60.0, "seconds without a message after which an upload is cancelled", low=0.01
    )
    queue_calls: int = _option(1024, "queries that a front queues; further ones are refused", low=1)
    queue_bytes: int = _option(
        64 * 2**20, "bytes of queries that a front queues; further ones are refused", low=1
    )
    pending_calls: int = _option(
        64, "calls that gRPC queues for a busy front; it ends further calls as CANCELLED", low=1
    )
    stream_window: int = _option(
        256,
        "queries of one QueryStream, or writes of one WriteStream, that run at a time",
        low=1,
        high=65536,
    )
    worker_wait: float = _option(
        5.0, "seconds that a query waits for a worker if none is up", low=0
    )
    worker_silence: float = _option(
        20.0, "seconds of silence after which a busy worker is replaced", low=0.1
    )
    worker_awake: float = _option(
        0.001,
        "seconds that a worker stays awake for the next query of a fast caller",
        low=0,
        high=0.1,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))
        split_address("listen", self.listen)
        if self.metrics:
            split_address("metrics", self.metrics)
        elif self.recall_sample:
            raise invalid("recall_sample", "needs metrics, which show the recall")
        for name in ("read_only", "retain", "cache_dir"):
            if getattr(self, name) and not self.data_dir:
                raise invalid(name, "needs data_dir, the folder that several servers share")
        if self.log_place and not _PLACE.fullmatch(self.log_place):
            raise invalid("log_place", f"must be PLACE/REPLICA, such as 2/0: {self.log_place!r}")
        self._check_cluster()

    def _check_cluster(self) -> None:
        """Raise `InvalidArgumentError` for options of shards that contradict one another."""
        is_shard, asks = self.role == "shard", bool(self.shard_servers)
        is_ray = self.engine == "ray"
        names = (name for name, value in _DEFAULTS.items() if getattr(self, name) != value)
        token, is_alone = self.cluster_token, not (asks or is_shard or is_ray)
        rules = (
            *((name, self.shards == 1, "needs shards above 1") for name in names),
            ("role", is_shard and not self.read_only, "shard needs read_only: another one writes"),
            ("role", is_shard and not token, "shard needs cluster_token, which routers send"),
            ("shards", is_shard and self.shards > 1, "is for the server that routes: leave it out"),
            ("tokens", is_shard and self.tokens, "are for clients, whom no shard server serves"),
            ("log_place", self.log_place and not is_shard, "is for shard servers: leave it out"),
            ("shard_servers", asks and not token, "needs cluster_token, which they expect"),
            (
                "replicas",
                asks and self.replicas > 1,
                "is for servers that this one starts: put | in shard_servers",
            ),
            ("cluster_token", token and is_alone, "needs shard_servers, role shard or engine ray"),
            ("cluster_ca", self.cluster_ca and not (asks or is_ray), "needs shard_servers or ray"),
            ("cluster_name", self.cluster_name and not self.cluster_ca, "needs cluster_ca"),
            ("engine", is_ray and asks, "ray contradicts shard_servers: leave one of them out"),
            ("engine", is_ray and not self.data_dir, "ray needs data_dir, which all nodes mount"),
            ("ray_address", is_ray and not self.ray_address, "must name the head: host:6379"),
            ("ray_address", self.ray_address and not is_ray, "needs engine ray"),
            (
                "cache_dir",
                self.cache_dir and not (is_shard or self.starts_shard_servers),
                "is for shard servers: it needs role shard, or shards without shard_servers",
            ),
            (
                "cache_dir",
                self.cache_dir and _are_nested(self.cache_dir, self.data_dir),
                "must be neither in data_dir nor around it: name another folder",
            ),
        )
        for name, is_broken, rule in rules:
            if is_broken:
                raise invalid(name, rule)
        self._check_addresses()

    def _check_addresses(self) -> None:
        """Raise `InvalidArgumentError` for addresses of a cluster that are none, or come twice."""
        if len(self.shard_servers) > _ADDRESSES_LENGTH_MAX:
            raise invalid(
                "shard_servers",
                f"must have at most {_ADDRESSES_LENGTH_MAX:,} characters: shorten the addresses,"
                " for example by a search domain, or have fewer places or replicas",
            )
        for place in self.shard_places:
            for address in place:
                split_address("shard_servers", address)
            if len(set(place)) < len(place):
                raise invalid("shard_servers", f"has a replica twice: {'|'.join(place)}")
        if self.ray_address:
            split_address("ray_address", self.ray_address)

    @property
    def shard_places(self) -> tuple[tuple[str, ...], ...]:
        """The addresses in `shard_servers`, for each place those of its replicas."""
        places = self.shard_servers.split(",") if self.shard_servers else []
        return tuple(tuple(map(str.strip, place.split("|"))) for place in places)

    @property
    def log_fields(self) -> dict[str, int]:
        """The fields of all lines of the log: the place and the replica of a shard server."""
        if not self.log_place:
            return {}
        place, replica = map(int, self.log_place.split("/"))
        return {"place": place, "replica": replica}

    @property
    def starts_shard_servers(self) -> bool:
        """Whether this server starts its shard servers."""
        return self.shards > 1 and not self.shard_servers

    @property
    def far_places(self) -> int:
        """The number of places whose shard servers may be on other machines, 0 if none may.

        Only these help builds. Others would share the cores with the builder, and delay queries.
        """
        is_far = self.shard_servers or self.engine == "ray"
        return (len(self.shard_places) or self.shards) if is_far else 0

    @property
    def host(self) -> str:
        """The host part of `listen`, without brackets."""
        return split_address("listen", self.listen)[0]

    @property
    def port(self) -> int:
        """The port part of `listen`."""
        return split_address("listen", self.listen)[1]


# The defaults of options that need others.
_DEFAULTS: Final = {"replicas": 1, "hedge_ms": 0.0, "shard_servers": "", "engine": "local"}


def load(
    arguments: Mapping[str, object], environment: Mapping[str, str], file: Path | None
) -> Config:
    """Combine all sources into one configuration.

    arguments: the options that the command line sets.
    environment: all environment variables.
    file: a TOML file of options.

    Raises `InvalidArgumentError`, which names the option, if the file has an unknown option, or if
    a value has the wrong type or is out of range.
    """
    values: dict[str, object] = {}
    fields = {field.name: field for field in dataclasses.fields(Config)}
    for name, value in (_read_toml(file) if file else {}).items():
        if name not in fields:
            raise invalid(name, "in the configuration file is not an option")
        values[name] = _typed(fields[name], value)
    for name, field in fields.items():
        text = environment.get(ENVIRONMENT_PREFIX + name.upper())
        if text is not None:
            values[name] = _typed(field, text)
        if name in arguments:
            values[name] = _typed(field, arguments[name])
    for name in _OF_WRITES if values.get("read_only") else ():
        if name in values:
            raise invalid(name, "has no effect with read_only: leave it out")
    is_protected = bool(values.get("tls_cert") or values.get("tokens"))
    values.setdefault("reflection", not is_protected)
    # Shard servers on other machines may still read what was replaced.
    is_far = values.get("engine") == "ray" or bool(values.get("shard_servers"))
    may_retain = bool(values.get("data_dir")) and not values.get("read_only")
    values.setdefault("retain", _RETAIN_SECONDS if is_far and may_retain else 0.0)
    return Config(**cast("dict[str, Any]", values))


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise invalid("config", f"cannot be read: {error}") from error


def _typed(field: "dataclasses.Field[object]", value: object) -> object:
    """Convert `value`, which may be a string, to the type of `field`."""
    if field.type is bool and isinstance(value, str) and value.lower() in _YES + _NO:
        return value.lower() in _YES
    try:
        if field.type is int and isinstance(value, str):
            return int(value)
        if field.type is float and isinstance(value, str | int) and not isinstance(value, bool):
            return float(value)
    except ValueError:
        pass  # the error below is clearer
    if not isinstance(value, cast("type", field.type)) or (
        field.type is int and isinstance(value, bool)
    ):
        kind = cast("type", field.type).__name__
        raise invalid(field.name, f"must be of type {kind}, got {value!r}")
    return value


def _check(field: "dataclasses.Field[object]", value: object) -> None:
    limits = field.metadata
    if limits["choices"] and value not in limits["choices"]:
        raise invalid(field.name, f"must be one of {', '.join(limits['choices'])}, got {value!r}")
    if isinstance(value, int | float) and not limits["low"] <= value <= limits["high"]:
        raise invalid(
            field.name, f"must be between {limits['low']} and {limits['high']}, got {value}"
        )


def _are_nested(one: str, other: str) -> bool:
    """Return whether one folder is in the other one, or is the same."""
    paths = Path(one).resolve(), Path(other).resolve()
    return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])


def split_address(option: str, address: str) -> tuple[str, int]:
    """Return host, without brackets, and port; raises `InvalidArgumentError` for `option`."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise invalid(option, f"must be host:port, got {address!r}")
    return host, int(port)
