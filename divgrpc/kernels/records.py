"""Records that kernels read and write: named arrays and numbers in `NamedTuple`s.

Inside a compiled kernel a named field costs nothing. At Python's boundary a NamedTuple takes numba
three times as long as a plain tuple. The kernels that every query calls therefore take the arrays
of `Index` and `Scratch` by address (`kernels.registers`) and the other records as plain tuples,
and name them in their first lines: `plan = Plan(*plan)`. All other kernels take the records.

Shapes use these letters: n points of d dimensions, nq queries, B projections (hyperplanes), W words
of 64 bits in a code, C cells, T tables, r rows that the scratch memory has room for, k results.
An array that an index does not have is empty.
"""

from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

# Plan.search
EXACT = 0
TABLES = 1
SCAN = 2
SCAN_HAMMING = 3

# Plan.step: what follows the search.
NEAREST = 0
GREEDY = 1
# Return the ids of the hashed points, unscored and in no order.
HASHED = 2
# Leave the candidates in the scratch memory, nearest first; `Results.counts` says how many.
CANDIDATES = 3

# Plan.metric
COSINE = 0
EUCLIDEAN = 1
INNER_PRODUCT = 2

# Objective.rule: three readings of the paper's Algorithm 1, and maximal marginal relevance.
CORRECTED = 0
PRINTED = 1
MARGINAL = 2
MMR = 3

# Plan.dial_choice: how a query gets its diversity.
FIXED = 0
BY_FALL_OFF = 1
BY_LOSS = 2

# Results.reasons: why a query got its dial. DialReason in the .proto has the same numbers.
LOSS_BOUND = 1
WITHIN_BOUND = 2
FALL_OFF = 3
NO_CHOICE = 4
EQUAL_RELEVANCE = 5

# Rows of Results.stats, in the order of `divgrpc.types.QueryStats`.
POINTS_HASHED = 0
BUCKETS_PROBED = 1
POINTS_SCORED = 2
POOL_SIZE = 3
COPIES_COLLAPSED = 4
COPIES_RETURNED = 5

# Objective.copy_limit at which no two points are near-copies.
NO_COPIES = np.float32(-1)

# Array types with the number of dimensions that numba compiles for. Fields of `Index` may add the
# name of the stored array, if it differs from the field's, and the shape of a missing array.
Float32s: TypeAlias = Annotated[npt.NDArray[np.float32], np.float32, 1]
Float32Matrix: TypeAlias = Annotated[npt.NDArray[np.float32], np.float32, 2]
Float64s: TypeAlias = Annotated[npt.NDArray[np.float64], np.float64, 1]
Int32s: TypeAlias = Annotated[npt.NDArray[np.int32], np.int32, 1]
Int32Matrix: TypeAlias = Annotated[npt.NDArray[np.int32], np.int32, 2]
Int64s: TypeAlias = Annotated[npt.NDArray[np.int64], np.int64, 1]
UInt32s: TypeAlias = Annotated[npt.NDArray[np.uint32], np.uint32, 1]
UInt64s: TypeAlias = Annotated[npt.NDArray[np.uint64], np.uint64, 1]
UInt64Matrix: TypeAlias = Annotated[npt.NDArray[np.uint64], np.uint64, 2]


class Points(NamedTuple):
    """The points of an index, either dense rows or compressed sparse rows.

    vectors: (n, d) dense rows; (0, d) if points are sparse.
    indptr: (n + 1,) row i stores the elements indptr[i] to indptr[i + 1] of the next two.
    indices: columns, ascending within a row.
    values: the values in those columns.
    squares: (n,) squared lengths of sparse rows.
    inverse_lengths: (n,) with metric inner_product, 0 for a point of length 0. If present, the
        distance between two points is 1 - cosine, otherwise squared Euclidean.
    """

    vectors: Annotated[Float32Matrix, "vectors", (0, "d")]
    indptr: Int64s
    indices: Int32s
    values: Float32s
    squares: Float64s
    inverse_lengths: Float32s


