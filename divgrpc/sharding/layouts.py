"""The layouts of the messages between a router and shards."""

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from divgrpc.columns.annotations import INDICES, INDPTR
from divgrpc.columns.ids import ID_TEXTS
from divgrpc.columns.reader import PAYLOAD, array_name, is_of_attribute
from divgrpc.columns.texts import BYTES, ENDS
from divgrpc.columns.values import DTYPES
from divgrpc.sharding.messages import Column, Layout
from divgrpc.types.records import Attribute

# Maximum number of bytes of the vectors of the candidates of one query.
VECTOR_BYTES_MAX: Final = 64 << 20
# If the values of attributes of the points in a reply to `FIND_REQUEST` take more bytes, a shard
# leaves them out.
VALUE_BYTES_MAX: Final = 4 << 20

# How a shard finds points (`FIND_REQUEST`).
ALL = 0  # the nearest of all points that pass
CELLS = 1  # the nearest of all points of some cells
CELLS_BY_CODE = 2  # the points of some cells that are nearest by code
SCAN = 3  # the points that are nearest by code
TABLES = 4  # the points of the probed buckets

# Places of the numbers of `FIND_REQUEST`.
HOW = 0
HAMMING = 1  # 1 if a scan compares the signs of the margins only
PROBES = 2  # the least number of buckets to probe
MIN_POINTS = 3  # the least number of points to find in buckets
ENOUGH = 4  # the number of points after which no further bucket is probed; 0 for no limit
# The maximum number of points to return. With TABLES they are a sample of all points that are
# found, unless more than PROBES buckets are probed, and 0 stands for all of them.
ROWS = 5
VECTORS = 6  # the maximum number of points whose vectors are returned
UNIFORM = 7  # 1 if ties of a scan are broken by priorities, 0 if they are broken by distances
SEED = 8  # the seed of the priorities and of samples, as a signed number
REQUEST_NUMBERS: Final = 9

# Places of the numbers of `FIND_REPLY`.
TOTAL = 0  # the number of points that the search finds; the reply has at most ROWS of them
SCORED = 1  # the number of points whose distances were computed
PROBED = 2  # with TABLES, the number of buckets that were probed

# Places of the numbers of `MEASURE_REQUEST`, whose first numbers are those of `FIND_REQUEST` up to
# PROBES.
LIMIT = 3  # the maximum number of points for each query; 0 for no limit
MEASURE_SEED = 4  # the seed of the priorities, as a signed number
MEASURE_NUMBERS: Final = 5
# Maximum number of queries of a `MEASURE_REQUEST`, each of which may hash all points of a shard.
MEASURED_QUERIES_MAX: Final = 16

# Places of the numbers of a matrix in `STAGED_REQUEST`.
OPERATION = 0  # the place of the operation in `staged_training.OPERATIONS`
FILE = 1  # the number of the file that has the matrix
COLUMNS = 2  # the number of its columns
MATRIX_NUMBERS: Final = 3

