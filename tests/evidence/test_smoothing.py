"""Every choice of a fit is the one under which left-out accounts are likeliest: against sums over the other folds."""

import math
from dataclasses import replace

import numpy as np
import pytest

from replay.sources.simulator.population import simulate
from stream_ccsd.engine import Engine
from stream_ccsd.evidence import smoothing
from stream_ccsd.fitting import fit
from stream_ccsd.numerics.arrays import shuffled
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction
from tests import naive
from tests.evidence.test_terms import FIELDS, PLAIN, learn, some

SETTINGS = replace(PLAIN, fields=FIELDS, time_unit="days", folds=3)


class LeftOut:
    """Mean log likelihoods of all transactions, each under the densities of the folds that its account is not in."""

    def __init__(self, transactions, chosen, settings, calendar):
        accounts = naive.by_account(transactions)
        order = shuffled(list(accounts), settings.seed)
        fold = {account: place % min(settings.folds, len(order)) for place, account in enumerate(order)}
        axes = naive.Axes(transactions, [f.name for f in settings.declared if f.kind == "number"])
        self.settings, self.rows = settings, []
        densities = {}
        for f in set(fold.values()):
            others = [t for t in transactions if fold[t.account] != f]
            densities[f] = naive.Densities(others, chosen, settings, calendar, axes)
        for account, own in accounts.items():
            views = [naive.View(own[:i], t, axes, settings, calendar) for i, t in enumerate(own)]
            self.rows += [(densities[fold[account]], view) for view in views]

    def mean(self, density, chosen):
        values = []
        for densities, view in self.rows:
            densities.chosen = chosen
            value = density(densities, view)
            if value is not None:
                values.append(math.log(value))
        return sum(values) / len(values)


def amount(densities, view):
    return densities.amount_density(view.t)


def amount_own(densities, view):
    c = densities.chosen
    trusted = c.usual_share * view.usual_weight / (view.usual_weight + c.usual_strength)
    return (1 - trusted) * amount(densities, view) + trusted * densities.usual_density(densities.innovation(view))


def merchant(densities, view):
    return densities.place_shares(view.t)[1]


def place(densities, view):
    return math.prod(densities.place_shares(view.t))


def place_own(densities, view):
    return naive.backed_off(view.at_place, view.weight, densities.chosen.own_place_strength, place(densities, view))


def hour(densities, view):
    return densities.hour_density(view.hour)


def hour_own(densities, view):
    return naive.backed_off(view.at_hour, view.hour_weight, densities.chosen.own_hour_strength, hour(densities, view))


def country(densities, view):
    return densities.name_share("country", view.t.fields["country"])


def country_own(densities, view):
    same = view.same(lambda p: p.fields["country"] == view.t.fields["country"])
    return naive.backed_off(same, view.weight, densities.chosen.name_own[0], country(densities, view))


def distance(densities, view):
    value = view.t.fields["distance"]
    return None if value is None else densities.number_density("distance", value)


def pace(densities, view):
    """Gap and both counts: one strength is chosen for all of them."""
    fading = [0.5 ** (1 + n) for n in range(25)]
    total = 1.0 if view.gap is None else densities.gap_share(view.rate, view.gap)
    for span in ("in_hour", "in_day"):
        count = getattr(view, span)
        pairs = [(v.rate, getattr(v, span)) for v in densities.views]
        total *= densities._shares_by_rate(view.rate, count, pairs, fading[count] / sum(fading))
    return total


@pytest.fixture(scope="module")
def normal():
    rng = np.random.default_rng(11)
    # Each account has a level of its own, so that its past says something of what it will pay.
    return [
        replace(t, amount=round(10 * 3**a * (0.8 + t.amount % 0.5), 2))
        for a in range(5)
        for t in some(rng, f"a{a}", 11, pace=0.4)
    ]


@pytest.fixture(scope="module")
def fitted(normal):
    model, chosen = learn(normal, SETTINGS)
    return model, chosen, LeftOut(normal, chosen, SETTINGS, model.calendar)


def one(value):
    return (value,)


@pytest.mark.parametrize(
    ("name", "density", "tried", "kind"),
    [
        ("sigma_u", amount, smoothing._SIGMAS, float),
        ("category_strength", amount, smoothing._STRENGTHS, float),
        ("merchant_strength", amount, smoothing._STRENGTHS, float),
        ("usual_share", amount_own, smoothing._USUAL_SHARES, float),
        ("usual_strength", amount_own, smoothing._USUAL_STRENGTHS, float),
        ("usual_sigma", amount_own, (0.05, 0.1, 0.2), float),
        ("place_strength", merchant, smoothing._STRENGTHS, float),
        ("own_place_strength", place_own, smoothing._OWN_STRENGTHS, float),
        ("hour_sigma", hour, smoothing._HOUR_SIGMAS, float),
        ("own_hour_strength", hour_own, smoothing._OWN_STRENGTHS, float),
        ("pace_strength", pace, smoothing._STRENGTHS, float),
        ("name_strength", country, smoothing._STRENGTHS, one),
        ("name_own", country_own, smoothing._OWN_STRENGTHS, one),
        ("number_sigma", distance, smoothing._SIGMAS, one),
    ],
)
def test_the_choice_is_the_likeliest(fitted, name, density, tried, kind):
    """No other value of one choice, the others as they are, makes left-out transactions likelier."""
    _, chosen, left_out = fitted
    nats = {value: left_out.mean(density, replace(chosen, **{name: kind(value)})) for value in tried}
    assert kind(max(nats, key=nats.get)) == getattr(chosen, name) or max(nats.values()) == pytest.approx(
        left_out.mean(density, chosen), abs=1e-9
    )
    assert max(nats.values()) > min(nats.values())


