"""A correct store passes every check, and each check fails for a store that is wrong in one way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from divgrpc.conformance import (
    CHECKS,
    Answer,
    Feature,
    IndexStore,
    Points,
    Request,
    ServerStore,
    check_store,
)
from divgrpc.errors import InvalidArgumentError
from divgrpc_client import Client
from support.checks.refusals import refused
from support.data.memory_store import MemoryStore


class Wrong(MemoryStore):
    """A store that changes each request or each answer."""

    def __init__(
        self,
        on_request: Callable[[Request], Request] = lambda request: request,
        on_answer: Callable[[Request, Answer], Answer] = lambda _, answer: answer,
    ) -> None:
        self.on_request = on_request
        self.on_answer = on_answer

    def query(self, request: Request) -> Answer:
        """Change a request, and its answer."""
        return self.on_answer(request, super().query(self.on_request(request)))


class PostFiltered(MemoryStore):
    """Applies the filter to the results of a search without it."""

    def query(self, request: Request) -> Answer:
        """Search without the filter, and drop what does not pass."""
        answer = super().query(replace(request, filter=None))
        columns, places = self.points.attributes, {i: n for n, i in enumerate(self.points.ids)}
        ids = [
            id_
            for id_ in answer.ids
            if all(
                columns[name][places[id_]] == value
                for name, value in (request.filter or {}).items()
            )
        ]
        return replace(answer, ids=ids, scores=list(answer.scores or ())[: len(ids)])


class Counting(MemoryStore):
    """Answers every fiftieth request in another order."""

    requests = 0

    def query(self, request: Request) -> Answer:
        """Answer, and reverse every fiftieth answer."""
        answer = super().query(request)
        self.requests += 1
        return answer if self.requests % 50 else _reversed(request, answer)


class Drifting(MemoryStore):
    """Gives other answers after each build."""

    builds = 0

    def build(self, points: Points) -> None:
        """Count the builds."""
        super().build(points)
        self.builds += 1

    def query(self, request: Request) -> Answer:
        """Answer, and reverse the answers after the second build."""
        answer = super().query(request)
        return _reversed(request, answer) if self.builds > 1 else answer


def _reversed(_: Request, answer: Answer) -> Answer:
    return replace(answer, ids=answer.ids[::-1], scores=list(answer.scores or ())[::-1])


def _without_scores(_: Request, answer: Answer) -> Answer:
    return replace(answer, scores=None)


def _negated(_: Request, answer: Answer) -> Answer:
    return replace(answer, scores=[-score for score in answer.scores or ()])


def _nan(_: Request, answer: Answer) -> Answer:
    return replace(answer, scores=[float("nan")] * len(answer.ids))


def _repeated_point(_: Request, answer: Answer) -> Answer:
    return replace(answer, ids=[*answer.ids[:-1], answer.ids[0]])


def _one_ulp(request: Request, answer: Answer) -> Answer:
    """Change the scores of diverse searches by as little as possible."""
    if request.diversity is None:
        return answer
    return replace(answer, scores=np.nextafter(np.array(answer.scores), 2).tolist())


def _first_page(_: Request, answer: Answer) -> Answer:
    """End the pages after the first."""
    return replace(answer, next_page=None)


def _only(condition: Callable[[Request], bool], **changes: Any) -> Callable[[Request], Request]:  # noqa: ANN401  # any field
    return lambda request: replace(request, **changes) if condition(request) else request


def _is_diverse(request: Request) -> bool:
    return bool(request.diversity)


WRONG: list[tuple[str, MemoryStore]] = [
    ("complete", Wrong(_only(lambda request: request.k > 10, k=10))),
    ("complete", Wrong(on_answer=_repeated_point)),
    ("complete", Wrong(lambda request: replace(request, k=request.k + 1))),
    ("complete", Wrong(on_answer=lambda _, answer: replace(answer, ids=["x", *answer.ids[1:]]))),
    ("nearest", Wrong(_only(lambda request: request.diversity is None, diversity=0.5))),
    ("nearest", Wrong(on_answer=_reversed)),
    ("nearest", Wrong(lambda request: replace(request, vector=-request.vector))),
    ("zero", Wrong(_only(lambda request: request.diversity == 0, diversity=0.05))),
    ("zero", Wrong(on_answer=_one_ulp)),
    ("dial", Wrong(_only(_is_diverse, diversity=None))),
    (
        "dial",
        Wrong(lambda r: r if r.diversity is None else replace(r, diversity=1 - r.diversity)),
    ),
    ("filter", Wrong(lambda request: replace(request, filter=None))),
    ("filter", PostFiltered()),
    ("diverse_filter", Wrong(_only(_is_diverse, filter=None))),
    ("diverse_filter", PostFiltered()),
    ("filter_off", Wrong(_only(lambda r: r.filter is not None and _is_diverse(r), diversity=0.6))),
    ("max_each", Wrong(lambda request: replace(request, max_each=None))),
    ("max_each", Wrong(_only(lambda request: request.max_each is not None, k=9))),
    ("diverse_max_each", Wrong(_only(_is_diverse, max_each=None))),
    ("max_each_off", Wrong(_only(lambda r: bool(r.max_each and r.diversity), diversity=0.6))),
    ("at_least", Wrong(lambda request: replace(request, at_least=None))),
    ("at_least", Wrong(_only(lambda request: request.at_least is not None, k=9))),
    ("diverse_at_least", Wrong(_only(_is_diverse, at_least=None))),
    ("quotas", Wrong(_only(lambda r: r.filter is not None, max_each=None))),
    ("quotas", Wrong(_only(lambda r: len(r.max_each or ()) > 1, max_each={"brand": 3}))),
    ("quotas", Wrong(_only(lambda r: r.max_each is not None, at_least=None))),
    ("quotas", Wrong(_only(lambda r: r.max_each is not None, filter=None))),
    ("pages", Wrong(lambda request: replace(request, page=None))),
    ("pages", Wrong(_only(lambda request: request.page == 30, page=29))),
    ("pages", Wrong(_only(lambda request: request.page is not None, k=9))),
    ("pages", Wrong(on_answer=_first_page)),
    ("joined_pages", Wrong(on_answer=lambda r, a: _reversed(r, a) if r.page else a)),
    ("joined_pages", Wrong(_only(lambda request: request.paged, diversity=0.1))),
    ("scores", Wrong(on_answer=_negated)),
    ("scores", Wrong(on_answer=_without_scores)),
    ("scores", Wrong(on_answer=_nan)),
    ("diverse_scores", Wrong(on_answer=lambda r, a: _negated(r, a) if _is_diverse(r) else a)),
    ("diverse_scores", Wrong(on_answer=lambda r, a: _nan(r, a) if _is_diverse(r) else a)),
    (
        "diverse_scores",
        Wrong(on_answer=lambda r, a: _without_scores(r, a) if _is_diverse(r) else a),
    ),
    ("repeat", Counting()),
    ("rebuild", Drifting()),
]


def test_a_correct_store_passes_every_check() -> None:
    report = check_store(MemoryStore())
    assert [result.name for result in report] == list(CHECKS)
    assert {result.outcome for result in report} == {"passed"}, report


@pytest.mark.parametrize(
    ("name", "store"), WRONG, ids=[f"{name} {n}" for n, (name, _) in enumerate(WRONG)]
)
def test_a_wrong_store_fails(name: str, store: MemoryStore) -> None:
    (result,) = check_store(store, [name])
    assert (result.name, result.outcome) == (name, "failed")
    assert "raised" not in result.detail


def test_every_check_has_a_wrong_store() -> None:
    assert {name for name, _ in WRONG} == set(CHECKS)


@pytest.mark.parametrize("feature", get_args(Feature))
def test_checks_of_missing_features_are_not_supported(feature: Feature) -> None:
    """A check that needs the feature says so, and the others pass without the feature."""
    store = MemoryStore()
    store.features = tuple(word for word in store.features if word != feature)
    report = check_store(store)
    for result in report:
        if feature in CHECKS[result.name].needs:
            assert (result.outcome, feature in result.detail) == ("not supported", True)
        else:
            assert result.outcome == "passed", result


def test_requests_have_only_what_the_store_supports() -> None:
    requests: list[Request] = []

    def record(request: Request) -> Request:
        requests.append(request)
        return request

    store = Wrong(record)
    store.features = ()
    report = check_store(store)
    assert {result.outcome for result in report} == {"passed", "not supported"}
    assert requests
    assert all(
        value is None
        for request in requests
        for value in (request.diversity, request.filter, request.max_each, request.at_least)
    )
    assert not any(request.paged or request.page for request in requests)


def test_a_store_that_raises_fails() -> None:
    def fail(_: Request) -> Request:
        raise ZeroDivisionError("by zero")

    report = check_store(Wrong(fail))
    assert {result.outcome for result in report} == {"failed"}
    # The place of the error is that of the store's own code.
    line = fail.__code__.co_firstlineno + 1
    detail = f"the store raised ZeroDivisionError: by zero (test_checks.py, line {line})"
    assert {result.detail for result in report} == {detail}
    assert report.failures == report.results


def test_distances_may_be_scores() -> None:
    store = Wrong(on_answer=_negated)
    store.higher_is_nearer = False
    assert check_store(store, ["scores", "diverse_scores"]).failures == ()


def test_unknown_words_are_refused() -> None:
    store = MemoryStore()
    with refused("names", "complete"):
        check_store(store, ["compleat"])
    store.features = ("pagination",)  # type: ignore[assignment]  # the point of the test
    with refused("features", "pages"):
        check_store(store)


def test_missing_scores_are_not_said_to_be_the_same() -> None:
    (result,) = check_store(Wrong(on_answer=_without_scores), ["zero"])
    assert result.outcome == "passed"
    assert result.detail == "ids are the same; not all answers have scores"


def test_a_swap_of_equally_near_points_is_named() -> None:
    """Diversity 0 must keep the order of exact copies, too."""

    def swap(request: Request, answer: Answer) -> Answer:
        ids, scores = list(answer.ids), list(answer.scores or ())
        for rank in range(len(ids) - 1):
            if request.diversity == 0 and scores[rank] == scores[rank + 1]:
                ids[rank : rank + 2] = ids[rank : rank + 2][::-1]
                break
        return replace(answer, ids=ids)

    (result,) = check_store(Wrong(on_answer=swap), ["zero"])
    assert result.outcome == "failed"
    assert result.detail.endswith("; the points there are equally near")


def test_a_report_reads_as_a_table() -> None:
    store = Wrong(on_answer=_negated)
    store.features = ("scores", "diversity")
    report = check_store(store, ["pages", "scores", "dial"])
    lines = str(report).splitlines()
    assert lines[0] == "memory"
    assert lines[1] == "  not supported  pages   Pages are full and repeat no point."
    assert lines[2].strip() == "the store has no pages"
    assert [line.split()[0] for line in lines[3:7:2]] == ["failed", "passed"]
    assert lines[-1] == "1 passed, 1 failed, 1 not supported"
    assert report["scores"].outcome == "failed"


def test_divgrpc_in_process_passes() -> None:
    report = check_store(IndexStore())
    assert {result.outcome for result in report} == {"passed"}


def test_divgrpc_over_grpc_passes(client: Client) -> None:
    report = check_store(ServerStore(client, "conformance"))
    client.delete_index("conformance")
    assert {result.outcome for result in report} == {"passed"}
    assert report.store.endswith("over gRPC")


def test_an_adapter_that_lacks_something_is_refused() -> None:
    class Nothing:
        name = "nothing"

    store: Any = Nothing()
    with pytest.raises(InvalidArgumentError, match="must have features and build and query") as end:
        check_store(store)
    assert end.value.field == "store"


def test_an_answer_of_another_type_is_named() -> None:
    class Lists:
        name, features, higher_is_nearer = "lists", (), True

        def build(self, points: Points) -> None:
            self.ids = list(points.ids)

        def query(self, request: Request) -> Any:  # noqa: ANN401  # not what it should return
            return self.ids[: request.k]

    (result,) = check_store(Lists(), ["complete"]).results
    assert result.outcome == "failed"
    assert "must return a divgrpc.conformance.Answer, got list" in result.detail
