"""Records that kernels read and write: named arrays and numbers in `NamedTuple`s.

Inside a compiled kernel a named field costs nothing. At Python's boundary a NamedTuple takes numba
three times as long as a plain tuple. The kernels that every query calls therefore take the arrays
of `Index` and `Scratch` by address (`kernels.registers`) and the other records as plain tuples,
and name them in their first lines: `plan = Plan(*plan)`. All other kernels take the records.

An annotation gives the shape of an array, and the name of the stored array if it differs from the
field's. Shapes use these letters: n points of d dimensions, q queries, k results, m numbers that a
query is projected from (d, or the sums of the count sketch), B projections (hyperplanes), W words
of 64 bits in a code, C cells, T tables, r rows that the scratch memory has room for. An array that
an index does not have is empty: its letters are 0, but d and m are the dimensions.
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
HASH_ONLY = 2
# Leave the candidates in the scratch memory, nearest first; `Results.counts` says how many.
CANDIDATES = 3

# Plan.metric
COSINE = 0
EUCLIDEAN = 1
INNER_PRODUCT = 2

# Objective.rule: three readings of the paper's Algorithm 1, and maximal marginal relevance.
CORRECTED_RULE = 0
PRINTED_RULE = 1
MARGINAL_RULE = 2
MMR_RULE = 3

# Plan.dial_choice: how a query gets its diversity.
BY_CALLER = 0
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

Float32s: TypeAlias = npt.NDArray[np.float32]
Float64s: TypeAlias = npt.NDArray[np.float64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt32s: TypeAlias = npt.NDArray[np.uint32]
UInt64s: TypeAlias = npt.NDArray[np.uint64]


class Points(NamedTuple):
    """The points of an index, either dense rows or compressed sparse rows."""

    vectors: Annotated[Float32s, "n d"]  # dense rows; (0, d) if points are sparse
    # Row i stores the elements indptr[i] to indptr[i + 1] of the next two.
    indptr: Annotated[Int64s, "n+1"]
    indices: Annotated[Int32s, "nonzeros"]  # columns, ascending within a row
    values: Annotated[Float32s, "nonzeros"]
    squares: Annotated[Float64s, "n"]  # squared lengths of sparse rows
    # With metric inner_product; 0 for a point of length 0. If present, the distance between two
    # points is 1 - cosine, otherwise squared Euclidean.
    inverse_lengths: Annotated[Float32s, "n"]


class InvertedLists(NamedTuple):
    """For each rare column of sparse points the rows that store it (`kernels.inverted_lists`)."""

    # Column j has the elements starts[j] to starts[j + 1]; none if it is common.
    starts: Annotated[Int64s, "d+1", "posting_starts"]
    rows: Annotated[Int32s, "entries", "posting_rows"]  # ascending within a column
    values: Annotated[Float32s, "entries", "posting_values"]  # what those points store there
    common_lengths: Annotated[Float32s, "n"]  # at least each point's length over common columns


class Hashing(NamedTuple):
    """Hyperplanes and the codes of the points."""

    hyperplanes: Annotated[Float32s, "m B"]  # one direction per column
    thresholds: Annotated[Float32s, "B"]  # projections less thresholds are a query's margins
    # Bit b of point i is bit b % 64 of codes[b // 64, i]; in cells points are in order of place.
    codes: Annotated[UInt64s, "W n"]
    terms: Annotated[UInt32s, "n", "scan_terms"]  # turn a score into a distance (`code_scan`)
    sketch: Annotated[Int32s, "sketch"]  # (d,) the sum of each dimension (`projection`), or empty


class Tables(NamedTuple):
    """Bucket tables (`kernels.buckets`)."""

    starts: Annotated[Int64s, "T+1", "table_starts"]  # buckets in all tables before each
    # Ascending keys of each table's buckets; empty if a key is the number of its bucket.
    keys: Annotated[UInt32s, "buckets", "table_keys"]
    # Where each bucket starts in its row of `rows`, with one more entry per table.
    offsets: Annotated[Int32s, "buckets+T", "table_offsets"]
    rows: Annotated[Int32s, "T n", "table_rows"]  # point rows, bucket after bucket


class Cells(NamedTuple):
    """A k-means partition of the points (`kernels.cells`)."""

    codes: Annotated[UInt64s, "W C", "cell_codes"]  # of the centres
    terms: Annotated[UInt32s, "C", "cell_terms"]  # as `Hashing.terms`
    centres: Annotated[Float32s, "C width", "cell_centres"]  # over a query's first projections
    squares: Annotated[Float32s, "C", "cell_squares"]  # squared lengths of the centres
    starts: Annotated[Int64s, "C+1", "cell_starts"]  # cell c has places starts[c] to starts[c + 1]
    rows: Annotated[Int32s, "n", "cell_rows"]  # the point at each place, ascending within a cell
    no_ids: Annotated[Int64s, "0"]  # ties between cells go to the lower number


class Index(NamedTuple):
    """All arrays of one generation that queries read."""

    points: Points
    lists: InvertedLists
    ids: Annotated[Int64s, "n"]  # empty if ids are row numbers
    # (ceil(n / BOUND_ROWS),) with metric inner_product and points sorted by length: no row from
    # BOUND_ROWS * b on is longer than length_bounds[b] (`kernels.exact`).
    length_bounds: Annotated[Float32s, "bounds"]
    hashing: Hashing
    tables: Tables
    cells: Cells


class Candidates(NamedTuple):
    """Points that a query may return."""

    rows: Annotated[Int32s, "r"]
    distances: Annotated[Float32s, "r"]  # from the query: squared Euclidean, or minus the product


class QueryCode(NamedTuple):
    """What a query is hashed to."""

    sketch_sums: Annotated[Float32s, "1 m"]  # the count sketch of the query
    margins: Annotated[Float32s, "B"]  # projections less thresholds
    signs: Annotated[UInt64s, "W 1"]  # bit b % 64 of signs[b // 64, 0]: margin b is 0 or more
    planes: Annotated[UInt64s, "5 W"]  # margins in four bits, and weights (`projection.quantise`)


class Levels(NamedTuple):
    """A query's margins as a scan of codes compares them (`code_scan.levels_of`).

    planes: (5, W) uint64 from `projection.quantise`; the signs are in row 0 if `hamming`.
    unit: float32 size of one level.
    level_sum: sum of all levels times their weights.
    hamming: only the signs are compared.
    """

    planes: Any
    unit: np.float32
    level_sum: int
    hamming: bool


class ScanScratch(NamedTuple):
    """Memory of a scan of codes (`kernels.code_scan`)."""

    minima: Annotated[Float32s, "groups"]  # the least distance of each group
    scores: Annotated[Int32s, "block"]  # of one block
    distances: Annotated[Float32s, "block"]  # of one block


class Heap(NamedTuple):
    """A binary heap of h = T + 2 * PROBES_MAX probes (`kernels.buckets`)."""

    costs: Annotated[Float32s, "h"]  # sum of the squared margins of the flipped bits
    tables: Annotated[Int32s, "h"]
    masks: Annotated[Int64s, "h"]  # the flipped bits, as a set of ranks
    keys: Annotated[Int64s, "h"]  # the key of the bucket


class ProbeScratch(NamedTuple):
    """Memory of a search through tables whose keys have n_bits bits."""

    ranks: Annotated[Int32s, "T n_bits"]  # the bits of each key in ascending order of margin
    squares: Annotated[Float32s, "T n_bits"]  # their squared margins
    home_keys: Annotated[Int64s, "T"]  # the query's key in each table
    heap: Heap  # probes yet to be made
    visits: Annotated[UInt32s, "n"]  # the epoch of the last query that met each point
    epoch: Annotated[UInt32s, "1"]  # number of the query, modulo 2**32


class CellScratch(NamedTuple):
    """Memory of a search through cells."""

    numbers: Annotated[Int32s, "C"]  # cell numbers, nearest first
    distances: Annotated[Float32s, "C"]  # of their centres


class SelectionScratch(NamedTuple):
    """Memory of selectors, for as many candidates as a query may have."""

    far: Annotated[Float32s, "r"]  # distances of all candidates from one
    apart: Annotated[Float32s, "r"]  # distance of each from the picks: a sum, or the least
    dense: Annotated[Float32s, "1 d"]  # zeros, over which one sparse row is spread at a time
    # (ceil(d / 64),) zeros, a bit per column of that row (`sparse.marked_dot`), or empty.
    marks: Annotated[UInt64s, "marks"]


class BatchScratch(NamedTuple):
    """Memory of queries that are searched together, a row for each (`kernels.batch`)."""

    rows: Annotated[Int32s, "q r"]  # point rows that a query keeps
    distances: Annotated[Float32s, "q r"]  # their distances, estimates or minus scores
    counts: Annotated[Int64s, "q"]  # how many; -1 if more tie than there is room for
    n_scored: Annotated[Int64s, "q"]  # points whose distance was computed
    tie_starts: Annotated[Int64s, "q"]  # rows from here on tie for the last places
    level_sums: Annotated[Int64s, "q"]  # as in `Levels`
    limits: Annotated[Float32s, "q"]  # greatest distance that may still be kept
    units: Annotated[Float32s, "q"]  # as in `Levels`
    margins: Annotated[Float32s, "q B"]  # projections less thresholds
    planes: Annotated[UInt64s, "5q W"]  # as in `Levels`, five rows for each query


class Scratch(NamedTuple):
    """All memory that one thread's queries write into."""

    candidates: Candidates
    code: QueryCode
    scan: ScanScratch
    probes: ProbeScratch
    cells: CellScratch
    selection: SelectionScratch
    costs: Annotated[Float32s, "r"]  # candidates' distances as selectors weigh them
    picks: Annotated[Int64s, "k"]  # positions of the picks among the candidates
    sums: Annotated[Float32s, "n"]  # sums over inverted lists
    batch: BatchScratch


