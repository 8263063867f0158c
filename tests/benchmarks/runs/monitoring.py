"""Benchmark of the cost of metrics and of access lines for a unary call."""

from collections.abc import Iterator
from typing import Final

from benchmarks.harness import costs
from benchmarks.harness.costs import Variant
from benchmarks.harness.runner import Options, Output, benchmark

_VARIANTS: Final = {
    "neither": Variant(lambda _: ["--no-access-log"]),
    "access lines": Variant(lambda _: []),
    "access lines and metrics": Variant(lambda _: ["--metrics", "127.0.0.1:0"], goal=1.05),
}


@benchmark(
    "metrics",
    points=costs.POINTS,
    seconds=costs.SECONDS,
    rounds=costs.ROUNDS,
    in_flight=costs.IN_FLIGHT,
)
def metrics(options: Options) -> Iterator[Output]:
    """CPU time of a unary query with access lines and metrics, and without.

    The servers run at the same time, and their loops take turns. A ratio compares two loops of one
    round; the table has its median, least and greatest value.
    """
    return costs.compare("Cost of access lines and metrics", _VARIANTS, options)
