"""Readers know one rule: whatever the bytes are, they give items, or an error that says what is wrong."""

import gzip
import json
import lzma
import os
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay.run.recording import export
from replay.sources.source import START, FileSource, Item, SortedSource, Wanted
from replay.state.file import StateFile
from stream_ccsd.errors import StreamCcsdError

QUICK = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
ROWS = [
    {"account": "a", "time": 1, "amount": 2.5, "category": "food", "merchant": "m", "id": "x", "fraud": 0},
    {"account": "b", "time": 2, "amount": 3.0, "category": "fu,el", "merchant": "n", "id": "y", "fraud": 1},
] * 9
CSV = ",".join(ROWS[0]) + "\n" + "".join(",".join(f'"{value}"' for value in row.values()) + "\n" for row in ROWS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A good file of every format."""
    path = tmp_path_factory.mktemp("good") / "t.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return {
        "t.csv": CSV.encode(),
        "t.csv.gz": gzip.compress(CSV.encode()),
        "t.jsonl": LINES.encode(),
        "t.ndjson.xz": lzma.compress(LINES.encode()),
        "t.parquet": path.read_bytes(),
    }


NAMES = st.sampled_from(["t.csv", "t.csv.gz", "t.jsonl", "t.ndjson.xz", "t.parquet"])
# Parts that readers look for, and any bytes.
MARKS = [b'"', b"'", b",", b"\n", b"\r", b"\0", b"{", b"}", b"[", b"\xff\xfe", b"\xef\xbb\xbf", b"1e999", b"NaN"]
LINE = b'{"account": "a", "time": 1, "amount": 1, "merchant": "m"}\n'
PARTS = st.one_of(
    st.sampled_from(MARKS), st.sampled_from([b"account,time,amount,merchant\n", LINE]), st.binary(max_size=12)
)
# What is cut out where, and what is put there.
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), PARTS), min_size=1, max_size=6)
ENCODINGS = st.sampled_from([None, None, "utf-8", "utf-16", "latin-1", "utf-7", "base64", "undefined", "a\0b", "idna"])


def changed(content, changes):
    for share, length, part in changes:
        place = int(share * len(content))
        content = content[:place] + part + content[place + length :]
    return content


def read(path, encoding=None, **options):
    os.utime(path, (0, 0))  # nobody is writing to it: do not wait for more
    source = FileSource(path, label="fraud", encoding=encoding, **options)
    for wrapped in (source, SortedSource(source)):
        try:
            wrapped.matches(wrapped.fingerprint())
            found = list(wrapped.items())
            assert all(isinstance(item, Item) for item in found)
            for item in found:
                assert isinstance(item.raw, str)
                item.label.encode()
            places = [START, *(item.reached for item in found)]
            # Read again from the middle, it is the same; a place that was never there is refused.
            middle = places[len(places) // 2]
            again = list(wrapped.items(middle))
            assert again == [item for item in found if item.position > middle.position]
        except StreamCcsdError:
            pass


@QUICK
@given(name=NAMES, content=st.lists(PARTS, max_size=30).map(b"".join), encoding=ENCODINGS)
def test_any_bytes(tmp_path, name, content, encoding):
    path = tmp_path / name
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    for written in (content, packed(content)):
        path.write_bytes(written)
        read(path, encoding)


@QUICK
@given(name=NAMES, changes=CHANGES, encoding=ENCODINGS)
def test_good_files_with_damage(good, tmp_path, name, changes, encoding):
    path = tmp_path / name
    path.write_bytes(changed(good[name], changes))
    read(path, encoding)
    read(path, wanted=Wanted(start=1.5, accounts=frozenset({"b"})))


FACTS = {"model": "m", "source": "s", "threshold": 1.0, "calendar": {"unit": "number", "origin": None}}


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "s.db"
    StateFile.create(path, FACTS).close()
    return path.read_bytes()


@QUICK
@given(content=st.one_of(st.binary(max_size=300), CHANGES), wal=st.binary(max_size=64), read_only=st.booleans())
def test_state_files_of_any_bytes(state, tmp_path, content, wal, read_only):
    path = tmp_path / "s.db"
    for name in ("s.db-wal", "s.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else changed(state, content))
    if wal:
        (tmp_path / "s.db-wal").write_bytes(wal)
    try:
        with closing(StateFile.open(path, read_only)) as opened:
            assert opened.facts == FACTS
            export(opened.records, tmp_path / "out")
    except StreamCcsdError:
        pass