class Plan(NamedTuple):
    """How queries with the same parameters are answered."""

    search: int  # EXACT, TABLES, SCAN or SCAN_HAMMING
    n_probes: int  # buckets or cells to look at with TABLES
    # With TABLES, look at more buckets until this many points are found, then scan.
    min_points: int
    k: int  # number of results
    hash_limit: int  # most points to hash; 0 for no limit
    candidates_limit: int  # most candidates for the selector; 0 for no limit
    max_distance: np.float32  # greatest distance of a candidate; inf for no limit
    step: int  # NEAREST, GREEDY, HASH_ONLY or CANDIDATES
    relevance: np.float32  # the paper's lambda, 1 - diversity
    rule: int  # CORRECTED_RULE to MMR_RULE
    uniform: bool  # draw the points that exceed hash_limit at random, not by rank
    seed: np.uint64  # of that draw
    product: bool  # distances from the query are minus products (metric inner_product)
    metric: int  # COSINE, EUCLIDEAN or INNER_PRODUCT
    copy_limit: np.float32  # greatest distance between near-copies, NO_COPIES to keep them all
    pool_limit: int  # candidates that near-copies may make the pool grow to; 0: candidates_limit
    dial_choice: int  # BY_CALLER, BY_FALL_OFF or BY_LOSS; the last with step CANDIDATES only
    dial_factor: float  # factor of the odds in `dials.fall_off_step`


