"""Runs and times the queries of the demonstration, and prints their figures as a table."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.console import Console

from divgrpc.types import EffectiveParameters, FloatArray, IntArray
from divgrpc_client.client import Client
from divgrpc_client.formats import tables
from divgrpc_lab.data.topics import HyperplaneQueries

K: Final = 10
_TIMES: Final = """\
ms, round trip: the time of one query for a caller on this machine, gRPC included. µs, worker: the
search and the selection alone, on one thread of a worker."""


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The results of one setting: ids and scores (nq, K), and two median times per query.

    `round_trip_seconds` includes gRPC over loopback, the front process and the worker.
    `worker_seconds` includes only the search and the selection, as Evaluate measures them on one
    thread of a worker.
    """

    name: str
    parameters: EffectiveParameters
    ids: IntArray
    scores: FloatArray
    round_trip_seconds: float
    worker_seconds: float


def ask(
    client: Client,
    index: str,
    queries: HyperplaneQueries,
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Answers]:
    """Send every query with every setting.

    The settings alternate, so that changes of the machine's load affect all of them alike.

    `settings` maps names to options of `Client.query`. An empty mapping means the defaults.
    """
    results: dict[str, list[Any]] = {name: [] for name in settings}
    seconds: dict[str, list[float]] = {name: [] for name in settings}
    for query in queries.queries:
        for name, options in settings.items():
            begin = time.perf_counter()
            result = client.query(index, query, k=K, **options)
            seconds[name].append(time.perf_counter() - begin)
            results[name].append(result)
    answers = []
    for name, rows in results.items():
        ids, scores = (np.concatenate([getattr(row, n) for row in rows]) for n in ("ids", "scores"))
        parameters = rows[0].parameters
        [row] = client.evaluate(
            index,
            *queries,
            folds=0,
            ks=(K,),
            selectors=(parameters.selector,),
            variants=(parameters.variant,),
            diversities=(parameters.diversity,),
        )
        times = statistics.median(seconds[name]), row.microseconds.p50 / 1e6
        answers.append(Answers(name, parameters, ids, scores, *times))
    return answers


def print_answers(
    out: Console,
    heading: str,
    answers: Sequence[Answers],
    figures: Mapping[str, Mapping[str, str]],
    legend: str,
) -> None:
    """Print a table with the figures of each setting, and a legend.

    Names in `figures` without an answer become rows without times. In the legend, `{selector}` and
    `{diversity}` are replaced by those of the setting `default`.
    """
    out.print(f"\n{heading}\n")
    columns = [f">{name}" for name in next(iter(figures.values()))]
    grid = tables.table("results", ">diversity", *columns, ">ms, round trip", ">µs, worker")
    by_name = {item.name: item for item in answers}
    for name, cells in figures.items():
        item = by_name.get(name)
        dial, round_trip, worker = "", "", ""
        if item is not None:
            dial = f"{item.parameters.diversity:g}"
            round_trip = f"{item.round_trip_seconds * 1e3:.2f}"
            worker = f"{item.worker_seconds * 1e6:.0f}"
        grid.add_row(name, dial, *cells.values(), round_trip, worker)
    out.print(grid)
    parameters = by_name["default"].parameters
    has_variants = parameters.selector in {"greedy", "qp_relax"}
    selector = (
        f"{parameters.selector} ({parameters.variant})" if has_variants else parameters.selector
    )
    text = legend.format(selector=selector, diversity=f"{parameters.diversity:g}")
    out.print(f"{text}\n{_TIMES}", style="dim")
