"""What alerts say, sentence by sentence, as an investigator reads it; and that it adds up."""

import re
from dataclasses import fields, replace
from datetime import UTC, datetime

import numpy as np
import pytest

from stream_ccsd import account as places
from stream_ccsd.account import EVENT, NAMED, VIEW
from stream_ccsd.alerts import sentences
from stream_ccsd.alerts.alert import Alert, Reason
from stream_ccsd.alerts.sentences import ANYONE, REST, takeover_sentence
from stream_ccsd.engine import Engine
from stream_ccsd.evidence.supervised import LATELY_TERM
from stream_ccsd.fields import TERMS, density_terms
from stream_ccsd.fitting import fit
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Transaction

SETTINGS = Settings(
    divergence=False,
    fields=("country:category", "distance:number"),
    time_unit="days",
    time_origin="2026-01-05",  # a Monday
)


def usual(account, days, rng):
    """About once a day, at noon, on most days: groceries, and now and then fuel."""
    rows = []
    for day in range(days):
        for extra in range(1 + (rng.random() < 0.3)):
            if day % 7 == 6 and rng.random() < 0.95:
                continue
            groceries = rng.random() < 0.95
            rows.append(
                Transaction(
                    account,
                    day + round(rng.normal(12.0, 1.0), 2) / 24.0,
                    round(float(np.exp(rng.normal(3.0, 0.3))), 2),
                    "groceries" if groceries else "fuel",
                    ("market" if rng.random() < 0.97 else "corner") if groceries else "pump",
                    f"{account}-{day}-{extra}",
                    {
                        "country": "ES" if rng.random() < 0.97 else "FR",
                        "distance": round(float(rng.normal(10.0, 1.0)), 2),
                    },
                )
            )
    return sorted(rows, key=lambda t: t.time)


@pytest.fixture(scope="module")
def normal():
    rng = np.random.default_rng(0)
    return [t for a in range(20) for t in usual(f"a{a}", 60, rng)]


@pytest.fixture(scope="module")
def fitted(normal):
    """All terms tell something, and frauds differ in all of them: every sentence is worth saying."""
    model = fit(normal, SETTINGS)
    return replace(model, laws=model.laws._replace(tells=np.ones_like(model.laws.tells), departure=0.9))


ODD = Transaction("x", 41.0 + 3.1667 / 24, 2310.0, "groceries", "dark web", "odd", {"country": "NG", "distance": 5e3})


def say(model, term, transaction=ODD, **view):
    """The sentence of a term, whatever it is worth, for an account with this past."""
    event = np.zeros(1, EVENT)[0]
    event["amount"] = transaction.amount
    event["category"], event["merchant"] = model.codes(transaction.category), model.codes(transaction.merchant)
    seen = np.zeros(VIEW + 1)
    for name, value in view.items():
        seen[getattr(places, name) if name != "country" else VIEW] = value
    return sentences._Case(model, transaction, event, seen).sentence(term)


NUMBER = r"[\d,.]+"


