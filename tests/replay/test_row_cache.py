"""Rows that are written again and again: the same in the file as if each had been looked up and replaced by itself."""

import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from replay.state.file import RowCache
from replay.state.schema import COLUMNS, STATE, make_tables, row_checksum

NAMES = st.sampled_from("abcdefgh")
CHANGES = st.one_of(
    st.tuples(st.just("put"), st.dictionaries(NAMES, st.binary(max_size=5))),
    st.tuples(st.just("remove"), st.sets(NAMES)),
    st.tuples(st.just("get"), NAMES),
    st.tuples(st.just("forget"), st.none()),
)


@given(st.lists(CHANGES, max_size=20), st.integers(1, 6))
def test_rows_are_what_was_put_last_however_few_are_kept(changes, most):
    with closing(sqlite3.connect(":memory:")) as connection:
        make_tables(connection, STATE)
        kept, expected, total = RowCache(Path("s.db"), connection, "states", most), {}, 0
        for what, given_ in changes:
            if what == "put":
                total += kept.put(given_.items())
                expected |= given_
            elif what == "remove":
                total += kept.remove(given_)
                expected = {name: value for name, value in expected.items() if name not in given_}
            elif what == "get":
                assert kept.get(given_) == ((given_, expected[given_]) if given_ in expected else None)
            else:
                kept.forget()
        rows = connection.execute(f"SELECT checksum, {COLUMNS['states']} FROM states").fetchall()
        assert sorted(row[1:] for row in rows) == sorted(expected.items())
        assert all(row[0] == row_checksum(*row[1:]) for row in rows)
        assert total == sum(row[0] for row in rows)
        found = kept.get_all("abcdefgh")
        assert found == {name: (name, expected[name]) if name in expected else None for name in "abcdefgh"}


def test_many_rows_are_read_at_once():
    with closing(sqlite3.connect(":memory:")) as connection:
        make_tables(connection, STATE)
        rows = {f"account {i}": b"%d" % i for i in range(1234)}
        RowCache(Path("s.db"), connection, "states", 5000).put(rows.items())
        questions = []
        connection.set_trace_callback(questions.append)
        fresh = RowCache(Path("s.db"), connection, "states", 5000)
        assert fresh.get_all(rows) == {name: (name, state) for name, state in rows.items()}
        assert len(questions) == 3
        assert fresh.get_all(rows)["account 7"] == ("account 7", b"7")
        assert len(questions) == 3


VALUES = st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.binary())


@given(st.lists(VALUES))
def test_the_checksum_of_a_row_is_the_chain_over_its_values(values):
    checksum = 0
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        checksum = zlib.crc32(data, zlib.crc32(b"%d:" % len(data), checksum))
    assert row_checksum(*values) == checksum
