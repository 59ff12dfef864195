import csv
import gzip
import io
import json
import lzma
import os
import sys
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.sources.csv import csv_records, quote_of
from replay.sources.files import Reading, read_transactions
from replay.sources.simulator.population import PATTERNS, simulate
from replay.sources.source import FileSource
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal, Schema, Transaction

ROWS = [
    {"account": "a", "time": 1, "amount": 2.5, "category": "food", "merchant": "m", "id": "x"},
    {"account": "b", "time": 2, "amount": 3.0, "category": "fuel", "merchant": "n", "id": "y"},
]
EXPECTED = [Transaction("a", 1.0, 2.5, "food", "m", "x"), Transaction("b", 2.0, 3.0, "fuel", "n", "y")]
CSV = "account,time,amount,category,merchant,id\na,1,2.5,food,m,x\nb,2,3,fuel,n,y\n"
LINES = "".join(json.dumps(r) + "\n" for r in ROWS)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.xz", "t.jsonl", "t.jsonl.gz", "t.parquet"])
def test_every_format_gives_the_same(tmp_path, name):
    path = tmp_path / name
    text = (CSV if ".csv" in name else LINES).encode()
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
        with opener(path, "wb") as file:
            file.write(text)
    assert list(read_transactions(path)) == EXPECTED


def test_banksim_as_published(tmp_path):
    path = tmp_path / "bs.csv"
    path.write_bytes(
        b"step,customer,age,gender,zipcodeOri,merchant,zipMerchant,category,amount,fraud\r\n"
        b"0,'C1','4','M','28007','M3','28007','es_food',4.55,0\r\n"
    )
    assert list(read_transactions(path)) == [Transaction("C1", 0.0, 4.55, "es_food", "M3", "2")]


