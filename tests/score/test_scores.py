"""Both scores against the direct forms, inside the engine: nothing between state, library and formula can hide."""

from dataclasses import replace

import numpy as np
import pytest

from stream_ccsd.codes import Codes
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit, score_histories
from stream_ccsd.library.laws import build_laws, outcome_density
from stream_ccsd.library.windows import AccountHistory, library_windows
from stream_ccsd.sampling import shuffled
from stream_ccsd.scores import OUTCOME, Score, register, unregister
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction
from tests import naive
from tests.conftest import SMALL

code = Codes({})
EXACT = {"rtol": 0, "atol": 1e-9}
SWITCHES = ["rarity", "attenuation", "decay", "boosts", "gates"]


def account_of(stream, name):
    mine = [t for t in stream.transactions if t.account == name]
    return (
        [t.amount for t in mine],
        [code(t.category) for t in mine],
        [code(t.merchant) for t in mine],
        mine,
    )


def library_of(model, stream, settings):
    """The library's windows again, from the accounts that were not held out."""
    normal = sorted(stream.normal_accounts())
    held_out = set(shuffled(normal, settings.seed)[: round(settings.holdout * len(normal))])
    histories = []
    for name in normal:
        if name not in held_out:
            amounts, categories, merchants, _ = account_of(stream, name)
            histories.append(
                AccountHistory(
                    np.arange(float(len(amounts))),
                    np.array(amounts),
                    np.array(categories, np.uint32),
                    np.array(merchants, np.uint32),
                )
            )
    return library_windows(histories, settings)


@pytest.mark.parametrize("off", [None, *SWITCHES])
def test_divergence_equals_the_double_sum(stream, model, off):
    settings = replace(SMALL, **({off: False} if off else {}))
    if off:
        normal = stream.normal_accounts()
        model = fit((t for t in stream.transactions if t.account in normal), settings)
    windows = library_of(model, stream, settings)
    assert len(windows) == model.facts["library_windows"]
    name = stream.transactions[0].account
    amounts, categories, merchants, mine = account_of(stream, name)
    results = Engine(model).process_many(mine)
    checked = 0
    for t in range(0, len(mine), 5):
        history = amounts[: t + 1], categories[: t + 1], merchants[: t + 1]
        if t < settings.window:
            assert results[t].divergence is None
            continue
        ref = naive.window_score(windows, *history, settings, model.index.sigma_x, model.sigma_y)
        np.testing.assert_allclose(results[t].divergence, ref, **EXACT)
        checked += 1
    assert checked > 5


def test_divergence_of_laws_that_hardly_meet(model, stream):
    """A change far beyond all of the library: new waves for the occasion, then the direct sum."""
    windows = library_of(model, stream, SMALL)
    rng = np.random.default_rng(0)
    amounts = [*rng.uniform(10, 11, 300), 10_000.0, 10.0, 10_000.0, 10.0, 10_000.0, 10.5]
    mine = [Transaction("new", float(i), a, "fuel", "m0001", str(i)) for i, a in enumerate(amounts)]
    results = Engine(model).process_many(mine)
    codes = [code("fuel")] * len(mine), [code("m0001")] * len(mine)
    for t in range(300, len(mine)):
        ref = naive.window_score(
            windows, amounts[: t + 1], codes[0][: t + 1], codes[1][: t + 1], SMALL, model.index.sigma_x, model.sigma_y
        )
        np.testing.assert_allclose(results[t].divergence, max(ref, 0.0), **EXACT)
    assert max(r.divergence for r in results[300:]) > 5


@pytest.mark.parametrize("narrow", [{"sigma_x": 0.02, "sigma_y": 0.02}, {"sigma_x": 0.001, "sigma_y": 0.02}])
def test_divergence_of_laws_that_do_not_meet_at_all(stream, narrow):
    """Under narrow bandwidths most weights are smaller than any float, and all that is left is their logarithm."""
    settings = replace(SMALL, **narrow)
    normal = stream.normal_accounts()
    model = fit((t for t in stream.transactions if t.account in normal), settings)
    windows = library_of(model, stream, settings)
    amounts, categories, merchants, mine = account_of(stream, stream.transactions[0].account)
    results = Engine(model).process_many(mine)
    refs = [
        naive.window_score(
            windows,
            amounts[: t + 1],
            categories[: t + 1],
            merchants[: t + 1],
            settings,
            model.index.sigma_x,
            model.sigma_y,
        )
        for t in range(settings.window, len(mine), 3)
    ]
    found = [r.divergence for r in results[settings.window :: 3]]
    np.testing.assert_allclose(found, np.maximum(refs, 0.0), rtol=1e-9, atol=1e-9)
    assert max(refs) > 709  # beyond what exp() can tell from 0


def test_constant_amounts_are_scored(model):
    mine = [Transaction("same", float(i), 5.0, "fuel", "m0001", str(i)) for i in range(40)]
    assert all(np.isfinite(r.divergence) for r in Engine(model).process_many(mine)[SMALL.window :])