class InvertedLists(NamedTuple):
    """For each rare column of sparse points the rows that store it (`kernels.inverted_lists`).

    starts: (d + 1,) column j has the elements starts[j] to starts[j + 1]; none if it is common.
    rows: point rows, ascending within a column.
    values: what those points store there.
    common_lengths: (n,) at least the length of each point over the common columns.
    """

    starts: Annotated[Int64s, "posting_starts"]
    rows: Annotated[Int32s, "posting_rows"]
    values: Annotated[Float32s, "posting_values"]
    common_lengths: Float32s


class Hashing(NamedTuple):
    """Hyperplanes and the codes of the points.

    hyperplanes: (m, B) one direction per column; m is d, or the sums of the count sketch.
    thresholds: (B,) subtracted from the projections; the differences are a query's margins.
    codes: (W, n) bit b of point i is bit b % 64 of codes[b // 64, i]; in cells, by place.
    terms: (n,) two terms per point that turn a score into a distance (`code_scan.estimate`).
    sketch: (d,) the sum each dimension is added to (`projection.sketch_dense`).
    """

    hyperplanes: Annotated[Float32Matrix, "hyperplanes", ("d", 0)]
    thresholds: Float32s
    codes: UInt64Matrix
    terms: Annotated[UInt32s, "scan_terms"]
    sketch: Int32s


class Tables(NamedTuple):
    """Bucket tables (`kernels.buckets`).

    starts: (T + 1,) number of buckets in all tables before each.
    keys: ascending keys of each table's buckets; empty if a key is the number of its bucket.
    offsets: where each bucket starts in its row of `rows`, with one more entry per table.
    rows: (T, n) point rows, bucket after bucket.
    """

    starts: Annotated[Int64s, "table_starts"]
    keys: Annotated[UInt32s, "table_keys"]
    offsets: Annotated[Int32s, "table_offsets"]
    rows: Annotated[Int32Matrix, "table_rows"]


class Cells(NamedTuple):
    """A k-means partition of the points (`kernels.cells`).

    codes: (W, C) codes of the centres.
    terms: (C,) terms of the centres, as `Hashing.terms`.
    centres: (C, m) over a query's first m projections.
    squares: (C,) squared lengths of the centres.
    starts: (C + 1,) cell c holds the places starts[c] to starts[c + 1].
    rows: (n,) the point row at each place, ascending within a cell.
    no_ids: (0,) ties between cells go to the lower number.
    """

    codes: Annotated[UInt64Matrix, "cell_codes"]
    terms: Annotated[UInt32s, "cell_terms"]
    centres: Annotated[Float32Matrix, "cell_centres", (0, 1)]
    squares: Annotated[Float32s, "cell_squares"]
    starts: Annotated[Int64s, "cell_starts"]
    rows: Annotated[Int32s, "cell_rows"]
    no_ids: Int64s


class Index(NamedTuple):
    """All arrays of one generation that queries read.

    ids: (n,) ids of the points; empty if ids are row numbers.
    length_bounds: (ceil(n / BOUND_ROWS),) with metric inner_product and points sorted by length,
        no row from BOUND_ROWS * b on is longer than length_bounds[b] (`kernels.exact`).
    """

    points: Points
    lists: InvertedLists
    ids: Int64s
    length_bounds: Float32s
    hashing: Hashing
    tables: Tables
    cells: Cells


class Candidates(NamedTuple):
    """Points that a query may return.

    rows: (r,) point rows.
    distances: (r,) distance of each from the query: squared Euclidean, or minus the product.
    """

    rows: Int32s
    distances: Float32s


class QueryCode(NamedTuple):
    """What a query is hashed to.

    sketched: (1, m) the count sketch of the query.
    margins: (B,) projections less thresholds.
    signs: (W, 1) bit b % 64 of signs[b // 64, 0] is set if margin b is 0 or more.
    planes: (5, W) margins in four bits, and weights (`projection.quantise`).
    """

    sketched: Float32Matrix
    margins: Float32s
    signs: UInt64Matrix
    planes: UInt64Matrix


