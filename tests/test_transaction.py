import json
import math
from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.model.codes import Codes
from stream_ccsd.transaction import Refusal, Schema, Transaction, TransactionError, identity

GOOD = {"account": "a", "time": 1, "amount": 2.5, "category": "food", "merchant": "m", "id": "x"}
TRANSACTION = Transaction("a", 1.0, 2.5, "food", "m", "x")


def test_every_source_gives_the_same_transaction():
    schema = Schema()
    text = {k: str(v) for k, v in GOOD.items()}
    assert schema.parse({**GOOD, "fraud": 1}) == TRANSACTION
    assert schema.parse_row(list(text), list(text.values())) == TRANSACTION
    assert schema.parse_json(json.dumps(GOOD).encode()) == TRANSACTION
    assert list(schema.parse_arrow(pa.table({k: [v] for k, v in GOOD.items()}))) == [TRANSACTION]


def test_numbers_of_other_libraries_and_empty_categories():
    record = {**GOOD, "time": np.int64(1), "amount": Decimal("2.50"), "category": None, "account": np.int32(7)}
    assert Schema().parse(record) == Transaction("7", 1.0, 2.5, "", "m", "x")
    assert Schema().parse({**GOOD, "amount": np.float32(2.5)}).amount == 2.5


def test_mapped_columns_absent_category_and_numbered_ids():
    schema = Schema(account="user", time="at", amount="value", category=None, merchant="shop", id=None)
    record = {"user": 17, "at": "2026-01-02T03:04:05Z", "value": "9", "shop": 4}
    assert schema.parse(record, position="12") == Transaction(
        "17", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp(), 9.0, "", "4", "12"
    )


@pytest.mark.parametrize("moment", ["2026-01-02T05:04:05+02:00", "2026-01-01T22:04:05-05:00"])
def test_the_zone_of_a_time_counts(moment):
    meant = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    assert Schema().parse({**GOOD, "time": moment}).time == meant
    assert Schema().parse({**GOOD, "time": datetime.fromisoformat(moment)}).time == meant


@pytest.mark.parametrize("moment", ["2026-01-02 03:04:05", "2026-01-02T03:04:05+00:00", datetime(2026, 1, 2, 3, 4, 5)])
def test_times_without_a_zone_are_utc(moment):
    assert Schema().parse({**GOOD, "time": moment}).time == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"amount": math.nan}, "amount", "finite"),
        ({"amount": "inf"}, "amount", "finite"),
        ({"amount": -1}, "amount", "negative"),
        ({"amount": "twelve"}, "amount", "number"),
        ({"amount": "1_000"}, "amount", "finite"),
        ({"amount": True}, "amount", "number"),
        ({"amount": None}, "amount", "number"),
        ({"amount": 10**400}, "amount", "finite"),
        ({"amount": 1e300}, "amount", "2**53"),
        ({"account": ""}, "account", "empty"),
        ({"account": None}, "account", "text"),
        ({"account": 1.5}, "account", "text"),
        ({"account": 10**5000}, "account", "text"),
        ({"merchant": "x" * 10_000_000}, "merchant", "at most 256"),
        ({"merchant": "a\nb"}, "merchant", "printed"),
        ({"category": ["food"]}, "category", "text"),
        ({"time": "yesterday-ish"}, "time", "ISO 8601"),
        ({"time": math.inf}, "time", "finite"),
        ({"id": ""}, "id", "empty"),
    ],
)
def test_refusals_name_field_value_and_expectation(change, field, expected):
    with pytest.raises(TransactionError, match="at row 9") as caught:
        Schema().parse({**GOOD, **change}, position="row 9")
    refusal = caught.value.refusal
    assert refusal.field == field
    assert expected in refusal.reason
    assert len(str(refusal)) < 300


@pytest.mark.parametrize("field", list(GOOD))
def test_a_missing_column_is_named(field):
    record = {k: v for k, v in GOOD.items() if k != field}
    with pytest.raises(TransactionError, match=f"column '{field}' is missing"):
        Schema().parse(record)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"null", b'{"account": "a"', b"\xff\xfe", b"[" * 100_000, None])
def test_bad_json(raw):
    with pytest.raises(TransactionError):
        Schema().parse_json(raw)


def test_a_bad_row_leaves_its_neighbours_alone():
    table = pa.table({**{k: [v, v, v] for k, v in GOOD.items()}, "amount": [1.0, None, 3.0]})
    first, second, third = Schema().parse_arrow(table, first_position=100)
    assert (first.amount, third.amount) == (1.0, 3.0)
    assert isinstance(second, Refusal)
    assert second.position == "101"


def test_arrow_without_a_column_says_what_there_is():
    with pytest.raises(StreamCcsdError, match="no column named merchant: the data has account"):
        list(
            Schema().parse_arrow(
                pa.table({"account": ["a"], "time": [1], "amount": [1.0], "category": [""], "id": ["1"]})
            )
        )


def test_row_of_another_length():
    with pytest.raises(TransactionError, match="the row has 2 values, the header 6"):
        Schema().parse_row(list(GOOD), ["a", "b"])


@pytest.mark.parametrize("columns", [{"account": "x", "merchant": "x"}, {"account": ""}])
def test_refuses_schemas(columns):
    with pytest.raises(StreamCcsdError):
        Schema(**columns)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries(dict.fromkeys(GOOD, anything)))
def test_anything_is_parsed_or_refused(record):
    try:
        transaction = Schema().parse(record)
    except TransactionError as error:
        refusal = error.refusal
        transaction = None
    if transaction is None:
        assert refusal.field in GOOD
        return
    assert math.isfinite(transaction.amount)
    assert transaction.amount >= 0
    assert math.isfinite(transaction.time)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(raw):
    with pytest.raises(TransactionError):
        Schema().parse_json(raw)


def test_codes_do_not_depend_on_the_process():
    """State and models outlive processes: these numbers must never change."""
    assert (Codes({})("es_food"), Codes({})(""), identity("t0")) == (1029172818, 634351890, 14656211879191480286)


@pytest.mark.parametrize("text", ["0" * 300 + "_1", "0" * 300 + " ", "1" + "0" * 300, "0" * 300 + "x"])
def test_a_long_number_is_looked_at_to_its_end(text):
    row = {"account": "a", "time": "1", "amount": text, "category": "c", "merchant": "m", "id": "i"}
    with pytest.raises(TransactionError, match="amount"):
        Schema().parse(row)
    assert Schema().parse({**row, "amount": "0" * 300 + "7"}).amount == 7.0
