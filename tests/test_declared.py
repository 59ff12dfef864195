"""Fields that the user declares, from the declaration through the engine to the account's state."""

import time
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd.account import ANSWERS, NAMED, AccountCodec
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fields import MAX_FIELDS, TERMS, Field, FieldError, declared
from stream_ccsd.fitting import FitError, fit
from stream_ccsd.model.model import Model
from stream_ccsd.settings import Settings, SettingsError
from stream_ccsd.transaction import Refusal, Schema, Transaction, TransactionError
from tests.conftest import SMALL
from tests.evidence.test_terms import some

FIELDS = ("country:category", "distance:number")
BOTH = replace(SMALL, fields=FIELDS, divergence=False)


@pytest.fixture(scope="module")
def normal():
    rng = np.random.default_rng(0)
    return [t for a in range(8) for t in some(rng, f"a{a}", 40)]


@pytest.fixture(scope="module")
def small_model(normal):
    return fit(normal, BOTH)


@pytest.fixture(scope="module")
def events():
    return some(np.random.default_rng(9), "new", 30)


# --- declarations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["country", "country:", ":category", "country:text", "a b:number", "1st:number", "x" * 65 + ":number", 7, None]
    + [f"{name}:number" for name in ("amount", "Account", "evidence", "label", "fused", *TERMS, "country_own")],
)
def test_what_is_no_declaration(text):
    with pytest.raises(FieldError):
        declared([text])
    with pytest.raises(SettingsError, match="fields: "):
        Settings(fields=(text,))


@pytest.mark.parametrize("texts", ["country:category", 7, ["a:number", "a:category"]])
def test_what_are_no_declarations(texts):
    with pytest.raises(SettingsError, match="fields: "):
        Settings(fields=texts)


def test_so_many_and_no_more():
    texts = [f"f{i}:number" for i in range(MAX_FIELDS + 1)]
    assert len(Settings(fields=tuple(texts[1:])).declared) == MAX_FIELDS
    with pytest.raises(FieldError, match=f"at most {MAX_FIELDS}"):
        declared(texts)


def test_their_order_is_not_looked_at():
    assert Settings(fields=FIELDS) == Settings(fields=FIELDS[::-1]) == Settings(fields=list(FIELDS))
    assert Settings.from_dict(Settings(fields=FIELDS).to_dict()) == Settings(fields=FIELDS)


# --- records ---------------------------------------------------------------------------------------------------

GOOD = {"account": "a", "time": 1, "amount": 2.5, "category": "food", "merchant": "m", "id": "x"}
SCHEMA = Schema(fields=declared(FIELDS), renamed={"distance": "km"})


@pytest.mark.parametrize(
    ("record", "values"),
    [
        ({"country": "ES", "km": 3}, ("ES", 3.0)),
        ({"country": "ES", "km": "3.5", "distance": "not looked at"}, ("ES", 3.5)),
        ({}, ("", None)),
        ({"country": None, "km": None}, ("", None)),
        ({"country": "", "km": ""}, ("", None)),
        ({"country": float("nan"), "km": float("nan")}, ("", None)),
        ({"country": 34, "km": -1e-9}, ("34", -1e-9)),
        ({"country": 34.0, "km": 0}, ("34", 0.0)),
        ({"country": True, "km": 2**53}, ("true", 2.0**53)),
        ({"country": 3.5, "km": Decimal("2.50")}, ("3.5", 2.5)),
        ({"country": Decimal("34.00"), "km": Decimal("NaN")}, ("34", None)),
        ({"country": Decimal("sNaN"), "km": Decimal("sNaN")}, ("", None)),
        ({"country": "x" * 256, "km": "1e3"}, ("x" * 256, 1000.0)),
    ],
)
def test_values_of_records(record, values):
    assert SCHEMA.parse({**GOOD, **record}).fields == dict(zip(("country", "distance"), values, strict=True))


@pytest.mark.parametrize(
    ("record", "field", "expected"),
    [
        ({"km": "far"}, "distance", "finite number"),
        ({"km": "nan"}, "distance", "finite number"),
        ({"km": float("inf")}, "distance", "finite number"),
        ({"km": 1e300}, "distance", "2**53"),
        ({"km": True}, "distance", "number"),
        ({"km": [3]}, "distance", "number"),
        ({"country": "x" * 10_000_000}, "country", "at most 256"),
        ({"country": "E\nS"}, "country", "printed"),
        ({"country": {"code": "ES"}}, "country", "text"),
        ({"country": float("inf")}, "country", "text"),
        ({"country": Decimal("Infinity")}, "country", "text"),
        ({"country": Decimal("1E+999999")}, "country", "text"),
        ({"country": np.zeros(2)}, "country", "text"),
        ({"km": np.zeros(2)}, "distance", "number"),
    ],
)
def test_values_that_are_refused(record, field, expected):
    with pytest.raises(TransactionError, match="at row 9") as caught:
        SCHEMA.parse({**GOOD, **record}, position="row 9")
    assert caught.value.refusal.field == field
    assert expected in caught.value.refusal.reason
    assert len(str(caught.value)) < 300