@pytest.mark.parametrize("mismatch", [0.0, 0.01, 1.0])
def test_outcome_and_habit_equal_the_formula(mismatch):
    """Against the raw transactions of the accounts that were learnt from, every one of them."""
    settings = replace(SMALL, mismatch=mismatch, divergence=False, habit_strength=3.0, holdout=0.5)
    rng = np.random.default_rng(5)
    transactions = [
        Transaction(f"c{a}", float(i), rng.exponential(40), f"k{rng.integers(2)}", f"m{rng.integers(3)}", str(i))
        for a in range(6)
        for i in range(12)
    ]
    model = fit(transactions, settings)
    held_out = {f"c{i}" for i in np.random.default_rng(settings.seed).permutation(6)[:3]}
    learnt = [t for t in transactions if t.account not in held_out]
    assert len(learnt) == model.facts["transactions"]

    def outcome(t):
        return np.log1p(t.amount), t.category, t.merchant

    law = [(1 / len(learnt), outcome(t)) for t in learnt]
    mine = [t for t in transactions if t.account == "c0"]
    mine += [Transaction("c0", 99.0, 12.0, "unseen", "m0", "u1"), Transaction("c0", 100.0, 1e6, "k0", "nowhere", "u2")]
    outcomes = [outcome(t) for t in mine]
    for i, result in enumerate(Engine(model).process_many(mine)):
        np.testing.assert_allclose(result.outcome, naive.outcome_score(outcomes[i], law, settings), **EXACT)
        ref = naive.habit_score(outcomes[:i], outcomes[i], law, settings, 3.0)
        np.testing.assert_allclose(result.habit, ref, **EXACT)
        np.testing.assert_allclose(sum(result.parts), result.outcome, **EXACT)


def test_parts_add_up(model, stream):
    """The reasons of an alert are the score: nothing is left over."""
    amounts, categories, merchants, _ = account_of(stream, stream.transactions[0].account)
    codes = np.array(categories, np.uint32), np.array(merchants, np.uint32)
    out, _ = score_histories(model, [AccountHistory(np.arange(float(len(amounts))), np.array(amounts), *codes)])
    parts = sum(out[f"{name}_part"] for name in ("merchant", "category", "amount", "constant"))
    np.testing.assert_allclose(parts, out["scores"][:, OUTCOME], **EXACT)
    assert (out["merchant_part"] > 0).all()


def test_calibration_goes_by_the_accounts_own_times(stream):
    """A score may depend on time: how rare its values are is learnt from the held-out accounts as they were."""
    seen = []

    def clock(outputs, events):
        seen.extend(events["time"].tolist())
        return events["time"]

    normal = stream.normal_accounts()
    register(Score("clock", "When it happened", compute=clock))
    try:
        fit((t for t in stream.transactions if t.account in normal), SMALL)
    finally:
        unregister("clock")
    held_out = shuffled(normal, SMALL.seed)[: round(SMALL.holdout * len(normal))]
    assert seen == [t.time for name in sorted(held_out) for t in stream.transactions if t.account == name]


@pytest.mark.parametrize("u", [-0.5, 0.0, 1.7, 3.0, 4.4])
def test_moments_are_every_single_transaction(u):
    amounts = np.expm1(np.random.default_rng(0).normal(3, 0.5, 3000).clip(0))
    codes, s = np.zeros(3000, np.uint32), Settings()
    laws = build_laws(amounts, codes, codes, s)
    direct = np.mean(np.exp(-0.5 * ((np.log1p(amounts) - u) / s.sigma_u) ** 2))
    np.testing.assert_allclose(outcome_density(laws, u, 0, 0)[2], direct, rtol=1e-10, atol=1e-18)


def test_both_scores_on_real_windows(data_root):
    """Real BankSim accounts, the paper's settings, nothing simplified: engine against the direct forms."""
    from itertools import islice

    from replay.files import read_transactions

    rows = list(islice(read_transactions(data_root / "banksim" / "bs140513_032310.csv.xz"), 120_000))
    accounts = sorted({t.account for t in rows})[:400]
    settings = Settings(window=20, local_history=30, neighbours=200, half_life=48.0)
    library = [t for t in rows if t.account in set(accounts[:-3])]
    model = fit(library, settings)
    names = sorted({t.account for t in library})
    held_out = set(shuffled(names, settings.seed)[: round(settings.holdout * len(names))])
    learnt = {n: [t for t in library if t.account == n] for n in names if n not in held_out}
    windows = library_windows((as_history(h) for h in learnt.values()), settings)
    u, c, m = (np.array(x) for x in zip(*[outcome_of(t) for h in learnt.values() for t in h], strict=True))
    checked = 0
    for name in accounts[-3:]:
        mine = [t for t in rows if t.account == name]
        results = Engine(model).process_many(mine)
        for t in range(20, len(mine), 4):
            seen = as_history(mine[: t + 1])
            columns = seen.amounts.tolist(), seen.categories.tolist(), seen.merchants.tolist()
            ref = naive.window_score(windows, *columns, settings, model.index.sigma_x, model.sigma_y)
            np.testing.assert_allclose(results[t].divergence, max(ref, 0.0), **EXACT)
            o = outcome_of(mine[t])
            gate = np.where(c == o[1], 1.0, settings.mismatch) * np.where(m == o[2], 1.0, settings.mismatch)
            density = np.mean(gate * np.exp(-0.5 * ((u - o[0]) / settings.sigma_u) ** 2)) + settings.outcome_ridge
            ref = -np.log(density / np.sqrt(model.laws.self_term))
            np.testing.assert_allclose(results[t].outcome, ref, **EXACT)
            checked += 1
    assert checked > 5


def as_history(transactions):
    return AccountHistory(
        np.array([t.time for t in transactions]),
        np.array([t.amount for t in transactions]),
        np.array([code(t.category) for t in transactions], np.uint32),
        np.array([code(t.merchant) for t in transactions], np.uint32),
    )


def outcome_of(t):
    return np.log1p(t.amount), code(t.category), code(t.merchant)
