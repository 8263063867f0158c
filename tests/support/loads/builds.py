"""An index that is built again and again: every answer shows one build, which the answer names."""

import threading
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from divgrpc.types import FloatArray, QueryResult
from divgrpc.types.records import Records
from divgrpc_client import Client
from reference.kernels import fixed_order_distance

NAME: Final = "built"
_ROWS, _DIMS, _K = 120, 5, 6
_IDS: Final = list(range(_ROWS))
_QUERY: Final = np.random.default_rng(8).normal(size=(1, _DIMS)).astype(np.float32)


def _points(number: int) -> FloatArray:
    return np.random.default_rng((number, 77)).normal(size=(_ROWS, _DIMS)).astype(np.float32)


@dataclass
class Builds:
    """The builds of one index, and the answers that it gave. Thread-safe.

    last: number of the last build that was sent.
    newest: the latest generation that any caller has seen.
    """

    newest: int = 0
    last: int = 0
    _numbers: dict[int, int] = field(default_factory=dict)
    _queries: list[QueryResult] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def build(self, client: Client) -> None:
        """Build the index anew; the number of the build is in the payloads of its points."""
        with self._lock:
            self.last += 1
            number = self.last
        options: Any = {"hash_family": "lsh_div", "n_tables": 2, "n_bits": 3, "metric": "euclidean"}
        payloads = [str(number)] * _ROWS
        info = client.build(
            NAME, _points(number), ids=_IDS, payloads=payloads, replace=True, **options
        )
        self._see(0, info.generation, number)

    def read(self, client: Client, ids: list[int]) -> None:
        """Read some points and search for others, and compare the points with those of a build."""
        floor = self.newest
        records = client.get(NAME, ids, with_vectors=True)
        numbers = {int(record.payload) for record in records}
        assert len(numbers) == 1, f"points of the builds {numbers} in one answer"
        (number,) = numbers
        self._see(floor, records.generation, number)
        _check_records(records, ids, number)
        floor = self.newest
        result = client.query(
            NAME, _QUERY, k=_K, search="exact", selector="nearest", keep_duplicates=True
        )
        assert result.generation >= floor
        with self._lock:
            self._queries.append(result)

    def check(self) -> int:
        """Check the answers of queries, and return how many there were of known builds."""
        results = [result for result in self._queries if result.generation in self._numbers]
        for result in results:
            vectors = _points(self._numbers[result.generation])
            distances = [fixed_order_distance(vector, _QUERY[0]) for vector in vectors]
            nearest = sorted(zip(distances, _IDS, strict=True))[:_K]
            assert result.ids[0].tolist() == [name for _, name in nearest]
            scores = np.array([score for score, _ in nearest], np.float32)
            assert result.scores[0].tobytes() == scores.tobytes()
        return len(results)

    def _see(self, floor: int, generation: int, number: int) -> None:
        assert generation >= floor, f"generation {generation} after {floor}"
        with self._lock:
            # A generation has the points of one build, whoever reads them.
            assert self._numbers.setdefault(generation, number) == number
            self.newest = max(self.newest, generation)


def _check_records(records: Records, ids: list[int], number: int) -> None:
    assert records.ids.tolist() == ids
    assert np.asarray(records.vectors).tobytes() == _points(number)[ids].tobytes()
