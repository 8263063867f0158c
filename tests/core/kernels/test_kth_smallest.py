"""The k-th least number is what sorting gives."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from divgrpc.kernels import top_k

examples = settings(deadline=None, derandomize=True, max_examples=200)


@examples
@given(values=st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 3), min_size=1), data=st.data())
def test_kth_key_is_what_sorting_gives(values: list[int], data: st.DataObject) -> None:
    """The element at k of the sorted integers, equal ones or not; they stay where they are."""
    k = data.draw(st.integers(0, len(values) - 1))
    keys = np.array(values, np.uint64)
    assert top_k.kth_key(keys, k) == sorted(values)[k]
    assert keys.tolist() == values


@examples
@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0]), min_size=1
    ),
    data=st.data(),
)
def test_kth_least_is_what_sorting_gives(values: list[float], data: st.DataObject) -> None:
    """The same of floats of both signs, infinities among them."""
    k = data.draw(st.integers(0, len(values) - 1))
    assert top_k.kth_least(np.array(values, np.float32), k) == sorted(values)[k]
