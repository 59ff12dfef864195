"""Evidence and takeover against sums over the raw transactions, inside the engine, term by term."""

from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd import fitting
from stream_ccsd.calendar import Calendar
from stream_ccsd.engine import Engine
from stream_ccsd.evidence.smoothing import choose
from stream_ccsd.evidence.supervised import term_names
from stream_ccsd.fields import density_terms
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction
from tests import naive

PLAIN = Settings(window=4, local_history=5, divergence=False)
FIELDS = ("country:category", "distance:number")
MIDNIGHT = datetime(2024, 2, 28, tzinfo=UTC).timestamp()
# Weights of hours are kept with seven digits.
ROUNDED = {"hour_own"}


def learn(transactions, chosen_settings):
    """A model, and what its fit chose."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "choose", lambda *given: found.append(choose(*given)) or found[-1])
        model = fitting.fit(transactions, chosen_settings)
    return model, found[-1]


def check(transactions, events, chosen_settings):
    """Every term of every event, and the takeover after it; returns what the engine said."""
    model, chosen = learn(transactions, chosen_settings)
    densities = naive.Densities(transactions, chosen, chosen_settings, model.calendar)
    names = density_terms(chosen_settings.declared)
    informative = dict(zip(names, model.laws.tells.tolist(), strict=True))
    past, others = {}, {}
    results = Engine(model).process_many(events)
    for t, result in zip(events, results, strict=True):
        assert result.status in ("scored", "late")
        terms, log_ratios = densities.terms(past.setdefault(t.account, []), t)
        assert [*result.terms] == [*term_names(chosen_settings.declared)]
        assert set(names) == set(terms)
        assert not any(result.terms[name] for name in result.terms if name not in names)  # nothing is learnt
        for name, value in terms.items():
            tolerance = 1e-5 if name in ROUNDED else 1e-9
            assert result.terms[name] == pytest.approx(value * informative[name], rel=1e-9, abs=tolerance), (name, t)
        assert sum(result.terms.values()) == pytest.approx(result.evidence, abs=1e-9)
        own = others.setdefault(t.account, [])
        own.append(sum(value * informative[name] for name, value in log_ratios.items()))
        expected = naive.takeover(own, chosen_settings.takeover_cap, chosen_settings.takeover_drift)[-1]
        assert result.takeover == pytest.approx(expected, abs=1e-5 * len(own))
        past[t.account].append(t)
    return results


def some(rng, account, count, begin=0.0, pace=1.0):
    """Transactions of an account with a usual place and country."""
    place, country = rng.integers(4), rng.choice(["ES", "FR"])
    times = begin + np.cumsum(rng.exponential(pace, count)).round(3)
    return [
        Transaction(
            account,
            float(time),
            round(rng.exponential(30), 2),
            f"k{rng.integers(2)}",
            f"m{place if rng.random() < 0.7 else rng.integers(4)}",
            f"{account}-{i}",
            {
                "country": str(rng.choice([country, "DE", ""], p=[0.7, 0.2, 0.1])),
                "distance": None if rng.random() < 0.2 else float(rng.normal(0, 50)),
            },
        )
        for i, time in enumerate(times)
    ]


UNITS = {
    "number": {"begin": 0.0, "pace": 1.0},
    "days": {"begin": 0.0, "pace": 0.7},
    "seconds": {"begin": MIDNIGHT, "pace": 20_000.0},
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "given_settings",
    [
        {},
        {"sigma_u": 0.05, "category_strength": 5.0, "merchant_strength": 2.0, "place_strength": 3.0},
        {
            "usual_share": 0.5,
            "usual_strength": 2.0,
            "own_place_strength": 4.0,
            "own_hour_strength": 3.0,
            "settled": 0.5,
        },
        {"half_life": 3.0, "departure": 0.3, "amount_departure": 0.1, "takeover_cap": 0.7, "takeover_drift": 0.01},
    ],
)
def test_every_term_is_its_formula(unit, given_settings):
    rng = np.random.default_rng(len(unit) + len(given_settings))
    normal = [t for a in range(5) for t in some(rng, f"a{a}", 14, **UNITS[unit])]
    settings = replace(PLAIN, fields=FIELDS, time_unit=unit, grace=1e6, **given_settings)
    events = some(rng, "new", 20, **UNITS[unit])
    last = events[-1]
    events += [
        replace(last, id="same time"),
        replace(last, id="unknown category", category="never"),
        replace(last, id="unknown merchant", merchant="never"),
        replace(last, id="unknown country", fields={"country": "XX", "distance": 1e9}),
        replace(last, id="once more", merchant="never", fields={"country": "XX", "distance": None}),
        replace(last, id="nothing declared", fields={}),
        replace(last, id="nothing", amount=0.0, category=""),
        replace(last, id="everything", amount=2.0**53),
        replace(last, id="late", time=last.time - 3.0),
        replace(last, id="after that"),
        replace(last, id="much later", time=last.time + 100.0 * UNITS[unit]["pace"]),
        replace(last, account="another", id="first of all", amount=17.0),
    ]
    results = check(normal, events, settings)
    assert any(r.takeover for r in results)


@pytest.mark.parametrize("sizes", [(50, 120), (4, 5), (100, 30)])
def test_what_is_remembered_of_long_histories(sizes):
    """More than histories, rings and declared values can hold."""
    rng = np.random.default_rng(1)
    normal = [t for a in range(3) for t in some(rng, f"a{a}", 12, **UNITS["days"])]
    window, local_history = sizes
    settings = replace(
        PLAIN, fields=FIELDS, time_unit="days", window=window, local_history=local_history, own_place_strength=3.0
    )
    model, chosen = learn(normal, settings)
    densities = naive.Densities(normal, chosen, settings, model.calendar)
    events = some(rng, "new", 190, begin=0.0, pace=0.02)
    results = Engine(model).process_many(events)
    informative = dict(zip(density_terms(settings.declared), model.laws.tells.tolist(), strict=True))
    assert (
        max(naive.View(events[:i], t, densities.axes, settings, model.calendar).in_day for i, t in enumerate(events))
        == 24
    )
    for i in (5, 127, 128, 129, 130, 168, 169, 170, 189):
        terms, _ = densities.terms(events[:i], events[i])
        for name, value in terms.items():
            tolerance = 1e-5 if name in ROUNDED else 1e-9
            assert results[i].terms[name] == pytest.approx(value * informative[name], rel=1e-9, abs=tolerance), (
                name,
                i,
            )


amounts = st.one_of(st.floats(0, 1e4), st.sampled_from([0.0, 9.99, 2.0**53]))
anyones = st.builds(
    Transaction,
    account=st.sampled_from(["a", "b", "c"]),
    time=st.integers(0, 40).map(float),
    amount=amounts,
    category=st.sampled_from(["", "fuel", "food"]),
    merchant=st.sampled_from(["m1", "m2", "m3"]),
    id=st.uuids().map(str),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "country": st.sampled_from(["ES", "FR", "", None]),
            "distance": st.sampled_from([0.0, 1.0, -7.5, 1e6, None]),
            "unheard of": st.just("x"),
        },
    ),
)


@settings(max_examples=25)
@given(st.lists(anyones, min_size=6, max_size=25), st.lists(anyones, max_size=8), st.sampled_from(["number", "days"]))
def test_any_transactions(normal, events, unit):
    normal = [*normal, replace(normal[0], account="a", id="1"), replace(normal[0], account="b", id="2")]
    order = {t.id: i for i, t in enumerate(normal)}
    normal = sorted(normal, key=lambda t: (t.account, t.time, order[t.id]))
    strange = {"category": "elsewhere", "merchant": "elsewhere", "fields": {"country": "??", "distance": 3.25}}
    events = [*events, *(replace(t, **strange, id=f"s{t.id}") for t in events[:2])]
    check(normal, events, replace(PLAIN, fields=FIELDS, time_unit=unit, grace=1e9, horizon=1e9))


@pytest.mark.parametrize(
    ("calendar", "step"),
    [
        (Calendar("seconds", datetime(1970, 1, 1, tzinfo=UTC)), 3600.0),
        (Calendar("seconds", datetime(2018, 4, 1, 22, 30, tzinfo=UTC)), 900.0),
        (Calendar("milliseconds", datetime(1970, 1, 1, tzinfo=UTC)), 3.6e6),
        (Calendar("days"), 1.0 / 96.0),
    ],
)
def test_a_time_on_the_hour_is_in_that_hour(calendar, step):
    """A bit of rounding must not make 07:00 the hour before, on some days and not on others."""
    from stream_ccsd.account import ACCOUNT, HOUR, VIEW, WEEKDAY
    from stream_ccsd.evidence.profile import _look_at_clock

    normal = some(np.random.default_rng(0), "a", 3) + some(np.random.default_rng(1), "b", 3)
    densities = fitting.fit(normal, replace(PLAIN, time_unit="number"))
    clock = fitting._clock(calendar)
    densities, view = densities.laws._replace(**clock._asdict()), np.zeros(VIEW)
    account = np.zeros(1, ACCOUNT)[0]
    begin = 1.7e9 // 86400 * 86400 * {3.6e6: 1e3}.get(step, 1.0) if step >= 900.0 else 0.0
    for i in range(500):
        time = begin + i * step
        _look_at_clock(densities, account, time, view)
        hour, weekday = naive.clock(time, calendar)
        assert (view[HOUR], view[WEEKDAY]) == (pytest.approx(hour, abs=1e-12), weekday)
        assert int(view[HOUR]) == int(hour)
