import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from stream_ccsd.account import AccountCodec
from stream_ccsd.divergence.search.by_category import find_top_k, weigh_together
from stream_ccsd.divergence.search.index import QUERIES, Scratch, build_index, keep_top_k, nearest, weigh
from stream_ccsd.divergence.search.simd import TOGETHER, WIDTH, make_tiles, multiply
from stream_ccsd.divergence.search.windows import AccountHistory, WindowTable, library_windows, running_moments
from stream_ccsd.engine import Engine
from stream_ccsd.numerics.vector import order_of
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction
from tests import naive


def table(rng, n, k, pairs=5, scale=1.0):
    z = rng.normal(0, scale, (n, k))
    pair = rng.integers(0, pairs, n)
    return WindowTable(
        z,
        rng.normal(size=n),
        rng.integers(0, 4, n).astype(np.int8),
        (pair % 3).astype(np.uint32),
        pair.astype(np.uint32),
    )


def full_sort(index, query, category, merchant, settings):
    """Rows of the index by falling weight, every one measured."""
    group = np.repeat(np.arange(len(index.log_prior)), np.diff(index.start))
    windows = WindowTable(index.z, index.y, index.regime, index.category[group], index.merchant[group])
    log_weights = naive.library_log_weights(windows, query, category, merchant, settings, index.sigma_x)
    return np.argsort(-log_weights, kind="stable"), log_weights


def test_the_index_holds_every_window():
    windows = table(np.random.default_rng(0), 60, 5)
    index = build_index(windows, Settings(), 2.0)
    group = np.repeat(np.arange(len(index.log_prior)), np.diff(index.start))
    ours = zip(
        index.z.sum(axis=1).round(4), index.y, index.regime, index.category[group], index.merchant[group], strict=True
    )
    theirs = zip(
        windows.z.astype(np.float32).sum(axis=1).round(4),
        np.abs(windows.change),
        windows.regime,
        windows.categories,
        windows.merchants,
        strict=True,
    )
    assert sorted(ours) == sorted(theirs)


@settings(max_examples=80)
@given(
    st.integers(1, 120),
    st.integers(2, 20),
    st.integers(1, 12),
    st.integers(1, 60),
    st.floats(0.1, 30),
    st.integers(0, 99),
)
def test_top_j_equals_a_full_sort(n, k, pairs, wanted, sigma_x, seed):
    rng = np.random.default_rng(seed)
    windows = table(rng, n, k, pairs)
    s = Settings(neighbours=wanted)
    index = build_index(windows, s, sigma_x)
    query = rng.normal(size=k)
    scratch = Scratch.of(index)
    found = nearest(index, query, 1, 1, scratch)
    order, log_weights = full_sort(index, query, 1, 1, s)
    assert found == min(n, wanted)
    assert set(scratch.rows[:found]) == set(order[:found])
    np.testing.assert_allclose(scratch.log_weights[:found], log_weights[scratch.rows[:found]], rtol=0, atol=1e-9)


def by_definition(index, query, category, merchant):
    """The top J rows, of equal ones those that come first, and their weights: as sums of the terms of a square."""
    offset = np.where(index.category != category, index.log_rho_category, 0.0)
    offset = offset + np.where(index.merchant != merchant, index.log_rho_merchant, 0.0)
    z, size = index.z.astype(float), np.diff(index.start)
    base = np.repeat(index.log_prior, size) - 0.5 * np.sum(z**2, axis=1) / index.sigma_x**2
    own = 0.5 * np.sum(query**2) / index.sigma_x**2
    log_weights = np.repeat(offset, size) - own + base + z @ query / index.sigma_x**2
    rows = np.sort(np.argsort(-log_weights, kind="stable")[: index.neighbours])
    return rows, log_weights[rows]


