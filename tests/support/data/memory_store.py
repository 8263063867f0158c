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
        order = self.select(candidates, similarities, request, start + request.k)
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
        request: Request,
        count: int,
    ) -> list[int]:
        """Return at most `count` picks among the candidates."""
        vectors = self.points.vectors[candidates].astype(float)
        relevance, diversity = similarities[candidates], request.diversity or 0.0
        nearest_pick = np.zeros(len(candidates))
        picks: list[int] = []
        for _ in range(min(count, len(candidates))):
            gains = (1 - diversity) * relevance - diversity * nearest_pick
            gains[picks] = -np.inf
            if request.max_each or request.at_least:
                places, room = [candidates[pick] for pick in picks], count - len(picks) - 1
                refused = [not self.allows(request, [*places, c], room) for c in candidates]
                gains[refused] = -np.inf
            pick = int(np.argmax(gains))
            closeness = vectors @ vectors[pick]
            nearest_pick = np.maximum(nearest_pick, closeness) if picks else closeness
            picks.append(pick)
        return [candidates[pick] for pick in picks]

    def allows(self, request: Request, places: list[int], room: int) -> bool:
        """Return whether these picks keep the limits, and leave room for the minimums."""
        columns = self.points.attributes
        for name, limit in (request.max_each or {}).items():
            last = columns[name][places[-1]]
            if sum(columns[name][place] == last for place in places) > limit:
                return False
        missing = 0
        for name, minimums in (request.at_least or {}).items():
            values = [columns[name][place] for place in places]
            missing += sum(max(0, least - values.count(v)) for v, least in minimums.items())
        return missing <= room
