import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd.divergence import OutputKernel, Sample, conditional_divergence, gram_terms
from tests import naive

EXACT = {"rtol": 0, "atol": 1e-10}
ORDINARY = st.floats(-5, 5).map(lambda v: round(v, 3))
ANY_FINITE = st.floats(allow_nan=False, allow_infinity=False)
BANDWIDTH = st.floats(1e-300, 1e300)


def points(rng, n, x_dim=1, y_dim=1):
    x = rng.normal(size=(n, x_dim))
    return x, np.sin(2 * x[:, :1]) + 0.3 * rng.normal(size=(n, y_dim))


@st.composite
def samples(draw, values=ORDINARY, min_size=1, max_size=8):
    n = draw(st.integers(min_size, max_size))
    column = st.lists(values, min_size=n, max_size=n)
    return np.array(draw(column)), np.array(draw(column))


@pytest.mark.parametrize("sizes", [(1, 1), (1, 6), (7, 4), (12, 12)])
@pytest.mark.parametrize(("x_dim", "y_dim"), [(1, 1), (3, 1), (1, 2)])
@pytest.mark.parametrize(("tau", "sigma"), [(0.3, 0.5), (1.0, 2.0), (10.0, 0.2)])
@pytest.mark.parametrize("weighting", ["two-sided", "one-sided"])
def test_equals_the_formula(sizes, x_dim, y_dim, tau, sigma, weighting):
    rng = np.random.default_rng(sum(sizes))
    (x_p, y_p), (x_q, y_q) = (points(rng, n, x_dim, y_dim) for n in sizes)
    ref = naive.divergence(x_p, y_p, x_q, y_q, tau, sigma, weighting=weighting)
    comp = conditional_divergence(
        Sample.of(x_p, y_p), Sample.of(x_q, y_q), tau=tau, kernel=OutputKernel(sigma), weighting=weighting
    )
    np.testing.assert_allclose(comp, ref, **EXACT)


def test_given_reference_points_and_ridge():
    rng = np.random.default_rng(1)
    (x_p, y_p), (x_q, y_q) = points(rng, 6), points(rng, 9)
    grid = np.linspace(-2, 2, 5)[:, None]
    ref = naive.divergence(x_p, y_p, x_q, y_q, 0.7, 0.4, grid, ridge=0.01)
    comp = conditional_divergence(
        Sample.of(x_p, y_p),
        Sample.of(x_q, y_q),
        tau=0.7,
        kernel=OutputKernel(0.4),
        reference=grid,
        ridge=0.01,
    )
    np.testing.assert_allclose(comp, ref, **EXACT)


def test_mixed_outputs_are_a_product_of_kernels():
    rng = np.random.default_rng(2)
    (x_p, y_p), (x_q, y_q) = points(rng, 6, y_dim=2), points(rng, 5, y_dim=2)
    c_p, c_q = rng.choice(["food", "fuel", "toys"], (6, 2)), rng.choice(["food", "fuel", "toys"], (5, 2))
    sigma, gamma = [0.5, 1.5], 0.25
    grid = np.unique(np.vstack([x_p, x_q]), axis=0)

    def term(x, y, c, x2, y2, c2):
        def likeness(i, j):
            return naive.gaussian(y[i], y2[j], sigma) * naive.match(c[i], c2[j], gamma)

        return naive.gram_term(x, y, x2, y2, grid, 0.6, sigma, likeness)

    p, q = (x_p, y_p, c_p), (x_q, y_q, c_q)
    ref = naive.symmetric_logarithm(term(*p, *p), term(*q, *q), term(*p, *q), 1e-6)
    comp = conditional_divergence(Sample.of(*p), Sample.of(*q), tau=0.6, kernel=OutputKernel(sigma, gamma), ridge=1e-6)
    np.testing.assert_allclose(comp, ref, **EXACT)


def test_categories_alone():
    same = Sample.of([0.0, 1.0], categories=["a", "b"])
    other = Sample.of([0.0, 1.0], categories=["b", "a"])
    kernel = OutputKernel(mismatch=0.5)
    assert conditional_divergence(same, same, tau=0.1, kernel=kernel) == 0.0
    assert conditional_divergence(same, other, tau=0.1, kernel=kernel) == pytest.approx(math.log(2), abs=1e-8)