@settings(max_examples=150)
@given(
    st.integers(1, 900),
    st.integers(1, 40),
    st.integers(1, 700),
    st.integers(1, 80),
    st.sampled_from([0.0, 0.3, 3.0]),
    st.sampled_from([(0.25, 0.25), (0.25, 0.5), (1.0, 0.1), (3.0, 0.2), (0.5, 8.0), (1.0, 1.0)]),
    st.sampled_from([{}, {"rarity": False}, {"attenuation": False}, {"rarity_beta": 1e-16}, {"rarity_alpha": 0.0}]),
    st.integers(0, 999),
)
def test_many_pairs_give_the_bits_of_a_full_sort(n, categories, merchants, wanted, skew, rho, more, seed):
    """Amounts are small whole numbers: distances have no rounding, and many rows weigh the same."""
    rng = np.random.default_rng(seed)
    popular = (1.0 + np.arange(merchants)) ** -skew
    merchant = rng.choice(merchants, n, p=popular / popular.sum())
    category = merchant % categories
    moved = rng.random(n) < rng.choice([0.0, 0.2])  # some merchants are in several categories
    category[moved] = rng.integers(0, categories, moved.sum())
    codes = (2 * category).astype(np.uint32), (2 * merchant).astype(np.uint32)
    windows = WindowTable(rng.integers(-2, 3, (n, 5)).astype(float), rng.normal(size=n), np.zeros(n, np.int8), *codes)
    s = Settings(neighbours=wanted, rho_category=rho[0], rho_merchant=rho[1], **more)
    index = build_index(windows, s, 2.0)
    scratch = Scratch.of(index)
    for _ in range(4):
        query = rng.integers(-2, 3, 5).astype(float)
        # Odd codes are of no category and no merchant of the library.
        at, row = rng.integers(0, 2, 2), rng.integers(0, n)
        asked = np.uint32(codes[0][row] + at[0]), np.uint32(codes[1][row] + at[1])
        found = nearest(index, query, *asked, scratch)
        rows, log_weights = by_definition(index, query, *asked)
        assert scratch.rows[:found].tolist() == rows.tolist()
        assert scratch.log_weights[:found].tolist() == log_weights.tolist()


@njit
def together(index, queries, category, merchant, scratch):
    """Rows and weights of several queries of one pair, found in one search."""
    filled, count = np.empty(QUERIES, np.int64), np.empty(QUERIES, np.int64)
    weigh(index, queries, category, merchant, scratch, filled, count)
    rows, weights = np.empty((len(queries), index.neighbours), np.int64), np.empty((len(queries), index.neighbours))
    for i in range(len(queries)):
        found = keep_top_k(index, scratch, i, filled[i], scratch.pieces[: count[i]])
        rows[i, :found], weights[i, :found] = scratch.rows[:found], scratch.log_weights[:found]
    return rows, weights


@settings(max_examples=60)
@given(st.integers(1, 1500), st.integers(1, 60), st.integers(1, 200), st.integers(1, QUERIES), st.integers(0, 99))
def test_several_queries_at_once_have_the_bits_of_each_alone(n, pairs, wanted, asked, seed):
    rng = np.random.default_rng(seed)
    index = build_index(table(rng, n, 7, pairs), Settings(neighbours=wanted), rng.choice([0.5, 3.0, 30.0]))
    scratch, queries = Scratch.of(index), rng.normal(size=(asked, 7)) * rng.choice([0.1, 1.0, 5.0], (asked, 1))
    rows, weights = together(index, queries, np.uint32(1), np.uint32(1), scratch)
    for query, its_rows, its_weights in zip(queries, rows, weights, strict=True):
        found = nearest(index, query, np.uint32(1), np.uint32(1), scratch)
        assert scratch.rows[:found].tolist() == its_rows.tolist()
        assert scratch.log_weights[:found].tobytes() == its_weights.tobytes()


@njit
def of_one_category(index, queries, category, merchants, scratch):
    """The same of several merchants."""
    count, visited = np.empty(QUERIES, np.int64), np.empty(len(index.blocks.top), np.int64)
    rows, weights = np.empty((len(queries), index.neighbours), np.int64), np.empty((len(queries), index.neighbours))
    own = weigh_together(index, queries, category, scratch, count, visited)
    for i in range(len(queries)):
        found = find_top_k(index, queries, i, category, merchants[i], own, count[i], visited, scratch)
        rows[i, :found], weights[i, :found] = scratch.rows[:found], scratch.log_weights[:found]
    return rows, weights


