"""Weights of terms against the obvious formulas, and their prior."""

import numpy as np
import pytest

from stream_ccsd.learning.logistic import fit_weights, likelihood, match_rate
from stream_ccsd.numerics.sums import newton_terms, solve_positive, weighted_sums

HELD = 4.0  # one over the variance of the prior


def school(rows=3000, true=(1.5, 0.4, 1.0), seed=0):
    """Terms, who is fraud by these weights, and what each row stands for."""
    rng = np.random.default_rng(seed)
    terms = rng.normal(size=(rows, len(true)))
    fraud = rng.random(rows) < 1.0 / (1.0 + np.exp(2.0 - terms @ np.array(true)))
    return terms, fraud, rng.choice([1.0, 1.0, 7.0], rows)


def naive_cost(terms, fraud, weight, weights, shift):
    """What is minimised, row by row as it is written in words."""
    total = sum(HELD * (w - 1.0) ** 2 / 2.0 for w in weights)
    for row, is_fraud, stands_for in zip(terms, fraud, weight, strict=True):
        chance = 1.0 / (1.0 + np.exp(-(shift + sum(w * t for w, t in zip(weights, row, strict=True)))))
        total -= stands_for * np.log(chance if is_fraud else 1.0 - chance)
    return total


def test_sums_are_added_one_after_the_other():
    """To the bit those of a plain loop: nothing decides on the order but us."""
    rng = np.random.default_rng(1)
    rows, at, slope, bend = rng.normal(size=(500, 7)), rng.normal(size=7), rng.normal(size=500), rng.random(500)
    odds = np.zeros(500)
    gradient, curvature = np.zeros(7), np.zeros((7, 7))
    for j in range(7):
        odds += rows[:, j] * at[j]
    for i in range(500):
        gradient += slope[i] * rows[i]
        curvature += np.tril((bend[i] * rows[i])[:, None] * rows[i][None, :])
    curvature += np.tril(curvature, -1).T
    assert (weighted_sums(rows, at) == odds).all()
    found = newton_terms(rows, slope, bend)
    assert (found[0] == gradient).all()
    assert (found[1] == curvature).all()
    solved = solve_positive(curvature, gradient)
    assert np.allclose(curvature @ solved, gradient, rtol=1e-10, atol=1e-10)


def test_weights_have_the_lowest_cost():
    terms, fraud, weight = school()
    weights, shift = fit_weights(terms, fraud, weight)
    lowest = naive_cost(terms, fraud, weight, weights, shift)
    for j in range(len(weights)):
        for step in (-0.02, 0.02):
            moved = weights.copy()
            moved[j] += step
            assert naive_cost(terms, fraud, weight, moved, shift) > lowest
    for step in (-0.02, 0.02):
        assert naive_cost(terms, fraud, weight, weights, shift + step) > lowest
    assert weights == pytest.approx([1.5, 0.4, 1.0], abs=0.25)


def test_weights_are_held_to_one():
    """A term that never says anything, and few rows: nothing is known, and the weight is 1."""
    terms, fraud, weight = school(rows=40)
    terms[:, 2] = 0.0
    weights, _ = fit_weights(terms, fraud, weight)
    assert weights[2] == pytest.approx(1.0, abs=1e-9)
    few, _ = fit_weights(terms[:4], np.array([True, False, False, False]), np.ones(4))
    assert few == pytest.approx(np.ones(3), abs=0.3)


def test_rows_count_for_what_they_stand_for():
    """A row of weight 7 is seven rows: in weights, in the rate, and in how likely what was found is."""
    terms, fraud, weight = school(rows=800)
    often = np.repeat(np.arange(800), weight.astype(int))
    ones = np.ones(len(often))
    weights, shift = fit_weights(terms, fraud, weight)
    again, shift_again = fit_weights(terms[often], fraud[often], ones)
    assert again == pytest.approx(weights, abs=1e-6)
    assert shift_again == pytest.approx(shift, abs=1e-6)
    unweighted, _ = fit_weights(terms, fraud, np.ones(800))
    assert np.abs(unweighted - weights).max() > 1e-3
    evidence = terms.sum(axis=1)
    assert match_rate(evidence, fraud, weight) == pytest.approx(match_rate(evidence[often], fraud[often], ones))
    assert likelihood(evidence, fraud, weight) == pytest.approx(likelihood(evidence[often], fraud[often], ones))
    assert likelihood(evidence, fraud, weight) < 2.0 * likelihood(evidence, fraud, np.ones(800))
    sure = likelihood(np.where(fraud, 3.0, -3.0), fraud, weight)
    assert sure == pytest.approx(-weight.sum() * np.log1p(np.exp(-3.0)))


def test_the_rate_is_matched():
    terms, fraud, weight = school()
    evidence = terms.sum(axis=1)
    shift = match_rate(evidence, fraud, weight)
    expected = (weight / (1.0 + np.exp(-evidence - shift))).sum()
    assert expected == pytest.approx((weight * fraud).sum(), rel=1e-9)