def test_bad_rows_are_refused_by_line_and_good_ones_kept(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(CSV + "c,3,oops,fuel,n,z\nd,4\n\ne,5,1,fuel,n,w\n")
    rows = list(read_transactions(path))
    assert [r.account for r in rows if isinstance(r, Transaction)] == ["a", "b", "e"]
    refused = [r for r in rows if isinstance(r, Refusal)]
    assert [(r.position, r.field) for r in refused] == [("4", "amount"), ("5", None)]
    assert "2 values, the header 6" in refused[1].reason


def test_bad_json_lines(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(LINES + "{oops\n[1]\n")
    assert [isinstance(r, Refusal) for r in read_transactions(path)] == [False, False, True, True]


def test_a_file_without_ids_is_numbered(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("account,time,amount,merchant\na,1,2,m\n")
    assert list(read_transactions(path)) == [Transaction("a", 1.0, 2.0, "", "m", "2")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", b"x", "unknown format"),
        ("t.csv.xz", b"not xz", "cannot be read"),
        ("t.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-12], "cannot be read"),
        ("t.parquet", b"PAR1 but no", "cannot be read"),
        ("t.csv", b"who,time,amount\na,1,2\n", "no column named account, merchant: it has who, time, amount"),
    ],
)
def test_unreadable_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(StreamCcsdError, match=message):
        list(read_transactions(path))


def test_damage_stays_in_its_row(tmp_path):
    """Another encoding, a field of a megabyte, a byte order mark: the other rows are read."""
    path = tmp_path / "t.csv"
    huge = b"f" * 1_000_000
    path.write_bytes(
        b"\xef\xbb\xbf"
        + CSV.encode()
        + b"c,3,1,fuel,caf\xe9,z\n"
        + b"d,4,1,fuel,"
        + huge
        + b",w\n"
        + b"e,5,1,fuel,n,v\n"
    )
    rows = list(read_transactions(path))
    assert [r.account for r in rows if isinstance(r, Transaction)] == ["a", "b", "e"]
    assert [r.position for r in rows if isinstance(r, Refusal)] == ["4", "5"]


def test_missing_fields_of_json_lines_are_refused_by_line(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"who": "a"}\n' + LINES)
    refusal, *good = read_transactions(path, Schema())
    assert "column 'account' is missing" in refusal.reason
    assert good == EXPECTED


def test_the_simulator_is_seeded_ordered_and_has_every_pattern():
    stream = simulate(accounts=150, days=60, seed=4)
    assert stream.transactions == simulate(accounts=150, days=60, seed=4).transactions
    assert stream.transactions != simulate(accounts=150, days=60, seed=5).transactions
    times = [t.time for t in stream.transactions]
    assert times == sorted(times)
    assert len({t.id for t in stream.transactions}) == len(times)
    assert set(stream.fraud.values()) == set(PATTERNS)


def accounts(path, **options):
    return [r.account if isinstance(r, Transaction) else None for r in read_transactions(path, **options)]


GOOD = "".join(f"g{i},{i},1,fuel,n,z{i}\n" for i in range(4))


def test_a_quote_that_never_closes_swallows_nothing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(CSV + 'c,3,1,"fuel,n,z\n' + GOOD + 'd,4,1,""fuel,n,w\n' + "e,5,1,fuel,n,v\n")
    rows = list(Reading(path).rows())
    assert [r.values and r.values["account"] for r in rows] == ["a", "b", None, "g0", "g1", "g2", "g3", "d", "e"]
    assert [(r.line, r.raw) for r in rows if r.problem] == [("4", 'c,3,1,"fuel,n,z')]


def test_what_a_standard_reader_reads_whole_is_not_reopened(tmp_path):
    """A quote that closes lines later: one record, of the wrong width, and the rows behind it are read."""
    path = tmp_path / "t.csv"
    path.write_text(CSV + 'c,3,1,"fuel,n,z\n' + GOOD + 'd,4,1,fuel,n",w,w\n' + "e,5,1,fuel,n,v\n")
    rows = list(Reading(path).rows())
    found = [(r.line, r.values["account"] if r.values and r.values["account"] != "c" else None) for r in rows]
    assert found == [("2", "a"), ("3", "b"), ("4", None), ("10", "e")]
    assert rows[2].raw.count("\n") == 5


def test_a_quoted_field_makes_no_transaction(tmp_path):
    path = tmp_path / "t.csv"
    memo = '"forwarded:\nvictim,0,99999,c,m,evil0,x\nend"'
    path.write_text(f"account,time,amount,category,merchant,id,memo\na,1,2,c,m,x,{memo}\nb,2,3,c,m,y,\n")
    assert [(t.account, t.id) for t in read_transactions(path)] == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("lines", [3_000, 30_000], ids=["beyond a field's size", "beyond a record's size"])
def test_a_record_beyond_all_bounds_is_one_dead_letter(tmp_path, lines, closes):
    path = tmp_path / "t.csv"
    inner = "".join(f"victim,0,99999,c,m,{i:08},{'x' * 30}\n" for i in range(lines))
    end = 'the end"\n' if closes else ""
    path.write_text('account,time,amount,category,merchant,id,memo\na,1,2,c,m,x,"' + inner + end + "b,2,3,c,m,y,\n")
    rows = list(read_transactions(path))
    assert (rows[0].position, rows[0].value[:9]) == ("2", "a,1,2,c,m")
    assert [type(r) for r in rows] == [Refusal, *[Transaction] * (1 if closes else lines)]
    assert rows[-1].account == "b"


def standard(text):
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]


def closes(text):
    return standard(text + "\nx")[-1] == ["x"]


QUOTED = st.lists(st.sampled_from(["a", "b,", ",", '"', '""', '"a"', ',"', '",', "\n", "\r\n", "\r"]), max_size=25)


@settings(max_examples=500)
@given(text=QUOTED.map("".join), limit=st.sampled_from([1, 4, 131_072]))
def test_records_are_those_of_the_standard_reader(text, limit):
    """Without values where a field is beyond the limit; a quote that never closes takes nothing behind its line."""
    usual = csv.field_size_limit(limit)
    try:
        found = list(csv_records(lambda: closing(io.StringIO(text, newline=""))))
    finally:
        csv.field_size_limit(usual)
    expected = standard(text)
    if not closes(text):
        (stray,) = [r for r in found if r.problem == "a quoted field that never closes"]
        lines = list(io.StringIO(text, newline=""))
        begin = stray.line - 1
        # The quote stands in the first line with which the record has all the fields it will ever have.
        fields = [len(standard("".join(lines[begin:k]))[-1]) for k in range(begin + 1, len(lines) + 1)]
        end = begin + 1 + fields.index(fields[-1])
        before, own, after = ("".join(lines[i:j]) for i, j in ((0, begin), (begin, end), (end, None)))
        assert standard(before) == expected[:-1]
        assert closes(before)
        assert not closes(own)
        assert closes(after)
        expected = [*standard(before), None, *standard(after)]
    expected = [None if row is None or any(len(value) > limit for value in row) else row for row in expected]
    assert [r.values if r.problem is None else None for r in found] == expected


def test_a_field_may_run_over_lines(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(CSV + 'c,3,1,fuel,n,"z\nz"\ne,5,1,fuel,n,v\n')
    row = list(read_transactions(path))[2]  # a line break cannot be printed, so the id is refused; nothing else is
    assert (row.field, row.position) == ("id", "4")
    assert accounts(path) == ["a", "b", None, "e"]


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        # BankSim with a damaged first row: its field closes in the second one.
        ("0,'C0','M1','x\n", "0,'C1','M3','es_food',4.55\n" * 3, ["C1"] * 2),
        ("0,O'Neill,O'Hara's,food,1\n", '0,"Smith, John",M3,food,4.55\n', ["O'Neill", "Smith, John"]),
    ],
)
def test_how_fields_are_quoted_is_not_the_first_rows_secret(tmp_path, first, later, expected):
    path = tmp_path / "t.csv"
    path.write_text("\nstep,customer,merchant,category,amount\n" + first + later)
    assert [a for a in accounts(path) if a] == expected


@pytest.mark.parametrize(
    ("sample", "quote"),
    [
        ("0,'C1','M1','food, drink',4.5,'it''s'\n" * 3, "'"),
        ("0,'C1','M1','two\nlines',4.5,''\ngarbage\n0,'C2','M1','x',1e-3,''\n", "'"),
        ("0,C1,M1,food,4.5,'x'\n" * 50, '"'),  # who writes one column decides nothing
        ('0,C1,M1,food,4.5,"forwarded:\n' + "0,'C1','M1','food',4.5,'x'\n" * 50, '"'),
        ("0,'C1','M1','food\n\"x,\"y',4.5,'x'\n" * 9, "'"),
        ("", '"'),
    ],
)
def test_apostrophes_quote_only_where_that_is_evident(sample, quote):
    assert quote_of("step,customer,merchant,category,amount,memo\n" + sample) == quote


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("account,time,amount,merchant," + "x" * 200_000, "first line is no header"),
        ('account,time,"amount,merchant', "first line is no header"),
        ("account,time,amount,merchant,time", "two columns named time"),
        (",".join(f"c{i}" for i in range(20_000)), "no column named account, time, amount, merchant: it has c0, c1"),
    ],
)
def test_a_header_that_is_none(tmp_path, header, message):
    path = tmp_path / "t.csv"
    path.write_text(header + "\na,1,2,m,x\n" + "," * 19_999 + "\n")
    with pytest.raises(StreamCcsdError, match=message) as raised:
        list(read_transactions(path))
    assert len(str(raised.value)) < 1000