@settings(max_examples=80)
@given(st.integers(1, 3000), st.integers(1, 400), st.integers(1, 200), st.integers(1, QUERIES), st.integers(0, 99))
def test_queries_of_one_category_at_once_have_the_bits_of_each_alone(n, pairs, wanted, asked, seed):
    rng = np.random.default_rng(seed)
    windows = table(rng, n, 7, pairs)
    index = build_index(windows, Settings(neighbours=wanted), rng.choice([0.5, 3.0, 30.0]))
    scratch, queries = Scratch.of(index), rng.normal(size=(asked, 7)) * rng.choice([0.1, 1.0, 5.0], (asked, 1))
    category = np.uint32(rng.choice([*windows.categories, 10**6]))
    merchants = rng.choice([*windows.merchants, 10**6], asked).astype(np.uint32)
    rows, weights = of_one_category(index, queries, category, merchants, scratch)
    for query, merchant, its_rows, its_weights in zip(queries, merchants, rows, weights, strict=True):
        found = nearest(index, query, category, merchant, scratch)
        assert scratch.rows[:found].tolist() == its_rows.tolist()
        assert scratch.log_weights[:found].tobytes() == its_weights.tobytes()


@pytest.mark.parametrize("query", [1e200, np.inf, np.nan])
def test_no_more_are_found_than_were_asked_for(query):
    """Callers have memory for so many, whatever the weights are."""
    index = build_index(table(np.random.default_rng(0), 100, 7, 5), Settings(neighbours=10), 1.0)
    assert nearest(index, np.full(7, query), np.uint32(1), np.uint32(1), Scratch.of(index)) <= 10