# Stands for text ids among the numbers of attributes in `FIND_REQUEST`.
TEXTS: Final = -1
# What points must meet.
_RESTRICTION: Final = (
    Column.of("filter", np.uint8),  # as `conditions.encode` makes it; empty for no filter
    Column.of("exclude", np.int64),  # keys of points that do not pass
)
FIND_REQUEST: Final = Layout(
    41,
    (
        Column.of("numbers", np.int64),
        *_RESTRICTION,
        Column.of("margins", np.float32),  # empty with ALL
        Column.of("cells", np.int32),
        Column.of("bases", np.float32),  # distances of the centres of these cells
        Column.of("dense", np.float32),  # the query, unless it is sparse
        Column.of("indices", np.int32),
        Column.of("values", np.float32),
        # Numbers of attributes, and `TEXTS` for text ids. If there are any, the reply is an
        # envelope of a `FIND_REPLY` and of a `values_reply` about the points whose vectors it has.
        Column.of("attributes", np.int32),
    ),
)
# The columns are in the order of `kernels.records.FindReply`. The points are all that the search
# finds, or the best ROWS of them. With TABLES they are in the order of the probes.
FIND_REPLY: Final = Layout(
    26,
    (
        Column.of("vectors", np.float32, 2),
        Column.of("indptr", np.int64),
        Column.of("indices", np.int32),
        Column.of("values", np.float32),
        Column.of("squares", np.float64),
        Column.of("inverse_lengths", np.float32),
        Column.of("numbers", np.int64),
        Column.of("ids", np.int64),
        Column.of("codes", np.float32),  # distances by code; empty with ALL, CELLS and TABLES
        Column.of("distances", np.float32),
        # The number of the probe that found each point. Only with TABLES, and then empty if ENOUGH
        # is 0 and at most PROBES buckets were probed.
        Column.of("tags", np.int32),
        Column.of("nearest", np.int32),  # places of the points whose vectors are returned
    ),
)
# The vectors of candidates whose ids the router knows.
FETCH_REQUEST: Final = Layout(4, (Column.of("ids", np.int64),))
FETCH_REPLY: Final = Layout(5, FIND_REPLY.columns[:6])
# The points that a search hashes for each of some queries (`hashed_points`).
MEASURE_REQUEST: Final = Layout(
    24,
    (
        Column.of("numbers", np.int64),
        Column.of("margins", np.float32, 2),  # a row for each query
        Column.of("cells", np.int32),  # of all queries, one after another
        Column.of("bases", np.float32),  # distances of the centres of these cells
        Column.of("ends", np.int64),  # the end of the cells of each query; empty without cells
    ),
)
# All points that are hashed or, if there is a limit, the best ones of the shard.
MEASURE_REPLY: Final = Layout(
    25,
    (
        Column.of("ids", np.int64),  # of the points of all queries, one after another
        Column.of("codes", np.float32),  # distances by code; empty with CELLS and TABLES
        Column.of("ends", np.int64),  # the end of the points of each query
    ),
)
# How many points pass a filter, and how many of them have the same values of some attributes.
COUNT_REQUEST: Final = Layout(
    6,
    (
        *_RESTRICTION,
        Column.of("attributes", np.int32),  # numbers of the attributes of quotas
    ),
)
# How many of the points that pass a filter have a category and a sub-topic, for each pair of them.
TOPICS_REQUEST: Final = Layout(14, _RESTRICTION)
TOPICS_REPLY: Final = Layout(
    15,
    (
        Column.of("categories", np.int32),
        Column.of("subtopics", np.int32),  # -1 for none
        Column.of("counts", np.int64),
    ),
)
# The categories and the sub-topics of those points that have some ids and pass a filter.
CATEGORIES_REQUEST: Final = Layout(16, (*_RESTRICTION, Column.of("ids", np.int64)))
CATEGORIES_REPLY: Final = Layout(
    17,
    (
        Column.of("ids", np.int64),
        Column.of("categories", np.int32),  # -1 for none
        Column.of("subtopics", np.int32),
    ),
)
# How many of the points that pass a filter have a label, for each label that some point has.
LABELS_REQUEST: Final = Layout(18, _RESTRICTION)
LABELS_REPLY: Final = Layout(19, (Column.of("labels", np.int64), Column.of("counts", np.int64)))
# The ids, attributes and payloads of those points of a shard that have some ids.
DESCRIBE_REQUEST: Final = Layout(8, (Column.of("ids", np.int64),))


