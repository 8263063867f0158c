"""The best of several choices is reported by nested folds, so its h is not too high.

Several simulations have methods whose h does not differ, so any h above the true one is a bias.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.evaluation import choose_by_folds, deal_folds
from divgrpc.evaluation.folds import Choice, choices_of, winners_of
from divgrpc.metrics import Values, mean
from divgrpc.types import IntArray


def winner_twin(kinds: list[int], h: Values, rows: IntArray, folds: IntArray) -> int:
    """Return the setting that is chosen on `rows` (n,), whose folds are `folds` (nq,)."""
    present = set(folds[rows].tolist())
    if len(present) == 1:
        return int(np.argmax([h[setting, rows].mean() for setting in range(len(h))]))
    best, greatest = -1, -np.inf
    for kind in dict.fromkeys(kinds):
        members = [setting for setting in range(len(h)) if kinds[setting] == kind]
        total = 0.0
        for fold in present:
            outside = [row for row in rows if folds[row] != fold]
            choice = max(members, key=lambda setting: h[setting, outside].mean())
            total += sum(h[choice, row] for row in rows if folds[row] == fold)
        if total > greatest:
            best, greatest = max(members, key=lambda setting: h[setting, rows].mean()), total
    return best


@given(seed=st.integers(0, 2**32 - 1), folds=st.integers(2, 4))
def test_winners_agree_with_a_plain_loop(seed: int, folds: int) -> None:
    rng = np.random.default_rng(seed)
    h, kinds = rng.integers(0, 32, (5, 12)) / 32 + rng.random((5, 1)) / 8, [0, 1, 0, 2, 1]
    fold_of_row = deal_folds(np.arange(12) // 2, folds)
    (winner,) = winners_of(kinds, [0] * 5, h, fold_of_row)
    assert winner.overall == winner_twin(kinds, h, np.arange(12), fold_of_row)
    for fold, setting in enumerate(winner.by_fold):
        assert setting == winner_twin(kinds, h, np.flatnonzero(fold_of_row != fold), fold_of_row)
    assert winner.at.tolist() == [winner.by_fold[fold] for fold in fold_of_row]


def test_each_race_has_a_winner() -> None:
    h, folds = np.random.default_rng(1).random((6, 20)), deal_folds(np.arange(20))
    kinds, races = [0, 0, 1, 2, 2, 3], ["a", "a", "b", "a", "b", "b"]
    winners = list(winners_of(kinds, races, h, folds))
    for winner, race in zip(winners, ("a", "b"), strict=True):
        members = [number for number in range(6) if races[number] == race]
        (alone,) = winners_of([kinds[n] for n in members], [0] * 3, h[members], folds)
        assert winner.members == members
        assert winner.by_fold == tuple(members[number] for number in alone.by_fold)


@pytest.mark.parametrize("groups", [60, 12])
def test_the_winner_of_equal_methods_is_reported_without_bias(groups: int) -> None:
    """The best choice by folds is too high by several standard errors; the winner is not."""
    rng = np.random.default_rng(7)
    group_of_query = np.arange(60) % groups
    folds = deal_folds(group_of_query)
    reports: dict[str, list[float]] = {"best": [], "winner": []}
    for _ in range(400):
        noise = rng.standard_normal((7, groups))[:, group_of_query]
        h = 0.5 + 0.2 * (0.6 * noise + 0.8 * rng.standard_normal((7, 60)))
        by_kind = list(choices_of(range(7), h, folds))
        (winner,) = winners_of(range(7), [0] * 7, h, folds)
        reports["best"].append(max(_reported(choice, h) for choice in by_kind))
        reports["winner"].append(_reported(winner, h))
    bias = {name: np.mean(values) - 0.5 for name, values in reports.items()}
    error = np.std(reports["winner"]) / np.sqrt(400)
    assert bias["best"] > 8 * error
    assert abs(bias["winner"]) < 2.5 * error


def _reported(choice: Choice, h: Values) -> float:
    return mean(h[choice.at, np.arange(h.shape[1])])


def test_work_of_nested_folds_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    means = 0

    def counted(values: Values) -> float:
        nonlocal means
        means += 1
        return mean(values)

    monkeypatch.setattr("divgrpc.evaluation.folds.mean", counted)
    counts = []
    for queries in (40, 80):
        h, folds, means = rng.random((3, queries)), deal_folds(np.arange(queries), queries), 0
        [winner] = winners_of([0, 0, 1], [0, 0, 0], h, folds)
        counts.append(means)
        h[:, folds == 7] = rng.random((3, 1))
        [new_winner] = winners_of([0, 0, 1], [0, 0, 0], h, folds)
        assert winner.by_fold[7] == new_winner.by_fold[7]
    assert counts[1] < 2.5 * counts[0]


def test_folds_by_group_do_not_leak() -> None:
    """A setting that is good for a few groups by chance looks better if folds split the groups."""
    rng = np.random.default_rng(8)
    groups = np.arange(60) // 10
    split, whole = deal_folds(np.arange(60)), deal_folds(groups)
    biases = []
    for _ in range(300):
        h = 0.5 + 0.2 * rng.standard_normal((20, 6))[:, groups]
        biases.append(
            [choose_by_folds(h, folds).reported(h, folds).mean() for folds in (split, whole)]
        )
    leak, clean = np.mean(biases, axis=0) - 0.5
    assert leak > 0.1
    assert abs(clean) < 0.02
