"""The divergence against its direct form, inside the engine: state, library and formula together."""

from dataclasses import replace

import numpy as np
import pytest

from stream_ccsd.divergence.search.windows import AccountHistory, library_windows
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit
from stream_ccsd.model.codes import Codes
from stream_ccsd.numerics.arrays import shuffled
from stream_ccsd.scores import Score, register, unregister
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction
from tests import naive
from tests.conftest import SMALL
from tests.evidence.test_terms import learn

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


def test_divergence_of_distributions_that_hardly_meet(model, stream):
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
def test_divergence_of_distributions_that_do_not_meet_at_all(stream, narrow):
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


def test_calibration_goes_by_the_accounts_own_times(stream):
    """A score may depend on time: how rare its values are follows from the accounts as they were."""
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
    assert seen == [t.time for name in sorted(normal) for t in stream.transactions if t.account == name]


def test_scores_on_real_windows(data_root):
    """Real BankSim accounts, the paper's settings, nothing simplified: engine against the direct forms."""
    from itertools import islice

    from replay.sources.files import read_transactions

    rows = list(islice(read_transactions(data_root / "banksim" / "bs140513_032310.csv.xz"), 120_000))
    accounts = sorted({t.account for t in rows})[:400]
    settings = Settings(window=20, local_history=30, neighbours=200, half_life=48.0)
    library = [t for t in rows if t.account in set(accounts[:-3])]
    model, chosen = learn(library, settings)
    densities = naive.Densities(library, chosen, settings, model.calendar)
    names = sorted({t.account for t in library})
    held_out = set(shuffled(names, settings.seed)[: round(settings.holdout * len(names))])
    supervised = {n: [t for t in library if t.account == n] for n in names if n not in held_out}
    windows = library_windows((as_history(h) for h in supervised.values()), settings)
    checked = 0
    for name in accounts[-3:]:
        mine = [t for t in rows if t.account == name]
        results = Engine(model).process_many(mine)
        for t in range(20, len(mine), 4):
            seen = as_history(mine[: t + 1])
            columns = seen.amounts.tolist(), seen.categories.tolist(), seen.merchants.tolist()
            ref = naive.window_score(windows, *columns, settings, model.index.sigma_x, model.sigma_y)
            np.testing.assert_allclose(results[t].divergence, max(ref, 0.0), **EXACT)
            known = len(densities.axes.categories)
            in_category, at_merchant = densities.place_shares(mine[t])
            amount = naive.CELL * naive.cell(np.log1p(mine[t].amount)) - densities.axes.amount_scale
            expected = {
                "amount": amount - np.log(densities.amount_density(mine[t])),
                "category": -np.log(in_category * (known + 1)),
                "merchant": -np.log(at_merchant * (len(densities.axes.pairs) + 1) / (known + 1)),
            }
            assert {name: results[t].terms[name] for name in expected} == pytest.approx(expected, abs=1e-9)
            checked += 1
    assert checked > 5


def as_history(transactions):
    return AccountHistory(
        np.array([t.time for t in transactions]),
        np.array([t.amount for t in transactions]),
        np.array([code(t.category) for t in transactions], np.uint32),
        np.array([code(t.merchant) for t in transactions], np.uint32),
    )