# The points that have some ids: integers or keys in `ids`, or else texts.
GET_REQUEST: Final = Layout(
    10,
    (
        Column.of("parts", np.uint8),  # 1 for each of `Parts` that is wanted
        Column.of("ids", np.int64),
        Column.of("texts", np.uint8),  # the texts, one after another
        Column.of("ends", np.int64),  # the end of each text
    ),
)
# The next points that pass a filter, in the order of their keys.
SCROLL_REQUEST: Final = Layout(
    11,
    (
        Column.of("after", np.int64),  # the key after which the points begin
        Column.of("count", np.int64),  # the maximum number of points
        *_RESTRICTION,
    ),
)
# Columns of `sizes`: bounds of the bytes that a point takes in a message to a caller, by itself and
# with each of `Parts`.
SCROLL_REPLY: Final = Layout(12, (Column.of("ids", np.int64), Column.of("sizes", np.int64, 2)))
# Rows of a build that is under way, and what they are encoded as (`staged_points`) or their product
# with a matrix (`staged_training`).
STAGED_REQUEST: Final = Layout(
    23,
    (
        Column.of("folder", np.uint8),  # the name of the staging folder
        Column.of("rows", np.int64),  # the first row, and the row after the last one
        Column.of("matrix", np.int64),  # for products, `MATRIX_NUMBERS` numbers
    ),
)
# Messages of the operation "measure" to a shard of a build that is under way (`staged_shards`).
STAGED_QUESTION: Final = Layout(
    30,
    (
        Column.of("folder", np.uint8),  # the path of the folder of the shard, from the data folder
        Column.of("messages", np.uint8),  # as `messages.join` joins them
    ),
)
# A search for the points of a build that are nearest to queries (`staged_finding`).
STAGED_SEARCH: Final = Layout(
    43,
    (
        Column.of("folder", np.uint8),  # the name of the staging folder
        Column.of("rows", np.int64),  # the first row, and the row after the last one
        Column.of("bounds", np.int64, 2),  # how many rows of each shard come before each block
        Column.of("numbers", np.int64),  # the number of points for each query; whether by angle
        Column.of("least", np.float32),  # the least gain for each query
        Column.of("dense", np.float32, 2),  # the queries, unless they are sparse
        Column.of("indptr", np.int64),
        Column.of("indices", np.int32),
        Column.of("values", np.float32),
    ),
)
# As `divgrpc.builder.nearest.NearPoints`.
STAGED_SEARCH_REPLY: Final = Layout(
    44,
    (
        Column.of("rows", np.int64),
        Column.of("gains", np.float32),
        Column.of("ends", np.int64),
    ),
)
ENCODE_REPLY: Final = Layout(
    21,
    (
        Column.of("cells", np.int32),  # -1 without cells
        Column.of("terms", np.uint32),
        Column.of("codes", np.uint8, 2),
    ),
)
MULTIPLY_REPLY: Final = Layout(
    22,
    (
        Column.of("product", np.float32, 2),  # empty for squares; a row for "gram"
        Column.of("squares", np.float64, 2),  # empty for other products
    ),
)


def describe_reply(
    attributes: Sequence[Attribute], *, has_texts: bool, has_payloads: bool
) -> Layout:
    """Return the layout of replies to `DESCRIBE_REQUEST`: `ids`, and the arrays of columns.

    has_texts, has_payloads: whether the index has text ids, and whether points have payloads.
    """
    columns = [Column.of("ids", np.int64)]
    for name, is_there in ((ID_TEXTS, has_texts), (PAYLOAD, has_payloads)):
        if is_there:
            columns += [Column.of(name + BYTES, np.uint8), Column.of(name + ENDS, np.int64)]
    for number, attribute in enumerate(attributes):
        columns.append(Column.of(array_name(number, "values"), DTYPES[attribute.type]))
        if attribute.multi:
            columns.append(Column.of(array_name(number, "ends"), np.int64))
    return Layout(9, tuple(columns))


def values_reply(description: Layout) -> Layout:
    """Return the layout of the values of some attributes, beside the `ids` of the points.

    description: as for `get_reply`. The arrays of other attributes are empty, and so are text ids
    that were not asked for.
    """
    texts = ID_TEXTS + BYTES, ID_TEXTS + ENDS
    columns = [
        column
        for column in description.columns
        if column.name in texts or is_of_attribute(column.name)
    ]
    return Layout(42, (Column.of("ids", np.int64), *columns))


def count_reply(description: Layout) -> Layout:
    """Return the layout of replies to `COUNT_REQUEST`; `description` is as for `get_reply`.

    `keys` has the least key of the points with the same values, `members` their number, and the
    arrays of attributes have their values.
    """
    columns = [column for column in description.columns if is_of_attribute(column.name)]
    return Layout(
        7,
        (
            Column.of("count", np.int64),
            Column.of("cells", np.int32),  # the number of points in each cell
            Column.of("keys", np.int64),
            Column.of("members", np.int64),
            *columns,
        ),
    )


def get_reply(description: Layout, names: Collection[str]) -> Layout:
    """Return the layout of replies to `GET_REQUEST`.

    description: what `describe_reply` returns. names: names of the arrays of the index.

    `places` are those of the ids in the request that points of the shard have.
    """
    parts = (
        Column.of("vectors", np.float32, 2),
        Column.of("indptr", np.int64),
        Column.of("indices", np.int32),
        Column.of("values", np.float32),
        Column.of(INDPTR, np.int64),
        Column.of(INDICES, np.int32),
        Column.of("categories", np.int32),
        Column.of("subtopics", np.int32),
    )
    places = Column.of("places", np.int32), Column.of("sizes", np.int64, 2)
    present = (column for column in parts if column.name in names)
    return Layout(13, (*description.columns, *places, *present))
