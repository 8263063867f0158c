"""The comparison with other libraries in process."""

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Final, Literal

from threadpoolctl import threadpool_limits

from benchmarks.harness import libraries, truth
from benchmarks.harness.cells import CELLS
from benchmarks.harness.datasets import REAL, load, searches
from benchmarks.harness.libraries import (
    Finder,
    Graph,
    OurPicker,
    Picker,
    Pyversity,
    build_faiss,
    faiss_factories,
)
from benchmarks.harness.runner import (
    FAMILIES,
    Option,
    Options,
    Output,
    Row,
    Table,
    benchmark,
    take_turns,
)
from benchmarks.runs import rivals
from benchmarks.runs.contestants import (
    Build,
    Contestant,
    Entry,
    Objective,
    Ours,
    Pair,
    Target,
    finalists,
)
from divgrpc.errors import UnsupportedError
from divgrpc.index import Index
from divgrpc.kernels import records
from divgrpc.types import FloatArray, HashFamily

_FAISS: Final = list(faiss_factories(1, 1))
_FINALISTS: Final = 2
# Values of target_recall for our builds.
_RECALLS: Final = (0.9, 0.99)
# Our indexes are built so quickly that a disturbance would distort the time of one build. The
# median of this many builds counts.
_BUILDS: Final = 3
# Maximum seconds for a block of queries. For comparison, one query over all of a million points
# takes about 0.2 seconds.
_PATIENCE: Final = 0.5
EXACT: Final = "exact pass"
GREEDY: Final = "greedy over all points"
MMR: Final = "MMR over all points"


