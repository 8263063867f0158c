"""A correct store for the checks of conformance, simple enough to break in one place."""

from typing import get_args

import numpy as np
import numpy.typing as npt

from divgrpc.conformance import Answer, Feature, Points, Request


class MemoryStore:
    """Searches all points exactly, and selects by maximal marginal relevance."""

    name = "memory"
    features: tuple[Feature, ...] = get_args(Feature)
    higher_is_nearer = True

    def build(self, points: Points) -> None:
        """Keep the points."""
        self.points = points

    def query(self, request: Request) -> Answer:
        """Select the pages up to the one that is asked for, and return the last."""
        similarities = self.points.vectors.astype(float) @ request.vector.astype(float)
        candidates = self.candidates(request, np.argsort(-similarities, kind="stable"))
        start = request.page if isinstance(request.page, int) else 0
        order = self.select(candidates, similarities, request.diversity or 0.0, start + request.k)
        picks = order[start:]
        return Answer(
            [self.points.ids[place] for place in picks],
            [float(similarities[place]) for place in picks],
            start + request.k if start + request.k < len(candidates) else None,
        )

    def candidates(self, request: Request, places: npt.NDArray[np.intp]) -> list[int]:
        """Return the places that pass the filter, the nearest first."""
        columns = self.points.attributes
        conditions = (request.filter or {}).items()
        return [
            int(place)
            for place in places
            if all(columns[name][place] == value for name, value in conditions)
        ]

    def select(
        self,
        candidates: list[int],
        similarities: npt.NDArray[np.float64],
        diversity: float,
        count: int,
    ) -> list[int]:
        """Return at most `count` picks among the candidates."""
        vectors = self.points.vectors[candidates].astype(float)
        relevance = similarities[candidates]
        nearest_pick = np.zeros(len(candidates))
        picks: list[int] = []
        for _ in range(min(count, len(candidates))):
            gains = (1 - diversity) * relevance - diversity * nearest_pick
            gains[picks] = -np.inf
            pick = int(np.argmax(gains))
            closeness = vectors @ vectors[pick]
            nearest_pick = np.maximum(nearest_pick, closeness) if picks else closeness
            picks.append(pick)
        return [candidates[pick] for pick in picks]
