"""Compares a plain list of results with a diverse one, and says why each result is where it is."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from divgrpc.metrics import Values, pair_distances
from divgrpc.types import Explanation, Metric
from divgrpc.types.hits import Hit
from divgrpc.types.records import Record, SparseVector
from divgrpc_client.formats.explanation_tables import refusal_words
from divgrpc_client.formats.titles import Id

# Sparse vectors are multiplied in blocks of this many columns.
_BLOCK_COLUMNS: Final = 4_096
# Distances computed here and in an engine differ by rounding.
_ROUNDING: Final = 1e-5


class PointDistances:
    """Distances between stored points, by id, as `divgrpc.metrics.list_distances` has them.

    records: the points, with vectors. Points without a vector have no distances.
    """

    def __init__(self, records: Iterable[Record], metric: Metric) -> None:
        known = [record for record in records if record.vector is not None]
        self._metric = metric
        self._rows: dict[Id, int] = {record.id: row for row, record in enumerate(known)}
        products = _products([record.vector for record in known if record.vector is not None])
        self._distances = pair_distances(products, metric)

    def nearest(self, point: Id, points: Iterable[Id]) -> tuple[Id, float] | None:
        """Return the nearest of some points to a point, and its distance; None if none is known."""
        row = self._rows.get(point)
        known = [candidate for candidate in points if candidate in self._rows]
        if row is None or not known:
            return None
        distances = self._distances[row, [self._rows[candidate] for candidate in known]]
        place = int(distances.argmin())
        return known[place], float(distances[place])

    def mean_and_least(self, ids: Sequence[Id]) -> tuple[float | None, float | None]:
        """Return the mean and the least distance between points of a list; None for no pairs."""
        rows = [self._rows[point] for point in ids if point in self._rows]
        if len(rows) < 2:
            return None, None
        pairs = self._distances[np.ix_(rows, rows)][np.triu_indices(len(rows), 1)]
        return float(pairs.mean()), float(pairs.min())

    def are_copies(self, distance: float, duplicate_threshold: float | None) -> bool:
        """Return whether points at a distance are near-copies; None stands for no threshold."""
        if duplicate_threshold is None:
            return False
        limit = duplicate_threshold
        if self._metric != "euclidean":
            limit = (1 - limit) * (2 if self._metric == "cosine" else 1)
        return distance <= limit + _ROUNDING

    def words(self, distance: float) -> str:
        """Return a distance as people know it: a cosine or a squared distance."""
        if self._metric == "euclidean":
            return f"squared distance {distance:.3g}"
        return f"cosine {1 - distance / (2 if self._metric == 'cosine' else 1):.2f}"


def _products(vectors: Sequence[npt.NDArray[np.float32] | SparseVector]) -> Values:
    """Return the inner products (n, n) of all pairs of vectors."""
    if not vectors:
        return np.empty((0, 0))
    dense_rows = [vector for vector in vectors if isinstance(vector, np.ndarray)]
    if dense_rows:
        dense = np.stack(dense_rows).astype(np.float64)
        return np.asarray(dense @ dense.T)
    sparse = [vector for vector in vectors if isinstance(vector, SparseVector)]
    rows = np.repeat(np.arange(len(sparse)), [len(vector.values) for vector in sparse])
    values = np.concatenate([vector.values for vector in sparse])
    indices = np.concatenate([vector.indices for vector in sparse])
    columns, places = np.unique(indices, return_inverse=True)
    products = np.zeros((len(sparse), len(sparse)))
    for start in range(0, len(columns), _BLOCK_COLUMNS):
        block = (places >= start) & (places < start + _BLOCK_COLUMNS)
        dense = np.zeros((len(sparse), _BLOCK_COLUMNS))
        dense[rows[block], places[block] - start] = values[block]
        products += dense @ dense.T
    return products


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two lists of results for one query.

    plain, diverse: hits in rank order.
    copies: for each diverse hit, ids of the near-copies that it stands for.
    plain_ranks: ranks by nearness, from 1, by id, of all diverse hits or of the nearest points. 0
        for a diverse hit that only a search for a quota has found.
    distances: distances between the points of both lists.
    explanation: of the diverse hits; without it, reasons are distances alone.
    duplicate_threshold: with which near-copies were collapsed, None if they were not.
    """

    plain: Sequence[Hit]
    diverse: Sequence[Hit]
    copies: Sequence[Sequence[Id]]
    plain_ranks: Mapping[Id, int]
    distances: PointDistances
    explanation: Explanation | None = None
    duplicate_threshold: float | None = None

    def plain_reasons(self) -> list[tuple[str, str]]:
        """Return a state, `both` or `left`, and a sentence for each plain result."""
        places = _places(self.diverse)
        causes = self._displacements(places)
        originals = {copy: place for place, ids in enumerate(self.copies, 1) for copy in ids}
        reasons = []
        for hit in self.plain:
            if hit.id in places:
                reasons.append(("both", f"Also no. {places[hit.id]} of the diverse results."))
                continue
            if hit.id in originals:
                cause = f": a near-copy of no. {originals[hit.id]}"
            else:
                cause = causes.get(hit.id) or self._likeness(hit.id, causes, places)
            reasons.append(("left", f"Left out{cause}."))
        return reasons

    def _displacements(self, places: Mapping[Id, int]) -> dict[Id, str]:
        """Return why displaced points are left out, as the rest of a sentence."""
        explanation = self.explanation
        if explanation is None:
            return {}
        causes = {}
        for number, point in enumerate(explanation.displaced_ids.tolist()):
            winner = explanation.displaced_by[number] + 1
            refusal = explanation.refusal(number)
            if refusal is not None:
                causes[point] = f": {refusal_words(refusal)} when no. {winner} was picked"
                continue
            causes[point] = f": displaced by no. {winner}"
            distance = float(explanation.displaced_distances[number])
            if not np.isnan(distance):
                nearest = places[explanation.displaced_caused_by[number]]
                causes[point] += f"; nearest to no. {nearest} ({self.distances.words(distance)})"
        return causes

    def _likeness(self, point: Id, displaced: Container[Id], places: Mapping[Id, int]) -> str:
        """Return what a plain result is like that is left out for no other known reason."""
        ranks = _places(self.plain)
        nearer = [hit.id for hit in self.plain[: ranks[point] - 1] if hit.id in displaced]
        original = self.distances.nearest(point, nearer)
        if original and self.distances.are_copies(original[1], self.duplicate_threshold):
            return f": a near-copy of no. {ranks[original[0]]} of the nearest, also left out"
        nearest = self.distances.nearest(point, places)
        if nearest is None:
            return ""
        other, distance = nearest
        return f": nearest to no. {places[other]} ({self.distances.words(distance)})"

    def diverse_reasons(self) -> list[tuple[str, str]]:
        """Return a state, `both` or `new`, and sentences for each diverse result."""
        places = _places(self.plain)
        return [
            (
                "both" if hit.id in places else "new",
                f"{self._rank(hit.id, places)} {self._pick(number)}".rstrip(),
            )
            for number, hit in enumerate(self.diverse)
        ]

    def _pick(self, number: int) -> str:
        """Return sentences on the pick of a number, from 0, and the earlier ones."""
        picks = _places(self.diverse[:number])
        nearest, sentences = None, []
        if self.explanation is None:
            nearest = self.distances.nearest(self.diverse[number].id, picks)
        else:
            # Adding zero turns -0.0 into 0.0.
            relevance = self.explanation.relevance_terms[number] + 0.0
            penalty = self.explanation.penalties[number] + 0.0
            sentences = [f"Relevance {relevance:.3g}, penalty {penalty:.3g}."]
            distance = float(self.explanation.distances[number])
            if not np.isnan(distance):
                nearest = self.explanation.caused_by[number], distance
            elif picks:
                # Only near-copies that complete an answer are compared with no earlier result.
                sentences = ["A near-copy that fills up the list."]
        if nearest is not None:
            other, distance = nearest
            words = self.distances.words(distance)
            sentences.append(f"Nearest earlier result: no. {picks[other]} ({words}).")
        sentences += self._held_back(number)
        return " ".join(sentences)

    def _held_back(self, number: int) -> list[str]:
        """Return a sentence on the better point that a quota refused, if there is one."""
        if self.explanation is None:
            return []
        place = int(self.explanation.held_back[number])
        refusal = self.explanation.refusal(place)
        if refusal is None:
            return []
        point = self.explanation.displaced_ids[place]
        return [f"Point {point} is better, but {refusal_words(refusal)}."]

    def _rank(self, point: Id, places: dict[Id, int]) -> str:
        if point in places:
            return f"Also no. {places[point]} of the nearest."
        rank = self.plain_ranks.get(point, 0)
        if rank > len(places):
            return f"New: no. {rank} by nearness."
        if self.explanation is not None and not rank:
            return "New: only a search for the quota has found it."
        # An approximate search for more points may rank a point among those that it missed before.
        return "New." if rank else f"New: not among the nearest {len(self.plain_ranks)}."

    def figures(self, hits: Sequence[Hit]) -> dict[str, float | None]:
        """Return the mean score of a list, and the mean and least distance between its results."""
        mean, least = self.distances.mean_and_least([hit.id for hit in hits])
        score = float(np.mean([hit.score for hit in hits])) if hits else None
        return {"score": score, "distance": mean, "least": least}


def distinct_values(records: Iterable[Mapping[str, Any]], names: Iterable[str]) -> dict[str, int]:
    """Return the number of different values of each attribute among some points."""
    values: dict[str, set[Any]] = {name: set() for name in names}
    for attributes in records:
        for name, different in values.items():
            value = attributes.get(name)
            different.update(value if isinstance(value, tuple) else [value])
    return {name: len(different - {None}) for name, different in values.items()}


def _places(hits: Sequence[Hit]) -> dict[Id, int]:
    return {hit.id: place for place, hit in enumerate(hits, 1)}
