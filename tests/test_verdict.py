"""Verdicts: what is taken for one, and what counts of several on one transaction."""

import json
import math

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.calendar import Calendar, CalendarError, parse_moment
from stream_ccsd.records import json_schemas
from stream_ccsd.transaction import MAX_NUMBER, MAX_TEXT, Refusal
from stream_ccsd.verdict import FINDINGS, MAX_WHY, NEEDED, ORIGINS, Reached, Verdict, by_transaction, effective_verdict

TEXTS = st.text(min_size=1, max_size=MAX_TEXT).filter(str.isprintable)
WHY = st.text(max_size=60).filter(str.isprintable).map(lambda text: " ".join(text.split()))
NUMBERS = st.floats(-MAX_NUMBER, MAX_NUMBER).map(lambda number: number + 0.0)
VERDICTS = st.builds(Verdict, TEXTS, TEXTS, st.sampled_from(FINDINGS), TEXTS, NUMBERS, WHY, st.sampled_from(ORIGINS))
SAID = {"transaction": "x7", "account": "C1", "verdict": "fraud", "who": "ann", "time": 12.5}


def outcome(stands):
    """All that a standing says."""
    return stands.label, stands.disputed, stands.words, stands.verdict, stands.at, stands.sides


def verdict(said, who, time, source="investigator", why=""):
    return Verdict("x7", "C1", said, who, float(time), why, source)


@given(VERDICTS)
def test_a_verdict_survives_json_and_text(given_one):
    record = json.loads(json.dumps(given_one.to_dict()))
    jsonschema.validate(record, json_schemas()["verdict"])
    assert Verdict.parse(record) == given_one
    as_text = {name: str(value) for name, value in record.items()} | {"time": repr(record["time"]), "else": "x"}
    assert Verdict.parse(as_text) == given_one


@given(st.dictionaries(st.sampled_from([*SAID, "why", "source"]), st.none() | st.booleans() | st.text() | st.floats()))
def test_whatever_comes_is_a_verdict_or_a_refusal(changes):
    parsed = Verdict.parse({**SAID, **changes}, position="3")
    if isinstance(parsed, Verdict):
        assert Verdict.parse(parsed.to_dict()) == parsed
        jsonschema.validate(parsed.to_dict(), json_schemas()["verdict"])
    else:
        assert parsed.field in changes
        assert parsed.reason.startswith(f"{parsed.field}: ")
        assert parsed.position == "3"


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        *(({name: None}, name, name) for name in NEEDED),
        ({"verdict": "guilty"}, "verdict", "expected fraud, normal or unsure, got 'guilty'"),
        ({"verdict": 1}, "verdict", "expected fraud, normal or unsure, got 1"),
        ({"verdict": ["fraud"]}, "verdict", "expected fraud"),
        ({"source": "rumour"}, "source", "expected investigator, chargeback or label"),
        ({"source": 0}, "source", "expected investigator"),
        ({"who": ""}, "who", "must not be empty"),
        ({"who": "x" * 257}, "who", "257 characters, at most 256"),
        ({"why": "x" * (MAX_WHY + 1)}, "why", "2001 characters, at most 2000"),
        ({"why": "bell \a"}, "why", "cannot be printed"),
        ({"why": {}}, "why", "expected text"),
        ({"account": "\0alert-cap"}, "account", "cannot be printed"),
        ({"transaction": "\udcff"}, "transaction", "cannot be printed"),
        ({"time": math.nan}, "time", "finite"),
        ({"time": "soon"}, "time", "finite"),
        ({"time": "20-13-01"}, "time", "ISO 8601"),
    ],
)
def test_what_is_no_verdict(changes, field, reason):
    refusal = Verdict.parse({**SAID, **changes})
    assert isinstance(refusal, Refusal)
    assert refusal.field == field
    assert reason in refusal.reason
    left_out = Verdict.parse({name: value for name, value in SAID.items() if name != "who"})
    assert left_out.reason == "who: is missing"
    assert "named fields" in Verdict.parse([1]).reason