class Span(NamedTuple):
    """Which of the queries to answer."""

    first: int
    stop: int  # the row after the last
    together: bool  # `kernels.batch` has searched them, and `Scratch.batch` has the results


class Queries(NamedTuple):
    """Rows of queries, either dense or compressed sparse."""

    dense: Annotated[Float32s, "q d"]  # (0, d) if queries are sparse
    indptr: Annotated[Int64s, "q+1"]  # as in `Points`
    indices: Annotated[Int32s, "nonzeros"]
    values: Annotated[Float32s, "nonzeros"]


class Query(NamedTuple):
    """One query as points are scored against it."""

    dense: Any  # (m, d) float32 a matrix with the query in one row
    row: int  # which row
    square: float  # float64 squared length of the query; read if points are sparse
    product: bool  # a distance is minus the dot product, otherwise squared Euclidean


class Results(NamedTuple):
    """What queries return, one row for each."""

    ids: Annotated[Int64s, "q k"]  # -1 after the last result
    scores: Annotated[Float32s, "q k"]  # relevance in the metric's direction; nan after the last
    selection_scores: Annotated[Float32s, "q k"]  # what the selector maximised; nan after the last
    counts: Annotated[UInt32s, "q"]  # number of results
    stats: Annotated[UInt32s, "6 q"]  # rows POINTS_HASHED to COPIES_RETURNED
    dials: Annotated[Float64s, "q"]  # diversity chosen for the query; empty if the caller gave it
    reasons: Annotated[npt.NDArray[np.uint8], "q"]  # of the dials, LOSS_BOUND to EQUAL_RELEVANCE


class Hits(NamedTuple):
    """What the find stage leaves for one query; the points are in `Scratch.candidates`.

    tie_start: points from here on tie for the last places under the hash limit.
    size: number of points; ALL_POINTS stands for the first `tie_start` points of the index, and
        none of them is written: the others cannot be among the nearest.
    n_probes: number of buckets or cells that were looked at.
    n_scored: number of points that were scored meanwhile.
    room: 0, or the number of points that `Scratch` must have room for; then there are no hits.
    """

    tie_start: np.int64
    size: np.int64
    n_probes: np.int64
    n_scored: np.int64
    room: np.int64


class Objective(NamedTuple):
    """What greedy selection optimises."""

    k: int  # number of picks
    relevance: np.float32  # the paper's lambda
    rule: int  # CORRECTED_RULE to MMR_RULE
    product: bool  # costs are shares of the range of the candidates' distances
    copy_limit: np.float32  # greatest distance between near-copies, NO_COPIES to keep them all


class Pool(NamedTuple):
    """How many of the nearest candidates a selector sees."""

    size: int  # candidates in the pool
    widest: int  # candidates that near-copies may make the pool grow to
    total: int  # all candidates
