import gzip
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from replay.files import read_transactions
from replay.simulator import PATTERNS, simulate
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
        ("t.csv.gz", gzip.compress(CSV.encode())[:-12], "cannot be read"),
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


def test_stray_quotes_swallow_no_good_row(tmp_path):
    path = tmp_path / "t.csv"
    good = "".join(f"g{i},{i},1,fuel,n,z{i}\n" for i in range(4))
    path.write_text(CSV + 'c,3,1,"fuel,n,z\n' + good + 'd,4,1,fuel,n",w,w\n' + "e,5,1,fuel,n,v\n")
    found = accounts(path)
    assert [a for a in found if a] == ["a", "b", "g0", "g1", "g2", "g3", "e"]
    assert found.count(None) == 2


def test_a_field_may_run_over_lines(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(CSV + 'c,3,1,fuel,n,"z\nz"\ne,5,1,fuel,n,v\n')
    row = list(read_transactions(path))[2]  # a line break cannot be printed, so the id is refused; nothing else is
    assert (row.field, row.position) == ("id", "4")
    assert accounts(path) == ["a", "b", None, "e"]


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        ("0,'C0','M1','x\n", "0,'C1','M3','es_food',4.55\n" * 3, ["C1"] * 3),  # BankSim with a damaged first row
        ("0,O'Neill,O'Hara's,food,1\n", '0,"Smith, John",M3,food,4.55\n', ["O'Neill", "Smith, John"]),
    ],
)
def test_how_fields_are_quoted_is_not_the_first_rows_secret(tmp_path, first, later, expected):
    path = tmp_path / "t.csv"
    path.write_text("\nstep,customer,merchant,category,amount\n" + first + later)
    assert [a for a in accounts(path) if a] == expected


def test_lines_of_json_are_read_by_their_own_fields(tmp_path):
    path = tmp_path / "t.jsonl"
    bare = {"account": "z", "time": 0, "amount": 1.0, "merchant": "m"}
    path.write_text(json.dumps(bare) + "\n" + LINES)
    assert list(read_transactions(path)) == [Transaction("z", 0.0, 1.0, "", "m", "1"), *EXPECTED]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", (CSV * 3).encode("utf-16")[:-1]),
        ("t.csv.gz", gzip.compress(CSV.encode() * 99)[:60] + b"\xff" * 9 + gzip.compress(CSV.encode() * 99)[69:]),
    ],
)
def test_damage_below_the_text_is_explained(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(StreamCcsdError, match="cannot be read"):
        list(read_transactions(path))
