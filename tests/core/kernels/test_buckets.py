"""Bucket tables: which buckets are looked up, in which order, and which points are found.

Points that were written later are in chains beside the tables.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.arrays import read_only
from divgrpc.hashing.tables import build_table
from divgrpc.kernels import buckets, records
from divgrpc.kernels.records import ProbeScratch
from divgrpc.kernels.registers import record_of
from divgrpc.parameters import QueryParameters
from divgrpc.search.arrays import NO_FILTER
from divgrpc.search.plan import QueryPlan
from divgrpc.types import EffectiveParameters, Sampling
from reference import definitions, kernels

examples = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
WORDS = 2
# Number of later points for which there is room.
ROOM = 3
# Number of chains of a table; few, so that chains have rows with several keys.
CHAINS = 8


@dataclass
class Tables:
    """Random codes in bucket tables, and a query given by its margins.

    alive: which points exist; the others may be in the tables, but are not to be found.
    later: number of the last points, which are in chains.
    """

    bits: npt.NDArray[np.bool_]
    margins: npt.NDArray[np.float32]
    n_tables: int
    n_bits: int
    ids: npt.NDArray[np.int64]
    alive: npt.NDArray[np.bool_]
    later: int = 0
    room: int = 9000

    @classmethod
    def draw(cls, seed: int, points: int, n_tables: int, n_bits: int, flips: float) -> "Tables":
        """Draw codes in which each bit differs from the query's bit with probability `flips`."""
        rng = np.random.default_rng(seed)
        margins = rng.standard_normal(64 * WORDS).astype(np.float32)
        bits = (margins >= 0) ^ (rng.random((points, 64 * WORDS)) < flips)
        ids = rng.permutation(3 * points)[:points].astype(np.int64)
        return cls(bits, margins, n_tables, n_bits, ids, np.ones(points, np.bool_))

    def points(self) -> definitions.Points:
        """Return the points that exist in the form of the reference implementation.

        The hyperplanes are the coordinate axes, so the query vector equals its margins.
        """
        size = 64 * WORDS
        return definitions.Points(
            vectors=np.zeros((self.alive.sum(), size)),
            ids=self.ids[self.alive],
            hyperplanes=np.eye(size),
            thresholds=np.zeros(size),
            bits=self.bits[self.alive],
            n_tables=self.n_tables,
            n_bits=self.n_bits,
        )

    def arrays(self) -> tuple[records.Tables, records.Passing]:
        """Return the tables and the points that exist in the form that the kernel reads."""
        stored = len(self.bits) - self.later
        codes = kernels.tiles(self.bits[:stored])
        # Of the points that do not exist, some were deleted before the tables were made.
        in_tables = self.alive[:stored] | (np.arange(stored) % 2 == 0)
        tables = [build_table(codes, in_tables, t, self.n_bits) for t in range(self.n_tables)]
        counts = [len(offsets) - 1 for _, offsets, _ in tables]
        links = np.zeros((self.later + ROOM, 2 * self.n_tables), np.int32)
        passing = NO_FILTER
        if self.later or not self.alive.all():
            flags = np.append(self.alive, np.zeros(ROOM, np.bool_)).astype(np.uint8)
            passing = NO_FILTER._replace(flags=flags)
        if self.later:
            heads = np.full(self.n_tables * CHAINS, -1, np.int32)
            packed = np.packbits(self.bits[stored:], axis=1, bitorder="little")
            for part in (slice(0, self.later // 3), slice(self.later // 3, None)):
                block = read_only(packed[part])
                buckets.add_later(block, part.start, self.n_bits, heads, links)
            passing = passing._replace(heads=heads)
        arrays = records.Tables(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.concatenate([keys for keys, _, _ in tables]),
            np.concatenate([offsets for _, offsets, _ in tables]),
            np.array([rows for _, _, rows in tables]),
            links,
        )
        return arrays, passing

    def scratch(self) -> ProbeScratch:
        """Return unused working memory for the kernel."""
        sizes = {"T": self.n_tables, "n_bits": self.n_bits, "n": len(self.bits), "h": self.room}
        return record_of(ProbeScratch, None, sizes)

    def find(
        self, n_probes: int, at_least: int, parameters: EffectiveParameters, scratch: ProbeScratch
    ) -> tuple[list[int], int]:
        """Run the kernel and return the rows found, ascending, and the number of probes."""
        rows = np.full(len(self.bits), -1, np.int32)
        tables, passing = self.arrays()
        plan = QueryPlan.of(parameters, "cosine", len(self.bits), min_points=at_least).kernel
        count, probes = buckets.find_in_tables(
            kernels.pack((self.margins >= 0)[np.newaxis]),
            self.margins,
            tables,
            plan._replace(n_probes=n_probes),
            self.ids,
            passing,
            scratch,
            rows,
        )
        return sorted(rows[:count].tolist()), probes


def parameters_of(limit: int, sampling: Sampling = "uniform", seed: int = 3) -> EffectiveParameters:
    """Return parameters with this hash limit, which may be below k."""
    usual = QueryParameters(search="tables", sampling=sampling, seed=seed).resolve(10**6, "tables")
    return replace(usual, hash_limit=limit)


drawn_tables = st.builds(
    Tables.draw,
    seed=seeds,
    points=st.sampled_from([1, 2, 30, 200]),
    n_tables=st.integers(1, 8),
    n_bits=st.integers(1, 7),
    flips=st.sampled_from([0.0, 0.1, 0.5]),
)


@examples
@given(
    tables=drawn_tables,
    n_probes=st.integers(1, 60),
    limit=st.sampled_from([0, 1, 5, 40, 1000]),
    sampling=st.sampled_from(["uniform", "nearest"]),
)
def test_find_in_tables_agrees_with_the_reference(
    tables: Tables, n_probes: int, limit: int, sampling: Sampling
) -> None:
    parameters = parameters_of(limit, sampling)
    probe_parameters = replace(parameters, n_probes=n_probes)
    twin = definitions.hashed_by_tables(tables.points(), tables.margins, probe_parameters)
    rows, probes = tables.find(n_probes, 0, parameters, tables.scratch())
    assert (rows, probes) == (sorted(twin[0]), twin[1])


@examples
@given(
    tables=drawn_tables,
    later=st.sampled_from([0, 1, 20, 200]),
    share_alive=st.sampled_from([1.0, 0.8, 0.1]),
    n_probes=st.integers(1, 60),
    limit=st.sampled_from([0, 5, 40]),
    sampling=st.sampled_from(["uniform", "nearest"]),
)
def test_later_points_are_found_as_if_they_were_in_their_buckets(  # noqa: PLR0917
    tables: Tables, later: int, share_alive: float, n_probes: int, limit: int, sampling: Sampling
) -> None:
    """Points that do not exist count for no limit."""
    points = len(tables.bits)
    tables.later = min(later, points)
    tables.alive = np.random.default_rng(points).random(points) < share_alive
    at_least = min(10, int(tables.alive.sum()))
    parameters = parameters_of(limit, sampling)
    probe_parameters = replace(parameters, n_probes=n_probes)
    twin = definitions.hashed_by_tables(
        tables.points(), tables.margins, probe_parameters, at_least=at_least
    )
    rows, probes = tables.find(n_probes, at_least, parameters, tables.scratch())
    assert (rows, probes) == (np.flatnonzero(tables.alive)[sorted(twin[0])].tolist(), twin[1])


@examples
@given(tables=drawn_tables)
def test_chains_hold_every_later_point_with_its_key(tables: Tables) -> None:
    tables.later = len(tables.bits)
    arrays, passing = tables.arrays()
    for table in range(tables.n_tables):
        heads = passing.heads.reshape(tables.n_tables, CHAINS)[table]
        rows: dict[int, list[int]] = {}
        for chain, head in enumerate(heads.tolist()):
            row, keys = head, set()
            while row >= 0:
                key = int(arrays.links[row, 2 * table])
                rows.setdefault(key, []).append(row)
                keys.add(key)
                row = int(arrays.links[row, 2 * table + 1])
            places = {kernels.splitmix64(key) % CHAINS for key in keys}
            assert places <= {chain}
        newest_first = {key: points[::-1] for key, points in rows.items()}
        assert newest_first == kernels.buckets(tables.bits, table, tables.n_bits)


@examples
@given(
    seed=seeds,
    n_bits=st.sampled_from([3, 7, 10]),
    at_least=st.sampled_from([1, 10, 50, 60]),
    n_probes=st.sampled_from([1, 4]),
)
def test_probing_continues_until_enough_points_are_found(
    seed: int, n_bits: int, at_least: int, n_probes: int
) -> None:
    tables = Tables.draw(seed, 60, 3, n_bits, 0.5)
    parameters = replace(parameters_of(0), n_probes=n_probes)
    twin = definitions.hashed_by_tables(
        tables.points(), tables.margins, parameters, at_least=at_least
    )
    rows, probes = tables.find(n_probes, at_least, parameters, tables.scratch())
    assert (rows, probes) == (sorted(twin[0]), twin[1])
    assert len(rows) >= at_least


@pytest.mark.parametrize("room", [4, 5, 10, 33])
def test_probing_ends_if_the_heap_is_full(room: int) -> None:
    """When the heap is full, no probes are added, but those in the heap are still looked up."""
    tables = Tables.draw(1, 50, 3, 10, 0.5)
    tables.room = room
    scratch = tables.scratch()
    _, probes = tables.find(10**6, 0, parameters_of(0), scratch)
    assert 3 <= probes < 3 * 2**10
    few, _ = tables.find(2, 0, parameters_of(0), scratch)
    tables.room = 9000
    assert few == tables.find(2, 0, parameters_of(0), tables.scratch())[0]


def test_working_memory_can_be_reused() -> None:
    tables = Tables.draw(2, 200, 4, 5, 0.3)
    fresh = tables.find(20, 0, parameters_of(0), tables.scratch())
    scratch = tables.scratch()
    scratch[5][0] = 2**32 - 4
    for _ in range(8):
        assert tables.find(20, 0, parameters_of(0), scratch) == fresh
    scratch[4][:] = 1
    scratch[5][0] = 2**32 - 1
    assert tables.find(20, 0, parameters_of(0), scratch) == fresh


@pytest.mark.parametrize("kind", ["zero", "equal"])
@pytest.mark.parametrize("n_tables", [1, 3])
def test_equal_margins_are_probed_once_each(kind: str, n_tables: int) -> None:
    tables = Tables.draw(4, 64, n_tables, 6, 0.5)
    tables.margins = np.full(64 * WORDS, 0 if kind == "zero" else 0.5, np.float32)
    for n_probes in (1, 2, n_tables, 7, 6 * n_tables, n_tables * 2**6):
        rows, probes = tables.find(n_probes, 0, parameters_of(0), tables.scratch())
        parameters = replace(parameters_of(0), n_probes=n_probes)
        twin = definitions.hashed_by_tables(tables.points(), tables.margins, parameters)
        assert (rows, probes) == (sorted(twin[0]), n_probes)
