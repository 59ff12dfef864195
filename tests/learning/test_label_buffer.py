"""The label buffer against counts from scratch, for any verdicts in any order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd.evidence.supervised import HALF_LIVES, input_names
from stream_ccsd.learning.features import Features, features_of, transaction_key
from stream_ccsd.learning.label_buffer import LabelBuffer
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.transaction import Transaction, identity
from stream_ccsd.verdict import Verdict, effective_verdict
from tests import naive

DAILY = Schedule(every=1.0, delay=6.0)
STATES = {1: "silent", 2: "normal", 3: "fraud"}


def as_rows(model, transactions):
    """As if scored: with the inputs that a label buffer uses."""
    declared = model.settings.declared
    columns = features_of(transactions, model.codes, declared)
    names = input_names(declared)
    inputs = np.zeros((len(transactions), len(names)), np.float32)
    for name, values in {
        "size": np.log1p(columns["amount"]),
        "at_hour": columns["time"] % 1.0 * 24.0,
        "at_weekday": columns["time"] // 1.0 % 7.0,
        "after": np.full(len(transactions), -1.0),
    }.items():
        inputs[:, names.index(name)] = values
    zeros = np.zeros(len(transactions))
    return Features(**columns, inputs=inputs, evidence=zeros, takeover=zeros, score=zeros, alerted=zeros > 0)


class BufferPair:
    """A label buffer and the naive counts, side by side."""

    def __init__(self, model, schedule=DAILY):
        self.model = model
        self.own = LabelBuffer(model.laws, model.settings.declared, schedule)
        self.naive = naive.LabelCounts(schedule.delay, effective_verdict)
        self.transactions = []

    def update(self, moment, transactions=(), verdicts=()):
        self.transactions += transactions
        self.own.see(as_rows(self.model, transactions))
        self.own.hear(verdicts)
        self.naive.see(transactions)
        self.naive.hear(verdicts)
        self.own.advance(moment)
        self.naive.learn(moment)

    def counts(self, field, value):
        """Frauds and all transactions of a value, by half-life."""
        place = ("account", "category", "merchant", "country", "device").index(field)
        found = self.own.records[place].of(identity(value) if field == "account" else self.model.codes(value))
        return np.zeros((2, len(HALF_LIVES))) if found is None else found

    def labels(self):
        """Labels of kept transactions, by id."""
        ids = {transaction_key(t.account, t.id): t.id for t in self.transactions}
        if self.own.kept is None:
            return {}
        keys = self.own.kept.rows.key.tolist()
        assert len(keys) == len(set(keys))
        return {ids[key]: STATES[state] for key, state in zip(keys, self.own.kept.state.tolist(), strict=True)}

    def check(self):
        assert self.labels() == {key[1]: label for key, (label, _, _) in self.naive.entered.items()}
        for field in ("account", "category", "merchant", "country"):
            for value in {_value(t, field) for t in self.transactions}:
                since = self.naive.began.get(value, self.naive.update + 1) if field == "account" else 0
                expected = [
                    self.naive.count(lambda t, f=field, v=value: _value(t, f) == v, life, since) for life in HALF_LIVES
                ]
                np.testing.assert_allclose(self.counts(field, value).T, expected, atol=1e-9, err_msg=f"{field} {value}")
        everyone = [self.naive.count(lambda t: True, life) for life in HALF_LIVES]
        np.testing.assert_allclose(self.own.base.T, everyone, atol=1e-9)
        frauds = [
            sum(
                0.5 ** ((self.naive.update - update) / life)
                for label, update, _ in self.naive.entered.values()
                if label == "fraud"
            )
            for life in (20.0, 60.0, 180.0)
        ]
        for density in self.own.law[:3]:  # of amount, hour and weekday, which all of them have
            np.testing.assert_allclose(density._counts.sum(axis=1), frauds, atol=1e-9)


def _value(t, field):
    return getattr(t, field) if field in ("account", "category", "merchant") else t.fields.get(field) or ""


def tx(name, time, account="a", merchant="m0001", **more):
    return Transaction(account, time, 20.0, "fuel", merchant, name, {"country": "ES", "device": "d"}, **more)


def says(verdict, name, time, who="ann", account="a", **more):
    return Verdict(name, account, verdict, who, time, **more)


@st.composite
def stories(draw):
    """Days with transactions, and verdicts on any of them: earlier, of the day, or not seen yet."""
    days, transactions = draw(st.integers(3, 11)), []
    for day in range(days):
        for _ in range(draw(st.integers(0, 3))):
            name, time = f"t{len(transactions)}", day + draw(st.sampled_from([0.0, 0.25, 0.99999]))
            account, merchant = draw(st.sampled_from("ab")), draw(st.sampled_from(["m0001", "m0002", "never"]))
            transactions.append(tx(name, time, account, merchant))
    verdicts = []
    for _ in range(draw(st.integers(0, 12)) if transactions else 0):
        t = draw(st.sampled_from(transactions))
        day = draw(st.integers(0, days - 1))
        found = draw(st.sampled_from(["fraud", "fraud", "normal", "unsure"]))
        source = draw(st.sampled_from(["investigator", "investigator", "chargeback"]))
        verdict = says(
            found, t.id, day + draw(st.sampled_from([0.1, 0.5])), draw(st.sampled_from(["ann", "bob", "eve"]))
        )
        verdicts.append(replace(verdict, account=t.account, source=source))
        if draw(st.booleans()):
            verdicts.append(verdicts[-1])  # doubled
    return days, transactions, verdicts


@settings(max_examples=80)
@given(stories())
def test_any_story_is_counted_as_from_scratch(population_model, story):
    days, transactions, verdicts = story
    pair = BufferPair(population_model)
    for day in range(days):
        pair.update(
            day + 1.0,
            [t for t in transactions if day <= t.time < day + 1],
            [v for v in verdicts if day <= v.time < day + 1],
        )
        pair.check()
        known = {t.id for t in pair.transactions}
        verdict = naive_standings(v for v in verdicts if v.time < day + 1)
        assert pair.own.waiting == sum(name not in known for name in verdict)
        assert pair.own.disputed == sum(verdict[name].disputed for name in verdict if name in known)
    assert pair.own.too_late == 0


def naive_standings(verdicts):
    by_id = {}
    for v in verdicts:
        by_id.setdefault(v.transaction, []).append(v)
    return {name: effective_verdict(own) for name, own in by_id.items()}


@settings(max_examples=40)
@given(stories(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_no_bit(population_model, story, random):
    """Verdicts of different times, and of different transactions, may change places until the next model update."""
    days, transactions, verdicts = story
    distinct = [*{(v.key, v.time): v for v in verdicts}.values()]
    mixed = random.sample(distinct, len(distinct))
    one, other = BufferPair(population_model), BufferPair(population_model)
    for pair, order in ((one, distinct), (other, mixed)):
        for first in range(0, days, 3):  # several days' verdicts at once
            pair.update(
                first + 3.0,
                [t for t in transactions if first <= t.time < first + 3],
                [v for v in order if first <= v.time < first + 3],
            )
    assert one.labels() == other.labels()
    for a, b in zip(one.own.records, other.own.records, strict=True):
        assert a.codes.tobytes() == b.codes.tobytes()
        assert a.counts.tobytes() == b.counts.tobytes()
    assert one.own.base.tobytes() == other.own.base.tobytes()
    assert one.own.choices.tobytes() == other.own.choices.tobytes()
    for a, b in zip(one.own.law, other.own.law, strict=True):
        assert a._counts.tobytes() == b._counts.tobytes()


def test_silence_is_normal_after_the_delay_and_not_before(population_model):
    pair = BufferPair(population_model)
    for day in range(9):
        pair.update(day + 1.0, [tx("t", 0.5)] if day == 0 else [])
        assert pair.labels() == ({"t": "silent"} if day + 1 >= 6.5 else {}), day
    assert pair.counts("merchant", "m0001")[1, -1] == pytest.approx(0.5 ** (2 / 60))
    assert not pair.counts("account", "a").any()  # accounts have a record from their first fraud on


def test_overruled_fraud_is_as_if_it_had_been_entered_as_normal_then(population_model):
    """Equal: all counts. Not equal: what half-lives are compared by, and how soon verdicts come, as far as its own
    verdict came sooner or later than others: these were right about the verdicts there were.
    """
    overruled, never = BufferPair(population_model), BufferPair(population_model)
    others = [tx(f"o{i}", 0.5, merchant="m0002") for i in range(5)]
    known = [says("fraud", "o1", 1.5), says("normal", "o2", 1.5)]
    for day in range(8):
        seen = [tx("t", 0.5), *others] if day == 0 else []
        heard = known if day == 1 else []
        wrong = [says("fraud", "t", 1.5)] if day == 1 else [says("normal", "t", 4.5)] if day == 4 else []
        overruled.update(day + 1.0, seen, [*heard, *wrong])
        never.update(day + 1.0, seen, [*heard, *wrong[:1]] if day == 4 else heard)
        if day in (1, 2, 3):
            assert overruled.counts("merchant", "m0001")[0, 0] > 0
            assert overruled.labels()["t"] == "fraud"
    assert overruled.labels() == never.labels()
    for field, value in (("account", "a"), ("category", "fuel"), ("merchant", "m0001"), ("merchant", "m0002")):
        np.testing.assert_allclose(overruled.counts(field, value), never.counts(field, value), atol=1e-12)
    np.testing.assert_allclose(overruled.own.base, never.own.base, atol=1e-12)
    for a, b in zip(overruled.own.law, never.own.law, strict=True):
        np.testing.assert_allclose(a._counts, b._counts, atol=1e-12)
    # Counted as of the update of the change, not of the first verdict.
    assert overruled.counts("merchant", "m0001")[1, 0] > 0.5 ** (3 + 3.5 + 1e-9)


def test_disputed_is_in_no_count_until_settled(population_model):
    pair = BufferPair(population_model)
    pair.update(1.0, [tx("t", 0.5)], [says("fraud", "t", 0.8)])
    assert pair.counts("merchant", "m0001")[0, 0] == 1.0
    pair.update(2.0, verdicts=[says("normal", "t", 1.5, "bob")])
    for day in range(3, 10):  # the delay passes, and changes nothing
        pair.update(float(day))
        assert pair.own.disputed == 1
        assert not pair.labels()
        assert not pair.counts("merchant", "m0001").any()
        assert not pair.own.base.any()
    pair.update(10.0, verdicts=[says("fraud", "t", 9.5, "eve", source="chargeback")])
    assert (pair.own.disputed, pair.labels()) == (0, {"t": "fraud"})
    # Known nine days late, and verdicts used to be prompt: of what moves within days it says little.
    frauds = pair.counts("merchant", "m0001")[0]
    assert frauds[0] < 0.01
    assert frauds[-1] > 0.8


def test_repeated_verdicts_change_nothing(population_model):
    once, often = BufferPair(population_model), BufferPair(population_model)
    verdict = says("fraud", "t", 0.8)
    for day in range(9):
        seen = [tx("t", 0.5), tx("o", 0.6)] if day == 0 else []
        once.update(day + 1.0, seen, [verdict] if day == 0 else [])
        often.update(day + 1.0, seen, [verdict] * 3)
    assert once.labels() == often.labels()
    for a, b in zip(once.own.records, often.own.records, strict=True):
        assert a.counts.tobytes() == b.counts.tobytes()
    assert once.own.base.tobytes() == often.own.base.tobytes()


def test_a_verdict_before_its_transaction_waits(population_model):
    pair = BufferPair(population_model)
    pair.update(1.0, [tx("o", 0.5)], [says("fraud", "t", 0.8)])
    assert pair.own.waiting == 1
    pair.update(2.0, [tx("t", 1.5)])
    assert (pair.own.waiting, pair.labels()) == (0, {"t": "fraud"})
    # One whose transaction never comes is given up when its time has passed.
    pair.update(3.0, verdicts=[says("fraud", "never", 2.5)])
    for day in range(4, 30):
        pair.update(float(day))
    assert (pair.own.waiting, pair.own.too_late) == (0, 1)


def test_late_verdicts(population_model):
    """After the delay, within two of them: as any other. Later: as long as it is kept to learn from. Then too late."""
    pair = BufferPair(population_model)
    names = ("within", "kept", "forgotten")
    for day in range(1, 10):
        pair.update(float(day), [tx(name, 0.5, account=name) for name in names] if day == 1 else [])
    assert set(pair.labels().values()) == {"silent"}
    pair.update(10.0, verdicts=[says("fraud", "within", 9.5, account="within")])
    assert pair.labels()["within"] == "fraud"
    pair.check()
    for day in range(11, 30):
        pair.update(float(day), [tx(f"d{day}", day - 0.5)])
    before = pair.counts("merchant", "m0001").copy()
    pair.update(30.0, verdicts=[says("fraud", "kept", 29.5, account="kept")])
    assert pair.labels()["kept"] == "fraud"
    fading = 0.5 ** (1 / np.array(HALF_LIVES))
    # It was counted as normal in update 7, which is taken back; as a fraud it is 18 days staler than prompt ones are.
    # And there is another day's transaction.
    lives = np.array(HALF_LIVES)
    new = 0.5 ** ((29.5 - (0.9 * 9.5 + 0.1 * 29.5)) / lives)
    expected = before * fading + [new, 1.0 + new - 0.5 ** (23 / lives)]
    np.testing.assert_allclose(pair.counts("merchant", "m0001"), expected, atol=1e-9)
    pair.update(31.0, verdicts=[says("normal", "kept", 30.5, account="kept")])  # and taken back again
    assert pair.labels()["kept"] == "normal"
    assert pair.counts("account", "kept")[0] == pytest.approx(0.0, abs=1e-12)
    for day in range(32, 380):
        pair.update(float(day), [tx(f"d{day}", day - 0.5)] if day % 5 == 0 else [])
    counted = pair.counts("merchant", "m0001").copy()
    pair.update(380.0, verdicts=[says("fraud", "forgotten", 379.5, account="forgotten")])
    assert "forgotten" not in pair.labels()
    assert pair.counts("merchant", "m0001")[0] == pytest.approx(counted[0] * fading)
    for day in range(381, 400):
        pair.update(float(day))
    assert (pair.own.too_late, pair.own.waiting) == (1, 0)
    assert len(pair.own._verdicts) < 3  # nothing is remembered for ever


def test_a_stream_that_pauses(population_model):
    """No transaction is remembered any more, and a verdict comes."""
    pair = BufferPair(population_model)
    pair.update(1.0, [tx("t", 0.5)])
    for day in range(2, 100):
        pair.update(float(day), verdicts=[says("fraud", "t", day - 0.5)] if day > 90 else [])
    assert not pair.labels()
    pair.update(100.0, [tx("n", 99.5)], [says("fraud", "n", 99.9)])
    assert pair.labels() == {"n": "fraud"}


def test_normal_transactions_of_an_account_before_its_first_fraud(population_model):
    """Its record begins with that fraud: what was not counted is not taken back when it turns out to be fraud, too."""
    pair = BufferPair(population_model)
    for day in range(1, 9):
        pair.update(float(day), [tx(f"t{i}", 0.2 + 0.1 * i) for i in range(4)] if day == 1 else [])
    assert not pair.counts("account", "a").any()
    pair.update(9.0, [tx("u", 8.5)], [says("fraud", "u", 8.6)])
    assert pair.counts("account", "a")[:, -1] == pytest.approx([1.0, 1.0])
    pair.update(10.0, verdicts=[says("fraud", "t0", 9.5), says("fraud", "t1", 9.5)])
    frauds, everything = pair.counts("account", "a")
    assert frauds == pytest.approx(everything)  # three frauds, and nothing that was counted besides
    pair.check()


def test_the_last_moment_of_a_day_is_of_its_last_hour(population_model):
    pair = BufferPair(population_model)
    rows = as_rows(population_model, [tx("t", 0.9999999)])
    rows.inputs[:, input_names(population_model.settings.declared).index("at_hour")] = 24.0  # as rounding makes it
    pair.own.see(rows)
    pair.own.hear([says("fraud", "t", 1.0)])
    pair.own.advance(1.0)
    assert pair.own.law[1]._counts[0, 23] == 1.0


@given(st.floats(-1e9, 1e12), st.sampled_from([0.1, 0.7, 1.0, 24.0, 3600.0, 86400.0]))
def test_a_lesson_comes_after_the_moment(time, every):
    moment = Schedule(every, 0.0).first_after(time)
    assert time < moment <= time + every * (1 + 1e-9) + abs(time) * 1e-12
