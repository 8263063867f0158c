"""Records that kernels read and write: named arrays and numbers in `NamedTuple`s.

When Python calls a kernel, numba takes three times as long to convert a NamedTuple as a plain
tuple. So the kernels that Python calls for every query take the arrays of `Index` and `Scratch` by
address (`kernels.registers`) and the other records as plain tuples. These kernels first make
records of the tuples: `plan = Plan(*plan)`. All other kernels take the records themselves.

The annotation of an array gives its shape, and the name of the stored array if that is not the name
of the field. Shapes use these letters:

- n: number of points.
- d: number of dimensions.
- q: number of queries.
- k: number of results of a query.
- m: number of values that are projected for a query: d, or the number of sums of the count sketch
  (`projection.sketch`).
- B: number of hyperplanes, and so of projections.
- W: number of 64-bit words in a code.
- C: number of cells.
- T: number of hash tables.
- r: number of points that the scratch memory can hold.
- O: number of overflow tiles.
- L: number of rows that were written since the last merge, or that there is room for.
- p: number of points that pass the filter of a query.
- l: number of points that have inverted lists.

If an index lacks an array, the field is an empty array. In the shape of this array, every letter
and every sum such as n+1 is 0, except d and m, which are the number of dimensions.
"""

from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

# Values of Plan.search.
EXACT = 0
TABLES = 1
SCAN = 2
SCAN_HAMMING = 3

# Values of Plan.step, which says what a query does with the points that the search found.
NEAREST = 0  # return the k nearest points
GREEDY = 1  # return the points that a greedy selector picks
HASH_ONLY = 2  # return the ids of the hashed points, without scores and in no order
# Leave the candidates in the scratch memory, nearest first; write their number into Results.counts.
CANDIDATES = 3

# Values of Plan.metric.
COSINE = 0
EUCLIDEAN = 1
INNER_PRODUCT = 2

# Values of Objective.rule: three interpretations of the paper's Algorithm 1, and maximal marginal
# relevance (MMR).
CORRECTED_RULE = 0
PRINTED_RULE = 1
MARGINAL_RULE = 2
MMR_RULE = 3

# Values of Plan.dial_choice, which says how a query gets its dial (diversity).
BY_CALLER = 0
BY_FALL_OFF = 1  # from how fast relevance falls among the candidates (`diversity="auto"`)
BY_LOSS = 2  # from a bound on the loss of relevance (`lose_at_most`)

# Values of Results.reasons, which say why a query got its dial. DialReason in query.proto has the
# same numbers.
LOSS_BOUND = 1
WITHIN_BOUND = 2
FALL_OFF = 3
NO_CHOICE = 4
EQUAL_RELEVANCE = 5

# Row numbers of Results.stats, in the order of the fields of `divgrpc.types.QueryStats`.
POINTS_HASHED = 0
BUCKETS_PROBED = 1
POINTS_SCORED = 2
POOL_SIZE = 3
COPIES_COLLAPSED = 4
COPIES_RETURNED = 5

# If Objective.copy_limit is NO_COPIES, all near-copies are kept, because no distance is -1 or less.
NO_COPIES = np.float32(-1)

