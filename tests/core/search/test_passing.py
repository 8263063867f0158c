"""The points that pass a filter, in the forms that searches read."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from divgrpc.kernels.records import Cells, Passing
from divgrpc.kernels.registers import record_of
from divgrpc.search.code_order import CodeOrder
from divgrpc.search.passing import PassingRows


def order_of(rows: int, n_cells: int, seed: int) -> tuple[CodeOrder, list[int], list[list[int]]]:
    """Return the order of an index, the row of each code, and the rows of each cell."""
    if not n_cells:
        return CodeOrder(record_of(Cells, None, {})), list(range(rows)), []
    rng = np.random.default_rng(seed)
    cell_of = rng.integers(0, n_cells, rows)
    members = [np.flatnonzero(cell_of == cell).tolist() for cell in range(n_cells)]
    cells = record_of(Cells, None, {})._replace(
        starts=np.cumsum([0, *map(len, members)]),
        rows=np.array([row for cell in members for row in cell], np.int32),
    )
    return CodeOrder(cells), [row for cell in members for row in cell], members


@given(
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.lists(st.lists(st.integers(0, 29), max_size=8), max_size=3),
    st.integers(0, 5),
    st.integers(0, 99),
)
def test_all_forms_have_the_same_points(
    flags: list[bool], removals: list[list[int]], n_cells: int, seed: int
) -> None:
    order, codes, members = order_of(len(flags), n_cells, seed)
    passing, expected = PassingRows(np.array(flags)), list(flags)
    forms: list[tuple[Passing, Passing]] = []
    for removal in [[], *removals]:
        rows = [row for row in removal if row < len(flags)]
        passing = passing.without(np.array(rows, np.int64))
        for row in rows:
            expected[row] = False
        by_row, by_code = passing.by_row, passing.by_code(order)
        forms.append((by_row, by_code))
        assert passing.count == by_row.total[0] == by_code.total[0] == sum(expected)
        assert passing.flags.tolist() == expected
        assert by_row.rows.tolist() == [row for row, passes in enumerate(expected) if passes]
        assert by_code.flags.tolist() == [int(expected[row]) for row in codes]
        assert by_code.cells.tolist() == [sum(expected[row] for row in cell) for cell in members]
        counts = order.count(by_row.rows)
        assert (counts.dtype.name, counts.tolist()) == ("int32", by_code.cells.tolist())
        assert [by_row.rows.dtype.name, by_code.flags.dtype.name] == ["int32", "uint8"]
        assert passing.by_code(order) is by_code
    # A removal does not change the objects before it.
    assert forms[0][1].flags.tolist() == [int(flags[row]) for row in codes]


@given(
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.lists(st.booleans(), min_size=30, max_size=30),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_a_part_has_the_points_of_a_range(
    flags: list[bool], second: list[bool], start: int, stop: int
) -> None:
    whole = PassingRows(np.array(flags))
    part = whole.part(start, stop)
    expected = [passes and start <= row < stop for row, passes in enumerate(flags)]
    assert part.flags.tolist() == expected
    assert part.count == part.by_row.total[0] == sum(expected)
    assert part.by_row.rows.tolist() == np.flatnonzero(expected).tolist()
    assert part.by_row.rows.dtype == np.int32
    both = part.within(PassingRows(np.array(second)))
    assert both.flags.tolist() == [a and b for a, b in zip(expected, second, strict=False)]
