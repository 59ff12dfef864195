import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.numerics.arrays import shuffled, some_rows

NAMES = st.sets(st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=4), min_size=1, max_size=20)


@given(NAMES, st.integers(0, 2**32), st.randoms())
def test_the_order_depends_on_names_and_seed_only(names, seed, chance):
    given_order = list(names)
    chance.shuffle(given_order)
    order = shuffled(given_order, seed)
    assert order == shuffled(names, seed)
    assert set(order) == names


@given(NAMES, NAMES, st.integers(0, 2**32))
def test_models_and_splits_of_before_are_drawn_again(first, second, seed):
    """Who is held out, fitted on or tested is part of every result ever published: numpy's draw over sorted names."""
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(sorted(names)).tolist() for names in (first, second)]
    again = np.random.default_rng(seed)
    assert [shuffled(names, again) for names in (first, second)] == drawn
    assert shuffled(first, seed) == drawn[0]


def test_an_account_keeps_its_whole_name():
    assert set(shuffled(["a\0", "b"], 0)) == {"a\0", "b"}  # an array of texts would drop the end


@given(st.integers(0, 50), st.integers(0, 60), st.integers(0, 100))
def test_some_rows_are_in_order_and_once(rows, most, seed):
    chosen = some_rows(rows, most, seed)
    assert len(chosen) == min(rows, most)
    assert (np.diff(chosen) > 0).all()
    assert set(chosen.tolist()) <= set(range(rows))
