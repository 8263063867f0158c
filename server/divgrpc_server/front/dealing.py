"""What a front deals out to workers: queries with what is relevant, or documents with their labels.

A request is read whole when it comes; `evaluations` knows no more of it than `Dealt`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from divgrpc.evaluation import COLUMNS, Plan, Tally
from divgrpc.evaluation.label_measuring import TAKEN
from divgrpc.evaluation.label_planning import LabelOutlook
from divgrpc.evaluation.label_tallying import LabelTally
from divgrpc.types import EvaluateLabelRow, EvaluateRow, Progress
from divgrpc_protos import arrays
from divgrpc_protos.v1 import evaluate_labels_pb2, evaluate_pb2
from divgrpc_server.codec import evaluate, evaluate_labels
from divgrpc_server.codec.results import parse_matrix

_TIMES: Final = COLUMNS.index("microseconds")
_LABEL_TIMES: Final = TAKEN.index("microseconds")


class Made(NamedTuple):
    """What came of an evaluation: messages, of settings and what goes before, and of choices.

    `defaults` are fields of `Defaults`, to be set before the choices are told.
    """

    settings: list[bytes]
    choices: list[bytes]
    defaults: Mapping[str, Any]


class Dealt(Protocol):
    """One call: its request, its plan, its table. Rows are queries or documents."""

    @property
    def request(self) -> evaluate.Asking:
        """The message, for workers to check."""

    @property
    def rows(self) -> int:
        """How many there are."""

    @property
    def settings(self) -> Sequence[object]:
        """What each is asked at, one after the other."""

    @property
    def name(self) -> str:
        """The index that is evaluated."""

    def plan(self, payload: bytes) -> int:
        """Take what a worker made of the request, and return the generation it found."""

    def cost(self, setting: int) -> tuple[bool, bool, int]:
        """Return what orders settings by their cost."""

    def kind(self, setting: int) -> Hashable:
        """Return what a setting shares with others of about the same time.

        The dial is no part of it: it changes what is picked, and hardly how long that takes.
        """

    def width(self, setting: int) -> int:
        """Return how many results a row has."""

    def piece(self, setting: int, rows: slice) -> evaluate.Asking:
        """Return the request for a block of rows."""

    def take(self, setting: int, start: int, payload: bytes) -> float:
        """Take what a piece measured of the rows from `start` on; returns microseconds of each."""

    def progress(self, progress: Progress) -> bytes:
        """Return the message that says how far it has come."""

    def made(self) -> Made:
        """Return what came of it."""


class DealtQueries:
    """Evaluate. Raises `InvalidArgumentError` with the field for a request that is wrong."""

    def __init__(self, payload: bytes) -> None:
        self.request = evaluate_pb2.EvaluateRequest.FromString(payload)
        self._queries = parse_matrix("queries", self.request.queries)
        self.rows = arrays.row_count(self._queries)
        self._task = evaluate.parse_task(self.request, self.rows)
        self._asked = evaluate.parse_asked(self.request, self.rows)
        self.settings = self._task.grid.settings()
        self._kinds = [replace(setting, diversity=0.0) for setting in self.settings]

    @property
    def name(self) -> str:
        """The index that is evaluated."""
        return self.request.index

    def plan(self, payload: bytes) -> int:
        """Take a plan."""
        self._plan: Plan = evaluate.unpack_plan(payload)
        return self._plan.generation

    @cached_property
    def _tally(self) -> Tally:
        return Tally(self._task, self._plan, self._asked.numbers())

    def cost(self, setting: int) -> tuple[bool, bool, int]:
        """Return what orders settings."""
        each = self._plan.resolved[setting]
        all_seen = each.selector != "nearest" and not each.candidates_limit
        return each.search == "exact", all_seen, each.k

    def kind(self, setting: int) -> Hashable:
        """Return the setting without its dial."""
        return self._kinds[setting]

    def width(self, setting: int) -> int:
        """Return k."""
        return self.settings[setting].k

    def piece(self, setting: int, rows: slice) -> evaluate.Asking:
        """Return the request for some queries."""
        queries = arrays.encode(arrays.take(self._queries, rows.start, rows.stop))
        return evaluate.piece_of(self.name, self.settings[setting], self._asked[rows], queries)

    def take(self, setting: int, start: int, payload: bytes) -> float:
        """Take what was measured."""
        measured = evaluate.unpack_measured(payload)
        self._tally.add(setting, start, measured)
        return float(measured[_TIMES].mean())

    def progress(self, progress: Progress) -> bytes:
        """Return the EvaluateResponse."""
        told = evaluate.progress_of(progress)
        return evaluate_pb2.EvaluateResponse(progress=told).SerializeToString()

    def made(self) -> Made:
        """Return rows and default."""
        rows, default = self._tally.rows()
        return _made(rows, evaluate.pack_row, {} if default is None else {"query": default})


class DealtDocuments:
    """EvaluateLabels. Raises as `DealtQueries`."""

    def __init__(self, payload: bytes) -> None:
        self.request = evaluate_labels_pb2.EvaluateLabelsRequest.FromString(payload)
        self._documents = parse_matrix("documents", self.request.documents)
        self.rows = arrays.row_count(self._documents)
        self._task = evaluate_labels.parse_task(self.request, self.rows)
        self._truth = evaluate_labels.parse_truth(self.request, self._task)
        self.settings = self._task.grid.settings()
        self._kinds = [replace(each, diversity=0.0, threshold=None) for each in self.settings]

    @property
    def name(self) -> str:
        """The index that is evaluated."""
        return self.request.index

    def plan(self, payload: bytes) -> int:
        """Take an outlook."""
        self._outlook: LabelOutlook = evaluate_labels.unpack_outlook(payload)
        return self._outlook.generation

    @cached_property
    def _tally(self) -> LabelTally:
        return LabelTally(self._task, self._outlook, self._truth)

    def cost(self, setting: int) -> tuple[bool, bool, int]:
        """Return what orders settings."""
        each = self._outlook.resolved[setting]
        all_seen = each.selector != "nearest" and not each.candidates_limit
        return each.search == "exact", all_seen, each.neighbours or each.top_k

    def kind(self, setting: int) -> Hashable:
        """Return the setting without dial and threshold."""
        return self._kinds[setting]

    def width(self, setting: int) -> int:
        """Return top_k."""
        return self.settings[setting].top_k

    def piece(self, setting: int, rows: slice) -> evaluate.Asking:
        """Return the request for some documents."""
        documents = arrays.encode(arrays.take(self._documents, rows.start, rows.stop))
        return evaluate_labels.piece_of(self.name, self.settings[setting], documents)

    def take(self, setting: int, start: int, payload: bytes) -> float:
        """Take what was measured."""
        measured = evaluate.unpack_measured(payload, len(TAKEN) + self.width(setting))
        self._tally.add(setting, start, measured)
        return float(measured[_LABEL_TIMES].mean())

    def progress(self, progress: Progress) -> bytes:
        """Return the EvaluateLabelsResponse."""
        told = evaluate.progress_of(progress)
        return evaluate_labels_pb2.EvaluateLabelsResponse(progress=told).SerializeToString()

    def made(self) -> Made:
        """Return rows and thresholds."""
        rows, thresholds = self._tally.rows()
        defaults = {"thresholds": thresholds} if thresholds else {}
        made = _made(rows, evaluate_labels.pack_row, defaults)
        if not self._task.per_document:
            return made
        known = evaluate_labels.pack_frequencies(self._outlook, self._truth)
        return made._replace(settings=known + made.settings)


_Row = TypeVar("_Row", EvaluateRow, EvaluateLabelRow)


def _made(rows: Sequence[_Row], pack: Callable[[_Row], bytes], defaults: Mapping[str, Any]) -> Made:
    settings = [pack(row) for row in rows if not row.by_fold]
    return Made(settings, [pack(row) for row in rows if row.by_fold], defaults)
