"""What the crowding run asks: settings of our own queries, and pyversity on exact candidates."""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

from benchmarks import rivals
from benchmarks.crowding_truth import Truth
from divgrpc.index import Index
from divgrpc.types import IntArray

# The name of what is asked without an option, and of the threshold that turns collapsing off.
DEFAULTS: Final = "defaults"
OFF: Final = "off"
SELECTORS: Final = (
    "greedy:corrected",
    "greedy:marginal",
    "greedy:printed",
    "mmr",
    "dpp",
    "max_sum",
    "rerank",
)
STRATEGIES: Final = ("mmr", "msd", "dpp")
# Candidates of a baseline where no number is named.
_CANDIDATES: Final = 200


@dataclass(frozen=True)
class Setting:
    """One way to ask: `selector` may name a variant; None leaves a parameter to its default."""

    selector: str = DEFAULTS
    diversity: float | None = None
    candidates: int | None = None
    threshold: str | None = None
    search: str | None = None

    @property
    def name(self) -> str:
        """What stands in a table."""
        words = [self.selector if self.diversity is None else f"{self.selector} {self.diversity:g}"]
        if self.candidates is not None:
            words.append(f"of {self.candidates:,}")
        if self.threshold is not None:
            words.append(f"collapse {self.threshold}")
        return " ".join(words)

    @property
    def parameters(self) -> dict[str, Any]:
        """What a query is asked with, beside k."""
        found: dict[str, Any] = {}
        if self.selector != DEFAULTS:
            selector, _, variant = self.selector.partition(":")
            found["selector"] = selector
            if variant:
                found["variant"] = variant
        if self.diversity is not None:
            found["diversity"] = self.diversity
        if self.candidates is not None:
            found["candidates_limit"] = self.candidates
        if self.search is not None:
            found["search"] = self.search
        if self.threshold is not None:
            # The parameter is newer than this run: without it there is nothing to turn off.
            if "duplicate_threshold" in inspect.signature(Index.query).parameters:
                off = self.threshold == OFF
                found["duplicate_threshold"] = None if off else float(self.threshold)
            elif self.threshold != OFF:
                raise SystemExit("this version has no duplicate_threshold")
        return found


def settings(
    selectors: Sequence[str],
    dials: Sequence[float],
    candidates: Sequence[int],
    thresholds: Sequence[str],
    search: str | None,
) -> Iterator[Setting]:
    """Yield the plain nearest neighbours, the defaults, and every combination of the rest.

    No number of candidates and no threshold leave each to its default.
    """
    yield Setting("nearest", search=search)
    yield Setting(search=search)
    axes = product(selectors, dials, candidates or [None], thresholds or [None])
    for selector, dial, count, threshold in axes:
        yield Setting(selector, dial, count, threshold, search)


def pyversity_picks(truth: Truth, strategy: str, diversity: float, count: int | None) -> IntArray:
    """Return what pyversity picks (nq, k) among the nearest `count` points of each query."""
    import pyversity

    points, k = truth.crowd.points, truth.k
    dial = rivals.centre("msd", diversity, k) if strategy == "msd" else diversity
    options = {} if strategy == "dpp" else {"normalize": False}
    picks = np.full((len(truth.nearest), k), -1)
    count = min(count or _CANDIDATES, truth.nearest.shape[1])
    for i, rows in enumerate(truth.nearest[:, :count]):
        vectors = points[rows]
        if hasattr(vectors, "toarray"):
            # Words that no candidate has change no product.
            vectors = vectors[:, np.unique(vectors.indices)].toarray()
        chosen = pyversity.diversify(
            embeddings=vectors,
            scores=truth.near[i, :count],
            k=k,
            strategy=pyversity.Strategy(strategy),
            diversity=dial,
            **options,
        )
        picks[i, : len(chosen.indices)] = rows[chosen.indices]
    return picks


def candidates_of(index: Index, truth: Truth, setting: Setting) -> tuple[IntArray, dict[str, Any]]:
    """Return the candidates (nq, m) that a selector sees, and the parameters of the answer.

    They are what plain nearest neighbours finds in the same search under the same limits, so that
    m is the effective `candidates_limit`. Collapsing is left out: it changes what is seen, and not
    what was found.
    """
    rows, k = truth.queries.rows, truth.k
    parameters = index.query(rows[:1], k=k, **setting.parameters).parameters
    limit = parameters.candidates_limit or truth.nearest.shape[1]
    limit = min(limit, truth.nearest.shape[1])
    result = index.query(
        rows,
        k=limit,
        selector="nearest",
        search=parameters.search,
        candidates_limit=limit,
        hash_limit=parameters.hash_limit,
        sampling=parameters.sampling,
        n_probes=parameters.n_probes or None,
    )
    effective = {
        "selector": parameters.selector,
        "variant": parameters.variant,
        "diversity": parameters.diversity,
        "search": parameters.search,
        "candidates_limit": parameters.candidates_limit,
        "hash_limit": parameters.hash_limit,
        "duplicate_threshold": getattr(parameters, "duplicate_threshold", None),
    }
    return result.ids, {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in effective.items()
    }
