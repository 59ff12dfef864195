"""Messages are read and written by compiled code: what they say is what Python's own JSON says, to the bit."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stream_ccsd.engine import Engine
from stream_ccsd.fields import Field
from stream_ccsd.kafka.codec import TransactionReader, score_messages
from stream_ccsd.learning.learner import listening
from stream_ccsd.records import Origin, score_record
from stream_ccsd.transaction import Schema, TransactionError

RECORD = SimpleNamespace(topic="t", partition=3, offset=7, timestamp=1000, key=b"C1", value=b"")
GOOD = b'{"account":"C1","time":1,"amount":2.5,"category":"c","merchant":"m","id":"x","country":"es","age":7}'
DECLARED = (Field("country", "category"), Field("age", "number"))
# All of the message is asked for; some of it; and under other names, one of which has to be escaped in JSON.
SCHEMAS = [
    Schema(fields=DECLARED),
    Schema(),
    Schema(category=None, id=None),
    Schema(category="country", merchant="category", fields=DECLARED[1:], renamed={"age": "x"}),
    Schema(merchant='"', fields=DECLARED),
]
READERS = [(schema, TransactionReader(schema)) for schema in SCHEMAS]

texts = st.text(st.characters(exclude_categories=[]), max_size=8)  # with halves of surrogate pairs
numbers = st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from([2**63, -(2**63) - 1, 2**64, 2**53, 10**4000])
values = st.recursive(texts | numbers | st.booleans() | st.none(), lambda v: st.lists(v, max_size=2), max_leaves=3)
records = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("account", "time", "amount", "category", "merchant", "id", "country", "age", "x"), values),
)


def said(read, raw, position):
    """The transaction, or what is wrong with it."""
    try:
        return repr(read(raw, position))
    except TransactionError as error:
        return error.refusal


def same(raw):
    for schema, reader in READERS:
        assert said(reader.read, raw, lambda: "t/3/7") == said(schema.parse_json, raw, "t/3/7")


@given(changes=records, escaped=st.booleans())
def test_any_values_are_read_as_ever(changes, escaped):
    record = {**json.loads(GOOD), **changes}
    same(json.dumps(record, ensure_ascii=escaped).encode("utf-8", "surrogatepass"))


@given(at=st.integers(0, len(GOOD)), cut=st.integers(0, 6), put=st.binary(max_size=6))
@example(at=0, cut=0, put=b"\xef\xbb\xbf")
@example(at=8, cut=0, put=b"\x00")
def test_any_bytes_are_read_as_ever(at, cut, put):
    same(GOOD[:at] + put + GOOD[at + cut :])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        GOOD.decode().encode("utf-16"),
        GOOD.decode().encode("utf-32-le"),
        GOOD + b" ",
        GOOD + b"{}",
        GOOD.replace(b"2.5", b"NaN"),
        GOOD.replace(b"2.5", b"-Infinity"),
        GOOD.replace(b"2.5", b"1e400"),
        GOOD.replace(b"2.5", b"-0"),
        GOOD.replace(b"2.5", b"-0.0"),
        GOOD.replace(b"2.5", b"01"),
        GOOD.replace(b"2.5", b"2.50000000000000000000000000000000000000000001"),
        GOOD.replace(b'"es"', b"-9223372036854775809"),
        GOOD.replace(b'"es"', b"18446744073709551616"),
        GOOD.replace(b'"C1"', b"-9223372036854775809"),
        GOOD.replace(b'"x"', b'"x","id":"y"'),
        GOOD.replace(b'"x"', b'"x","more":' + b"1" * 5000),
        GOOD.replace(b'"x"', b'"x","more":' + b"[" * 1010 + b"]" * 1010),
        GOOD.replace(b'"x"', b'"x","more":' + b"[" * 100_000),
        GOOD.replace(b'"x"', rb'"\ud800"'),
        GOOD.replace(b'"x"', rb'"x","more":"\ud800"'),
        GOOD.replace(b'"x"', b'"x","more":"\xed\xa0\x80"'),
        GOOD.replace(b'"x"', b'"x","more":"\xff"'),
        GOOD.replace(b'"x"', b'"\t"'),
    ],
)
def test_what_is_odd_is_read_as_ever(raw):
    same(raw)


@pytest.mark.parametrize("kind", ["plain", "declared", "learning"])
def test_scores_are_written_to_the_bit(model, population_model, stream, kind):
    chosen = {"plain": model, "declared": population_model, "learning": listening(model)}[kind]
    results = Engine(chosen).process_many(stream.transactions[:2000])
    odd = replace(results[0], transaction=replace(results[0].transaction, merchant='a\n"é\u2028', category=""))
    entered = [result for result in (odd, *results) if result.entered]
    places = [SimpleNamespace(partition=3, offset=i, timestamp=1000 + i) for i in range(len(entered))]
    messages = score_messages(places, entered)
    for place, result, message in zip(places, entered, messages, strict=True):
        record = score_record(Origin(place.offset, 3, place.timestamp), result)
        assert json.loads(message) == json.loads(json.dumps(record))
        assert list(json.loads(message)) == list(record)
    assert score_messages([], []) == []


@given(score=st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_is_written_to_the_bit(model, stream, score):
    result = replace(Engine(model).process(stream.transactions[0]), score=score, maximum=-score)
    read = json.loads(score_messages([RECORD], [result])[0])
    assert (repr(read["score"]), repr(read["maximum"])) == (repr(score), repr(-score))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_never_written(model, stream, number):
    result = Engine(model).process(stream.transactions[0])
    wrongs = [replace(result, score=number), replace(result, scores={**result.scores, "evidence": number})]
    wrongs.append(replace(result, term_values=result.term_values + number))
    wrongs.append(replace(result, inputs=np.array([1.0, number])))
    for wrong in wrongs:
        with pytest.raises(ValueError, match="JSON compliant"):
            score_messages([RECORD, RECORD], [result, wrong])