class ScanScratch(NamedTuple):
    """Memory of a scan of codes (`kernels.code_scan`).

    scores: (r,) one score per point, in the memory of `Candidates.distances`.
    maxima: the largest score of each group of points.
    minima: the least estimate of each group, in the memory of `maxima`.
    block_scores: (BLOCK,) scores of one block.
    block_distances: (BLOCK,) estimates or distances of one block.
    """

    scores: Int32s
    maxima: Int32s
    minima: Float32s
    block_scores: Int32s
    block_distances: Float32s


class Heap(NamedTuple):
    """A binary heap of probes, (T + 2 * MAX_PROBES,) each (`kernels.buckets`).

    costs: sum of the squared margins of the flipped bits.
    tables: the table of each probe.
    masks: the flipped bits, as a set of ranks.
    keys: the key of the bucket.
    """

    costs: Float32s
    tables: Int32s
    masks: Int64s
    keys: Int64s


class ProbeScratch(NamedTuple):
    """Memory of a search through tables.

    ranks: (T, n_bits) the bits of each key in ascending order of margin.
    squares: (T, n_bits) their squared margins.
    home_keys: (T,) the query's key in each table.
    heap: probes yet to be made.
    seen: (n,) a point has been met by this query if its entry is the epoch.
    epoch: (1,) number of the query, modulo 2**32.
    """

    ranks: Int32Matrix
    squares: Float32Matrix
    home_keys: Int64s
    heap: Heap
    seen: UInt32s
    epoch: UInt32s


class CellScratch(NamedTuple):
    """Memory of a search through cells.

    numbers: (C,) cell numbers, nearest first.
    distances: (C,) distances of their centres.
    """

    numbers: Int32s
    distances: Float32s


class SelectionScratch(NamedTuple):
    """Memory of selectors, for as many candidates as a query may have.

    far: distances of all candidates from one.
    apart: distance of each candidate from the picks: a sum, or the least.
    dense: (1, d) zeros, over which one sparse row is spread at a time.
    marks: (ceil(d / 64),) zeros, a bit per column of that row (`sparse.marked_dot`), or empty.
    """

    far: Float32s
    apart: Float32s
    dense: Float32Matrix
    marks: UInt64s


class BatchScratch(NamedTuple):
    """Memory of queries that are searched together, a row for each of m (`kernels.batch`).

    rows: (m, r) point rows that a query keeps.
    distances: (m, r) their distances, estimates or minus scores.
    counts: (m,) how many it keeps; -1 if more tie than it has room for.
    scored: (m,) points whose distance was computed.
    settled: (m,) kept points that do not tie for the last places; these come first.
    level_sums: (m,) sum of the query's quantised levels times their weights.
    limits: (m,) greatest distance that may still be kept.
    units: (m,) size of one quantised level.
    margins: (m, B) projections less thresholds.
    planes: (5 * m, W) quantised margins, five rows for each query.
    """

    rows: Int32Matrix
    distances: Float32Matrix
    counts: Int64s
    scored: Int64s
    settled: Int64s
    level_sums: Int64s
    limits: Float32s
    units: Float32s
    margins: Float32Matrix
    planes: UInt64Matrix


class Scratch(NamedTuple):
    """All memory that one thread's queries write into.

    costs: candidates' distances as selectors weigh them.
    picked: (k,) positions of the picks among the candidates.
    sums: (n,) sums over inverted lists.
    """

    candidates: Candidates
    code: QueryCode
    scan: ScanScratch
    probes: ProbeScratch
    cells: CellScratch
    selection: SelectionScratch
    costs: Float32s
    picked: Int64s
    sums: Float32s
    batch: BatchScratch