@given(st.integers(1, 70), st.integers(1, 60), st.integers(0, 99))
def test_products_of_tiles_are_those_of_the_windows(n, k, seed):
    rng = np.random.default_rng(seed)
    z, queries = rng.normal(size=(n, k)).astype(np.float32), rng.normal(size=(TOGETHER, k))
    tiles = make_tiles(z)
    count = -(-n // WIDTH)
    some, one = np.empty((TOGETHER, tiles.shape[0] * WIDTH)), np.empty((1, tiles.shape[0] * WIDTH))
    multiply(tiles, 0, count, queries, 0, TOGETHER, some)
    np.testing.assert_allclose(some[:, :n], naive.products(z, queries), rtol=0, atol=1e-12)
    for query in range(TOGETHER):
        multiply(tiles, 0, count, queries, query, 1, one)
        assert one[0, :n].tobytes() == some[query, :n].tobytes()


@given(st.lists(st.integers(0, 2**63), max_size=70))
def test_the_order_of_keys(keys):
    order = order_by(np.array(keys, np.uint64)).tolist()
    assert sorted(order) == [*range(len(keys))]
    assert [keys[i] for i in order] == sorted(keys)


@njit
def order_by(keys):
    return order_of(keys)


@pytest.mark.parametrize("pairs", [300, 3000])
@pytest.mark.parametrize("asked", [(1, 1), (1, 2), (7, 1), (7, 10**6)])
def test_many_pairs_equal_the_naive_search(pairs, asked):
    rng = np.random.default_rng(pairs)
    windows = table(rng, 2000, 10, pairs)
    s = Settings(neighbours=150)
    index = build_index(windows, s, 4.0)
    query = rng.normal(size=10)
    scratch = Scratch.of(index)
    found = nearest(index, query, *asked, scratch)
    order, log_weights = full_sort(index, query, *asked, s)
    assert set(scratch.rows[:found]) == set(order[:150])
    np.testing.assert_allclose(scratch.log_weights[:found], log_weights[scratch.rows[:found]], rtol=0, atol=1e-9)


def test_the_largest_codes_are_codes_as_any():
    last = 2**32 - 1
    windows = table(np.random.default_rng(0), 40, 4, pairs=3)
    windows.categories[:20], windows.merchants[:20] = last, last
    index = build_index(windows, Settings(neighbours=20), 1.0)
    scratch = Scratch.of(index)
    query = np.zeros(4)
    found = nearest(index, query, np.uint32(last), np.uint32(last), scratch)
    order, _ = full_sort(index, query, last, last, Settings(neighbours=20))
    assert set(scratch.rows[:found]) == set(order[:20])


@pytest.mark.parametrize("seed", range(4))
def test_large_libraries_take_the_sampled_cut(seed):
    rng = np.random.default_rng(seed)
    windows = table(rng, 4000, 10, pairs=3)
    s = Settings(neighbours=150, rarity=seed % 2 == 0)
    index = build_index(windows, s, 4.0)
    query = rng.normal(size=10) * (1 + 20 * (seed == 3))  # far outside the library: quantised values are clipped
    scratch = Scratch.of(index)
    found = nearest(index, query, 1, 1, scratch)
    order, _ = full_sort(index, query, 1, 1, s)
    assert set(scratch.rows[:found]) == set(order[:150])


@pytest.mark.parametrize("sigma_x", [1e-30, 1e-20, 1e-3, 1e30])
def test_extreme_bandwidths_end_and_are_exact(sigma_x):
    rng = np.random.default_rng(0)
    windows = table(rng, 700, 6)
    s = Settings(neighbours=50)
    index = build_index(windows, s, sigma_x)
    scratch = Scratch.of(index)
    query = rng.normal(size=6)
    found = nearest(index, query, 1, 1, scratch)
    order, _ = full_sort(index, query, 1, 1, s)
    assert set(scratch.rows[:found]) == set(order[:50])


def test_equal_weights_keep_the_earlier_rows():
    windows = table(np.random.default_rng(0), 50, 6, pairs=1)
    windows.z[:] = windows.z[0]
    index = build_index(windows, Settings(neighbours=7), 2.0)
    scratch = Scratch.of(index)
    found = nearest(index, np.zeros(6), 0, 0, scratch)
    assert scratch.rows[:found].tolist() == list(range(7))


def test_an_empty_library_has_no_neighbours():
    windows = library_windows([], Settings())
    index = build_index(windows, Settings(), 1.0)
    assert nearest(index, np.zeros(50), 1, 1, Scratch.of(index)) == 0


def history(amounts, seed=0):
    codes = np.random.default_rng(seed).integers(0, 3, (2, len(amounts))).astype(np.uint32)
    return AccountHistory(np.arange(len(amounts), dtype=float), np.asarray(amounts, float), codes[0], codes[1])


@pytest.mark.parametrize("standardise", ["causal", "history"])
def test_windows_follow_the_definition(standardise):
    s = Settings(window=4, library_stride=3, standardise=standardise)
    account = history(np.random.default_rng(1).exponential(10, 12))
    windows = library_windows([account], s)
    ends = [3, 6, 9]
    for row, end in enumerate(ends):
        known = account.amounts[: end + 1] if standardise == "causal" else account.amounts
        z = (account.amounts - known.mean()) / known.std()
        np.testing.assert_allclose(windows.z[row], z[end - 3 : end + 1])
        assert windows.change[row] == pytest.approx(z[end] - z[end - 1])
        flags = 2 * (account.categories[end] != account.categories[end - 1])
        assert windows.regime[row] == flags + (account.merchants[end] != account.merchants[end - 1])
    assert len(windows) == len(ends)


def test_short_and_constant_accounts():
    windows = library_windows([history([1.0] * 3), history([7.0] * 6)], Settings(window=4))
    assert len(windows) == 1
    assert not windows.z.any()


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_running_moments(amounts):
    mean, deviation = running_moments(np.array(amounts))
    for i in range(len(amounts)):
        assert mean[i] == pytest.approx(np.mean(amounts[: i + 1]), abs=1e-6)
        assert deviation[i] == pytest.approx(np.std(amounts[: i + 1]), rel=1e-6, abs=1e-3)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_stream_and_library_have_the_same_moments_to_the_bit(model, amounts):
    engine = Engine(model)
    engine.process_many([Transaction("a", float(i), x, "c", "m", str(i)) for i, x in enumerate(amounts)])
    codec = AccountCodec(model.settings.window, model.settings.local_history)
    slab = codec.slab(1)
    codec.unpack(engine.states["a"], slab, 0)
    account = slab.records[0]
    mean, deviation = running_moments(np.array(amounts))
    assert account["count"] == len(amounts)
    assert account["mean"] == mean[-1]
    assert np.sqrt(account["squares"] / account["count"]) == deviation[-1]