def test_what_may_be_written_otherwise():
    assert Verdict.parse(SAID | {"verdict": " FRAUD ", "why": None, "source": ""}) == Verdict(**SAID)
    assert Verdict.parse(SAID | {"transaction": 7, "why": "card was\r\nlost\tabroad"}).why == "card was lost abroad"
    assert Verdict.parse(SAID | {"time": "1970-01-02"}).time == 86400.0
    days = Calendar("days", parse_moment("2018-04-01"))
    assert Verdict.parse(SAID | {"time": "2018-04-03T12:00"}, days).time == 2.5
    assert Verdict.parse(SAID | {"time": "2.5"}, days).time == 2.5
    refusal = Verdict.parse(SAID | {"time": "2018-04-03"}, Calendar("days"))
    assert "time: the times of this stream have no dates" in refusal.reason


PEOPLE = st.sampled_from(["ann", "bob", "eve"])
SOME = st.lists(
    st.builds(verdict, st.sampled_from(FINDINGS), PEOPLE, st.integers(0, 8), st.sampled_from(ORIGINS)), min_size=1
)


@given(SOME.filter(lambda some: len({v.time for v in some}) == len(some)), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter_where_times_differ(some, chance):
    other = chance.sample(some, len(some))
    assert outcome(effective_verdict(other)) == outcome(effective_verdict(some))


@given(SOME, st.randoms(use_true_random=False))
def test_doubled_verdicts_change_nothing(some, chance):
    doubled = [*some, *chance.choices(some, k=5)]
    assert outcome(effective_verdict(doubled)) == outcome(effective_verdict(some))


@given(SOME)
def test_a_standing_follows_from_each_persons_newest(some):
    """The rule once more, said in another way."""
    found = effective_verdict(some)
    ordered = sorted(enumerate(dict.fromkeys(some)), key=lambda pair: (pair[1].time, pair[0]))
    latest = ordered[-1][1]
    newest = {who: [v for _, v in ordered if v.who == who][-1] for who in {v.who for v in some}}
    votes = {who: v.verdict for who, v in newest.items()}
    against = {"fraud": "normal", "normal": "fraud", "unsure": ""}[latest.verdict]
    opposed, backed = [*votes.values()].count(against), [*votes.values()].count(latest.verdict)
    settled = latest.source == "chargeback" or backed > opposed or latest.verdict == "unsure"
    assert found.verdict == latest
    assert found.disputed == (opposed > 0 and not settled)
    assert found.label == (None if found.disputed or latest.verdict == "unsure" else latest.verdict)
    assert found.sides == {
        said: [v.who for v in sorted(newest.values(), key=lambda v: (v.time, v.who)) if v.verdict == said]
        for said in {*votes.values()}
    }


@given(SOME)
def test_a_chargeback_settles_and_a_dispute_has_two_sides(some):
    last = max(v.time for v in some) + 1
    settled = effective_verdict([*some, verdict("fraud", "bank", last, "chargeback")])
    assert (settled.label, settled.disputed) == ("fraud", False)
    swap = {"fraud": "normal", "normal": "fraud", "unsure": "unsure"}
    mirrored = [verdict(swap[v.verdict], v.who, v.time, v.source) for v in some]
    assert effective_verdict(mirrored).disputed == effective_verdict(some).disputed
    assert effective_verdict(mirrored).label == swap.get(effective_verdict(some).label)


def test_two_who_disagree():
    ann, bob = verdict("fraud", "ann", 1), verdict("normal", "bob", 2)
    for arrived in ([ann, bob], [bob, ann]):
        found = effective_verdict(arrived)
        assert (found.label, found.disputed, found.verdict, found.words) == (None, True, bob, "disputed")
        assert found.sides == {"fraud": ["ann"], "normal": ["bob"]}
    assert effective_verdict([ann, bob, verdict("fraud", "bob", 3)]).label == "fraud"  # bob gives in
    assert effective_verdict([ann, bob, verdict("unsure", "ann", 3)]).words == "unsure"
    assert effective_verdict([ann, bob, verdict("normal", "eve", 3)]).label == "normal"  # two against one
    again = effective_verdict([ann, bob, verdict("normal", "eve", 3), verdict("fraud", "ann", 4)])
    assert again.disputed  # one against two


def test_one_who_changes_his_mind_disputes_nothing():
    mind = [verdict("fraud", "ann", 1), verdict("normal", "ann", 2), verdict("fraud", "ann", 2, why="after all")]
    assert [effective_verdict(mind[:n]).label for n in (1, 2, 3)] == ["fraud", "normal", "fraud"]
    # A verdict that arrives a year late overrules what is older than it, and nothing else.
    assert effective_verdict([*mind, verdict("normal", "ann", 0)]).label == "fraud"
    assert effective_verdict([*mind, verdict("normal", "ann", 365)]).label == "normal"


@given(SOME, st.integers(-1, 9), st.booleans())
def test_what_is_dated_ahead_of_the_stream_does_not_count_before_it_comes(some, newest, ended):
    reached = Reached(float(newest), ended=ended)
    bounded = [(v, min(v.time, newest)) for v in some if ended or v.time <= newest]
    found = reached.standing(some)
    assert (found is None) == (not bounded)
    if bounded:
        first = {v: place for place, (v, _) in reversed([*enumerate(bounded)])}  # said again, it is what it was
        assert found.verdict == max(bounded, key=lambda pair: (pair[1], first[pair[0]]))[0]
        assert found.at <= newest


def test_whoever_judges_today_overrules_what_is_dated_years_ahead():
    future, honest = verdict("normal", "eve", 1e6), verdict("fraud", "ann", 50)
    for ended in (False, True):
        stands = Reached(50.0, ended=ended).standing([future, honest])
        assert (stands.verdict, stands.at) == (honest, 50.0)
    after = Reached(50.0, ended=True).standing([honest, verdict("fraud", "bank", 80, "chargeback")])
    assert (after.verdict.who, after.at) == ("bank", 50.0)  # a stream that ended comes to nothing any more
    days = Calendar("days")
    assert Reached.of(50.0, days).standing([honest, verdict("normal", "ann", 51)]).label == "normal"  # another clock
    assert Reached.of(50.0, days).standing([honest, verdict("normal", "ann", 51.01)]).label == "fraud"
    assert Reached.of(None, days).standing([future]).verdict == future  # there is nothing to compare it with


def test_a_verdict_beyond_the_horizon_is_none():
    refusal = Verdict.parse(SAID | {"time": 101.0}, latest=100.0)
    assert (refusal.field, "later than 100, the latest" in refusal.reason) == ("time", True)
    assert isinstance(Verdict.parse(SAID | {"time": 100.0}, latest=100.0), Verdict)


def test_nothing_stands_on_nothing():
    with pytest.raises(ValueError, match="no verdict"):
        effective_verdict([])


def test_verdicts_by_transaction():
    some = [verdict("fraud", "ann", 2), Verdict("x8", "C1", "fraud", "ann", 1.0), verdict("normal", "bob", 1)]
    other = Verdict("x7", "C2", "normal", "ann", 1.0)  # the same id, of another account
    assert by_transaction([*some, other]) == {
        ("C1", "x7"): [some[0], some[2]],
        ("C1", "x8"): [some[1]],
        ("C2", "x7"): [other],
    }


@pytest.mark.parametrize(
    ("unit", "text", "span"),
    [
        ("days", "7d", 7.0),
        ("seconds", "7d", 604800.0),
        ("milliseconds", "36h", 129600000.0),
        ("seconds", "30min", 1800.0),
        ("seconds", "1.5 h", 5400.0),
        ("days", "2w", 14.0),
        ("seconds", "500ms", 0.5),
        ("seconds", "12", 12.0),
        ("number", " 12 ", 12.0),
        ("number", "0", 0.0),
    ],
)
def test_lengths_of_time(unit, text, span):
    assert Calendar(unit).duration(text) == pytest.approx(span)


@pytest.mark.parametrize(
    ("unit", "text", "message"),
    [
        ("number", "7d", "have no unit.*bare number"),
        ("days", "7m", "units: ms, s, min, h, d, w"),
        ("days", "-7d", "expected a length"),
        ("days", "", "expected a length"),
        ("days", "nan", "expected a length"),
        ("days", "1e3", "expected a length"),
        ("days", "٧d", "expected a length"),
        ("seconds", "9" * 400, "longer than any stream"),
    ],
)
def test_what_is_no_length_of_time(unit, text, message):
    with pytest.raises(CalendarError, match=message):
        Calendar(unit).duration(text)
