"""Terms written out for a whole batch: to the character as a row at a time."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stream_ccsd.records import rounded, term_texts

NAMES = ["amount", "hour", 'a "quoted" name', "größe"]
# Whatever a float can be, what evidence is like, and what lies on or beside the middle between two texts.
TERMS = st.one_of(
    st.floats(),
    st.floats(-40, 40),
    st.integers(-400_000, 400_000).map(lambda n: n / 10_000),
    st.builds(lambda n, m: (n + 0.5) / 10_000 * (1 + m * 2**-52), st.integers(-(10**9), 10**9), st.integers(-3, 3)),
)


def one_by_one(names, row):
    kept = {name: digits for name, nats in zip(names, row.tolist(), strict=True) if (digits := round(nats, 4))}
    return json.dumps(kept, separators=(",", ":"))


@given(arrays(float, st.tuples(st.integers(0, 5), st.just(len(NAMES))), elements=TERMS))
@example(
    np.array([[0.0, -0.0, 1e-9, -0.00005], [1.0, -30.0, 100_000.0, 99_999.99995], [np.nan, np.inf, -np.inf, 1e300]])
)
def test_texts_are_those_of_python(values):
    assert term_texts(NAMES, values).to_pylist() == [one_by_one(NAMES, row) for row in values]


@pytest.mark.parametrize("step", [1, -3])
def test_the_middle_between_two_texts_is_rounded_by_the_exact_value(step):
    values = (np.arange(0, 200_000, 7) * step + 0.5) / 10_000
    assert rounded(values).tolist() == [round(value, 4) for value in values.tolist()]
    for there in (np.inf, -np.inf):
        beside = np.nextafter(values, there)
        assert rounded(beside).tolist() == [round(value, 4) for value in beside.tolist()]