def test_amounts_are_chosen_together(fitted):
    """All bandwidths and both strengths: none of all combinations is likelier."""
    _, chosen, left_out = fitted
    best = left_out.mean(amount, chosen)
    for sigma in smoothing._SIGMAS[::2]:
        for category in smoothing._STRENGTHS[::3]:
            for merchants in smoothing._STRENGTHS[::3]:
                other = replace(chosen, sigma_u=sigma, category_strength=category, merchant_strength=merchants)
                assert left_out.mean(amount, other) <= best + 1e-9


def test_gains_are_how_much_likelier(fitted):
    model, chosen, left_out = fitted
    gains = chosen.gains

    def mean(density):
        return left_out.mean(density, chosen)

    assert gains["place_own"] == pytest.approx(mean(place_own) - mean(place), abs=1e-9)
    assert gains["amount_own"] == pytest.approx(mean(amount_own) - mean(amount), abs=1e-9)
    assert gains["hour"] == pytest.approx(mean(hour) + math.log(24), abs=1e-9)
    assert gains["hour_own"] == pytest.approx(mean(hour_own) - mean(hour), abs=1e-6)
    assert gains["country_own"] == pytest.approx(mean(country_own) - mean(country), abs=1e-9)
    reach = model.laws.number_reach[0]
    assert gains["distance"] == pytest.approx(mean(distance) + math.log(reach), abs=1e-9)
    assert model.facts["gains"] == {name: round(gain, 4) for name, gain in gains.items()}


@pytest.mark.parametrize(
    "given",
    [
        {"sigma_u": 0.123},
        {"category_strength": 7.0, "merchant_strength": 70.0},
        {"place_strength": 3.0, "own_place_strength": 0.7},
        {"own_hour_strength": 17.0},
        {"usual_strength": 2.5},
        {"usual_share": 0.33},
        {"usual_share": 0.0, "usual_strength": 5.0},
        {"usual_share": 1.0},
    ],
)
def test_what_settings_say_is_not_chosen(normal, given):
    model, chosen = learn(normal, replace(SETTINGS, **given))
    for name, value in given.items():
        assert getattr(chosen, name) == value
        if name != "sigma_u":
            assert getattr(model.laws, name) == value
    if "sigma_u" in given:
        assert model.laws.amount_kernel[0] == pytest.approx(1 / (0.123 * math.sqrt(2 * math.pi)))
    if "usual_share" in given:  # what is left open is still the likeliest
        left_out = LeftOut(normal, chosen, replace(SETTINGS, **given), model.calendar)
        best = left_out.mean(amount_own, chosen)
        for sigma in (0.05, 0.1, 0.2):
            assert left_out.mean(amount_own, replace(chosen, usual_sigma=sigma)) <= best + 1e-9


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9])
def test_the_share_of_takeover_can_be_given(normal, share):
    assert fit(normal, replace(SETTINGS, takeover_share=share)).takeover_share == share


def test_takeover_has_the_more_of_the_budget_the_more_accounts_repeat_themselves():
    rng = np.random.default_rng(0)

    def share(own):
        rows = [
            Transaction(f"a{a}", float(i), 10.0, "k", f"m{a if rng.random() < own else rng.integers(10)}", f"{a} {i}")
            for a in range(10)
            for i in range(40)
        ]
        return fit(rows, PLAIN).takeover_share

    shares = [share(own) for own in (0.0, 0.5, 1.0)]
    assert shares == sorted(shares)
    assert shares[0] < 0.05
    assert 0.15 < shares[-1] <= 0.2


def test_of_many_transactions_a_sample_is_evaluated(normal, monkeypatch):
    """The same ones each time; what they choose, all of them would hardly choose otherwise."""
    _, by_all = learn(normal, SETTINGS)
    monkeypatch.setattr(smoothing, "_EVALUATED", 40)
    few = [learn(normal, SETTINGS)[1] for _ in range(2)]
    assert few[0] == few[1] != by_all
    assert few[0].gains == pytest.approx(by_all.gains, abs=0.5)


@pytest.fixture(scope="module")
def tainted():
    """Normal accounts, and one in forty whose card pays a shop that nobody else goes to: half a per cent is fraud."""
    stream = simulate(accounts=80, days=40, fraud_share=0.0, seed=4)
    fraud = [
        Transaction(f"c{a:05d}", 41.0 + i / 10, 900.0 + 10 * i, "electronics", "shady", f"f{a}-{i}")
        for a in range(0, 80, 10)
        for i in range(4)
    ]
    return [*stream.transactions, *fraud]


def test_fraud_in_the_fit_hardly_counts_where_it_is_expected(tainted):
    event = Transaction("new", 50.0, 930.0, "electronics", "shady", "x")
    ordinary = replace(tainted[0], account="new", id="y")

    def evidence(contamination, transaction):
        settings = Settings(divergence=False, contamination=contamination)
        return Engine(fit(tainted, settings)).process(transaction).evidence

    blind, wary = evidence(0.0, event), evidence(0.02, event)
    assert wary > blind + 1.0
    assert wary - evidence(0.02, ordinary) > blind - evidence(0.0, ordinary) + 1.0