Float32s: TypeAlias = npt.NDArray[np.float32]
Float64s: TypeAlias = npt.NDArray[np.float64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int8s: TypeAlias = npt.NDArray[np.int8]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt32s: TypeAlias = npt.NDArray[np.uint32]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
UInt16s: TypeAlias = npt.NDArray[np.uint16]
UInt8s: TypeAlias = npt.NDArray[np.uint8]


class Points(NamedTuple):
    """The points of an index, either dense rows or compressed sparse rows."""

    vectors: Annotated[Float32s, "n d"]  # dense rows; (0, d) if points are sparse
    # The columns that row i stores are indices[indptr[i] : indptr[i + 1]]. The same slice of
    # `values` holds the values in these columns.
    indptr: Annotated[Int64s, "n+1"]
    indices: Annotated[Int32s, "nonzeros"]  # columns, ascending within a row
    values: Annotated[Float32s, "nonzeros"]
    squares: Annotated[Float64s, "n"]  # squared lengths of sparse rows
    # 1 / length of each point, and 0 for a point of length 0. Empty unless the metric is
    # inner_product. If `inverse_lengths` is empty, the distance between two points is squared
    # Euclidean; otherwise it is 1 - cosine.
    inverse_lengths: Annotated[Float32s, "n"]


class LaterLists(NamedTuple):
    """The values of the points that were written since the last merge (`kernels.later_lists`).

    A column that is not full has a chain of blocks, and a block has room for BLOCK_ENTRIES values.
    Blocks are numbered from 1, and 0 means that there is none. All arrays are empty if nothing can
    be written.
    """

    first: Annotated[Int64s, "flag", "later_first"]  # the first row that was written since
    heads: Annotated[Int32s, "columns", "later_heads"]  # the first block of each column
    nexts: Annotated[Int32s, "blocks", "later_nexts"]  # the block after each block in its chain
    # The row of an entry is `first` + rows[i] - 1. If rows[i] is 0, there is no entry yet, nor any
    # after it in the chain. Rows ascend along a chain.
    rows: Annotated[UInt32s, "later_entries", "later_rows"]
    values: Annotated[Int8s, "later_entries", "later_values"]  # numbers of steps
    # The same for full columns, in tiles of TILE_ROWS points: row t * full + c has those of tile t
    # and full column c.
    full_values: Annotated[Int8s, "full_tiles tile", "later_full_values"]


class InvertedLists(NamedTuple):
    """The values of sparse points by column, rounded to bytes (`kernels.inverted_lists`).

    The first l points have lists, and points that were written later may lack them. Points are
    divided into runs of RUN_POINTS. A column has either a list for each run or one byte for every
    point. A value is about its byte times the step of its column.
    """

    # The list of column j in run r is rows[starts[i] : starts[i + 1]] with i = r * d + j.
    starts: Annotated[Int64s, "lists+1", "list_starts"]
    rows: Annotated[UInt16s, "entries", "list_rows"]  # positions in the run, ascending in a list
    values: Annotated[Int8s, "entries", "list_values"]
    steps: Annotated[Float32s, "columns", "list_steps"]
    # Row of `full_values` with the bytes of the column, or -1 if the column has lists.
    full_columns: Annotated[Int32s, "columns"]
    full_values: Annotated[Int8s, "full l"]
    full_lengths: Annotated[Float32s, "n"]  # length of a point's values in full columns, rounded up
    errors: Annotated[Float32s, "n", "list_errors"]  # length of a point's errors, rounded up
    # The work of reading a column, as a share of a pass over all stored values at Build. Empty if
    # nothing was written since.
    work: Annotated[Float32s, "columns", "list_work"]
    later: LaterLists


class Hashing(NamedTuple):
    """Hyperplanes and the codes of the points."""

    hyperplanes: Annotated[Float32s, "m B"]  # one direction per column
    thresholds: Annotated[Float32s, "B"]  # a margin is a projection minus its threshold
    # The codes of the points in tiles (`kernels.tiles`). With cells, code i belongs to the point at
    # place i (`Cells.rows`).
    codes: Annotated[UInt8s, "tiles bytes"]
    # The offset and the factor that turn the score of each point into a distance
    # (`code_scan.estimate`). May be empty.
    terms: Annotated[UInt32s, "n", "scan_terms"]
    # If queries are sketched, (d,) with the sum that each dimension is added to or subtracted from
    # (`projection.sketch`). Otherwise empty.
    sketch: Annotated[Int32s, "sketch"]


class Tables(NamedTuple):
    """Hash tables of buckets (`kernels.buckets`)."""

    # starts[t] is the number of buckets in tables 0 to t - 1.
    starts: Annotated[Int64s, "T+1", "table_starts"]
    # Keys of the buckets, ascending within a table; empty if the number of a bucket is its key.
    keys: Annotated[UInt32s, "buckets", "table_keys"]
    # For each table t, the start of each of its buckets in rows[t], followed by one more entry, n.
    offsets: Annotated[Int32s, "buckets+T", "table_offsets"]
    rows: Annotated[Int32s, "T n", "table_rows"]  # rows[t]: point rows of table t, by bucket
    # The last L rows were written since and are in no bucket (`buckets.add_later`). For row i of
    # these and table t, links[i, 2 * t] is its key, and links[i, 2 * t + 1] the row after it in its
    # chain, or -1.
    links: Annotated[Int32s, "L 2T", "later_links"]


class Cells(NamedTuple):
    """A k-means partition of the points (`kernels.cells`)."""

    codes: Annotated[UInt8s, "cell_tiles bytes", "cell_codes"]  # codes of the centres, in tiles
    terms: Annotated[UInt32s, "C", "cell_terms"]  # of the centres, as `Hashing.terms`
    # Centres in the space of the first `width` margins of a query.
    centres: Annotated[Float32s, "C width", "cell_centres"]
    squares: Annotated[Float32s, "C", "cell_squares"]  # squared lengths of the centres
    # reaches[n - 1]: how much farther than the nearest cell the n-th nearest cell of a point is, as
    # a squared distance, on average over points. Empty under inner_product, for points of very
    # different scales, and in older indexes; a query with n probes then reads n cells.
    reaches: Annotated[Float32s, "reaches", "cell_reaches"]
    # The points of cell c are rows[starts[c] : starts[c + 1]]; an index into `rows` is a place.
    starts: Annotated[Int64s, "C+1", "cell_starts"]
    rows: Annotated[Int32s, "n", "cell_rows"]  # point rows, ascending within a cell
    # Points that were written since are in overflow tiles, the last O tiles of `Hashing.codes`. All
    # points of such a tile are of one cell. nexts[i] is the overflow tile after tile i in the chain
    # of its cell, or -1. Empty if nothing can be written.
    nexts: Annotated[Int32s, "O", "overflow_nexts"]
    no_ids: Annotated[Int64s, "0"]  # empty `ids` for functions that order cells by number


class Index(NamedTuple):
    """All arrays of one generation (one build of an index) that queries read."""

    points: Points
    lists: InvertedLists
    ids: Annotated[Int64s, "n"]  # ids, or keys of text ids; empty if ids are row numbers
    # The ids that results have; empty if these are row numbers, as they are if ids are texts.
    result_ids: Annotated[Int64s, "n"]
    # (ceil(n / BOUND_ROWS),): length_bounds[b] is an upper bound of the lengths of the points from
    # row BOUND_ROWS * b to the end (`kernels.exact`). Empty unless the metric is inner_product and
    # points are dense.
    length_bounds: Annotated[Float32s, "bounds"]
    # (1,) if Build has sorted the points by length, longest first; otherwise empty.
    longest_first: Annotated[UInt8s, "flag"]
    hashing: Hashing
    tables: Tables
    cells: Cells


class Candidates(NamedTuple):
    """Points that a query may return."""

    rows: Annotated[Int32s, "r"]  # rows of the points in the index
    # Distances from the query: minus dot products under inner_product, else squared Euclidean.
    distances: Annotated[Float32s, "r"]


class QueryCode(NamedTuple):
    """Projections and codes of one query."""

    sketch_sums: Annotated[Float32s, "1 m"]  # the count sketch of the query
    margins: Annotated[Float32s, "B"]  # projections minus thresholds
    signs: Annotated[UInt64s, "W 1"]  # bit b % 64 of signs[b // 64, 0] is set if margin b >= 0
    # Sums of margins rounded to four bits, which a scan looks up (`projection.quantise`).
    tables: Annotated[UInt8s, "G 16"]


class Levels(NamedTuple):
    """A query's margins, rounded to integer levels for a scan of codes (`code_scan.levels_of`).

    tables: (G, 16) uint8 from `projection.quantise`, one table for each four margins.
    depth: number of bits of a code for each margin. Bit l of a margin's level has weight 2**l.
    bias: what a distance is computed from: a distance is `bias` minus the sum of table entries.
    unit: float32 size of one level, so that a margin is approximately its level times `unit`.
    level_sum: sum of all levels, times the sum of the weights of the bits.
    hamming: whether distances are Hamming distances, which compare the signs of the margins only.
    """

    tables: Any
    depth: int
    bias: int
    unit: np.float32
    level_sum: int
    hamming: bool


class ScanScratch(NamedTuple):
    """Scratch memory of a scan of codes; `kernels.code_scan` defines groups and blocks."""

    minima: Annotated[Float32s, "groups"]  # smallest distance in each group of points
    distances: Annotated[Float32s, "block"]  # distances of the points of one block


class Heap(NamedTuple):
    """A binary heap of at most h = T + 2 * PROBES_MAX probes (`kernels.buckets`).

    A probe looks up the bucket whose key is the query's key with some bits flipped.
    """

    costs: Annotated[Float32s, "h"]  # sum of the squared margins of the flipped bits
    tables: Annotated[Int32s, "h"]  # table number
    masks: Annotated[Int64s, "h"]  # bit r is set if the bit of rank r is flipped
    keys: Annotated[Int64s, "h"]  # key of the bucket to look up


class ProbeScratch(NamedTuple):
    """Scratch memory of a search through tables whose keys have n_bits bits."""

    ranks: Annotated[Int32s, "T n_bits"]  # bit numbers of each key, smallest squared margin first
    squares: Annotated[Float32s, "T n_bits"]  # squared margins in the order of `ranks`
    home_keys: Annotated[Int64s, "T"]  # the query's key in each table
    heap: Heap  # probes that are still to be made
    visits: Annotated[UInt32s, "n"]  # epoch of the last query that found each point
    epoch: Annotated[UInt32s, "1"]  # number of the current query, 1 to 2**32 - 1, then again 1
    # Number of the probe that found each point; empty unless the points are those of a shard.
    tags: Annotated[Int32s, "tags"]


class CellScratch(NamedTuple):
    """Scratch memory of a search through cells."""

    numbers: Annotated[Int32s, "C"]  # cell numbers, nearest first
    distances: Annotated[Float32s, "C"]  # distances of the centres of these cells from the query


class SelectionScratch(NamedTuple):
    """Scratch memory of selectors; r is the maximum number of candidates of a query."""

    far: Annotated[Float32s, "r"]  # distances of all candidates from one, such as the last pick
    apart: Annotated[Float32s, "r"]  # sum or minimum of each candidate's distances from the picks
    # Holds one sparse row at a time, written by `sparse.spread`; zeros between uses.
    dense: Annotated[Float32s, "1 d"]
    # (ceil(d / 64),) with one bit for each column, set if the row in `dense` stores this column
    # (`sparse.marked_dot`). All bits are 0 between uses. Empty if points are dense or d is small.
    marks: Annotated[UInt64s, "marks"]


class BatchScratch(NamedTuple):
    """Scratch memory of queries that are searched together (`kernels.batch`)."""

    rows: Annotated[Int32s, "q r"]  # rows of the points that each query keeps
    distances: Annotated[Float32s, "q r"]  # exact, estimated or Hamming distances, or minus scores
    # Number of points kept for each query. If too many points tie, -1; the query is then searched
    # alone.
    counts: Annotated[Int64s, "q"]
    n_scored: Annotated[Int64s, "q"]  # number of points whose exact distance was computed
    # For query i, rows[i, tie_starts[i] : counts[i]] tie for the last places.
    tie_starts: Annotated[Int64s, "q"]
    depths: Annotated[Int64s, "q"]  # `Levels.depth` of each query
    biases: Annotated[Int64s, "q"]  # `Levels.bias` of each query
    level_sums: Annotated[Int64s, "q"]  # `Levels.level_sum` of each query
    limits: Annotated[Float32s, "q"]  # points at greater distances are dropped
    units: Annotated[Float32s, "q"]  # `Levels.unit` of each query
    margins: Annotated[Float32s, "q B"]  # projections minus thresholds
    tables: Annotated[UInt8s, "qG 16"]  # `Levels.tables`, G rows for each query


class ListScratch(NamedTuple):
    """Scratch memory for a search through inverted lists."""

    sums: Annotated[Int32s, "n"]  # sum of products of each point
    rows: Annotated[Int32s, "n"]  # rows of the points that can be among the nearest
    bounds: Annotated[Float32s, "n"]  # lower bounds of the distances of points


class Passing(NamedTuple):
    """The points that a query may return; all arrays are empty if it may return every point.

    A filter leaves out points, and so does a deletion.
    """

    total: Annotated[Int64s, "filter"]  # number of these points
    # Rows of these points, ascending. Empty if the search reads codes only.
    rows: Annotated[Int32s, "p"]
    # Whether a point passes, in the order of the codes: by row or, with cells, by place. With cells
    # there may be flags of the last places only, if all points before them pass. Empty if the
    # search reads `rows` alone.
    flags: Annotated[UInt8s, "flags"]
    cells: Annotated[Int32s, "counts"]  # number of these points in each cell; empty without cells
    # The first overflow tile of each cell, or -1; empty if no cell has one. With hash tables, the
    # first row of each chain (`buckets.add_later`), or -1; empty if no row was written since the
    # last merge. Without it, `flags` has all rows, because it tells where the later ones begin.
    heads: Annotated[Int32s, "heads"]


class Scratch(NamedTuple):
    """All scratch memory of the queries of one thread, and the points that pass their filter."""

    candidates: Candidates
    code: QueryCode
    scan: ScanScratch
    probes: ProbeScratch
    cells: CellScratch
    selection: SelectionScratch
    costs: Annotated[Float32s, "r"]  # distances of the candidates, scaled for the selector
    picks: Annotated[Int64s, "k"]  # positions of the picks among the candidates
    lists: ListScratch
    batch: BatchScratch
    passing: Passing


class Message(NamedTuple):
    """A message of a shard."""

    words: Annotated[Int64s, "words"]


class FindReply(NamedTuple):
    """The columns of `sharding.layouts.FIND_REPLY`, in a message of m points.

    The first six are the columns of `FETCH_REPLY` too.
    """

    vectors: Annotated[Float32s, "v d"]  # of v points; (0, 0) if points are sparse
    indptr: Annotated[Int64s, "v+1"]
    indices: Annotated[Int32s, "nonzeros"]
    values: Annotated[Float32s, "nonzeros"]
    squares: Annotated[Float64s, "v"]
    inverse_lengths: Annotated[Float32s, "v"]
    numbers: Annotated[Int64s, "numbers"]
    ids: Annotated[Int64s, "m"]
    codes: Annotated[Float32s, "m"]
    distances: Annotated[Float32s, "m"]
    tags: Annotated[Int32s, "m"]
    nearest: Annotated[Int32s, "v"]


class Merge(NamedTuple):
    """The points in the replies of all shards to one question, and scratch memory to select some.

    An index into the first six arrays is a place. There is room for r points.
    """

    ids: Annotated[Int64s, "r"]
    codes: Annotated[Float32s, "r"]
    distances: Annotated[Float32s, "r"]
    tags: Annotated[Int32s, "r"]
    owners: Annotated[Int32s, "r"]  # number of the reply
    vectors: Annotated[Int32s, "r"]  # place of the point's vector among those of the reply, or -1
    places: Annotated[Int32s, "r"]  # places of selected points
    keys: Annotated[Float32s, "r"]  # distances of selected points, or their distances by code


class PointRows(NamedTuple):
    """Writable arrays of n points that a router gathers, as in `Index` and `Points`.

    The shapes of arrays that not all indexes have are in words of their own.
    """

    ids: Annotated[Int64s, "n"]
    vectors: Annotated[Float32s, "dense d"]
    indptr: Annotated[Int64s, "ends"]
    indices: Annotated[Int32s, "nonzeros"]
    values: Annotated[Float32s, "nonzeros"]
    squares: Annotated[Float64s, "sparse"]
    inverse_lengths: Annotated[Float32s, "lengths"]


class Plan(NamedTuple):
    """Parameters shared by all queries of a call."""

    search: int  # EXACT, TABLES, SCAN or SCAN_HAMMING
    n_probes: int  # number of buckets or cells to probe if `search` is TABLES
    # If `search` is TABLES, more buckets or cells are probed until at least this many points are
    # found. If all probes of hash tables find fewer points, all codes are scanned instead, or all
    # points are scored if `hash_limit` does not limit their number.
    min_points: int
    k: int  # number of results
    hash_limit: int  # maximum number of hashed points; 0 for no limit
    candidates_limit: int  # maximum number of candidates for the selector; 0 for no limit
    max_distance: np.float32  # maximum distance of a candidate from the query; inf for no limit
    step: int  # NEAREST, GREEDY, HASH_ONLY or CANDIDATES
    relevance: np.float32  # the paper's lambda, 1 - diversity
    rule: int  # CORRECTED_RULE to MMR_RULE
    # Which points to keep if more points than hash_limit are found. With hash tables, True keeps a
    # random sample of the points found, and False the points of the first buckets. If points tie
    # for the last places of a scan without estimates, True keeps a random sample of the tied
    # points, and False the tied points of smallest exact distance.
    uniform: bool
    seed: np.uint64  # seed of these samples
    product: bool  # distances from the query are minus dot products (metric inner_product)
    metric: int  # COSINE, EUCLIDEAN or INNER_PRODUCT
    copy_limit: np.float32  # maximum distance between near-copies, or NO_COPIES to keep all
    # Maximum size of a `Pool` that grows because of near-copies; if 0, candidates_limit applies.
    pool_limit: int
    dial_choice: int  # BY_CALLER, BY_FALL_OFF, or BY_LOSS (only if `step` is CANDIDATES)
    dial_factor: float  # `factor` of `dials.fall_off_step`
    n_points: int  # number of points of the index, without a filter
    dial: float  # the dial of reports, unless `Results` has one for each query


class Span(NamedTuple):
    """Rows of the queries to answer."""

    first: int  # the first row
    stop: int  # the row after the last
    together: bool  # whether `kernels.batch` has searched them and filled `Scratch.batch`


class Queries(NamedTuple):
    """Rows of queries, either dense or compressed sparse."""

    dense: Annotated[Float32s, "q d"]  # (0, d) if queries are sparse
    indptr: Annotated[Int64s, "q+1"]  # as in `Points`
    indices: Annotated[Int32s, "nonzeros"]
    values: Annotated[Float32s, "nonzeros"]


class Query(NamedTuple):
    """One query, in the form that scoring reads."""

    dense: Any  # (any number, d) float32 matrix; one of its rows is the query
    row: int  # the row of `dense` that is the query
    square: float  # squared length of the query, float64; used only if points are sparse
    product: bool  # True: a distance is minus the dot product; False: squared Euclidean


class Results(NamedTuple):
    """Results of queries, one row or column for each query."""

    ids: Annotated[Int64s, "q k"]  # -1 after the last result
    # The cosine, squared Euclidean distance or dot product of each result and the query, according
    # to the metric; nan after the last result.
    scores: Annotated[Float32s, "q k"]
    # The value that the selector maximised at each pick; nan after the last result.
    selection_scores: Annotated[Float32s, "q k"]
    counts: Annotated[UInt32s, "q"]  # number of results
    stats: Annotated[UInt32s, "6 q"]  # rows POINTS_HASHED to COPIES_RETURNED
    dials: Annotated[Float64s, "q"]  # dial chosen for each query; empty if the caller gave it
    # Why each dial was chosen, LOSS_BOUND to EQUAL_RELEVANCE; empty if the caller gave the dial.
    reasons: Annotated[UInt8s, "q"]
    # As in `reports.write_report`; empty if no report is wanted.
    reports: Annotated[Float64s, "8 q"]
    plain_ids: Annotated[Int64s, "q k"]


class Hits(NamedTuple):
    """The outcome of the find stage for one query; the points are in `Scratch.candidates`.

    tie_start: the points from this position on tie for the last places under the hash limit.
    size: number of points found. ALL_POINTS means that the first `tie_start` points of the index
        were found but not written into `Scratch`. The points after these cannot be among the
        nearest.
    n_probes: number of buckets or cells that were probed.
    n_scored: number of points whose exact distance the find stage has computed.
    room: 0 if `Scratch` was large enough. Otherwise no points were found, and `room` is the number
        of points that `Scratch` must be able to hold.
    """

    tie_start: np.int64
    size: np.int64
    n_probes: np.int64
    n_scored: np.int64
    room: np.int64


class Objective(NamedTuple):
    """Parameters of greedy selection."""

    k: int  # number of picks
    relevance: np.float32  # the paper's lambda
    rule: int  # CORRECTED_RULE to MMR_RULE
    # Whether distances are minus dot products. `greedy.scale_costs` scales these to costs 0 to 1.
    product: bool
    copy_limit: np.float32  # maximum distance between near-copies, or NO_COPIES to keep all


class Pool(NamedTuple):
    """Sizes of the pool, the set of the nearest candidates among which a selector picks."""

    size: int  # number of candidates in the pool
    widest: int  # maximum size of a pool that grows because of near-copies
    total: int  # number of all candidates
