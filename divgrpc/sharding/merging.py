"""Merges the replies of all shards to one question, and gathers the vectors of candidates."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from divgrpc.errors import InvalidArgumentError
from divgrpc.kernels import replies
from divgrpc.kernels.records import Merge
from divgrpc.kernels.registers import record_of, register
from divgrpc.search.plan import QueryPlan
from divgrpc.sharding import layouts
from divgrpc.sharding.messages import Buffer, Layout
from divgrpc.sharding.rounds import ShardFaultError
from divgrpc.types import FloatArray, IntArray

# Number of points that a merger has room for at first.
_ROOM_POINTS: Final = 1 << 12
_WORD_BYTES: Final = 8
# The greatest number in the statistics of a query; all shards together may have more points.
COUNT_MAX: Final = 2**32 - 1
_COLUMNS: Final = [column.name for column in layouts.FIND_REPLY.columns]
_VALUES: Final = _COLUMNS.index("values")
# What is wrong with a reply, by the number of the fault in `kernels.replies`.
_FAULTS: Final = {
    replies.BAD_NUMBERS: "has an impossible number",
    replies.BAD_COUNT: "has another number of points than was asked for",
    replies.BAD_COLUMNS: "lacks a number of a point",
    replies.BAD_VALUES: "has an impossible id, distance or tag",
    replies.BAD_NEAREST: "has vectors of points that it does not have",
    replies.BAD_VECTORS: "has vectors of another form than the index",
}


class Form(NamedTuple):
    """The form of the points of an index.

    dims: number of columns.
    is_sparse: whether the points are sparse.
    has_inverse_lengths: whether points have the numbers `kernels.records.Points.inverse_lengths`.
    """

    dims: int
    is_sparse: bool
    has_inverse_lengths: bool


class Sources(NamedTuple):
    """Messages that have columns of points.

    shards: the shard that each message is from.
    messages: keep the memory alive to which the registers point.
    registers: (S, C, 3) int64, a register of a `kernels.records.FindReply` for each message.
    """

    shards: list[int]
    messages: list[Buffer]
    registers: IntArray

    @classmethod
    def of(cls, layout: Layout, messages: Mapping[int, Buffer]) -> "Sources":
        """Read where the columns of the message of each shard are.

        Raises `ShardFaultError` for a message that is not whole.
        """
        shards, buffers = list(messages), list(messages.values())
        parts = np.array([_part_of(buffers, number) for number in range(len(buffers))], np.int64)
        registers = np.zeros((len(shards), len(_COLUMNS), 3), np.int64)
        number = replies.read_messages(parts, layout.forms, layout.first_word, registers)
        if number >= 0:
            try:
                layout.unpack(buffers[number])
            except InvalidArgumentError as error:
                raise ShardFaultError(shards[number], str(error)) from error
            raise ShardFaultError(shards[number], "message is too large")
        return cls(shards, buffers, registers)

    def __add__(self, other: Any) -> "Sources":  # noqa: ANN401  # as a tuple, whose method this is
        return Sources(
            self.shards + other.shards,
            self.messages + other.messages,
            np.concatenate((self.registers, other.registers)),
        )


def _part_of(buffers: list[Buffer], number: int) -> tuple[int, int, int]:
    """Return the register of a message, which is copied if its address is no multiple of 8."""
    size = len(buffers[number])
    if not size or size % _WORD_BYTES:
        # No message has no word.
        return 0, 0, 1
    address: int = np.frombuffer(buffers[number], np.uint8).__array_interface__["data"][0]
    if address % _WORD_BYTES:
        # `bytes` objects begin at multiples of 8.
        buffers[number] = bytes(buffers[number])
        address = np.frombuffer(buffers[number], np.uint8).__array_interface__["data"][0]
    return address, size // _WORD_BYTES, 1


class Candidates(NamedTuple):
    """The candidates of one query.

    ids, distances: (m,) int64 and float32; nearest first, as far as vectors are wanted.
    owners, places: (m,) int32, for each candidate whose vector is wanted the number of the source
        that has it, and the place of the vector there.
    n_hashed, n_probes, n_scored: as in `divgrpc.types.QueryStats`.
    """

    ids: IntArray
    distances: FloatArray
    owners: npt.NDArray[np.int32]
    places: npt.NDArray[np.int32]
    sources: Sources
    n_hashed: int
    n_probes: int
    n_scored: int

    @classmethod
    def none(cls, n_probes: int) -> "Candidates":
        """Return no candidates."""
        sources = Sources([], [], np.empty((0, len(_COLUMNS), 3), np.int64))
        ids, distances, owners, places = _empty_candidates(0)
        return cls(ids, distances, owners, places, sources, 0, n_probes, 0)

    @property
    def values_max(self) -> int:
        """Upper bound of the number of values of sparse candidates."""
        return int(self.sources.registers[:, _VALUES, 1].sum())


def _empty_candidates(count: int) -> Any:  # noqa: ANN401  # the first fields of `Candidates`
    return tuple(np.empty(count, dtype) for dtype in (np.int64, np.float32, np.int32, np.int32))


class Replies(NamedTuple):
    """Checked replies to one question, whose points a merger holds.

    points: the number of points in all of them.
    sizes: (S, SIZES) int64, what is known of each reply, as in `kernels.replies`.
    """

    sources: Sources
    points: int
    sizes: IntArray

    @property
    def short(self) -> list[int]:
        """Numbers of the replies of shards that may have more points to keep than they sent."""
        return np.flatnonzero(self.sizes[:, replies.IS_SHORT]).tolist()


class Question(NamedTuple):
    """How candidates are selected from the replies to a question.

    plan: the plan of the query.
    rule: `kernels.replies.BY_DISTANCE` to `BY_EXTRA_PROBE`.
    limit: maximum number of points that are kept of all shards.
    most: maximum number of candidates.
    vectors: number of candidates whose vectors are wanted, the nearest ones.
    """

    plan: QueryPlan
    rule: int
    limit: int
    most: int
    vectors: int


class Selection(NamedTuple):
    """What `Merger.select` has selected.

    n_absent: number of wanted vectors that no reply has.
    n_short: number of shards that may have more points to keep than they sent.
    """

    candidates: Candidates
    n_absent: int
    n_short: int


class Merger:
    """Merges replies; one thread may use it.

    Raises `ShardFaultError` for a reply that no shard of the index sends.
    """

    def __init__(self, form: Form) -> None:
        """Merge points of this form."""
        self._form = form
        self._fit(_ROOM_POINTS)

    def _fit(self, points: int) -> None:
        # The register has the addresses of these arrays.
        self._merge = record_of(Merge, None, {"r": points})
        self._register = register(self._merge)

    def join(self, sources: Sources, rule: int, amounts: Any) -> Replies:  # noqa: ANN401  # like an array
        """Check replies to one question, and keep their points for `select`.

        amounts: the numbers of points and of vectors that were asked for, (S, 2) int64, or (2,) if
            they are the same for all shards.
        """
        sizes = np.zeros((len(sources.shards), replies.SIZES), np.int64)
        sizes[:, : replies.POINTS] = amounts
        fault = replies.NO_ROOM
        while fault == replies.NO_ROOM:
            number, fault = replies.join_replies(
                sources.registers, self._register, rule, *self._form, sizes
            )
            if fault == replies.NO_ROOM:
                self._fit(2 * number)
        if fault:
            raise ShardFaultError(sources.shards[number], f"message {_FAULTS[fault]}")
        return Replies(sources, number, sizes)

    def last_probe(self, plan: QueryPlan, received: Replies, enough: int) -> int:
        """Return the number of probes after which a search of tables ends (`find_last_probe`)."""
        points = received.points
        n_unsent = int(received.sizes[:, replies.TOTAL].sum()) - points
        return int(replies.find_last_probe(self._register, plan.fields, points, n_unsent, enough))

    def select(self, received: Replies, question: Question, stop: int = 0) -> Selection:
        """Select candidates from the replies that were joined last.

        stop: number of probes, with BY_PROBE and BY_EXTRA_PROBE.
        """
        plan, rule, limit, most, vectors = question
        sources, points, sizes = received
        arrays = _empty_candidates(min(most, points))
        n_hashed, count, n_absent, n_scored, n_short = replies.select_candidates(
            self._register, points, plan.fields, rule, stop, limit, most, vectors, sizes, arrays
        )
        # The sum of what damaged shards say may not fit into the statistics.
        n_scored = min(n_scored, COUNT_MAX)
        ids, distances, owners, places = (array[:count] for array in arrays)
        candidates = Candidates(ids, distances, owners, places, sources, n_hashed, stop, n_scored)
        return Selection(candidates, n_absent, n_short)

    def add(
        self, candidates: Candidates, members: Mapping[int, IntArray], fetched: Mapping[int, Buffer]
    ) -> Candidates:
        """Return candidates with vectors that were fetched.

        members: for each shard, the candidates whose vectors its message has, in this order.
        """
        sources = Sources.of(layouts.FETCH_REPLY, fetched)
        counts = np.array([len(members[shard]) for shard in fetched], np.int64)
        number = replies.find_misfit(sources.registers, counts, *self._form)
        if number >= 0:
            fault = _FAULTS[replies.BAD_VECTORS]
            raise ShardFaultError(sources.shards[number], f"message {fault}")
        for owner, shard in enumerate(fetched, len(candidates.sources.shards)):
            candidates.owners[members[shard]] = owner
            candidates.places[members[shard]] = np.arange(len(members[shard]))
        return candidates._replace(sources=candidates.sources + sources)