@pytest.mark.parametrize(
    ("term", "change", "view", "expected"),
    [
        ("amount", {}, {}, rf"2,310\.00 is more than anyone paid for 'groceries' in {NUMBER} normal transactions"),
        ("amount", {"category": "never"}, {}, rf"2,310\.00 is more than anyone paid in {NUMBER} normal transactions"),
        ("amount", {"amount": 42.0}, {}, rf"42\.00 is more than all but 1 in {NUMBER} pay for 'groceries'"),
        ("amount", {"amount": 42.0, "category": "never"}, {}, rf"42\.00 is more than all but 1 in {NUMBER} pay"),
        ("amount", {"amount": 20.0}, {}, r"20\.00 is an odd amount for 'groceries'"),
        ("amount", {"amount": 0.5}, {}, r"0\.50 is an unusually small amount for 'groceries'"),
        (
            "amount",
            {"amount": 0.5, "category": ""},
            {},
            r"0\.50 is an unusually small amount among normal transactions",
        ),
        ("amount_own", {}, {}, r"1\d\d times what this account usually pays for such things"),
        ("amount_own", {"amount": 63.0}, {}, r"[23]\.\d times what this account usually pays for such things"),
        ("amount_own", {"amount": 9.0}, {}, r"half of what this account usually pays for such things"),
        ("amount_own", {"amount": 0.0}, {}, r"1/2\d of what this account usually pays for such things"),
        ("amount_own", {"amount": 20.0}, {}, r"about what this account usually pays for such things"),
        ("category", {"category": "never"}, {}, r"category 'never' never occurs in normal transactions"),
        ("category", {"category": "fuel"}, {}, r"category 'fuel' is 1 in [12]\d normal transactions"),
        ("category", {"category": "groceries"}, {}, r"category 'groceries' is 9\d% of normal transactions"),
        ("category", {"category": ""}, {}, r"no category is named, as never in normal transactions"),
        ("merchant", {}, {}, r"merchant 'dark web' never occurs in normal transactions of 'groceries'"),
        ("merchant", {"category": ""}, {}, r"merchant 'dark web' never occurs in normal transactions"),
        ("merchant", {"merchant": "corner"}, {}, r"merchant 'corner' is 1 in \d\d normal transactions of 'groceries'"),
        ("place_own", {}, {"OWN_WEIGHT": 20.0}, r"merchant 'dark web' is new for this account"),
        (
            "place_own",
            {},
            {"OWN_WEIGHT": 57.923},
            rf"merchant 'dark web' is not among this account's last {NAMED} transactions",
        ),
        (
            "place_own",
            {},
            {"OWN_WEIGHT": 40.0, "AT_PLACE": 1.0},
            r"merchant 'dark web' is 1 in 40 this account's transactions",
        ),
        (
            "place_own",
            {},
            {"OWN_WEIGHT": 40.0, "AT_PLACE": 10.0},
            r"merchant 'dark web' is 25% of this account's transactions",
        ),
        ("hour", {}, {"HOUR": 3.1667}, rf"03:10: 1 in {NUMBER} normal transactions are made around that hour"),
        (
            "hour_own",
            {},
            {"HOUR": 3.1667, "HOUR_WEIGHT": 20.0},
            r"03:10: none of this account's transactions are made around that hour",
        ),
        (
            "hour_own",
            {},
            {"HOUR": 23.999, "HOUR_WEIGHT": 20.0, "AT_HOUR": 1.0},
            r"23:59: 1 in 20 of this account's transactions are made around that hour",
        ),
        (
            "hour_own",
            {},
            {"HOUR": 12.5, "HOUR_WEIGHT": 20.0, "AT_HOUR": 10.0},
            r"12:30: 50% of this account's transactions are made around that hour",
        ),
        ("weekday", {}, {"WEEKDAY": 6.0}, r"on a Sunday, as 1 in \d+ normal transactions are"),
        ("weekday", {}, {"WEEKDAY": 0.0}, r"on a Monday, as 1\d% of normal transactions are"),
        (
            "gap",
            {},
            {"GAP": 90.0 / 86400, "RATE": 6.0},
            rf"1 min 30 s after the account's last transaction, as 1 in {NUMBER} gaps of accounts that pay as often",
        ),
        (
            "count_hour",
            {},
            {"IN_HOUR": 5.0, "RATE": 6.0},
            r"sixth transaction within an hour; accounts that pay as often make [12]\.\d within a day",
        ),
        (
            "count_day",
            {},
            {"IN_DAY": 11.0, "RATE": 6.0},
            r"12th transaction within a day; accounts that pay as often make [12]\.\d within a day",
        ),
        (
            "count_day",
            {},
            {"IN_DAY": 24.0, "RATE": 6.0},
            r"25 transactions or more within a day; accounts that pay as often make [12]\.\d within a day",
        ),
        ("country", {}, {}, r"country 'NG' never occurs in normal transactions"),
        ("country", {"fields": {"country": "FR"}}, {}, r"country 'FR' is 1 in \d\d normal transactions"),
        ("country", {"fields": {}}, {}, r"country is missing, unlike in most normal transactions"),
        ("country_own", {}, {"OWN_WEIGHT": 20.0}, r"country 'NG' is new for this account"),
        (
            "country_own",
            {},
            {"OWN_WEIGHT": 20.0, "country": 2.0},
            r"country 'NG' is 10% of this account's transactions",
        ),
        ("distance", {}, {}, rf"distance 5,000 is more than in any of {NUMBER} normal transactions"),
        (
            "distance",
            {"fields": {"distance": -3.5}},
            {},
            rf"distance -3\.5 is less than in any of {NUMBER} normal transactions",
        ),
        (
            "distance",
            {"fields": {"distance": 12.2}},
            {},
            rf"distance 12\.2 is more than in all but 1 in {NUMBER} normal transactions",
        ),
        (
            "distance",
            {"fields": {"distance": 7.8}},
            {},
            rf"distance 7\.8 is less than in all but 1 in {NUMBER} normal transactions",
        ),
        ("distance", {"fields": {"distance": 10.0}}, {}, r"distance 10 is an odd value among normal transactions"),
        ("distance", {"fields": {}}, {}, r"distance is missing, unlike in most normal transactions"),
    ],
)
def test_every_sentence(fitted, term, change, view, expected):
    said = say(fitted, term, replace(ODD, **change), **view)
    assert re.fullmatch(expected, said), said


