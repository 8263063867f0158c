"""Cells of `peers`: each contestant alone, its results kept, then two tables of a cell.

"Retrieval" is the fastest point of each contestant's sweep at a recall. "Diverse results" are
candidates followed by a selector, at equal quality of J; see `contestants`. Both count CPU time.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.harness import cells, libraries, rivals, truth
from benchmarks.harness.cells import CELLS, RECALLS, Point, Results, Shelf
from benchmarks.harness.datasets import Points
from benchmarks.harness.libraries import Effort, OurPicker, Picker, Pyversity, msd_dial
from benchmarks.harness.runner import Options, Output, Row, Table
from benchmarks.harness.truth import Neighbours
from benchmarks.runs.contestants import Build, Contestant, Entry, Ours, Pair, Scale, Target
from divgrpc.index import Index
from divgrpc.parameters import QueryParameters
from divgrpc.types import FloatArray, HashFamily, IntArray, Search

# Our contestants: family, search, and values of target_recall to build with.
FAMILIES: Final[dict[str, tuple[HashFamily, Search]]] = {
    "divgrpc auto": ("auto", "auto"),
    "divgrpc cells": ("cells", "tables"),
    "divgrpc scan": ("auto", "scan"),
}
NAMES: Final = [*FAMILIES, *rivals.NAMES]
_RECALLS: Final = (0.9, 0.99)
_PICKS: Final = 10
_SMALLER: Final = {"1m": "300k", "1m-hard": "300k-hard"}


@dataclass(frozen=True)
class Task:
    """What one process measures: a contestant of a cell."""

    cell: str
    name: str
    folder: Path
    run: str
    ks: tuple[int, ...]
    dials: tuple[float, ...]
    gap: float
    queries: int
    tuning: int

    @property
    def shelf(self) -> Shelf:
        """The place of the results."""
        return Shelf(self.folder, self.cell, self.settings)

    @property
    def settings(self) -> str:
        """The settings that results depend on."""
        return repr((self.ks, self.dials, self.gap, self.queries, self.tuning))

    def measure(self) -> None:
        """Build, sweep and keep; a process of its own runs this."""
        points = CELLS[self.cell].load(self.queries, self.tuning)
        with threadpool_limits(1):
            near = self._near(points)
        record: Results = {"target": self.gap, "points": [], "diverse": [], "builds": []}
        picker = OurPicker.over(Index.build(points.base, hash_family="cells"))
        sources, begin = self._sources(points.base), time.process_time()
        for source in sources:
            # CPU time of all threads, because other programs slow down the clock's time.
            seconds = time.process_time() - begin
            record["builds"].append({"config": source.config, "cpu s": seconds})
            with threadpool_limits(1):
                for k in self.ks:
                    record["points"] += self._sweep(source, points.queries, near[:, :k])
                for dial in self.dials:
                    record["diverse"] += self._diverse(source, points, dial, picker)
            begin = time.process_time()
        self.shelf.write(self.name, self.run, record)

    def _near(self, points: Points) -> IntArray:
        """Return the true neighbours; the first contestant of a cell keeps them for the others."""
        path = self.folder / self.cell / f"near-{self.queries}-{max(self.ks)}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, truth.nearest(points.base, points.queries, max(self.ks))[0])
        near: IntArray = np.load(path)
        return near

    def _sources(self, base: FloatArray) -> Iterator[Any]:
        if self.name not in FAMILIES:
            yield from rivals.finders(self.name, base)
            return
        for recall in _RECALLS:
            begin = time.perf_counter()
            index = Index.build(base, hash_family=FAMILIES[self.name][0], target_recall=recall)
            yield Build(self.name, f"recall {recall}", index, time.perf_counter() - begin)

    def _sweep(self, source: Any, queries: FloatArray, near: IntArray) -> list[Point]:  # noqa: ANN401
        if isinstance(source, Build):
            variant = self._ours(source, OurPicker.over(source.index))
            engine = source.index.engine

            @cache
            def parameters(k: int, effort: Effort) -> QueryParameters:
                return _plain(variant, k, effort)

            def search(query: FloatArray, k: int, effort: Effort) -> IntArray:
                rows: IntArray = engine.answer(query[None], parameters(k, effort)).ids[0]
                return rows

            return list(cells.sweep(search, source.config, variant.ladders(), queries, near))
        return list(
            cells.sweep(
                lambda query, k, effort: source.nearest(query, k, effort)[0],
                source.config,
                source.ladders(),
                queries,
                near,
            )
        )

    def _ours(self, build: Build, picker: Picker) -> Ours:
        return Ours(self.name, build, picker, _PICKS, FAMILIES[self.name][1])

    def _diverse(
        self,
        source: Any,  # noqa: ANN401
        points: Points,
        dial: float,
        picker: OurPicker,
    ) -> list[Row]:
        target = self._target(points, dial)
        if isinstance(source, Build):
            contestant: Contestant = self._ours(source, OurPicker.over(source.index))
        else:
            contestant = Pair(source, picker, _PICKS)
        finalists = _finalists(list(target.entries(contestant)), self.gap)
        if not isinstance(source, Build) and not libraries.missing("pyversity"):
            pair = Pair(source, Pyversity(points.base, "msd"), _PICKS)
            finalists += _with_pyversity(target, pair, picker, finalists)
        rows: list[Row] = []
        for entry in finalists:
            us = cells.cpu_us(entry.ask, len(points.queries))[1]
            row = {"name": entry.name, "config": entry.configuration, "dial": dial}
            rows.append({**row, "gap": entry.gap, "us": us})
        self._keep_dials(target, dial)
        return rows

    def _truth(self, dial: float) -> Path:
        return (
            self.folder / self.cell / f"gap-{self.queries}-{self.tuning}-{self.gap}-{dial:g}.json"
        )

    def _target(self, points: Points, dial: float) -> Target:
        """Return the target; its greedy over all points and its dials are kept for the others."""
        path = self._truth(dial)
        if not path.exists():
            target = Target.of(points, _PICKS, self.gap, dial)
            np.savez(path.with_suffix(".npz"), rows=target.pool[0], distances=target.pool[1])
            self._keep_dials(target, dial)
            return target
        record = json.loads(path.read_text(encoding="utf-8"))
        with np.load(path.with_suffix(".npz")) as arrays:
            pool: Neighbours = arrays["rows"], arrays["distances"]
        dials = {(name, count): (value, gap) for name, count, value, gap in record["dials"]}
        scale, tuning = (
            Scale(points.base, queries, dial, "J", *ends)
            for queries, ends in (
                (points.queries, record["scale"]),
                (points.tuning, record["tuning"]),
            )
        )
        return Target(_PICKS, self.gap, points, scale, tuning, pool, dials)

    def _keep_dials(self, target: Target, dial: float) -> None:
        ends = [[scale.nearest, scale.exhaustive] for scale in (target.scale, target.tuning)]
        dials = [[*key, *value] for key, value in target.dials.items()]
        text = json.dumps({"scale": ends[0], "tuning": ends[1], "dials": dials})
        self._truth(dial).write_text(text, encoding="utf-8")


def _finalists(entries: list[Entry], share: float) -> list[Entry]:
    """Return the entries to time: the two fastest that close the share, and one of few candidates.

    If no entry closes the share, the entry that closes most is timed.
    """
    fit = [entry for entry in entries if entry.gap >= share]
    if not fit:
        return sorted(entries, key=lambda entry: -entry.gap)[:1]
    fastest = sorted(fit, key=lambda entry: entry.microseconds)[:2]
    few = min(fit, key=lambda entry: (entry.count, entry.microseconds))
    return fastest if few in fastest else [*fastest, few]


def _with_pyversity(
    target: Target, pair: Pair, picker: Picker, finalists: Sequence[Entry]
) -> list[Entry]:
    """Return the same configurations with pyversity's MSD, at the dial that has the same gains.

    MSD then picks what our greedy picks, so that neither its dial nor its effort needs a search.
    """
    entries: list[Entry] = []
    for entry in finalists:
        dial = msd_dial(entry.dial, _PICKS)
        target.dials[pair.picker.name, entry.count] = (dial, target.dial(picker, entry.count)[1])
        pair_entry = target.entry(pair, entry.count, entry.effort)
        entries += [pair_entry] if pair_entry else []
    return entries


def _plain(variant: Ours, k: int, effort: Effort) -> QueryParameters:
    """Return the parameters of a query for the k nearest points alone."""
    return QueryParameters(
        k=k,
        diversity=0.0,
        selector="nearest",
        search=variant.search,
        candidates_limit=k,
        hash_limit=min(variant.source.index.rows, round(effort[0] * k)),
        n_probes=int(effort[1]) if len(effort) > 1 else None,
    )


def contestants_of(task: Task, names: Sequence[str]) -> list[str]:
    """Return who takes part: at a million points we and the three fastest of 300,000."""
    if names or task.cell not in _SMALLER:
        return list(names) or NAMES
    shelf = replace(task, cell=_SMALLER[task.cell]).shelf
    record = [(name, results) for name in rivals.NAMES if (results := shelf.read(name))]
    return [*FAMILIES, *cells.three_fastest(record)]


def measure(cell: str, options: Options) -> Iterator[Output]:
    """Measure what is not kept of a cell, then print its tables."""
    run = time.strftime("%Y-%m-%d %H:%M:%S")
    ends = tuple(options.ks), tuple(options.diversity), options.gap
    sizes = options.queries, options.tuning
    blank = Task(cell, "", Path(options.results), run, *ends, *sizes)
    names, shelf = contestants_of(blank, options.contestants), blank.shelf
    for name in names:
        if name not in FAMILIES and (reason := rivals.absence(name)):
            yield f"{name}: {reason}, skipped"
            continue
        if shelf.read(name) and not any(name.startswith(word) for word in options.again):
            continue
        work = replace(blank, name=name)
        if reason := cells.measure_apart(Task.measure, [work], options.limit):
            yield f"{name}: {reason}, skipped"
    record = {name: results for name in names if (results := shelf.read(name))}
    yield from report(cell, record)


def report(cell: str, record: dict[str, Results]) -> Iterator[Output]:
    """Yield the two tables of a cell, and a warning if its results are of several runs."""
    facts = {"instructions": cells.instructions()}
    runs = sorted({results["run"] for results in record.values()})
    if len(runs) > 1:
        facts["warning"] = (
            "results are of different runs of this machine; compare the column yardstick us"
        )
    yield Table(f"Retrieval alone, us of CPU a query: {cell}", facts)
    for name, results in record.items():
        yield _retrieval(name, results)
    yield Table(f"Diverse results at equal quality: {cell}", facts)
    for name, results in record.items():
        yield from _diverse_rows(name, results)


def _facts(results: Results) -> Row:
    builds = [build["cpu s"] for build in results["builds"] if "cpu s" in build]
    return {
        "least build, s of CPU": min(builds, default=None),
        "yardstick us": results["yardstick"],
        "run": results["run"],
        "commit": results.get("commit", ""),
    }


def _retrieval(name: str, results: Results) -> Row:
    row: dict[str, Any] = {"contestant": name}
    for k in sorted({point.k for point in results["points"]}):
        for least in RECALLS:
            point = cells.best(results["points"], k, least)
            row[f"{k} at {least:g}"] = point.us if point else None
    return {**row, **_facts(results)}


def _diverse_rows(name: str, results: Results) -> Iterator[Row]:
    for title in dict.fromkeys(row["name"] for row in results["diverse"]):
        variant = [row for row in results["diverse"] if row["name"] == title]
        row: dict[str, Any] = {"contestant": title if " + " in title else name}
        for dial in sorted({item["dial"] for item in variant}):
            some = [item for item in variant if item["dial"] == dial]
            gap = max(item["gap"] for item in some)
            closing = [item for item in some if item["gap"] >= results["target"]]
            us = min((item["us"] for item in closing), default=None)
            row |= {f"us at {dial:g}": us, f"gap at {dial:g}": gap}
        yield {**row, **_facts(results)}
