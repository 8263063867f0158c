"""Bucket tables: which buckets are looked up, in which order, and which points are found."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.hashing import hyperplanes
from divgrpc.kernels import buckets, records
from divgrpc.kernels.records import ProbeScratch
from divgrpc.kernels.registers import record_of
from divgrpc.parameters import QueryParameters
from divgrpc.search.plan import QueryPlan
from divgrpc.types import EffectiveParameters, Sampling
from reference import definitions, kernels

examples = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)
WORDS = 2
NO_IDS = np.empty(0, np.int64)


@dataclass
class Tables:
    """Random codes in bucket tables, and a query given by its margins."""

    bits: npt.NDArray[np.bool_]
    margins: npt.NDArray[np.float32]
    n_tables: int
    n_bits: int
    ids: npt.NDArray[np.int64]
    room: int = 9000

    @classmethod
    def draw(cls, seed: int, points: int, n_tables: int, n_bits: int, flips: float) -> "Tables":
        """Draw codes in which each bit differs from the query's bit with probability `flips`."""
        rng = np.random.default_rng(seed)
        margins = rng.standard_normal(64 * WORDS).astype(np.float32)
        bits = (margins >= 0) ^ (rng.random((points, 64 * WORDS)) < flips)
        ids = rng.permutation(3 * points)[:points].astype(np.int64)
        return cls(bits, margins, n_tables, n_bits, ids)

    def points(self) -> definitions.Points:
        """Return the tables in the form of the reference implementation.

        The hyperplanes are the coordinate axes, so the query vector equals its margins.
        """
        size = 64 * WORDS
        return definitions.Points(
            vectors=np.zeros((len(self.bits), size)),
            ids=self.ids,
            hyperplanes=np.eye(size),
            thresholds=np.zeros(size),
            bits=self.bits,
            n_tables=self.n_tables,
            n_bits=self.n_bits,
        )

    def arrays(self) -> records.Tables:
        """Return the tables in the form that the kernel reads."""
        codes, count = kernels.tiles(self.bits), len(self.bits)
        tables = [
            hyperplanes.build_table(codes, count, t, self.n_bits) for t in range(self.n_tables)
        ]
        counts = [len(offsets) - 1 for _, offsets, _ in tables]
        return records.Tables(
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            np.concatenate([keys for keys, _, _ in tables]),
            np.concatenate([offsets for _, offsets, _ in tables]),
            np.array([rows for _, _, rows in tables]),
        )

    def scratch(self) -> ProbeScratch:
        """Return unused working memory for the kernel."""
        sizes = {"T": self.n_tables, "n_bits": self.n_bits, "n": len(self.bits), "h": self.room}
        return record_of(ProbeScratch, None, sizes)

    def find(
        self, n_probes: int, at_least: int, parameters: EffectiveParameters, scratch: ProbeScratch
    ) -> tuple[list[int], int]:
        """Run the kernel and return the rows found, ascending, and the number of probes."""
        rows = np.full(len(self.bits), -1, np.int32)
        plan = QueryPlan.of(parameters, "cosine", len(self.bits), min_points=at_least).kernel
        count, probes = buckets.find_in_tables(
            kernels.pack((self.margins >= 0)[np.newaxis]),
            self.margins,
            self.arrays(),
            plan._replace(n_probes=n_probes),
            self.ids,
            np.empty(0, np.uint8),
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