def test_every_term_that_can_speak_has_a_sentence():
    assert {*sentences._SENTENCES, "habit"} == {*TERMS, LATELY_TERM}


def test_weekdays_without_a_calendar_have_numbers(fitted):
    assert fitted.calendar.origin == datetime(2026, 1, 5, tzinfo=UTC)
    nameless = replace(fitted, calendar=replace(fitted.calendar, origin=None))
    assert say(nameless, "weekday", WEEKDAY=6.0).startswith("on day 7 of 7, as ")


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (1, "a transaction that would by far fit anyone better than this account"),
        (9, "the last nine transactions fit anyone better than this account"),
        (12, "the last 12 transactions fit anyone better than this account"),
    ],
)
def test_what_a_takeover_says(run, expected):
    assert takeover_sentence(run) == expected
    assert expected.endswith(ANYONE)


def burst(count=8):
    """At night, minutes apart, from abroad."""
    return [replace(ODD, time=ODD.time + i / 300, id=f"odd{i}") for i in range(count)]


@pytest.fixture(scope="module")
def alerted(fitted):
    """Alerts on every transaction of a burst that follows a usual past."""
    model = replace(fitted, settings=replace(fitted.settings, alert_margin=0.0))
    past = [t for t in usual("x", 40, np.random.default_rng(7)) if t.category == "groceries"]
    engine = Engine(model, threshold=0.0)
    engine.process_many(past)
    return [r for r in engine.process_many(burst()) if r.alert]


def test_a_whole_alert(alerted):
    alert = alerted[0].alert
    texts = [reason.text for reason in alert.reasons]
    assert texts[-1] in REST or alert.reasons[-1].nats <= min(r.nats for r in alert.reasons)
    for part in ("2,310.00 is more than anyone paid", "'dark web' never occurs", "is new for this account", "03:10"):
        assert any(part in text for text in texts), (part, texts)
    assert any(re.search("on a Sunday", text) for text in texts)
    assert any("country 'NG'" in text for text in texts)
    assert len(set(texts)) == len(texts)
    assert alert.fields == {"country": "NG", "distance": 5e3}
    assert "transaction within an hour" in " ".join(r.text for r in alerted[-1].alert.reasons)


def test_reasons_add_up_to_the_evidence(alerted, population_model, stream):
    population = [r for r in Engine(population_model, threshold=2.0).process_many(stream.transactions) if r.alert]
    assert len(population) > 20
    for result in (*alerted, *population):
        alert = result.alert
        nats = [reason.nats for reason in alert.reasons]
        assert nats == sorted(nats, reverse=True)
        of_evidence = [r.nats for r in alert.reasons if not r.text.endswith(ANYONE)]
        assert sum(of_evidence) == pytest.approx(alert.scores["evidence"], abs=1e-9)
        told_terms = {name for name, value in result.terms.items() if value >= 0.06}
        assert len(of_evidence) - 1 >= len(told_terms)
        assert sum(reason.text in REST for reason in alert.reasons) == 1
        for reason in alert.reasons:
            assert "''" not in reason.text
            assert "None" not in reason.text
            assert not re.search(r"\bnan\b|\binf\b", reason.text)


