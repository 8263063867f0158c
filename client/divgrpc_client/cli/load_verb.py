"""The verb `divgrpc load`: its options. What it does is in `load`, which needs an extra."""

from typing import Any, Final

from divgrpc_client.cli import commands
from divgrpc_client.cli.options import add, add_options, add_reading
from divgrpc_client.messages.options import QUERY_DEFAULTS, QueryOptions

_LOAD: Final = """\
Send calls to a server at a set rate, and report latency, errors and throughput.

Latency counts from when a call was due, not from when it could be sent, so a server that stalls
cannot hide it.

  divgrpc load images --data queries.npy --rate 500 --duration 30
  divgrpc load images --data queries.npy --rate 500 --poisson --require 'p99<20ms'
  divgrpc load images --data queries.npy --schedule '100..1000/30s'      a ramp
  divgrpc load images --data queries.npy --schedule '100:10s,200:10s'    steps
  divgrpc load images --data queries.npy --objective 'p99<20ms'          the highest rate with that
  divgrpc load images --data queries.npy --closed 64    64 at a time, each when one is answered
  divgrpc load --mix mix.toml --rate 500 --report load.html --save load.json

A mix is a TOML file of [[call]] tables. Each has index and data, and may have key, rows, batch,
share, method ("Query", "QueryStream" or "PredictLabels") and any option of divgrpc query or
predict. A list makes one kind of call for each of its values.

The exit code is 3 if a --require was missed, and 4 if the run is VOID: the generator, not the
server, was the bottleneck. More --processes may help, or a generator on another machine. Ctrl-C
ends a run early; the report then covers the calls so far.
"""


def add_load(verbs: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    """Add `load`."""
    verb = add(verbs, "load", commands.load, _LOAD)
    verb.add_argument("name", metavar="NAME", nargs="?", help="The name of the index.")
    verb.add_argument("--data", metavar="FILE", help="A file of queries, one vector per row.")
    add_reading(verb)
    verb.add_argument(
        "--rows", metavar="START:STOP", help="Draw from these rows of the file alone."
    )
    verb.add_argument(
        "--batch", type=int, metavar="N", help="Number of rows in a call (default 1)."
    )
    verb.add_argument("--mix", metavar="TOML", help="Send a mix of calls instead of NAME.")
    _add_rates(verb)
    _add_making(verb)
    group = verb.add_argument_group("reports")
    group.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="FIGURE<BOUND",
        help="Fail if this is missed, such as p99<20ms, errors<0.1%%, rate>450 or quality>0.95. "
        "May be repeated.",
    )
    group.add_argument("--save", metavar="JSON", help="Write the report to this file.")
    group.add_argument("--report", metavar="HTML", help="Write a page; needs divgrpc[report].")
    add_options(verb, QueryOptions, QUERY_DEFAULTS)


def _add_rates(verb: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    group = verb.add_argument_group("rates")
    group.add_argument(
        "--rate",
        type=float,
        metavar="N",
        help="Calls a second, whether or not they are answered; --objective begins at 100.",
    )
    group.add_argument(
        "--duration",
        type=float,
        metavar="SECONDS",
        help="How long to hold the rate, or each rate that is tried (default 10).",
    )
    group.add_argument("--schedule", metavar="STEPS", help="Change the rate over time.")
    group.add_argument("--poisson", action="store_true", help="Send calls at random times.")
    group.add_argument(
        "--closed",
        type=int,
        metavar="N",
        help="Calls to keep under way instead of a rate; latencies then leave out waiting.",
    )
    group.add_argument(
        "--objective",
        action="append",
        default=[],
        metavar="FIGURE<BOUND",
        help="Find the highest rate that holds this, written as in --require. May be repeated.",
    )


def _add_making(verb: Any) -> None:  # noqa: ANN401  # argparse names no type for it
    group = verb.add_argument_group("calls")
    group.add_argument(
        "--warm-up", type=float, metavar="SECONDS", help="Send calls before any count (default 2)."
    )
    for flag, text in (
        ("--processes", "Number of processes that make calls (default 1)."),
        ("--channels", "Number of connections a process opens (default 4)."),
        (
            "--retries",
            "How often to retry after UNAVAILABLE (default 0).",
        ),
        (
            "--max-in-flight",
            "Limit of calls under way; calls due beyond it fail (default 10000).",
        ),
    ):
        group.add_argument(flag, type=int, metavar="N", help=text)
    group.add_argument(
        "--quality",
        type=float,
        metavar="SHARE",
        help="Compare this share of the answers with exact search afterwards, such as 0.01.",
    )
    group.add_argument(
        "--traffic-seed",
        type=int,
        metavar="N",
        help="Draw times and choices from this seed (default 0).",
    )
    group.add_argument(
        "--allow-remote", action="store_true", help="Allow a server on another machine."
    )
