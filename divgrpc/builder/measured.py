"""What tuning needs to know of points and of searches among them."""

from typing import Protocol

from divgrpc.build_rows import BuildRows
from divgrpc.types import EffectiveParameters, IntArray, Metric
from divgrpc.vectors import Rows


class MeasuredSearcher(Protocol):
    """Searches the points of an index, so that tuning can measure the searches.

    `Searcher` does so for a whole index, and `divgrpc.sharding.measuring.ShardedSearcher` for
    points that are divided among shards. Both give the same numbers. Threads may share a searcher,
    unless `has_one_thread`.
    """

    @property
    def points(self) -> BuildRows:
        """All points (n, d), in the order of their row numbers."""

    @property
    def metric(self) -> Metric:
        """The metric of the index."""

    @property
    def nonzeros(self) -> int | None:
        """The number of stored values of all points; None if points are dense."""

    @property
    def scores_longest(self) -> bool:
        """Whether scans first score the longest points, to skip points too short to be near."""

    @property
    def has_one_thread(self) -> bool:
        """Whether one thread alone may search, the one that reports progress."""

    @property
    def max_probes(self) -> int:
        """Maximum number of buckets or cells that a search can probe."""

    @property
    def least_probes(self) -> int:
        """Minimum number of probes: 1 with cells, otherwise one for each hash table."""

    def hashed(self, queries: Rows, parameters: EffectiveParameters) -> list[IntArray]:
        """Return the row numbers of the hashed points of each query, unsorted.

        At most `hash_limit` numbers are returned for each query; 0 means no limit. `sampling` must
        be `uniform`.
        """

    def exact_work(self, queries: Rows, n_nearest: int) -> tuple[IntArray, IntArray]:
        """Return the numbers of points and of list entries that exact search reads, (nq,) each.

        `n_nearest` is the number of points to find; it may exceed the number of points.
        """

    def release(self) -> None:
        """Allow the operating system to drop the pages of memory-mapped arrays."""
