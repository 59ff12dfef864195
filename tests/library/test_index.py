import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd.account import AccountCodec
from stream_ccsd.engine import Engine
from stream_ccsd.library.index import Scratch, build_index, nearest
from stream_ccsd.library.windows import AccountHistory, WindowTable, library_windows, running_moments
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
    scratch = Scratch.of_size(n)
    found = nearest(index, query, 1, 1, scratch)
    order, log_weights = full_sort(index, query, 1, 1, s)
    assert found == min(n, wanted)
    assert set(scratch.rows[:found]) == set(order[:found])
    np.testing.assert_allclose(scratch.log_weights[:found], log_weights[scratch.rows[:found]], rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_large_libraries_take_the_sampled_cut(seed):
    rng = np.random.default_rng(seed)
    windows = table(rng, 4000, 10, pairs=3)
    s = Settings(neighbours=150, rarity=seed % 2 == 0)
    index = build_index(windows, s, 4.0)
    query = rng.normal(size=10) * (1 + 20 * (seed == 3))  # far outside the library: quantised values are clipped
    scratch = Scratch.of_size(4000)
    found = nearest(index, query, 1, 1, scratch)
    order, _ = full_sort(index, query, 1, 1, s)
    assert set(scratch.rows[:found]) == set(order[:150])


@pytest.mark.parametrize("sigma_x", [1e-30, 1e-20, 1e-3, 1e30])
def test_extreme_bandwidths_end_and_are_exact(sigma_x):
    rng = np.random.default_rng(0)
    windows = table(rng, 700, 6)
    s = Settings(neighbours=50)
    index = build_index(windows, s, sigma_x)
    scratch = Scratch.of_size(700)
    query = rng.normal(size=6)
    found = nearest(index, query, 1, 1, scratch)
    order, _ = full_sort(index, query, 1, 1, s)
    assert set(scratch.rows[:found]) == set(order[:50])


def test_equal_weights_keep_the_earlier_rows():
    windows = table(np.random.default_rng(0), 50, 6, pairs=1)
    windows.z[:] = windows.z[0]
    index = build_index(windows, Settings(neighbours=7), 2.0)
    scratch = Scratch.of_size(50)
    found = nearest(index, np.zeros(6), 0, 0, scratch)
    assert scratch.rows[:found].tolist() == list(range(7))


def test_an_empty_library_has_no_neighbours():
    windows = library_windows([], Settings())
    index = build_index(windows, Settings(), 1.0)
    assert nearest(index, np.zeros(50), 1, 1, Scratch.of_size(0)) == 0


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
