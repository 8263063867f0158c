"""Diagnoses: their time beside an exact search, their shares, and the gains that they predict."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from scipy import sparse
from sklearn.datasets import load_digits

from benchmarks.harness.datasets import Manifold, documents, topics
from benchmarks.harness.runner import Output, Row, Table
from divgrpc.diagnosis.findings import Randomness
from divgrpc.diagnosis.survey import Survey
from divgrpc.index import Index
from divgrpc.parameters.diagnose import DEFAULT_SAMPLE, DiagnoseParameters
from divgrpc.types import Diagnosis, FloatArray
from support.data import crowded_points

# Number of points that are kept out of an index, to be queries.
_HELD_OUT: Final = 500
_SAMPLE_GOAL: Final = 0.02
_RATIO_GOAL: Final = 3.0
_CORRELATION_GOAL: Final = 0.9
_ROUNDS: Final = 3
_TOPICS: Final = ("cifar100_dense256", "newsgroups20", "cifar100_7x5_bovw")
_DOCUMENTS: Final = ("bibtex", "delicious")
_COPIES: Final = (1, 2, 3, 10, 30)


def rows(small: bool) -> Iterator[Output]:
    """Yield the tables of times, of shares, and of gains."""
    count, points = (4_000, 2_000) if small else (1_000_000, 8_000)
    yield Table("Diagnose beside one exact search for the ten nearest of the sampled points")
    yield _time_row(count)
    yield Table("Shares of a sample beside those of all points")
    gains: list[Row] = []
    for name, rows_of_set, options in _sets(points, small=small):
        order = np.random.default_rng(0).permutation(rows_of_set.shape[0])
        query_rows = order[: min(_HELD_OUT, len(order) // 5)]
        index = Index.build(rows_of_set[order[len(query_rows) :]], **options)
        diagnosis = index.diagnose()
        yield _share_row(name, index, diagnosis)
        gains += _gain_rows(name, index, diagnosis, rows_of_set[query_rows])
    yield Table("Gain that Diagnose predicts, beside the gain of points that were kept out")
    yield from gains
    yield Table("Correlation of predicted and measured gain over the sets")
    for setting in ("diversity", "duplicate_threshold", "both"):
        pairs = [(row["predicted"], row["measured"]) for row in gains if row["setting"] == setting]
        correlation = float(np.corrcoef(np.array(pairs).T)[0, 1])
        yield {"setting": setting, "sets": len(pairs), "r": correlation, "goal": _CORRELATION_GOAL}


def _time_row(count: int) -> Row:
    index = Index.build(Manifold.of().points(count))
    rng = np.random.default_rng(0)
    picks = np.sort(rng.permutation(count)[:DEFAULT_SAMPLE])
    queries = index.engine.searcher.points[picks]
    times: dict[str, list[float]] = {"diagnose": [], "exact": []}
    for _ in range(_ROUNDS):
        # Both on one thread: a query uses one, and so does `Survey.work`.
        times["diagnose"].append(_seconds(lambda: _on_one_thread(index)))
        times["exact"].append(_seconds(lambda: index.query(queries, search="exact", diversity=0)))
    best = {name: min(seconds) for name, seconds in times.items()}
    ratio = float(np.median(np.array(times["diagnose"]) / np.array(times["exact"])))
    whole = _seconds(index.diagnose)
    return {
        "points": count,
        "sampled": len(queries),
        "diagnose s": best["diagnose"],
        "exact s": best["exact"],
        "ratio": ratio,
        "goal": _RATIO_GOAL,
        "diagnose, all cores s": whole,
    }


def _on_one_thread(index: Index) -> None:
    survey = Survey(index.engine, DiagnoseParameters(), None)
    for _ in survey.work():
        pass
    survey.rows()


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _sets(points: int, *, small: bool) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield names, points and options of Build; without data sets, the digits replace them."""
    digits: FloatArray = load_digits().data
    yield "digits, euclidean", digits, {"metric": "euclidean"}
    for copies in _COPIES[:2] if small else _COPIES:
        name = f"made-{copies}"
        counts = crowded_points.even_copies(points, copies)
        yield name, crowded_points.made(name, counts, 40).points, {}
    counts = crowded_points.power_law_copies(points)
    yield "made-power", crowded_points.made("made-power", counts, 40).points, {}
    if small:
        return
    manifold = Manifold.of().points(50_000)
    yield "manifold", manifold, {}
    lengths = np.random.default_rng(0).uniform(0.5, 2, (len(manifold), 1)).astype(np.float32)
    yield "manifold, inner_product", manifold * lengths, {"metric": "inner_product"}
    for data in topics.load(_TOPICS):
        yield data.name, data.points, {}
    for split in documents.load(_DOCUMENTS):
        yield split.name, split.with_features().documents, {}


def _share_row(name: str, index: Index, diagnosis: Diagnosis) -> Row:
    """Compare the shares of a sample with those of all points, counted by a survey of them all."""
    parameters = DiagnoseParameters()
    # Past the limit of callers, so that all points are counted.
    object.__setattr__(parameters, "sample", diagnosis.rows)
    exact = [share.share.value for share in Survey(index.engine, parameters, None).run(None).shares]
    pairs = list(zip(diagnosis.shares, exact, strict=True))
    differences = [abs(share.share.value - truth) for share, truth in pairs]
    inside = sum(s.share.low - 1e-9 <= truth <= s.share.high + 1e-9 for s, truth in pairs)
    worst = int(np.argmax(differences))
    return {
        "set": name,
        "points": diagnosis.rows,
        "sampled": diagnosis.sampled,
        "greatest difference": differences[worst],
        "goal": _SAMPLE_GOAL,
        "at": diagnosis.shares[worst].threshold,
        "share of all": exact[worst],
        "in interval": f"{inside} of {len(pairs)}",
        "crowded": diagnosis.is_crowded,
        "different of ten": diagnosis.different,
    }


def _gain_rows(name: str, index: Index, diagnosis: Diagnosis, queries: Any) -> Iterator[Row]:  # noqa: ANN401  # dense or sparse
    """Measure the gain of each setting with queries that are no points of the index."""
    engine = index.engine
    between = Randomness.of(engine.searcher.points, engine.metric).between
    if sparse.issparse(queries):
        queries = queries[np.flatnonzero(abs(queries).sum(axis=1))]
    plain = engine.distances(queries, index.query(queries, diversity=0).ids).mean
    settings: dict[str, dict[str, Any]] = {
        "diversity": {"keep_duplicates": True},
        "duplicate_threshold": {
            "diversity": 0,
            "duplicate_threshold": index.info.duplicate_threshold,
        },
        "both": {},
    }
    for effect in diagnosis.effects:
        result = index.query(queries, **settings[effect.setting])
        apart = engine.distances(queries, result.ids).mean
        yield {
            "set": name,
            "setting": effect.setting,
            "predicted": effect.gain.value,
            "measured": float(np.nanmean(apart - plain) / between),
            "predicted loss": effect.loss.value,
        }