def test_missing_points_carry_no_weight():
    x, y = np.arange(6.0), np.array([0.1, np.nan, 0.4, -0.3, np.nan, 0.2])
    q = Sample.of(x, np.cos(x))
    with_gaps = Sample.of(x, y)
    without = Sample.of(x[~np.isnan(y)], y[~np.isnan(y)])
    assert conditional_divergence(with_gaps, q, tau=1.0) == conditional_divergence(without, q, tau=1.0)


def test_leave_one_out_removes_self_terms():
    rng = np.random.default_rng(3)
    (x_p, y_p), (x_q, y_q) = points(rng, 6), points(rng, 7)
    grid = np.unique(np.vstack([x_p, x_q]), axis=0)

    def without_diagonal(x, y):
        a = naive.row_weights(grid, x, 0.5)
        m = a.T @ a
        np.fill_diagonal(m, 0.0)
        likeness = np.array([[naive.gaussian(u, v, 1.0) for v in y] for u in y])
        return (m * likeness).sum() / m.sum()

    pq = naive.gram_term(x_p, y_p, x_q, y_q, grid, 0.5, 1.0)
    ref = naive.symmetric_logarithm(without_diagonal(x_p, y_p), without_diagonal(x_q, y_q), pq, 1e-9)
    p, q = Sample.of(x_p, y_p), Sample.of(x_q, y_q)
    comp = conditional_divergence(p, q, tau=0.5, ridge=1e-9, leave_one_out=True)
    np.testing.assert_allclose(comp, ref, **EXACT)


def test_sign_of_the_symmetric_logarithm():
    """The paper prints a leading minus; different distributions must nevertheless have a positive distance."""
    x = np.arange(10.0)
    assert conditional_divergence(Sample.of(x, np.zeros(10)), Sample.of(x, np.ones(10)), tau=1.0) > 0.1


@given(samples(), st.floats(0.05, 20), st.floats(0.05, 20))
def test_zero_on_identical_samples(p, tau, sigma):
    sample = Sample.of(*p)
    assert conditional_divergence(sample, sample, tau=tau, kernel=OutputKernel(sigma)) == 0.0


@given(
    samples(),
    samples(),
    st.floats(0.05, 20),
    st.floats(0.05, 20),
    st.sampled_from(["two-sided", "one-sided"]),
)
def test_symmetric(p, q, tau, sigma, weighting):
    options = {"tau": tau, "kernel": OutputKernel(sigma), "weighting": weighting}
    there = conditional_divergence(Sample.of(*p), Sample.of(*q), **options)
    back = conditional_divergence(Sample.of(*q), Sample.of(*p), **options)
    assert there == pytest.approx(back, abs=1e-9)


@given(samples(), samples(), st.floats(-100, 100), st.floats(0.1, 10))
def test_invariant_to_a_joint_shift_of_the_outputs(p, q, shift, sigma):
    kernel = OutputKernel(sigma)
    here = conditional_divergence(Sample.of(*p), Sample.of(*q), tau=1.0, kernel=kernel)
    there = conditional_divergence(Sample.of(p[0], p[1] + shift), Sample.of(q[0], q[1] + shift), tau=1.0, kernel=kernel)
    assert here == pytest.approx(there, abs=1e-8)


@given(samples(), samples(), st.integers(2, 4))
def test_invariant_to_duplicating_one_sample(p, q, times):
    once = conditional_divergence(Sample.of(*p), Sample.of(*q), tau=0.8)
    often = conditional_divergence(Sample.of(np.tile(p[0], times), np.tile(p[1], times)), Sample.of(*q), tau=0.8)
    assert once == pytest.approx(often, abs=1e-9)


