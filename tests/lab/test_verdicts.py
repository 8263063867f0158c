"""The verdicts on claims: their words, their intervals, and how often they err."""

import numpy as np
import pytest
from scipy import stats

from divgrpc.types import IntArray, Interval
from divgrpc_lab.experiment import interval_text
from divgrpc_lab.verdicts import Claim, Contrast, Verdict, judge, p_text, verdict_table

_GROUPS = np.repeat(np.arange(10), 6)


def contrast(mean: float, place: str = "here", noise: float = 0.01) -> Contrast:
    """Return values with a mean of `mean`; the means of the groups spread by `noise`."""
    return Contrast(place, mean + noise * np.repeat(np.linspace(-1, 1, 10), 6), _GROUPS)


def verdict(*contrasts: Contrast, is_null: bool = False) -> Verdict:
    [answer] = judge([Claim("a claim", "the effect", contrasts, is_null=is_null)])
    return answer


@pytest.mark.parametrize(
    ("means", "word"),
    [
        ((0.1, 0.1), "holds"),
        ((0.1, 0.0), "cannot be told"),
        ((0.0, 0.0), "cannot be told"),
        ((-0.1, 0.0), "does not hold"),
        ((-0.1, -0.1), "does not hold"),
        ((0.1, -0.1), "depends on the data"),
        ((), "not tested"),
    ],
)
def test_word_of_a_verdict(means: tuple[float, ...], word: str) -> None:
    assert verdict(*map(contrast, means)).word == word


@pytest.mark.parametrize(
    ("means", "word"),
    [
        ((0.0, 0.0), "is not rejected"),
        ((0.1, 0.0), "does not hold"),
        ((-0.1, 0.0), "does not hold"),
        ((), "not tested"),
    ],
)
def test_a_null_claim_is_never_confirmed(means: tuple[float, ...], word: str) -> None:
    assert verdict(*map(contrast, means), is_null=True).word == word


def test_a_null_claim_of_a_larger_sample_at_the_same_effect_is_not_milder() -> None:
    """More units at the same effect can only turn "is not rejected" into "does not hold"."""
    random = np.random.default_rng(0)
    values = 0.02 + 0.05 * random.standard_normal(100)
    values += 0.02 - values.mean()
    words = [verdict(Contrast("here", values[:n]), is_null=True).word for n in (10, 100)]
    assert words == ["is not rejected", "does not hold"]


def test_effect_is_the_t_test_of_the_means_of_groups() -> None:
    """With groups of equal size, the p value is that of scipy's t test of the group means."""
    random = np.random.default_rng(1)
    values = random.standard_normal(60) + np.repeat(random.standard_normal(10), 6)
    [effect] = verdict(Contrast("here", values, _GROUPS)).effects
    test = stats.ttest_1samp(values.reshape(10, 6).mean(axis=1), 0.0)
    assert effect.p == pytest.approx(test.pvalue)
    assert effect.size[1:] == pytest.approx(tuple(test.confidence_interval()))
    assert effect.groups == 10


def test_all_claims_of_a_table_are_corrected_together() -> None:
    """A single test with p = 0.03 decides alone, but not beside another test of equal p."""
    values = np.linspace(-1, 1, 10) + 0.53
    claims = [Claim(name, "the effect", [Contrast("here", values)]) for name in "ab"]
    assert judge(claims[:1])[0].holds is True
    [first, _] = judge(claims)
    assert first.effects[0].corrected_p == pytest.approx(2 * first.effects[0].p)
    assert first.holds is None


def test_ratios_are_tested_against_their_goal() -> None:
    """Values with a goal are logarithms; the effect is printed as a ratio."""
    values = np.log(np.repeat([7.0, 9.0], 30))
    groups = np.repeat(np.arange(10), 6)
    faster = verdict(Contrast("here", values, groups, goal=4.0))
    assert faster.holds is True
    assert faster.effects[0].size.value == pytest.approx(np.sqrt(63))
    assert "here: 7.94 times" in faster.sentence
    assert verdict(Contrast("here", values, groups, goal=20.0)).holds is False