class Plan(NamedTuple):
    """How queries with the same parameters are answered.

    search: EXACT, TABLES, SCAN or SCAN_HAMMING.
    n_probes: buckets or cells to look at with TABLES.
    min_points: with TABLES, look at more buckets until this many points are found, then scan.
    k: number of results.
    hash_limit: most points to hash; 0 for no limit.
    candidates_limit: most candidates for the selector; 0 for no limit.
    max_distance: float32 greatest distance of a candidate; inf for no limit.
    step: NEAREST, GREEDY, HASHED or CANDIDATES.
    relevance: float32 the paper's lambda, 1 - diversity.
    rule: CORRECTED, PRINTED, MARGINAL or MMR.
    uniform: draw the points that exceed hash_limit at random, not by rank.
    seed: uint64 seed of that draw.
    product: distances from the query are minus products (metric inner_product).
    metric: COSINE, EUCLIDEAN or INNER_PRODUCT.
    copy_limit: float32 greatest distance between near-copies, NO_COPIES to keep them all.
    pool_limit: candidates that near-copies may make the pool grow to; 0 for candidates_limit.
    dial_choice: FIXED, BY_FALL_OFF or BY_LOSS; the last with step CANDIDATES only.
    dial_factor: float64 factor of the odds in `dials.fall_off_step`.
    """

    search: int
    n_probes: int
    min_points: int
    k: int
    hash_limit: int
    candidates_limit: int
    max_distance: np.float32
    step: int
    relevance: np.float32
    rule: int
    uniform: bool
    seed: np.uint64
    product: bool
    metric: int
    copy_limit: np.float32
    pool_limit: int
    dial_choice: int
    dial_factor: float


class Span(NamedTuple):
    """Which of the queries to answer.

    first, stop: rows first to stop - 1.
    together: `kernels.batch` has searched them, and `Scratch.batch` has the results.
    """

    first: int
    stop: int
    together: bool


class Queries(NamedTuple):
    """Rows of queries, either dense or compressed sparse.

    dense: (nq, d) rows; (0, d) if queries are sparse.
    indptr: (nq + 1,) as in `Points`.
    indices: columns, ascending within a row.
    values: the values in those columns.
    """

    dense: Float32Matrix
    indptr: Int64s
    indices: Int32s
    values: Float32s


class Query(NamedTuple):
    """One query as points are scored against it.

    dense: (m, d) float32 a matrix with the query in one row.
    row: which row.
    square: float64 squared length of the query; read if points are sparse.
    product: a distance is minus the dot product, otherwise the squared Euclidean distance.
    """

    dense: Any
    row: int
    square: float
    product: bool


class Results(NamedTuple):
    """What queries return, one row for each.

    ids: (nq, k) -1 after the last result.
    scores: (nq, k) relevance in the direction of the metric; nan after the last result.
    selection_scores: (nq, k) what the selector maximised; nan after the last result.
    counts: (nq,) number of results.
    stats: (6, nq) uint32 rows POINTS_HASHED to COPIES_RETURNED.
    dials: (nq,) float64 diversity chosen for the query; empty if the caller gave it.
    reasons: (nq,) uint8 why it was chosen, LOSS_BOUND to EQUAL_RELEVANCE.
    """

    ids: Any
    scores: Any
    selection_scores: Any
    counts: Any
    stats: Any
    dials: Any
    reasons: Any


class Hits(NamedTuple):
    """What the find stage leaves for one query; the points are in `Scratch.candidates`.

    settled: points from here on tie for the last places under the hash limit.
    size: number of points; ALL_POINTS stands for the first `settled` points of the index, and none
        of them is written: the others cannot be among the nearest.
    probes: number of buckets or cells that were looked at.
    scored: number of points that were scored meanwhile.
    room: 0, or the number of points that `Scratch` must have room for; then nothing was found.
    """

    settled: np.int64
    size: np.int64
    probes: np.int64
    scored: np.int64
    room: np.int64


class Objective(NamedTuple):
    """What greedy selection optimises.

    k: number of picks.
    relevance: float32 the paper's lambda.
    rule: CORRECTED, PRINTED, MARGINAL or MMR.
    product: costs are shares of the range of the candidates' distances.
    copy_limit: float32 greatest distance between near-copies, NO_COPIES to keep them all.
    """

    k: int
    relevance: np.float32
    rule: int
    product: bool
    copy_limit: np.float32


class Pool(NamedTuple):
    """How many of the nearest candidates a selector sees.

    size: candidates in the pool.
    widest: candidates that near-copies may make the pool grow to.
    total: all candidates.
    """

    size: int
    widest: int
    total: int
