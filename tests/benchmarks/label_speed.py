"""Labels at size: what is faster than scoring every label, and how much of the top five it keeps.

The labels are made, and fixed by a seed. Topics lie in directions of a falling spectrum, labels
around their topics, and counts follow Zipf; factors are as long as a root of the count (long
tail) or of unit length. A document stands for four labels of one topic, drawn by count, plus noise;
what stands for it is given, so that nothing of the time is embedding but one small product. One
document at a time on one thread, in turns.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.tables import show, table
from benchmarks.turns import Asking, take_turns
from divgrpc.index import Index
from divgrpc.types import FloatArray, HashFamily, IntArray, Search

Lengths = Literal["long tail", "unit"]

TOP_K: Final = 5
_PLANTED: Final = 4
_SPREAD: Final = 0.8
_NOISE: Final = 0.6
_ZIPF: Final = 0.9
_BATCH: Final = 256
# Family, search and hash limit, the defaults where that is None.
SEARCHES: Final[Sequence[tuple[HashFamily, Search, int | None]]] = (
    ("lsh_sdiv", "auto", None),
    ("lsh_sdiv", "auto", 800),
    ("lsh_sdiv", "scan_hamming", None),
    ("lsh_sdiv", "scan", None),
    ("lsh_sdiv", "exact", None),
    ("cells", "tables", None),
)


@dataclass(frozen=True, eq=False)
class Planted:
    """Label factors (L, r), what stands for documents (nq, r), and their planted labels (nq, 4)."""

    factors: FloatArray
    embedded: FloatArray
    truth: IntArray


@dataclass(frozen=True)
class Row:
    """One way to predict; `faster` than all products and the top five, `scored` share of labels."""

    lengths: str
    name: str
    microseconds: float
    faster: float
    overlap: float
    precision: float
    scored: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the run can be told."""
    parser.add_argument("--labels", type=int, default=259_000, help="labels (default 259,000)")
    parser.add_argument("--rank", type=int, default=200, help="of the factors (default 200)")
    parser.add_argument("--documents", type=int, default=200, help="asked (default 200)")


def run(arguments: argparse.Namespace) -> dict[str, object]:
    """Measure, print the table, and return the rows for JSON."""
    kinds: tuple[Lengths, ...] = ("long tail", "unit")
    rows = [row for kind in kinds for row in _rows(kind, arguments)]
    show(f"\n## Labels at size: {arguments.labels:,} labels of rank {arguments.rank}, top five\n")
    heads = ["lengths, labels by", "us", "x faster", "of the top 5", "P@5", "% scored"]
    show(table(heads, [_drawn(row) for row in rows]))
    return {"rows": [asdict(row) for row in rows]}