def test_one_group_has_no_interval() -> None:
    """With one category, or one query, the text says so, and no interval is invented."""
    one = verdict(Contrast("here", np.array([0.1, 0.2]), np.zeros(2, np.int64)))
    assert one.word == "not tested"
    assert "+0.150, one group: no interval" in one.sentence
    assert np.isnan([*one.effects[0].size[1:], one.effects[0].corrected_p]).all()
    single = verdict(Contrast("here", np.array([0.1])))
    assert "one group: no interval" in single.sentence
    claims = [Claim("a", "e", [contrast(0.1)]), Claim("b", "e", [Contrast("x", np.ones(1))])]
    effect = judge(claims)[0].effects[0]
    assert effect.corrected_p == effect.p, "a test that was not made"


def test_queries_without_a_value_are_left_out() -> None:
    """Without a relevant point h does not apply, and without any value there is no effect."""
    values = contrast(0.1).values.copy()
    values[:6] = np.nan
    [effect] = verdict(Contrast("here", values, _GROUPS)).effects
    assert effect.groups == 9
    empty_verdict = verdict(Contrast("here", np.full(60, np.nan), _GROUPS))
    assert empty_verdict.word == "not tested"
    assert "here: no value" in empty_verdict.sentence


def test_table_has_a_line_for_each_effect() -> None:
    claims = [
        Claim("first", "e", [contrast(0.1, "here"), contrast(0.1, "there")]),
        Claim("second", "e", []),
        Claim("third", "e", [Contrast("one", np.ones(2), np.zeros(2, np.int64))]),
        Claim("fourth", "e", [Contrast("none", np.full(2, np.nan))]),
    ]
    table = verdict_table(judge(claims), "caption")
    first, second, third, fourth = (body.rows for body in table.bodies)
    assert [row[2] for row in first] == ["here", "there"]
    assert first[1][:2] == ["", ""]
    assert second[0][0] == "second"
    assert "one group: no interval" in third[0]
    assert fourth[0][2:6] == ["none", "no value", "", "0"]
    assert all(len(row) == len(table.columns) for body in table.bodies for row in body.rows)


def test_p_values_in_words() -> None:
    assert [p_text(p) for p in (0.0312, 1e-9, np.nan)] == ["0.031", "below 1e-6", "none"]


@pytest.mark.parametrize("spread", [0.0, 2.0], ids=["independent", "clustered"])
def test_family_wise_error_without_any_effect(spread: float) -> None:
    """At most 5 % of all tables of 18 contrasts have a decided verdict."""
    random, runs, cells = np.random.default_rng(2), 250, 18
    decisions = naive = 0
    for _ in range(runs):
        verdicts = judge(_null_claims(random, cells, spread, _GROUPS))
        decisions += any(v.word not in {"cannot be told", "is not rejected"} for v in verdicts)
        naive += any(e.p < 0.05 for v in verdicts for e in v.effects)
    # 5 % and three standard errors of the simulation.
    assert decisions / runs <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)
    assert naive / runs > 0.4


def _null_claims(
    random: np.random.Generator, cells: int, spread: float, groups: IntArray
) -> list[Claim]:
    """Return claims without effects; every third claim is a null claim."""
    shifts = spread * random.standard_normal((cells, groups.max() + 1))
    values = random.standard_normal((cells, len(groups))) + shifts[:, groups]
    contrasts = [Contrast(str(n), row, groups) for n, row in enumerate(values)]
    return [
        Claim("c", "e", contrasts[start : start + 3], is_null=start % 9 == 0)
        for start in range(0, cells, 3)
    ]


def test_intervals_are_written_without_leading_zeros_only() -> None:
    assert interval_text(Interval(0.0, -0.25, 0.5)) == "-.250 to .500"
    assert interval_text(Interval(20.0, 10.125, 100.5)) == "10.125 to 100.500"
