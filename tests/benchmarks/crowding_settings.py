"""What the crowding run asks: settings of our own queries, and pyversity on exact candidates."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Final

import numpy as np

from benchmarks import rivals
from benchmarks.crowding_truth import Truth
from divgrpc.index import Index
from divgrpc.types import EffectiveParameters, IntArray

# The name of what is asked without an option, and of the threshold that turns collapsing off.
DEFAULTS: Final = "defaults"
OFF: Final = "off"
NEAREST: Final = "nearest"
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
        words = [self.selector]
        if self.diversity is not None and self.selector != NEAREST:
            words.append(f"{self.diversity:g}")
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
        if self.threshold == OFF:
            found["keep_duplicates"] = True
        elif self.threshold is not None:
            found["duplicate_threshold"] = float(self.threshold)
        return found


def nearest(search: str | None) -> Setting:
    """Return plain nearest neighbours, with nothing collapsed."""
    return Setting(NEAREST, 0.0, search=search)


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
    yield nearest(search)
    yield Setting(search=search)
    counts: Sequence[int | None] = candidates or [None]
    collapses: Sequence[str | None] = thresholds or [None]
    axes = product(selectors, dials, counts, collapses)
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


@dataclass(frozen=True)
class Recalls:
    """Recalls of the candidates that a selector sees, each measured once for the same search."""

    index: Index
    truth: Truth
    _known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def of(self, parameters: EffectiveParameters) -> float:
        """Return the recall of the nearest `candidates_limit` among the candidates.

        They are what plain nearest neighbours finds in the same search under the same limits.
        Collapsing is left out: it changes what is seen, and not what was found.
        """
        most = self.truth.nearest.shape[1]
        limit = min(parameters.candidates_limit or most, most)
        key = (limit, parameters.search, parameters.hash_limit, parameters.n_probes)
        if key not in self._known:
            result = self.index.query(
                self.truth.queries.rows,
                k=limit,
                selector="nearest",
                diversity=0.0,
                search=parameters.search,
                candidates_limit=limit,
                hash_limit=parameters.hash_limit,
                sampling=parameters.sampling,
                n_probes=parameters.n_probes or None,
            )
            self._known[key] = self.truth.recall(result.ids)
        return self._known[key]


def reported(parameters: EffectiveParameters) -> dict[str, Any]:
    """Return the parameters that an answer names, as JSON has them."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in asdict(parameters).items()
    }
