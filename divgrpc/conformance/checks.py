"""The checks, by name, and the function that runs them.

A check is a function of a `Trial`. It returns what it measured, or raises `CheckFailure`.
"""

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Final, TypeAlias, Unpack, get_args

import numpy as np

from divgrpc.conformance.data import COLOURS, make_data
from divgrpc.conformance.protocol import Answer, Feature, Store
from divgrpc.conformance.report import CheckResult, Report
from divgrpc.conformance.trial import (
    TOLERANCE,
    CheckFailure,
    Options,
    Trial,
    require_same,
)
from divgrpc.errors import invalid
from divgrpc.parameters.suggestions import refuse_word

Run: TypeAlias = Callable[[Trial], str]

_DIALS: Final = (0.0, 0.5, 1.0)
# What an adapter must have.
_MEMBERS: Final = ("name", "features", "build", "query")
_SIZES: Final = (1, 10, 50)
# Least mean recall of a plain search, so that approximate stores pass.
_RECALL_MIN: Final = 0.9
_PAGES: Final = 5
_PAGE: Final = 10


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name, what it requires, the features that it needs, and its function."""

    name: str
    title: str
    needs: tuple[Feature, ...]
    run: Run


# All checks in the order of reports.
CHECKS: Final[dict[str, Check]] = {}


def _check(name: str, title: str, *needs: Feature) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        CHECKS[name] = Check(name, title, needs, run)
        return run

    return register


def check_store(store: Store, names: Iterable[str] | None = None) -> Report:
    """Check a store, and return the results.

    store: an adapter of the store. It indexes 480 points of 16 dimensions once or twice, and
        answers some 800 requests.
    names: names of the checks to run, keys of `CHECKS`. Default: all.

    If the adapter does not name a feature that a check needs, the result is "not supported". If the
    adapter raises an error during a check, the check has failed. Errors of the first `build` are
    raised. Raises `InvalidArgumentError` with the field `features` or `names` for unknown words,
    and with the field `store` if an attribute or a method of `Store` is missing.
    """
    absent = [name for name in _MEMBERS if not hasattr(store, name)]
    if absent:
        raise invalid("store", f"must have {' and '.join(absent)}: see divgrpc.conformance.Store")
    selected = list(CHECKS) if names is None else list(names)
    _refuse_unknown("names", selected, CHECKS)
    _refuse_unknown("features", store.features, get_args(Feature))
    trial = Trial(store, make_data())
    trial.build()
    return Report(store.name, tuple(_run(CHECKS[name], trial) for name in selected))


def _refuse_unknown(field: str, words: Iterable[str], known_words: Collection[str]) -> None:
    for word in words:
        if word not in known_words:
            refuse_word(field, word, known_words)


def _run(check: Check, trial: Trial) -> CheckResult:
    missing = [feature for feature in check.needs if feature not in trial.store.features]
    if missing:
        detail = f"the store has no {' and no '.join(missing)}"
        return CheckResult(check.name, check.title, "not supported", detail)
    try:
        return CheckResult(check.name, check.title, "passed", check.run(trial))
    except CheckFailure as failure:
        detail = str(failure)
    except Exception as error:  # noqa: BLE001  # whatever a store raises is a failure of the store
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        detail = f"the store raised {type(error).__name__}: {error} ({where})"
    return CheckResult(check.name, check.title, "failed", detail)


def _dials(trial: Trial) -> Sequence[float | None]:
    """Return the dials to test, with None for a plain search."""
    return (None, *_DIALS) if "diversity" in trial.store.features else (None,)


def _case(row: int, dial: float | None, k: int = 10) -> str:
    search = "plain search" if dial is None else f"diversity {dial:g}"
    return f"query {row}, {search}, k = {k}"


def _require_full(answer: Answer, size: int, case: str) -> None:
    """Raise `CheckFailure` unless an answer has `size` results, all of them different."""
    if len(set(answer.ids)) < len(answer.ids):
        raise CheckFailure(f"{case}: a point occurs twice")
    if len(answer.ids) < size:
        raise CheckFailure(f"{case}: {len(answer.ids)} results, and {size} exist")


@_check("complete", "A search returns k different points, or all points if there are fewer.")
def _check_complete(trial: Trial) -> str:
    cases = list(product(trial.rows, _dials(trial), _SIZES))
    for row, dial, k in cases:
        _require_full(trial.ask(row, k, diversity=dial), k, _case(row, dial, k))
    count = len(trial.points.ids)
    _require_full(trial.ask(0, count + 20), count, _case(0, None, count + 20))
    return f"{len(cases) + 1} answers"


@_check("nearest", "A plain search returns the nearest points, the nearest first.")
def _check_nearest(trial: Trial) -> str:
    recalls = []
    for row, k in product(trial.rows, _SIZES):
        similarities = trial.similarities(row, trial.ask(row, k).ids)
        if (np.diff(similarities) > TOLERANCE).any():
            raise CheckFailure(f"{_case(row, None, k)}: a nearer point follows a farther one")
        least = trial.least_similarity(row, k) - TOLERANCE
        recalls.append((similarities >= least).sum() / k)
    recall = f"mean recall {np.mean(recalls):.3f}"
    if np.mean(recalls) < _RECALL_MIN:
        raise CheckFailure(f"{recall}, below {_RECALL_MIN}")
    return recall


@_check("zero", "Diversity 0 equals the plain search, byte for byte.", "diversity")
def _check_zero(trial: Trial) -> str:
    has_scores = True
    for row, k in product(trial.rows, _SIZES):
        plain, answer = trial.ask(row, k), trial.ask(row, k, diversity=0.0)
        try:
            require_same(plain, answer, _case(row, 0.0, k))
        except CheckFailure as failure:
            if trial.are_equally_near(row, plain.ids, answer.ids):
                raise CheckFailure(f"{failure}; the points there are equally near") from None
            raise
        has_scores &= plain.scores is not None and answer.scores is not None
    return (
        "ids and scores are the same"
        if has_scores
        else "ids are the same; not all answers have scores"
    )


@_check("dial", "A greater diversity makes results more diverse and less near.", "diversity")
def _check_dial(trial: Trial) -> str:
    distances, similarities = [], []
    for diversity in _DIALS:
        answers = [trial.ask(row, diversity=diversity).ids for row in trial.rows]
        distances.append(np.mean([trial.mean_distance(ids) for ids in answers]))
        means = [trial.similarities(row, ids).mean() for row, ids in enumerate(answers)]
        similarities.append(np.mean(means))
    detail = (
        f"at diversity {', '.join(f'{diversity:g}' for diversity in _DIALS)}: "
        f"mean distance of results {', '.join(f'{value:.2f}' for value in distances)}, "
        f"mean cosine with the query {', '.join(f'{value:.2f}' for value in similarities)}"
    )
    is_monotone = all(
        far >= near - TOLERANCE
        for values in (distances, [-value for value in similarities])
        for near, far in pairwise(values)
    )
    has_effect = distances[1] > distances[0] and similarities[1] < similarities[0]
    if not (is_monotone and has_effect):
        raise CheckFailure(detail)
    return detail


@_check("filter", "A filter holds, and k results come back if k points pass.", "filter")
def _check_filter(trial: Trial) -> str:
    return _require_filtered(trial, [None])


@_check(
    "diverse_filter",
    "A filter holds at every diversity, and k results come back if k points pass.",
    "filter",
    "diversity",
)
def _check_diverse_filter(trial: Trial) -> str:
    return _require_filtered(trial, _DIALS)


def _require_filtered(trial: Trial, dials: Sequence[float | None]) -> str:
    sizes = []
    for colour in COLOURS:
        conditions = {"colour": colour}
        passing = trial.passing(conditions)
        sizes.append(len(passing))
        for row, diversity in product(trial.rows, dials):
            case = f"{_case(row, diversity)}, {len(passing)} points pass"
            answer = trial.ask(row, diversity=diversity, filter=conditions)
            if set(answer.ids) - passing:
                raise CheckFailure(f"{case}: a result does not pass the filter")
            _require_full(answer, min(10, len(passing)), case)
    return f"filters that {', '.join(map(str, sizes))} points pass"


@_check("filter_off", "A filter that all points pass changes nothing.", "filter")
def _check_filter_off(trial: Trial) -> str:
    return _require_no_effect(trial, Options(filter={"kind": "point"}))


def _require_no_effect(trial: Trial, options: Options) -> str:
    cases = list(product(trial.rows, _dials(trial)))
    for row, diversity in cases:
        plain = trial.ask(row, diversity=diversity)
        answer = trial.ask(row, diversity=diversity, **options)
        require_same(plain, answer, _case(row, diversity))
    return f"{len(cases)} answers"


@_check("max_each", "A limit for each value holds, and k results come back.", "max_each")
def _check_max_each(trial: Trial) -> str:
    return _require_limits(trial, [None])


@_check(
    "diverse_max_each",
    "A limit for each value holds at every diversity, and k results come back.",
    "max_each",
    "diversity",
)
def _check_diverse_max_each(trial: Trial) -> str:
    return _require_limits(trial, _DIALS)


def _require_limits(trial: Trial, dials: Sequence[float | None]) -> str:
    cases = list(product([("brand", 2), ("brand", 1), ("colour", 3)], trial.rows, dials))
    for (attribute, limit), row, diversity in cases:
        _require_quotas(trial, row, diversity, max_each={attribute: limit})
    return f"{len(cases)} answers"


@_check("at_least", "A minimum for a rare value is met, and k results come back.", "at_least")
def _check_at_least(trial: Trial) -> str:
    return _require_minimums(trial, [None])


@_check(
    "diverse_at_least",
    "A minimum for a rare value is met at every diversity, and k results come back.",
    "at_least",
    "diversity",
)
def _check_diverse_at_least(trial: Trial) -> str:
    return _require_minimums(trial, _DIALS)


def _require_minimums(trial: Trial, dials: Sequence[float | None]) -> str:
    cases = list(product((1, 3), trial.rows, dials))
    for minimum, row, diversity in cases:
        _require_quotas(trial, row, diversity, at_least={"colour": {COLOURS[-1]: minimum}})
    return f"{len(cases)} answers"


@_check(
    "quotas",
    "A limit, a minimum and a filter hold together, on several attributes.",
    "filter",
    "max_each",
    "at_least",
)
def _check_quotas(trial: Trial) -> str:
    cases = list(product(trial.rows, _dials(trial)))
    for row, diversity in cases:
        limits = {"brand": 3, "colour": 6}
        minimums = {"colour": {COLOURS[-1]: 2}}
        _require_quotas(trial, row, diversity, max_each=limits, at_least=minimums)
        limits = {"brand": 3}
        minimums = {"brand": {"brand 7": 2}}
        conditions = {"colour": COLOURS[1]}
        options = Options(filter=conditions, max_each=limits, at_least=minimums)
        answer = _require_quotas(trial, row, diversity, **options)
        if set(answer.ids) - trial.passing(conditions):
            raise CheckFailure(f"{_case(row, diversity)}: a result does not pass the filter")
    return f"{2 * len(cases)} answers"


def _require_quotas(
    trial: Trial, row: int, diversity: float | None, **options: Unpack[Options]
) -> Answer:
    """Raise `CheckFailure` unless ten results meet the limits and minimums of a request."""
    answer = trial.ask(row, diversity=diversity, **options)
    for attribute, limit in options.get("max_each", {}).items():
        case = f"{_case(row, diversity)}, at most {limit} of each {attribute}"
        _require_full(answer, 10, case)
        value, count = trial.values(attribute, answer.ids).most_common(1)[0]
        if count > limit:
            raise CheckFailure(f"{case}: {count} results are {value}")
    for attribute, minimums in options.get("at_least", {}).items():
        counts = trial.values(attribute, answer.ids)
        for value, minimum in minimums.items():
            case = f"{_case(row, diversity)}, at least {minimum} of {attribute} {value}"
            _require_full(answer, 10, case)
            if counts[value] < minimum:
                raise CheckFailure(f"{case}: {counts[value]} results are {value}")
    return answer


@_check("max_each_off", "A limit that no answer can reach changes nothing.", "max_each")
def _check_max_each_off(trial: Trial) -> str:
    return _require_no_effect(trial, Options(max_each={"brand": 10}))


@_check("pages", "Pages are full and repeat no point.", "pages")
def _check_pages(trial: Trial) -> str:
    for row, diversity in product(trial.rows, _dials(trial)):
        ranks: dict[str, int] = {}
        for number, answer in enumerate(_pages(trial, row, diversity), start=1):
            case = f"{_case(row, diversity, _PAGE)}, page {number}"
            repeated = [id_ for id_ in answer.ids if id_ in ranks]
            if repeated:
                raise CheckFailure(f"{case}: {repeated[0]} was on page {ranks[repeated[0]]}")
            _require_full(answer, _PAGE, case)
            ranks |= dict.fromkeys(answer.ids, number)
    return f"{_PAGES} pages of {_PAGE}"


@_check("joined_pages", "Pages of a plain search, joined, are the answer of their length.", "pages")
def _check_joined_pages(trial: Trial) -> str:
    for row in trial.rows:
        ids = [id_ for answer in _pages(trial, row, None) for id_ in answer.ids]
        whole = trial.ask(row, _PAGES * _PAGE)
        require_same(whole, Answer(ids), _case(row, None, _PAGES * _PAGE))
    return f"{_PAGES} pages of {_PAGE}"


def _pages(trial: Trial, row: int, diversity: float | None) -> Iterator[Answer]:
    """Yield the first pages of a query."""
    page: object = None
    for number in range(1, _PAGES + 1):
        answer = trial.ask(row, _PAGE, diversity=diversity, paged=True, page=page)
        yield answer
        page = answer.next_page
        if page is None and number < _PAGES:
            case = f"{_case(row, diversity, _PAGE)}, page {number}"
            raise CheckFailure(f"{case}: there is no next page")


def _require_scores(trial: Trial, row: int, diversity: float | None) -> None:
    """Raise `CheckFailure` unless the scores are there and order the results by nearness."""
    case = _case(row, diversity)
    answer = trial.ask(row, diversity=diversity)
    if answer.scores is None or len(answer.scores) != len(answer.ids):
        raise CheckFailure(f"{case}: not every result has a score")
    scores = np.array(answer.scores, np.float64)
    if not np.isfinite(scores).all():
        raise CheckFailure(f"{case}: a score is no finite number")
    similarities = trial.similarities(row, answer.ids)
    order = np.argsort(similarities)
    sign = 1 if trial.store.higher_is_nearer else -1
    for farther, nearer in pairwise(order):
        differs = similarities[nearer] - similarities[farther] > TOLERANCE
        if differs and sign * (scores[nearer] - scores[farther]) <= 0:
            raise CheckFailure(
                f"{case}: of scores {scores[farther]:.4g} and {scores[nearer]:.4g}, the second is "
                "that of a nearer point"
            )


@_check("scores", "A plain search returns scores, which are better for nearer points.", "scores")
def _check_scores(trial: Trial) -> str:
    for row in trial.rows:
        _require_scores(trial, row, None)
    return f"{len(trial.rows)} answers"


@_check(
    "diverse_scores",
    "A search with a diversity returns scores, which are better for nearer points.",
    "diversity",
    "diverse_scores",
)
def _check_diverse_scores(trial: Trial) -> str:
    for row, diversity in product(trial.rows, _DIALS):
        _require_scores(trial, row, diversity)
    return f"{len(trial.rows) * len(_DIALS)} answers"


def _answers(trial: Trial) -> list[tuple[str, Answer]]:
    """Return an answer for each query and dial, with a description of the request."""
    cases = product(trial.rows, _dials(trial))
    return [(_case(*case), trial.ask(case[0], diversity=case[1])) for case in cases]


@_check("repeat", "The same request gets the same answer.")
def _check_repeat(trial: Trial) -> str:
    first = _answers(trial)
    for _ in range(2):
        for (case, answer), (_, again) in zip(first, _answers(trial), strict=True):
            require_same(answer, again, case)
    return f"{len(first)} requests, three times each"


@_check("rebuild", "The same points, indexed again, give the same answer.")
def _check_rebuild(trial: Trial) -> str:
    before = _answers(trial)
    trial.build()
    for (case, answer), (_, again) in zip(before, _answers(trial), strict=True):
        require_same(answer, again, case)
    return f"{len(before)} requests"