@given(samples(), samples(), st.floats(0.01, 50), st.floats(0.01, 50))
def test_cauchy_schwarz_holds_before_the_floor(p, q, tau, sigma):
    """Not only is the result floored at 0: the terms themselves obey the inequality, to rounding."""
    terms = gram_terms(Sample.of(*p), Sample.of(*q), tau=tau, kernel=OutputKernel(sigma))
    assert 2 * terms.log_pq <= terms.log_pp + terms.log_qq + 1e-12


@settings(max_examples=300)
@given(samples(ANY_FINITE), samples(ANY_FINITE), BANDWIDTH, BANDWIDTH, st.sampled_from([None, 0.0]))
def test_always_finite(p, q, tau, sigma, ridge):
    """Disjoint conditions, constant outputs, one point, huge and tiny numbers: never NaN, never infinite."""
    value = conditional_divergence(Sample.of(*p), Sample.of(*q), tau=tau, kernel=OutputKernel(sigma), ridge=ridge)
    assert math.isfinite(value)
    assert value >= 0


def test_disjoint_conditions_compare_nearest_points():
    p, q = Sample.of([0.0, 1.0], [0.0, 1.0]), Sample.of([1e6, 1e6 + 1], [1.0, 0.0])
    value = conditional_divergence(p, q, tau=1e-3)
    # Far to the left p is its last point (1) against q's first (1); far to the right likewise p's last (1).
    assert 0 < value < 1


def test_the_ridge_caps_the_divergence():
    p, q = Sample.of([0.0], [0.0]), Sample.of([0.0], [1e6])
    assert conditional_divergence(p, q, tau=1.0) == pytest.approx(math.log(1e10), abs=1e-6)
    assert conditional_divergence(p, q, tau=1.0, ridge=0.0) == pytest.approx(0.5e12)


def test_categories_that_never_meet():
    p, q = Sample.of([0.0], categories=["a"]), Sample.of([0.0], categories=["b"])
    assert conditional_divergence(p, q, tau=1.0) == pytest.approx(math.log(1e10), abs=1e-6)
    assert conditional_divergence(p, q, tau=1.0, ridge=0.0) == math.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau must be positive"),
        ({"tau": math.nan}, "tau must be positive"),
        ({"tau": 1.0, "ridge": -1.0}, "ridge must be 0 or"),
        ({"tau": 1.0, "weighting": "both"}, "weighting must be"),
        ({"tau": 1.0, "reference": [[0.0, 1.0]]}, "reference has 2 columns"),
        ({"tau": 1.0, "reference": [math.nan]}, "none of them missing"),
        ({"tau": 1.0, "weighting": "one-sided", "reference": [0.0]}, "leave reference out"),
    ],
)
def test_refuses_settings(options, message):
    sample = Sample.of([0.0, 1.0], [0.0, 1.0])
    with pytest.raises(ValueError, match=message):
        conditional_divergence(sample, sample, **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.0, 1.0], [1.0]), "lengths differ"),
        (([0.0], [math.inf]), "output must be finite"),
        (([math.nan], [1.0]), "at least one point"),
        (([0.0],), "needs an output"),
        ((np.zeros((2, 2, 2)), [1.0, 2.0]), "3 dimensions"),
    ],
)
def test_refuses_samples(arguments, message):
    with pytest.raises(ValueError, match=message):
        Sample.of(*arguments)


def test_refuses_dimensions_that_differ():
    with pytest.raises(ValueError, match="condition has 1 columns in p and 2 in q"):
        conditional_divergence(Sample.of([0.0], [1.0]), Sample.of([[0.0, 1.0]], [1.0]), tau=1.0)


@pytest.mark.parametrize("sample", [Sample.of([0.0], [1.0]), Sample.of([0.0, 1e9], [1.0, 1.0])])
def test_leave_one_out_with_nothing_left(sample):
    with pytest.raises(ValueError, match="leaves nothing"):
        conditional_divergence(sample, sample, tau=1.0, leave_one_out=True)


@pytest.mark.parametrize(("sigma", "mismatch"), [(0.0, 0.5), (-1.0, 0.5), (math.inf, 0.5), (1.0, 1.5), ([], 0.0)])
def test_refuses_kernels(sigma, mismatch):
    with pytest.raises(ValueError, match="must"):
        OutputKernel(sigma, mismatch)