def test_a_field_that_is_renamed_must_be_declared():
    with pytest.raises(StreamCcsdError, match=r"no field is called device: there are .*country"):
        Schema(fields=declared(FIELDS), renamed={"device": "dev"})
    with pytest.raises(StreamCcsdError, match="two fields are mapped to one column"):
        Schema(fields=declared(FIELDS), renamed={"country": "amount"})


def test_bad_values_in_a_table_leave_their_neighbours_alone():
    import pyarrow as pa

    columns = {name: [value] * 3 for name, value in GOOD.items()}
    table = pa.table({**columns, "country": ["ES", None, "FR"], "km": ["1", "far", None]})
    first, second, third = SCHEMA.parse_arrow(table)
    assert first.fields == {"country": "ES", "distance": 1.0}
    assert isinstance(second, Refusal)
    assert second.field == "distance"
    assert third.fields == {"country": "FR", "distance": None}


# --- fit -------------------------------------------------------------------------------------------------------


def test_no_order_changes_a_bit_of_the_model(normal, small_model):
    """Of fields, accounts, or transactions of different accounts."""
    rng = np.random.default_rng(4)
    shuffled = [normal[i] for i in rng.permutation(len(normal))]
    shuffled.sort(key=lambda t: t.time)
    turned = [replace(t, fields=dict(reversed(t.fields.items()))) for t in normal[::-1]]
    for transactions in (shuffled, turned):
        again = fit(transactions, replace(BOTH, fields=FIELDS[::-1]))
        assert again.version == small_model.version
        assert again.fingerprint == small_model.fingerprint
        for one, other in zip(again.laws, small_model.laws, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_is_not_declared_is_not_looked_at(normal, small_model, events):
    more = [replace(t, fields={**t.fields, "label": "fraud", "extra": float(i)}) for i, t in enumerate(normal)]
    assert fit(more, BOTH).version == small_model.version
    noisy = [replace(t, fields={**t.fields, "unheard of": "x" * 10_000}) for t in events]
    for a, b in zip(Engine(small_model).process_many(noisy), Engine(small_model).process_many(events), strict=True):
        assert (a.scores, a.terms, a.score) == (b.scores, b.terms, b.score)


def test_a_missing_value_is_missing_however_it_is_written(normal, small_model, events):
    def without(t):
        return {name: value for name, value in t.fields.items() if value not in (None, "")}

    assert fit([replace(t, fields=without(t)) for t in normal], BOTH).version == small_model.version
    bare = Engine(small_model).process_many([replace(t, fields=without(t)) for t in events])
    assert [r.terms for r in bare] == [r.terms for r in Engine(small_model).process_many(events)]


@pytest.mark.parametrize("fields", [{"country": 7.0}, {"distance": "far"}, {"distance": float("nan")}, None])
def test_a_fit_refuses_values_of_another_kind(normal, fields):
    bad = replace(normal[0], fields=fields)
    with pytest.raises(FitError, match=f"'{bad.id}' of account '{bad.account}'"):
        fit([bad, *normal[1:]], BOTH)


def test_fields_that_tell_nothing_say_nothing(normal):
    """A value of its own for each transaction, one value for all, and none at all; numbers alike."""
    fields = ("unique:category", "constant:category", "absent:category", "level:number", "nowhere:number")
    rows = [replace(t, fields={"unique": f"u{i}", "constant": "always", "level": 7.0}) for i, t in enumerate(normal)]
    model = fit(rows, replace(BOTH, fields=fields))
    plain = fit([replace(t, fields={}) for t in normal], replace(BOTH, fields=()))
    changed = {"unique": "u0", "constant": "another", "absent": "there", "level": -1e9, "nowhere": 5.0}
    for event in (rows[3], replace(rows[3], id="x", fields=changed)):
        result = Engine(model).process(event)
        own = [name for name in result.terms if name.removesuffix("_own") in {f.split(":")[0] for f in fields}]
        assert {name: result.terms[name] for name in own} == dict.fromkeys(own, 0.0)
        assert len(own) == 8
        assert result.evidence == pytest.approx(Engine(plain).process(replace(event, fields={})).evidence, abs=1e-12)


def test_fields_that_tell_something_say_it(small_model):
    event = some(np.random.default_rng(5), "one", 1)[0]
    usual, strange = (
        Engine(small_model).process(replace(event, fields={"country": country, "distance": distance})).terms
        for country, distance in (("DE", 20.0), ("XX", 1e9))
    )
    assert strange["country"] > usual["country"]
    assert strange["distance"] > usual["distance"]


def test_a_category_with_very_many_values(normal):
    """A hundred thousand of them, each seen once or never: time and memory stay what they are."""
    rng = np.random.default_rng(0)
    many = [
        Transaction(f"a{i % 50}", float(i // 50), float(a), "k", "m", str(i), {"session": f"s{i}"})
        for i, a in enumerate(rng.exponential(30, 100_000).round(2))
    ]
    begin = time.monotonic()
    model = fit(many, replace(SMALL, fields=("session:category",), divergence=False))
    assert time.monotonic() - begin < 60
    engine = Engine(model)
    strangers = [Transaction("new", float(i), 5.0, "k", "m", str(i), {"session": f"new{i}"}) for i in range(20_000)]
    results = engine.process_many(strangers)
    assert {r.terms["session"] for r in results} == {0.0}
    assert len(engine.states["new"]) <= AccountCodec(*model.state_sizes).largest


def test_a_column_that_appears_half_way(normal):
    """Fitted without it: when it comes, nothing becomes an alarm. Fitted with half of it: it is known."""
    bare = [replace(t, fields={}) for t in normal]
    model = fit(bare, BOTH)
    results = Engine(model).process_many([*bare[:20], *(replace(t, id=f"n{t.id}") for t in normal[20:40])])
    assert {(r.terms["country"], r.terms["distance"]) for r in results} == {(0.0, 0.0)}
    half = [replace(t, fields={}) if t.time < 20 else t for t in normal]
    results = Engine(fit(half, BOTH)).process_many(some(np.random.default_rng(5), "new", 30))
    assert np.isfinite([r.evidence for r in results]).all()
    assert any(r.terms["country"] for r in results)


def test_a_number_that_only_one_fold_has(normal):
    """Then the other folds' densities have never seen one: rates are finite all the same."""
    rows = [replace(t, fields={"distance": float(i)} if t.account == "a0" else {}) for i, t in enumerate(normal)]
    model = fit(rows, BOTH)
    assert np.isfinite(model.tails["evidence"].knots).all()
    result = Engine(model).process(replace(normal[0], account="new", fields={"distance": 3.0}))
    assert np.isfinite([*result.terms.values(), result.score]).all()


# --- engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"country": 7.0},
        {"distance": "far"},
        {"distance": float("nan")},
        {"distance": float("inf")},
        {"distance": 1e300},
        {"country": ["ES"]},
        {"country": b"ES"},
        None,
        [],
        "country",
        7,
    ],
)
def test_bad_fields_are_refused_and_their_neighbours_go_on(small_model, events, fields):
    engine = Engine(small_model)
    first, bad, last = engine.process_many([events[0], replace(events[1], fields=fields), events[2]])
    assert (first.status, bad.status, last.status) == ("scored", "refused", "scored")
    assert bad.reason.startswith(tuple(fields) if isinstance(fields, dict) else "fields")
    alone = Engine(small_model).process_many([events[0], events[2]])
    assert [first, last] == alone


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_same_bits_whatever_the_batch(population_model, stream, size, tmp_path):
    """One at a time, in batches, and with model and states thrown away in between: with fields and hours."""
    events = stream.transactions
    expected = Engine(population_model).process_many(events)
    assert any(r.alert for r in expected)
    assert any(r.terms["device_own"] > 0 for r in expected)
    population_model.save(tmp_path / "model")
    engine, found = Engine(population_model), []
    for number, start in enumerate(range(0, len(events), size)):
        if number % 50 == 49:
            states = {account: bytes(bytearray(state)) for account, state in engine.states.items()}
            engine = Engine(Model.load(tmp_path / "model") if size > 1 else population_model, states)
        found += engine.process_many(events[start : start + size])
    assert found == expected


def test_terms_add_up_to_the_evidence(population_model, stream):
    for r in Engine(population_model).process_many(stream.transactions):
        assert sum(r.terms.values()) == pytest.approx(r.evidence, abs=1e-9)
        assert r.takeover >= 0


def test_a_duplicate_repeats_its_answer_and_its_alert_to_the_letter(population_model, stream):
    engine, repeated = Engine(population_model, threshold=3.0), 0
    for transaction in stream.transactions:
        first = engine.process(transaction)
        before = dict(engine.states) if first.alert else None
        if first.alert:
            again = engine.process(transaction)
            assert again.status == "duplicate"
            assert (again.scores, again.rarities, again.score) == (first.scores, first.rarities, first.score)
            assert again.alert == first.alert
            assert again.terms is None
            assert engine.states == before
            repeated += 1
    assert repeated > 20


def test_an_alert_that_another_one_followed_is_repeated_without_its_reasons(population_model, stream):
    """One background an account is kept: what was said before is said again, but not why."""
    engine = Engine(population_model, threshold=0.0)
    event = replace(stream.transactions[0], account="new", amount=400.0)
    first = engine.process(event).alert
    assert engine.process(replace(event, id="more", amount=9e6, merchant="never")).alert
    again = engine.process(event).alert
    assert [r.text for r in again.reasons] == ["raised before: its reasons were given the first time"]
    assert again.reasons[0].nats == first.scores["evidence"]
    assert again.headline.startswith("new: ")
    assert replace(again, reasons=first.reasons, neighbours=first.neighbours, densities=first.densities) == first


@pytest.mark.parametrize("change", [{"fields": {"country": "XX"}}, {"amount": 1.0}, {"merchant": "other"}])
def test_a_known_id_with_another_content_says_so(small_model, events, change):
    engine = Engine(small_model)
    events = [replace(t, fields={"country": "ES"}) for t in events[: ANSWERS + 3]]
    engine.process_many(events)
    for event in events[-ANSWERS:]:
        assert engine.process(event).reason is None
        other = engine.process(replace(event, **change))
        assert other.status == "duplicate"
        assert "another transaction had this id" in other.reason
        assert other.alert is None


def test_the_takeover_is_part_of_the_state(population_model, stream):
    """It goes on where it was, through bytes; another account's does not touch it."""
    results = Engine(population_model).process_many(stream.transactions)
    highest = int(np.argmax([r.takeover for r in results]))
    assert results[highest].takeover > 1
    engine = Engine(population_model)
    newest = {r.transaction.account: r for r in engine.process_many(stream.transactions[: highest + 1])}
    codec = AccountCodec(*population_model.state_sizes)
    slab = codec.slab(1)
    for account, result in newest.items():
        codec.unpack(engine.states[account], slab, 0)
        assert slab.records[0]["takeover"] == result.takeover
        assert (slab.records[0]["run"] > 0) == (result.takeover > 0)


def test_states_of_other_declarations_are_refused_by_name(small_model, normal, events):
    engine = Engine(small_model)
    engine.process(events[0])
    other = Engine(fit(normal, replace(BOTH, fields=())), dict(engine.states))
    result = other.process(events[1])
    assert result.status == "damaged state"
    assert "1 declared categories" in result.reason


# --- state -----------------------------------------------------------------------------------------------------


def test_what_a_state_costs():
    plain = AccountCodec(50, 120)
    assert plain.largest <= 4096
    for named in (1, 5, MAX_FIELDS):
        assert AccountCodec(50, 120, named).largest - plain.largest <= 4 * named * plain.longest_history
    assert Settings(fields=("x:number",)).declared == (Field("x", "number"),)


def test_numbers_cost_an_account_nothing(normal, events):
    sizes = [
        len(state)
        for fields in ((), ("distance:number",))
        for state in _states(fit(normal, replace(BOTH, fields=fields)), events)
    ]
    assert len(set(sizes)) == 1


def _states(model, events):
    engine = Engine(model)
    engine.process_many(events)
    return engine.states.values()


@settings(max_examples=40)
@given(st.integers(0, 3), st.integers(2, 60), st.integers(1, 120), st.integers(0, 400), st.integers(0, 99))
def test_states_with_declared_categories_come_back(named, window, local_history, count, seed):
    codec = AccountCodec(window, local_history, named)
    rng, slab = np.random.default_rng(seed), codec.slab(2)
    raw = slab.records.view(np.uint8).reshape(2, -1)
    raw[1] = rng.integers(0, 256, raw.shape[1])
    held = min(count, codec.longest_history)
    slab.records["held"][1], slab.records["count"][1] = held, count
    slab.named[1] = rng.integers(0, 2**32, slab.named.shape[1:])
    slab.views[1] = rng.random(named)
    slab.named[0], slab.views[0] = 7, 7.0
    data = codec.pack(slab, 1)
    assert len(data) <= codec.largest
    codec.unpack(data, slab, 0)
    assert codec.pack(slab, 0) == data
    kept = min(held, NAMED)
    np.testing.assert_array_equal(slab.named[0, :, :kept], slab.named[1, :, :kept])
    np.testing.assert_array_equal(slab.views[0], slab.views[1])
    assert not slab.named[0, :, kept:].any()
    codec.clear(slab, 0)
    assert not slab.named[0].any()
    assert not slab.views[0].any()
