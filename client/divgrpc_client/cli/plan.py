"""The command `plan`, which needs no server. Its docstring is its help text."""

import argparse
import re
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from divgrpc.errors import InvalidArgumentError, invalid
from divgrpc_client.cli import options
from divgrpc_client.formats import json_output

if TYPE_CHECKING:
    from divgrpc.sharding.sizing import Plan

_UNITS: Final = {
    "": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
_SIZE: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([A-Za-z]*)")
_KB, _GB = _UNITS["kB"], _UNITS["GB"]
# Sizes below this are in megabytes.
_MB_SHOWN_MAX: Final = 1_000


def add_plan(verb: argparse.ArgumentParser) -> None:
    """Add the arguments of `plan`."""
    for name, text in (
        ("--rows", "The number of points, such as 1e9."),
        ("--dims", "The dimensions of their dense vectors."),
    ):
        verb.add_argument(name, metavar="N", required=True, type=_count, help=text)
    verb.add_argument(
        "--nodes", metavar="SIZE", required=True, help="The memory of a machine, such as 256GB."
    )
    verb.add_argument(
        "--replicas", metavar="N", type=_count, default=2,
        help="Servers that have the same points (default 2), so that one of them may be down.",
    )  # fmt: skip
    verb.add_argument(
        "--payload", metavar="SIZE", default="0",
        help="Attributes, labels and payload of a point, such as 200 or 2kB (default 0).",
    )  # fmt: skip
    options.add_flags(verb, ("--json", "", "Print JSON; errors are JSON on standard error."))


def plan(arguments: argparse.Namespace) -> None:
    """Estimate the memory, shards, machines and network of an index, and the time of a query.

    Sizes follow from the files of an index, and times from a benchmark on two cores. The output
    lists what it assumes.

    Examples:
      divgrpc plan --rows 1e9 --dims 128 --nodes 256GB
      divgrpc plan --rows 40e6 --dims 768 --nodes 64GiB --replicas 3 --payload 500 --json
    """
    with options.with_extra("plan", "planning", "server"):
        from divgrpc.sharding import sizing
    try:
        outcome = sizing.plan(
            arguments.rows,
            arguments.dims,
            _bytes("nodes", arguments.nodes),
            replicas=arguments.replicas,
            payload_bytes=_bytes("payload", arguments.payload),
        )
    except InvalidArgumentError as error:
        if error.field != "machine_bytes":
            raise
        advice = "sizes have units, such as 64GB"
        raise invalid("nodes", f"{str(error).removeprefix('machine_bytes ')}; {advice}") from None
    assumptions = list(_assumptions(outcome))
    if arguments.json:
        json_output.show(asdict(outcome) | {"assumptions": assumptions})
        return
    rows = [*_lines(outcome), *(("assumed", text) for text in assumptions)]
    sys.stdout.writelines(f"{name:<9} {text}\n" for name, text in rows)


def _lines(plan: "Plan") -> list[tuple[str, str]]:
    """Return what an index needs, by subject."""
    total = plan.rows * plan.point_bytes
    lines = [
        ("points", f"{plan.rows:,} of {plan.dims:,} dimensions"),
        ("memory", f"{plan.point_bytes:,} bytes a point, {_size(total)} in all"),
        ("disk", f"{_size(plan.disk_bytes)} while a build replaces the index"),
    ]
    if plan.shards == 1:
        servers = "the server"
        if plan.replicas > 1:
            replicas_text = _with_count(plan.replicas - 1, "read-only replica")
            servers = f"the server that writes, and {replicas_text}"
        return [
            *lines,
            ("shards", "none: one machine holds the index, and answers faster than shards"),
            ("machines", f"{plan.machines}: {servers}"),
            ("a server", f"{_size(plan.shard_bytes)} while a new generation opens"),
        ]
    return [*lines, *_shard_lines(plan)]


def _shard_lines(plan: "Plan") -> list[tuple[str, str]]:
    """Return what an index on shards needs, by subject."""
    count = plan.shards * plan.replicas
    addresses_text = f"{count:,} addresses, {plan.replicas} for each shard"
    return [
        ("shards", f"{plan.shards:,} of {plan.points_per_shard:,} points"),
        ("or none", f"on a machine of {_size(plan.whole_machine_bytes)} or more"),
        ("machines", f"{plan.machines:,}: {count:,} shard servers and one that routes"),
        ("a server", f"{_size(plan.shard_bytes)} while a new generation opens"),
        ("a router", f"{_size(plan.router_bytes)}, and a few hundred megabytes more for a build"),
        (
            "a cache",
            f"{_size(plan.cache_bytes)} of disk on the machine of a shard server with"
            " --cache-dir, while a build replaces the index",
        ),
        (
            "files",
            f"{plan.worker_files:,} open in a worker of a shard server, and"
            f" {plan.builder_files:,} in the process that builds; ulimit -n must exceed both",
        ),
        ("network", f"{plan.query_bytes / _KB:,.0f} kB a query between router and shards"),
        ("time", f"p50 about {plan.p50_ms:,.0f} ms, p99 about {plan.p99_ms:,.0f} ms a query"),
        (
            "options",
            f"--shards {plan.shards} --shard-servers ADDRESSES --cluster-token FILE"
            f" --cluster-ca FILE, with {addresses_text}",
        ),
    ]


def _size(number: int) -> str:
    """Return a number of bytes in gigabytes, or megabytes if they are few."""
    mb = number / _UNITS["MB"]
    return f"{number / _GB:,.1f} GB" if mb >= _MB_SHOWN_MAX else f"{mb:,.0f} MB"


def _with_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count > 1 else ''}"


def _assumptions(plan: "Plan") -> list[str]:
    from divgrpc.sharding import sizing

    sizes = [
        f"float32 vectors in cells, as Build stores {sizing.CELL_POINTS_MIN:,} points or more by"
        f" default, with {sizing.POINT_BYTES} bytes of codes, ids and cells for each point",
        "no label model, which takes memory and disk beside the points",
        f"{sizing.USED_SHARE:.0%} of the memory of a machine is used, and all points are in memory",
        f"{sizing.GENERATIONS} generations are open while one replaces the other",
    ]
    if plan.shards == 1:
        return sizes
    return [
        *sizes,
        f"a query has {sizing.CANDIDATES} candidates and hashes {sizing.HASH_LIMIT:,} points",
        "points are placed by a hash of their ids, so all shards have nearly the same number",
        "times are of one query at a time, measured with all processes on two cores of one machine"
        f" and {sizing.TIMED_POINTS_PER_SHARD:,} points a shard, and computed for other numbers, so"
        " they are rough for many more; a network between machines adds its own",
        "queries a second and the time of a build are not estimated: measure them with the points"
        " of one shard",
        f"open files are counted for an index with up to {sizing.ATTRIBUTES} attributes and a label"
        " model, and shard servers have no other index",
        "a build runs on the machine that routes, and writes all shards to the data directory;"
        " divgrpc reshard needs the room of a third copy there",
        "one machine routes; a second one, with --read-only, answers queries while it is down",
    ]


def _count(text: str) -> int:
    """Return a whole number, such as 1e9."""
    with suppress(ValueError, OverflowError):
        if (number := float(text)) == int(number):
            return int(number)
    raise argparse.ArgumentTypeError(f"must be a whole number such as 2 or 1e9, got {text!r}")


def _bytes(name: str, text: str) -> int:
    match = _SIZE.fullmatch(text)
    unit = _UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise invalid(name, f"must be a number of bytes such as 2000, 2kB or 256GB, got {text!r}")
    return int(float(match[1]) * unit)