def test_the_headline_goes_by_what_raised_the_alert(population_model, stream):
    alerts = [r.alert for r in Engine(population_model, threshold=2.0).process_many(stream.transactions) if r.alert]
    raised = [alert for alert in alerts if alert.raised_by == "takeover"]
    others = [alert for alert in alerts if alert.raised_by == "evidence"]
    assert min(len(raised), len(others)) > 3
    assert len(raised) + len(others) == len(alerts)
    for alert in raised:
        assert alert.best_reason.nats == alert.scores["takeover"]
        assert alert.headline.endswith(ANYONE)
    for alert in others:
        assert not alert.headline.endswith(ANYONE)
        assert alert.headline.endswith(alert.best_reason.text)
    # Where only evidence counts, a takeover may be among the reasons, but is not what it was for.
    alone = replace(population_model, settings=replace(population_model.settings, alert_on="evidence"))
    alerts = [r.alert for r in Engine(alone, threshold=2.0).process_many(stream.transactions) if r.alert]
    assert {alert.raised_by for alert in alerts} == {"evidence"}
    assert not any(alert.headline.endswith(ANYONE) for alert in alerts)
    assert any(reason.text.endswith(ANYONE) for alert in alerts for reason in alert.reasons)


def test_the_best_reason_is_one_that_says_something():
    blank = dict.fromkeys((f.name for f in fields(Alert)), None)

    def best(raised_by, *reasons):
        return Alert(**{**blank, "raised_by": raised_by, "reasons": list(reasons)}).best_reason

    rest, odd = Reason(9.0, "words that no program knows", ""), Reason(3.0, takeover_sentence(3), "amount")
    other = Reason(5.0, REST[0], "takeover")  # by what a reason is of, whatever its words are
    assert best("evidence", rest, other, odd) is odd
    assert best("takeover", rest, other, odd) is other
    assert best("takeover", rest, odd) is odd
    assert best("evidence", rest) is rest
    assert best("evidence", other, rest) is other


def test_nothing_stands_out(fitted, normal):
    """An ordinary transaction that is alerted all the same: it is said that there is nothing to say."""
    event = replace(normal[20], account="y", amount=20.0, merchant="market", category="groceries")
    event = replace(event, fields={"country": "ES", "distance": 10.0}, time=2.5)
    quiet = replace(fitted, laws=fitted.laws._replace(departure=0.01))
    alert = Engine(quiet, threshold=0.0).process(event).alert
    assert [r.text for r in alert.reasons] == [REST[1]]
    assert alert.headline.endswith(REST[1])


def test_expected_loss_ranks_by_evidence_and_money(alerted):
    alert = alerted[0].alert
    assert alert.expected_loss == pytest.approx(alert.scores["evidence"] + np.log1p(alert.amount))


def test_alerts_of_a_stream_without_categories_read_well(normal):
    plain = [replace(t, category="", fields={}) for t in normal]
    engine = Engine(fit(plain, replace(SETTINGS, fields=())), threshold=0.0)
    for merchant in ("corner", "never seen"):
        alert = engine.process(Transaction(f"at {merchant}", 1.0, 54_321.0, "", merchant, "1")).alert
        said = [r.text for r in alert.reasons] + [alert.headline]
        assert not any("''" in text for text in said), said
        assert any(text.startswith("54,321.00 is more than anyone paid in 1,") for text in said), said
    assert any(text == "merchant 'never seen' never occurs in normal transactions" for text in said)


def test_a_category_that_is_missing_from_one_transaction(fitted):
    alert = Engine(fitted, threshold=0.0).process(replace(ODD, category="")).alert
    assert "''" not in " ".join(r.text for r in alert.reasons)
    assert any(r.text == "no category is named, as never in normal transactions" for r in alert.reasons)


def test_terms_are_named_as_declared():
    names = density_terms(SETTINGS.declared)
    assert names == (*TERMS, "country", "country_own", "distance")
