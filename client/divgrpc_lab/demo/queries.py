"""How the demonstration asks: one query at a time, every setting in turn, and timed."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.types import EffectiveParameters, FloatArray, IntArray
from divgrpc_client.client import Client

K: Final = 10


@dataclass(frozen=True, slots=True, eq=False)
class Answers:
    """The results of one setting: ids and scores (nq, K), and two medians of the time of a query.

    `round_trip_seconds` is what a caller waits: encoding, gRPC over loopback, the hop from the
    front to a worker, the search and the selection, and the way back. `worker_seconds` is the
    search and the selection alone, as Evaluate measures them on one thread of a worker.
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
    queries: FloatArray,
    categories: npt.NDArray[np.int64],
    settings: Mapping[str, Mapping[str, Any]],
) -> list[Answers]:
    """Ask every query with every setting, in turn, so that all settings see the same machine.

    `queries` (nq, dims); `categories` (nq,), which Evaluate wants; `settings` maps a name to
    options of `Client.query`, and the empty ones are the defaults.
    """
    results: dict[str, list[Any]] = {name: [] for name in settings}
    seconds: dict[str, list[float]] = {name: [] for name in settings}
    for query in queries:
        for name, options in settings.items():
            started = time.perf_counter()
            result = client.query(index, query, k=K, **options)
            seconds[name].append(time.perf_counter() - started)
            results[name].append(result)
    return [
        Answers(
            name,
            parameters := rows[0].parameters,
            np.concatenate([row.ids for row in rows]),
            np.concatenate([row.scores for row in rows]),
            statistics.median(seconds[name]),
            _worker_seconds(client, index, queries, categories, parameters),
        )
        for name, rows in results.items()
    ]


def _worker_seconds(
    client: Client,
    index: str,
    queries: FloatArray,
    categories: npt.NDArray[np.int64],
    parameters: EffectiveParameters,
) -> float:
    """Return the median time of a query in a worker, at the parameters that were used."""
    (row,) = client.evaluate(
        index,
        queries,
        categories,
        folds=0,
        ks=(K,),
        selectors=(parameters.selector,),
        variants=(parameters.variant,),
        diversities=(parameters.diversity,),
    )
    return row.microseconds.p50 / 1e6


def describe(parameters: EffectiveParameters) -> str:
    """Say which selector answered, and its variant where it has one."""
    if parameters.selector in {"greedy", "qp_relax"}:
        return f"{parameters.selector} ({parameters.variant})"
    return parameters.selector