def test_a_header_may_be_quoted_and_run_over_lines(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('"account","time","amount","mer\nchant",,\na,1,2,m,,\n')
    schema = Schema(merchant="mer\nchant", category=None, id=None)
    assert list(read_transactions(path, schema)) == [Transaction("a", 1.0, 2.0, "", "m", "3")]


def test_two_columns_of_one_name_elsewhere(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(LINES + '{"account": "a", "time": 1, "amount": 2, "merchant": "m", "amount": 3}\n')
    assert "the name amount stands there twice" in list(read_transactions(path))[-1].reason
    table = pa.table([["a"], [1], [2], ["m"], [3]], names=["account", "time", "amount", "merchant", "amount"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(StreamCcsdError, match="two columns named amount"):
        list(read_transactions(tmp_path / "t.parquet"))


MOMENTS = {
    "date32": (pa.array([1], pa.date32()), 86_400.0),
    "date64": (pa.array([86_400_000], pa.date64()), 86_400.0),
    "s": (pa.array([7], pa.timestamp("s")), 7.0),
    "ms": (pa.array([7_250], pa.timestamp("ms", "Asia/Tokyo")), 7.25),
    "us": (pa.array([1_546_300_800_123_457], pa.timestamp("us")), 1_546_300_800.123457),
    "ns": (pa.array([1_546_300_800_123_457_000], pa.timestamp("ns")), 1_546_300_800.123457),
    "finer than Python": (pa.array([1_546_300_800_123_456_789], pa.timestamp("ns", "UTC")), 1_546_300_800.123457),
    "beyond 9999": (pa.array([10**12], pa.timestamp("s")), 1e12),
    "a date beyond 9999": (pa.array([10**8], pa.date32()), 8.64e12),
    "before 1970": (pa.array([-1_500], pa.timestamp("ms")), -1.5),
}


@pytest.mark.parametrize("pandas", [True, False])
@pytest.mark.parametrize("kind", MOMENTS)
def test_moments_of_parquet(tmp_path, monkeypatch, kind, pandas):
    times, expected = MOMENTS[kind]
    if not pandas:
        monkeypatch.setitem(sys.modules, "pandas", None)
    pq.write_table(
        pa.table({"account": ["a"], "time": times, "amount": [1.0], "merchant": ["m"]}), tmp_path / "t.parquet"
    )
    assert [t.time for t in read_transactions(tmp_path / "t.parquet")] == [expected]


def test_a_value_that_python_cannot_hold_stays_in_its_row(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.Table.from_pylist(ROWS)
    broken = pa.Array.from_buffers(pa.string(), 2, [*pa.array(["m", "n"]).buffers()[:2], pa.py_buffer(b"m\xff")])
    pq.write_table(table.append_column("note", broken), path)
    assert list(read_transactions(path)) == EXPECTED
    assert [row.values["note"] for row in Reading(path).rows()] == ["m", "a value that cannot be read"]


@pytest.mark.parametrize(
    "name", ["gone.csv", "folder.csv", "pipe.csv", "zero\0byte.csv", "none.csv/t.csv", "x" * 300 + ".csv"]
)
@pytest.mark.parametrize("ask", [lambda s: list(s.items()), FileSource.fingerprint])
def test_what_is_no_file_is_said(tmp_path, name, ask):
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "none.csv").touch()
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(StreamCcsdError, match=r"there is no file|is a folder|is a pipe|cannot be read"):
        ask(FileSource(tmp_path / name))


def test_an_empty_parquet_file_is_said_to_be_empty(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS)[:0], path)
    with pytest.raises(StreamCcsdError, match="holds no transaction"):
        list(read_transactions(path))
    path.write_bytes(b"")
    with pytest.raises(StreamCcsdError, match="cannot be read"):
        list(read_transactions(path))


def test_lines_of_json_are_read_by_their_own_fields(tmp_path):
    path = tmp_path / "t.jsonl"
    bare = {"account": "z", "time": 0, "amount": 1.0, "merchant": "m"}
    path.write_text(json.dumps(bare) + "\n" + LINES)
    assert list(read_transactions(path)) == [Transaction("z", 0.0, 1.0, "", "m", "1"), *EXPECTED]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", (CSV * 3).encode("utf-16")[:-1]),
        (
            "t.csv.gz",
            gzip.compress(CSV.encode() * 99, mtime=0)[:60]
            + b"\xff" * 9
            + gzip.compress(CSV.encode() * 99, mtime=0)[69:],
        ),
    ],
)
def test_damage_below_the_text_is_explained(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(StreamCcsdError, match="cannot be read"):
        list(read_transactions(path))
