"""An evaluation cut into messages, whatever it is of: what to send, and what becomes of the events.

No I/O. Rows, which are queries or documents, that one message does not hold go in several, one
after the other. Each of those asks for the figures of every row and chooses nothing; the table's
rows are then made here, as the server makes them, of the figures of all.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Generic, TypeVar

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation.running import STAGE
from divgrpc.metrics import Values
from divgrpc.types import EvaluateLabelRow, EvaluateRow, Progress
from divgrpc_client.messages.batches import MESSAGE_BYTES
from divgrpc_client.messages.vectors import row_ends
from divgrpc_protos.arrays import Matrix, row_count
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2

Tell = Callable[[Progress], object]
RequestT = TypeVar(
    "RequestT", evaluate_pb2.EvaluateRequest, evaluate_labels_pb2.EvaluateLabelsRequest
)
ResponseT = TypeVar(
    "ResponseT", evaluate_pb2.EvaluateResponse, evaluate_labels_pb2.EvaluateLabelsResponse
)
RowT = TypeVar("RowT", EvaluateRow, EvaluateLabelRow)


class EvaluationParts(ABC, Generic[RequestT, ResponseT, RowT]):
    """One call. Raises `InvalidArgumentError` with the field for what the wire cannot carry."""

    # What rows are called, and one with what it is asked with.
    field: str
    one: str

    def __init__(self, matrix: Matrix, rest: Mapping[str, Any], tell: Tell | None) -> None:
        """Take rows, and what is asked of all of them; `_cut` is to follow."""
        self._matrix = matrix
        self._count = row_count(matrix)
        self._rest = rest
        self._tell = tell or (lambda _: None)
        # Where messages end, and which settings there are where they are several.
        self._ends = [self._count]
        self._settings = 0
        self._span = (0, 0)
        self._firsts: list[RowT] = []
        self._figures: list[tuple[int, int, Values]] = []
        self._generations: set[int] = set()

    @abstractmethod
    def _request(self, start: int, stop: int, rest: Mapping[str, Any]) -> RequestT:
        """Return the message that asks some rows."""

    @abstractmethod
    def _measure(self, rest: Mapping[str, Any]) -> tuple[int, int]:
        """Return how many settings there are, and how many rows one message may ask at them.

        Raises `InvalidArgumentError` for a grid that is none.
        """

    @abstractmethod
    def _check(self) -> None:
        """Raise what the server, who sees a part, could not."""

    @abstractmethod
    def _row(self, response: ResponseT) -> RowT:
        """Return the row of an event."""

    @abstractmethod
    def _table(self, row: RowT) -> Values:
        """Return the figures (columns, nq) of every row of queries or documents."""

    @abstractmethod
    def _made(self) -> list[RowT]:
        """Return the rows that the figures make."""

    @property
    @abstractmethod
    def _part(self) -> Mapping[str, Any]:
        """What is asked of the rows of a part."""

    def _cut(self) -> None:
        """Find how many messages it takes."""
        ends: list[int] = row_ends(self._matrix, MESSAGE_BYTES) or [0]
        first = self._request(0, ends[0], self._rest)
        fits = len(ends) == 1 and first.ByteSize() <= MESSAGE_BYTES
        try:
            _, whole = self._measure(self._rest)
        except InvalidArgumentError:
            if not fits:
                raise
            # The server's to refuse.
            return
        if fits and self._count <= whole:
            return
        if self._rest["set_default"]:
            raise InvalidArgumentError(
                "set_default",
                f"set_default needs {self.field} that fit one message, {whole} at most in "
                f"{MESSAGE_BYTES} bytes",
            )
        self._check()
        self._settings, most = self._measure(self._part)
        spans = pairwise([0, *ends])
        self._ends = [end for span in spans for end in self._ends_within(*span, most)]

    def _ends_within(self, start: int, stop: int, most: int) -> Iterator[int]:
        fits = stop - start <= most
        if fits and self._request(start, stop, self._part).ByteSize() <= MESSAGE_BYTES:
            yield stop
        elif stop - start == 1:
            what = self.one.format(start)
            raise InvalidArgumentError(self.field, f"{what} must fit {MESSAGE_BYTES} bytes")
        else:
            middle = (start + stop) // 2
            yield from self._ends_within(start, middle, most)
            yield from self._ends_within(middle, stop, most)

    def messages(self) -> Iterator[RequestT]:
        """Yield what to send, each once the one before has been answered."""
        for start, stop in pairwise([0, *self._ends]):
            self._span = start, stop
            yield self._request(start, stop, self._part if self._settings else self._rest)

    def take(self, response: ResponseT) -> Iterator[RowT]:
        """Take an event, and yield the row that it is, unless those of all are yet to be made."""
        if response.HasField("progress"):
            self._tell(self._progress(response.progress))
        elif response.HasField("row"):
            found = self._row(response)
            if not self._settings:
                yield found
                return
            self._generations.add(found.generation)
            start, _ = self._span
            self._figures.append((found.number, start, self._table(found)))
            if not start:
                self._firsts.append(found)

    def _progress(self, told: evaluate_pb2.EvaluateProgress) -> Progress:
        done, total = told.queries_done, told.queries_total
        left = told.seconds_left if told.HasField("seconds_left") else None
        if self._settings:
            done += self._span[0] * self._settings
            total = self._count * self._settings
            if left is not None and told.queries_total > told.queries_done:
                left *= (total - done) / (told.queries_total - told.queries_done)
        return Progress(STAGE, done, total, left)

    @property
    def has_begun(self) -> bool:
        """Whether some generation has measured a setting of a part."""
        return bool(self._generations)

    @property
    def is_torn(self) -> bool:
        """Whether the index was replaced between two messages."""
        return len(self._generations) > 1

    def rows(self) -> list[RowT]:
        """Return the rows that are made here, none where they came as they are."""
        return self._made() if self._settings else []
