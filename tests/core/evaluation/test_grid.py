"""Grids of settings, the division of queries into folds, and the choice of settings by folds."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.errors import InvalidArgumentError
from divgrpc.evaluation import Grid, choose_by_folds, deal_folds
from divgrpc.evaluation.grid import LabelGrid, check_storable
from divgrpc.parameters import LIMITS, QueryParameters
from support.checks.refusals import refused, wrong


def test_a_grid_is_every_combination() -> None:
    axes = {"searches": ("scan", "exact"), "diversities": (0.1, 0.5), "ks": (5, 10)}
    grid = Grid(selectors=("greedy",), **axes, seed=3)  # type: ignore[arg-type]  # of several types
    expected = [
        QueryParameters(k=k, search=search, diversity=diversity, seed=3)
        for k in (5, 10)
        for search in ("scan", "exact")
        for diversity in (0.1, 0.5)
    ]
    assert grid.settings() == expected
    assert QueryParameters(diversity=0.1) in Grid().settings()


def test_each_setting_occurs_once() -> None:
    grid = Grid(
        selectors=("nearest", "mmr", "greedy"),
        variants=("corrected", "marginal"),
        diversities=(0.1, 0.3, 0.3),
    )
    settings = [
        (setting.selector, setting.variant, setting.diversity) for setting in grid.settings()
    ]
    rounds = Grid(selectors=("mmr",), roundings=("exchange", "top_k"))
    assert rounds.settings() == Grid(selectors=("mmr",)).settings()
    relaxation = Grid(selectors=("qp_relax",), roundings=("top_k", "exchange"), diversities=(0.3,))
    assert [setting.rounding for setting in relaxation.settings()] == ["top_k", "exchange"]
    greedy = [
        ("greedy", variant, dial) for variant in ("corrected", "marginal") for dial in (0.1, 0.3)
    ]
    mmr = [("mmr", "marginal", dial) for dial in (0.1, 0.3)]
    assert settings == [("nearest", "marginal", 0.0), *mmr, *greedy]


def test_probes_act_only_with_tables() -> None:
    """`auto` may stand for tables, except without a hash limit, where it is exact."""
    grid = Grid(
        selectors=("nearest",),
        searches=("tables", "auto", "scan", "exact"),
        limits=((None, None), (0, 0)),
        n_probes=(None, 10, 20),
    )
    probes: dict[tuple[str, int | None], list[int | None]] = {}
    for setting in grid.settings():
        probes.setdefault((setting.search, setting.hash_limit), []).append(setting.n_probes)
    all_probes = [None, 10, 20]
    assert probes == {
        ("tables", None): all_probes,
        ("tables", 0): all_probes,
        ("auto", None): all_probes,
        ("auto", 0): [None],
        ("scan", None): [None],
        ("scan", 0): [None],
        ("exact", None): [None],
        ("exact", 0): [None],
    }
    labels = LabelGrid(selectors=("nearest",), searches=("tables", "scan"), n_probes=(8, 10))
    settings = [(setting.search, setting.n_probes) for setting in labels.settings()]
    assert settings == [("tables", 8), ("tables", 10), ("scan", None)]


def test_samplings_need_a_hash_limit() -> None:
    grid = Grid(
        selectors=("nearest",),
        searches=("tables", "scan", "exact"),
        limits=((None, None), (0, 0)),
        samplings=("uniform", "nearest"),
    )
    samplings = ["uniform", "nearest"]
    for search, hash_limit, expected in (
        *(("tables", None, samplings), ("tables", 0, ["uniform"])),
        *(("scan", None, samplings), ("exact", None, ["uniform"])),
    ):
        settings = [s for s in grid.settings() if (s.search, s.hash_limit) == (search, hash_limit)]
        assert [setting.sampling for setting in settings] == expected


def test_epsilons_set_the_hash_limits_that_are_unset() -> None:
    grid = Grid(selectors=("nearest",), limits=((None, 0), (90, None)), epsilons=(None, 0.5, 1.0))
    settings = [
        (setting.hash_limit, setting.candidates_limit, setting.epsilon)
        for setting in grid.settings()
    ]
    assert settings == [(None, 0, None), (None, 0, 0.5), (None, 0, 1.0), (90, None, None)]
    with refused("epsilons", "every pair in limits has a hash_limit"):
        Grid(limits=((90, None), (0, 0)), epsilons=(0.5,))


@pytest.mark.parametrize(
    "axis", [{"n_probes": (10,)}, {"samplings": ("nearest",)}, {"epsilons": (0.5,)}]
)
def test_a_default_holds_no_parameters_of_the_search(axis: dict[str, Any]) -> None:
    check_storable(Grid().settings())
    with refused("set_default", "stores no epsilon, n_probes or sampling"):
        check_storable(Grid(**axis, searches=("tables",)).settings())
    check_storable(Grid(n_probes=(10,), searches=("exact",)).settings())


def test_axes_may_be_any_sequence() -> None:
    axes: dict[str, Any] = {"diversities": np.array([0.25, 0.5]), "ks": [10], "selectors": ["mmr"]}
    assert [setting.diversity for setting in Grid(**axes).settings()] == [0.25, 0.5]


@wrong(
    selectors=[(), ("nearby",), "greedy"],
    variants=[("improved",)],
    roundings=[("upwards",)],
    searches=[("scan", "everywhere")],
    limits=[((9, None),), ((800, 200), (800, 9)), (800, 200), ((1, 2, 3),), ("ab",)],
    diversities=[(0.5, 1.5), (math.nan,), 0.5],
    epsilons=[(), (0,), (0.5, -1.0), (math.inf,), ("small",), 0.5],
    n_probes=[(), (0,), (None, 2.5), (2**31,), (True,), ("all",), 10],
    samplings=[(), ("random",), (None,), "uniform"],
    ks=[(0,), (True,)],
)
def test_invalid_grids_are_refused_by_field(field: str, value: Any) -> None:  # noqa: ANN401
    with refused(field):
        Grid(**{field: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "one"}, "seed must be a whole number, got 'one'"),
        ({"keep_duplicates": 1}, "keep_duplicates must be true or false, got 1"),
        ({"ks": (0,)}, "in ks: k must be between 1 and 10000, got 0"),
    ],
)
def test_errors_name_a_field_once(options: dict[str, Any], message: str) -> None:
    """The parameter of an axis has another name than the axis, so an error says both."""
    with pytest.raises(InvalidArgumentError) as error_info:
        Grid(**options)
    assert str(error_info.value) == message


def test_a_grid_above_the_maximum_of_settings_is_refused() -> None:
    most = LIMITS["grid_settings_max"]
    dials = tuple(np.linspace(0, 1, most))
    assert len(Grid(selectors=("greedy",), diversities=dials).settings()) == most
    with refused("grid", "at most"):
        Grid(selectors=("greedy",), diversities=(0.5,) * (most + 1))


@given(
    groups=st.lists(st.integers(-3, 5), min_size=1, max_size=40),
    folds=st.integers(2, 7),
    seed=st.integers(0, 99),
)
def test_a_group_lies_in_one_fold(groups: list[int], folds: int, seed: int) -> None:
    """Among the rows that count, two folds differ by at most the size of one group."""
    if folds > len(set(groups)):
        with pytest.raises(InvalidArgumentError, match="folds must be between 2"):
            deal_folds(np.array(groups), folds)
        return
    random_mask = np.random.default_rng(seed).integers(0, 2, len(groups)).astype(bool)
    for mask in (None, random_mask):
        fold_of_row = deal_folds(np.array(groups), folds, mask)
        pairs = set(zip(groups, fold_of_row.tolist(), strict=True))
        assert len(pairs) == len(set(groups))
        rows = np.ones(len(groups), bool) if mask is None else mask
        sizes = np.bincount(fold_of_row[rows], minlength=folds)
        largest = max(np.count_nonzero(rows & (np.array(groups) == group)) for group in set(groups))
        assert sizes.max() - sizes.min() <= largest


def test_folds_are_two_or_more() -> None:
    """Other folds choose the setting of a fold, so one fold is refused."""
    with pytest.raises(InvalidArgumentError, match="folds"):
        deal_folds(np.arange(9), 1)
    assert np.bincount(deal_folds(np.arange(11))).tolist() == [3, 2, 2, 2, 2]
    with pytest.raises(InvalidArgumentError, match="groups must be"):
        deal_folds(np.array([0.5, 1]), 2)


def test_a_fold_is_reported_at_the_best_setting_of_the_others() -> None:
    h = np.array([[0.5] * 5, [9, 0, 0, 0, 0]])
    choice = choose_by_folds(h, np.arange(5))
    assert choice.by_fold.tolist() == [0, 1, 1, 1, 1]
    assert choice.overall == 1
    assert choice.reported(h, np.arange(5)).tolist() == [0.5, 0, 0, 0, 0]


@given(seed=st.integers(0, 2**32 - 1), folds=st.integers(2, 4))
def test_choices_by_folds_agree_with_a_plain_loop(seed: int, folds: int) -> None:
    """If settings have equal means on the other folds, a fold gets the first of them."""
    rng = np.random.default_rng(seed)
    h = rng.integers(0, 3, (4, 8)) / 2
    fold_of_row = deal_folds(np.arange(8) // 2, folds)
    choice = choose_by_folds(h, fold_of_row)
    for fold in range(folds):
        means = [math.fsum(row[fold_of_row != fold]) for row in h]
        assert choice.by_fold[fold] == means.index(max(means))


def test_nan_values_of_h_are_left_out() -> None:
    h = np.array([[0.4, np.nan, 0.4], [0.3, 0.3, 0.3]])
    assert choose_by_folds(h, np.arange(3)).by_fold.tolist() == [0, 0, 0]
    with pytest.raises(InvalidArgumentError, match="does not apply to any"):
        choose_by_folds(np.array([[np.nan, 0.5]]), np.arange(2))


@pytest.mark.parametrize("h", [np.empty((0, 3)), np.ones(3), np.ones((2, 4))])
def test_h_of_another_shape_is_refused(h: np.ndarray) -> None:
    with pytest.raises(InvalidArgumentError, match="h must be"):
        choose_by_folds(h, np.arange(3))