def planted(lengths: Lengths, labels: int, rank: int, documents: int, seed: int = 0) -> Planted:
    """Draw label factors and documents of known labels."""
    rng = np.random.default_rng(seed)
    counts = rng.permutation(np.arange(1, labels + 1) ** -_ZIPF)
    spectrum = 1 / np.sqrt(1 + np.arange(rank) / 20)
    topics = max(1, labels // 130)
    topic = np.sort(rng.integers(0, topics, labels))
    centres = _unit(rng.standard_normal((topics, rank)) * spectrum)
    directions = centres[topic] + _SPREAD * _unit(rng.standard_normal((labels, rank)) * spectrum)
    directions = _unit(directions)
    factors = directions * (1 if lengths == "unit" else np.sqrt(counts)[:, np.newaxis])
    starts = np.searchsorted(topic, np.arange(topics + 1))
    first = rng.choice(labels, documents, p=counts / counts.sum())
    truth = np.empty((documents, _PLANTED), np.int64)
    for row, label in enumerate(first):
        members = np.arange(starts[topic[label]], starts[topic[label] + 1])
        share = counts[members] * (members != label)
        others = min(_PLANTED - 1, len(members) - 1)
        truth[row] = label
        truth[row, 1 : 1 + others] = rng.choice(
            members, others, replace=False, p=share / share.sum() if others else None
        )
    noise = _unit(rng.standard_normal((documents, rank)) * spectrum)
    embedded = _unit(directions[truth].sum(axis=1)) + _NOISE * noise
    return Planted(factors.astype(np.float32), embedded.astype(np.float32), truth)


def _rows(lengths: Lengths, arguments: argparse.Namespace) -> Iterator[Row]:
    made = planted(lengths, arguments.labels, arguments.rank, arguments.documents)
    plain, batched = "sgemv and top 5", f"gemm of {_BATCH} and top 5"
    askings: dict[str, Asking] = {plain: partial(_products, made)}
    scored = {plain: 1.0, batched: 1.0}
    feature_map = np.eye(arguments.rank, dtype=np.float32)
    for family in dict.fromkeys(family for family, _, _ in SEARCHES):
        index = Index.build(
            made.embedded, hash_family=family, label_model=(made.factors, feature_map)
        )
        for _, search, limit in (each for each in SEARCHES if each[0] == family):
            name = f"{family}, {search}, " + (f"hash limit {limit}" if limit else "default limits")
            told: dict[str, Any] = {"search": search}
            if limit:
                told |= {"hash_limit": limit, "candidates_limit": limit // 4}
            every = index.predict_labels(made.embedded, diversity=0.0, **told)
            if search == "auto":
                name += f" ({every.parameters.search})"
            scored[name] = float(every.stats.points_scored.mean()) / arguments.labels
            askings[name] = partial(_predicted, index, made.embedded, told)
    with threadpool_limits(1):
        timed = take_turns(askings, arguments.documents, TOP_K)
        batch = take_turns(
            {batched: partial(_batch, made)}, max(1, arguments.documents // _BATCH), TOP_K
        )
    truth, base = timed[plain].rows, timed[plain].microseconds
    for name, each in timed.items():
        yield Row(
            lengths,
            name,
            each.microseconds,
            base / each.microseconds,
            _shared(each.rows, truth),
            _shared(each.rows, made.truth),
            scored[name],
        )
    per_document = batch[batched].microseconds / min(_BATCH, arguments.documents)
    shared = _shared(truth, made.truth)
    yield Row(lengths, batched, per_document, base / per_document, 1.0, shared, 1.0)


def _products(made: Planted, number: int) -> IntArray:
    return _best(made.factors @ made.embedded[number])


def _batch(made: Planted, number: int) -> IntArray:
    products = made.embedded[number * _BATCH : (number + 1) * _BATCH] @ made.factors.T
    best = np.stack([_best(row) for row in products])
    return np.asarray(best[0])


def _best(products: FloatArray) -> IntArray:
    top = np.argpartition(products, len(products) - TOP_K)[-TOP_K:]
    return np.asarray(top[np.argsort(-products[top], kind="stable")])


def _predicted(
    index: Index, embedded: FloatArray, told: Mapping[str, Any], number: int
) -> IntArray:
    row = embedded[number : number + 1]
    found = index.predict_labels(row, top_k=TOP_K, diversity=0.0, **told)
    return np.asarray(found.labels[0])


def _shared(found: IntArray, truth: IntArray) -> float:
    """Return the share of what was found that is among the truth, row by row."""
    return float(
        np.mean([np.isin(mine, true).mean() for mine, true in zip(found, truth, strict=True)])
    )


def _unit(rows: Any) -> Any:  # noqa: ANN401  # of any kind of float
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def _drawn(row: Row) -> tuple[str, ...]:
    return (
        f"{row.lengths}, {row.name}",
        f"{row.microseconds:,.0f}",
        f"{row.faster:.1f}",
        f"{row.overlap:.3f}",
        f"{row.precision:.3f}",
        f"{100 * row.scored:.2f}",
    )
