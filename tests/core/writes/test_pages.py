"""Pages of a collection that is written to between them have no repeats and miss nothing."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from core.writes.test_collection import QUERIES, _Writes
from divgrpc.search import kept_candidates, stepwise
from divgrpc.search.kept_candidates import KeptCandidates
from divgrpc.search.shown_sums import KeptSums
from support.data.written_points import Id, as_kind, kind_of, same_answers

SELECTORS: list[dict[str, Any]] = [
    {},
    {"variant": "corrected"},
    {"selector": "mmr"},
    {"selector": "dpp"},
    {"selector": "max_sum"},
    {"selector": "rerank"},
    {"selector": "nearest"},
    {"diversity": "auto"},
]


@dataclass
class _Reader:
    """A user who turns pages.

    stayed: ids of points that have had a vector since page 1. ids: ids of the points shown.
    """

    options: dict[str, Any]
    token: str
    stayed: set[Id]
    ids: list[Id] = field(default_factory=list)


class _Pages(_Writes):
    """Writes to a collection, and users who turn pages meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[_Reader] = []

    @property
    def searched_ids(self) -> set[Id]:
        """The ids of the points that a query may find."""
        return {name for name, point in self.model.items() if point.vector is not None}

    def turn(self, reader: _Reader, **arguments: Any) -> None:  # noqa: ANN401  # of `query`
        query = as_kind(QUERIES[:1], kind_of(self.open))
        page = self.open.query(query, **reader.options, **arguments)
        with pytest.MonkeyPatch.context() as patch:
            # A process that has not answered the pages before gives the same answer.
            patch.setattr(stepwise, "KEPT", KeptSums())
            patch.setattr(kept_candidates, "KEPT", KeptCandidates())
            other = self.open.query(query, **reader.options, **arguments)
        assert same_answers(page, other)
        assert page.next_page_token == other.next_page_token
        reader.ids += [hit.id for hit in page[0]]
        assert len(reader.ids) == len({*reader.ids})
        assert {hit.id for hit in page[0]} <= {*self.model}
        reader.token = page.next_page_token

    @rule(options=st.sampled_from(SELECTORS), k=st.integers(1, 9), keep=st.booleans())
    def begin(self, options: dict[str, Any], k: int, *, keep: bool) -> None:
        all_options = {**options, "k": k, "keep_duplicates": keep}
        reader = _Reader(all_options, "", self.searched_ids)
        self.turn(reader, paged=True)
        self.readers.append(reader)

    @precondition(lambda self: any(reader.token for reader in self.readers))
    @rule(number=st.integers(0, 9))
    def turn_a_page(self, number: int) -> None:
        readers = [reader for reader in self.readers if reader.token]
        reader = readers[number % len(readers)]
        self.turn(reader, page_token=reader.token)

    def check_invariants(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # of Hypothesis
        """Note after each step which points still have vectors."""
        for reader in self.readers:
            if reader.token:
                reader.stayed &= self.searched_ids
        super().check_invariants(*arguments, **options)

    def teardown(self) -> None:
        if self.collection is not None:
            for reader in self.readers:
                while reader.token:
                    self.turn(reader, page_token=reader.token)
                if reader.options["keep_duplicates"]:
                    assert reader.stayed <= {*reader.ids}
        super().teardown()


@pytest.mark.usefixtures("no_syncs")
def test_pages_have_no_repeats_and_miss_nothing() -> None:
    run_state_machine_as_test(_Pages, settings=settings(max_examples=25, stateful_step_count=25))