@benchmark(
    "peers",
    points=Option([REAL], f"{REAL}, or synthetic points"),
    k=Option(10, "results per query"),
    queries=Option(400, "queries reported"),
    tuning=Option(100, "queries to set dials with"),
    diversity=Option([0.1, 0.3, 0.5], "targets"),
    gap=Option(0.97, "share of the gap to close"),
    families=FAMILIES,
    faiss=Option(_FAISS, "kinds of faiss", _FAISS),
    links=Option([8, 16, 32], "M of hnswlib"),
    ef_construction=Option([100, 200], "ef_construction of hnswlib"),
    cell=Option([], f"measure cells instead, and keep their results: {' '.join(CELLS)}"),
    contestants=Option([], f"of a cell: {', '.join(rivals.NAMES)}", rivals.NAMES),
    again=Option([], "contestants of a cell to measure anew, by the beginning of their names"),
    ks=Option([10, 50, 100], "numbers of nearest points of a cell"),
    results=Option("peers-results", "folder in which results of cells are kept"),
    limit=Option(1800.0, "seconds for a contestant of a cell"),
)
def peers(options: Options) -> Iterator[Output]:
    """Speed at equal quality of divgrpc in process and other libraries.

    The other libraries are hnswlib and faiss, each followed by a selector, which is pyversity's or
    our compiled one. Compiled greedy and MMR over all points are also measured. Every configuration
    is tried at its best dial. Of the configurations that close the target share of the gap in J,
    the fastest of each kind are timed in turns, one query at a time on one thread. All indexes are
    built on all cores. If one side cannot close the target share, the target is lowered to what
    both sides can close. MMR is also compared at its own objective and dial.

    With --cell, more libraries take part. Each runs in a process of its own, and its results are
    kept in --results: a second call measures only what is missing. `--again divgrpc` measures
    divgrpc anew and keeps the rest. CPU time of one query is compared: of retrieval alone, at
    recalls .90, .95 and .99, and of diverse results. With NUMBA_CPU_NAME=haswell, kernels and
    libraries that can choose use AVX2 alone; results of each instruction set are kept apart.
    """
    for cell in options.cell:
        yield from rivals.measure(cell, options)
    if options.cell:
        return
    for name in libraries.missing("hnswlib", "faiss", "pyversity"):
        yield f"{name} is not installed and does not take part"
    for source in options.points:
        points = load(source, options.queries, options.tuning)
        builds = list(_builds(points.base, options.families))
        finders = list(_finders(points.base, options))
        yield Table(f"Building: {points.name}", points.described())
        for item in (*builds, *finders):
            name = f"{item.kind}, {item.config}"
            yield {"index": name, "built in s": item.seconds, "MB on top": item.bytes / 1e6}
        targets: list[tuple[float, Objective]] = [(item, "J") for item in options.diversity]
        targets.append((sorted(options.diversity)[len(options.diversity) // 2], "MMR"))
        ratios: list[Row] = []
        for diversity, objective in targets:
            target = Target.of(points, options.k, options.gap, diversity, objective)
            with threadpool_limits(1):
                contestants = _contestants(points.base, builds, finders, objective, options.k)
                entries = [entry for item in contestants for entry in target.entries(item)]
                mmr = OurPicker.over(builds[0].index, records.MMR_RULE)
                share, results = _fastest(target, entries, mmr)
            title = f"{objective} at diversity {diversity:g}: the fastest to close {share:.3f}"
            yield Table(title, points.described())
            yield from (_row(entry, share) for entry in results)
            at = f"{objective} {diversity:g}"
            ratios += [
                {"ours, at": f"{row['ours']}, {at}", **row} for row in compare(results, share)
            ]
        yield Table(f"Times the speed of others at equal quality: {points.name}")
        yield from ({name: row[name] for name in row if name != "ours"} for row in ratios)


def _finders(base: FloatArray, options: Options) -> Iterator[Finder]:
    if not libraries.missing("hnswlib"):
        for links, ef_construction in product(options.links, options.ef_construction):
            yield Graph.build(base, links, ef_construction)
    if not libraries.missing("faiss"):
        yield from build_faiss(base, options.faiss)


def _contestants(
    base: FloatArray,
    builds: Sequence[Build],
    finders: Sequence[Finder],
    objective: Objective,
    k: int,
) -> Iterator[Contestant]:
    """Yield all contestants for an objective."""
    first = builds[0].index
    rule = records.MARGINAL_RULE if objective == "J" else records.MMR_RULE
    picker = OurPicker.over(first, rule)
    make_contestant = partial(Ours, picker=picker, k=k, selector=picker.selector)
    for build in builds:
        for search in searches(build.kind):
            yield make_contestant(build.kind, build, search=search)
    yield make_contestant(EXACT, Build(EXACT, "", first), search="exact")
    strategies: tuple[Literal["mmr", "msd"], ...] = ("mmr", "msd") if objective == "J" else ("mmr",)
    for finder in finders:
        yield Pair(finder, picker, k)
        if isinstance(finder, Graph) and not libraries.missing("pyversity"):
            for strategy in strategies:
                yield Pair(finder, Pyversity(base, strategy), k)


def _builds(base: FloatArray, families: Sequence[HashFamily]) -> Iterator[Build]:
    for family, recall in product(families, _RECALLS):
        times: list[float] = []
        try:
            for _ in range(_BUILDS):
                begin = time.perf_counter()
                index = Index.build(base, hash_family=family, target_recall=recall)
                times.append(time.perf_counter() - begin)
        except UnsupportedError:
            continue
        size = sum(array.bytes for array in index.info.arrays) - base.nbytes
        yield Build(family, f"recall {recall}", index, statistics.median(times), size)


def _fastest(target: Target, trials: Sequence[Entry], mmr: Picker) -> tuple[float, list[Entry]]:
    """Time the fastest entries that close the gap, and return the best entry of each name."""
    share, entries = finalists(trials, target.share, _FINALISTS)
    entries += _over_all(target, mmr)
    asks = {entry: entry.ask for entry in entries}
    times = take_turns(asks, len(target.scale.queries), target.k, _PATIENCE)
    timed_entries = (replace(entry, microseconds=times[entry].microseconds) for entry in entries)
    return share, best_of_each(timed_entries, share)


def best_of_each(entries: Iterable[Entry], share: float) -> list[Entry]:
    """Return one entry of each name: the fastest of those that close the gap, else of all."""
    best: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: (entry.gap < share, entry.microseconds)):
        best.setdefault(entry.name, entry)
    return list(best.values())


def _over_all(target: Target, mmr: Picker) -> Iterator[Entry]:
    """Yield entries of greedy and MMR over all points; with J, MMR uses its best dial."""
    scale, k, base = target.scale, target.k, target.points.base
    dial = scale.diversity
    if scale.objective == "J":
        picks = truth.greedy(scale.base, scale.queries, k, dial)
        target_dial = dial
        yield target.over_all(
            GREEDY, picks, dial, lambda row: truth.greedy_of_one(base, row, k, target_dial)
        )
        dial = target.dial(mmr, target.pool[0].shape[1])[0]
    picks = truth.mmr(scale.base, scale.queries, k, dial)
    yield target.over_all(MMR, picks, dial, lambda row: truth.mmr_of_one(base, row, k, dial))


def _row(entry: Entry, share: float) -> Row:
    source = entry.source
    is_measured = source is not None and source.seconds
    return {
        "contestant": ": ".join(filter(None, (entry.name, entry.configuration))),
        "dial": entry.dial,
        "gap closed": entry.gap,
        "reached": entry.gap >= share,
        "us/query": entry.microseconds,
        "built in s": source.seconds if source and is_measured else None,
        "MB on top": source.bytes / 1e6 if source and is_measured else None,
    }


def compare(entries: Sequence[Entry], share: float) -> Iterator[Row]:
    """Yield comparisons of our fastest entries with the fastest others; all close `share`.

    Time per query is compared as a ratio. Build time, and memory beyond the vectors, are compared
    with hnswlib's in the fastest pair of hnswlib and pyversity.
    """
    closing = {entry.name: entry for entry in entries if entry.gap >= share}

    def fastest(part: str) -> Entry | None:
        pairs = (entry for name, entry in closing.items() if part in name)
        return min(pairs, key=lambda entry: entry.microseconds, default=None)

    graph, lists = fastest("hnswlib + pyversity"), fastest("faiss")
    rivals = {
        "x hnswlib + pyversity": graph,
        "x best faiss + ours": lists,
        "x greedy over all": closing.get(GREEDY),
        "x MMR over all": closing.get(MMR),
        "x exact pass": closing.get(EXACT),
    }
    for name, entry in closing.items():
        build, graph_build = entry.source, graph.source if graph else None
        if build is None or " + " in name or name == EXACT:
            continue
        yield {
            "ours": name,
            "gap closed": entry.gap,
            **{
                title: rival.microseconds / entry.microseconds if rival else None
                for title, rival in rivals.items()
            },
            "best faiss": lists.name.split(" + ")[0] if lists else None,
            "x hnswlib in building": graph_build.seconds / build.seconds if graph_build else None,
            "of its bytes": build.bytes / graph_build.bytes if graph_build else None,
        }
