"""The state file under attack: old remains, flipped bytes, a file taken away, an input that is not what it was."""

import os
import random
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from replay.run.loop import replay_stream
from replay.run.output import OutputFiles
from replay.run.recording import export
from replay.run.session import Session
from replay.sources.source import FileSource, ListSource, SortedSource
from replay.state import schema
from replay.state.file import StateFile
from replay.state.schema import DamageError
from stream_ccsd.calendar import Calendar
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.stores import Totals

FILES = ("scores.parquet", "alerts.jsonl", "dead_letters.jsonl")
FACTS = {"model": "m", "threshold": 3.0, "source": "s", "calendar": Calendar().to_dict()}


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


class StopAfter:
    """Asks to stop after some looks."""

    def __init__(self, looks):
        self.left = looks

    def __call__(self):
        self.left -= 1
        return self.left < 0


def go_on(path, source, model, out, stop=lambda: False, batch=40):
    """What a durable session does, without its report; from a new file, or from where the file stopped."""
    with closing(StateFile.open(path) if path.exists() else StateFile.create(path, FACTS)) as file:
        engine = Engine(model, file.states, 3.0)
        replay_stream(source, engine, file.record, after=file.reached, stop=stop, batch=batch)
        export(file.records, out)
    return contents(out)


@pytest.fixture(scope="module")
def some(stream, tmp_path_factory):
    """A small file with every kind of output: alerts at a low threshold, and a few dead letters."""
    path = tmp_path_factory.mktemp("some") / "some.csv"
    rows = ["account,time,amount,category,merchant,id"]
    for number, t in enumerate(stream.transactions[:240]):
        rows.append(f"{t.account},{t.time!r},{t.amount!r},{t.category},{t.merchant},{t.id}")
        if number % 60 == 59:
            rows.append(rows[-1] if number % 120 == 59 else "a row cut short")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_what_is_left_of_an_old_file_is_not_part_of_a_new_one(some, model, tmp_path):
    """As SIGKILL leaves it (tests/replay/test_survival.py sends one): the pages are in the WAL, the file is removed."""
    path = tmp_path / "s.db"
    file = StateFile.create(path, FACTS)
    replay_stream(FileSource(some), Engine(model, file.states, 3.0), file.record, batch=40)
    wal = Path(f"{path}-wal").read_bytes()
    file.close()
    path.unlink()
    left = [tmp_path / f"s.db{end}" for end in ("-wal", "-shm", "-journal", ".new", ".new-journal")]
    for old in left:
        old.write_bytes(wal)
    with closing(StateFile.create(path, FACTS)) as new:
        assert new.position == 0
        assert new.records.totals() == Totals(0, 0, 0, 0, 0, 0)
    assert not any(p.read_bytes() == wal for p in left if p.exists())
    Path(f"{path}-wal").touch()
    with pytest.raises(StreamCcsdError, match=r"exists: go on with --resume.*all of it: s\.db, s\.db-wal\)"):
        StateFile.create(path, FACTS)


def test_a_flipped_byte_is_an_error_or_changes_nothing(some, model, tmp_path):
    path = tmp_path / "s.db"
    whole = go_on(tmp_path / "whole.db", FileSource(some), model, tmp_path / "whole")
    half = go_on(path, FileSource(some), model, tmp_path / "half", StopAfter(130))
    assert all(half[name] for name in FILES)
    assert half != whole
    good, chance, refused = path.read_bytes(), random.Random(5), 0
    for turn in range(500):
        damaged = bytearray(good)
        # Every tenth in the header and the first page, where most of what SQLite believes without asking is.
        damaged[chance.randrange(4096 if turn % 10 == 0 else len(good))] ^= chance.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            if turn % 5:
                with closing(StateFile.open(path, read_only=True)) as file:
                    export(file.records, tmp_path / "out")
                assert contents(tmp_path / "out") == half, turn
            else:
                assert go_on(path, FileSource(some), model, tmp_path / "out") == whole, turn
        except StreamCcsdError:
            refused += 1
    assert refused > 200  # the other bytes are room that nothing is in


def test_rows_that_vanish_or_are_of_another_time_are_noticed(some, model, tmp_path):
    path = tmp_path / "s.db"
    go_on(path, FileSource(some), model, tmp_path / "out", StopAfter(130))
    early = path.read_bytes()
    with closing(sqlite3.connect(path)) as old:
        stale = old.execute("SELECT account, checksum, state FROM states").fetchall()
    go_on(path, FileSource(some), model, tmp_path / "out")
    good = path.read_bytes()
    assert early != good
    for table in ("alerts", "dead_letters", "scores", "accounts", "states", "timeline"):
        with closing(sqlite3.connect(path)) as connection, connection:
            assert connection.execute(f"DELETE FROM {table} WHERE rowid = (SELECT min(rowid) FROM {table})").rowcount
        with pytest.raises(DamageError, match="rows are missing"):
            StateFile.open(path)
        path.write_bytes(good)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", stale)
    with pytest.raises(DamageError, match="another time"):
        StateFile.open(path)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_a_file_taken_away_ends_the_replay(some, model, tmp_path, replaced, last):
    path = tmp_path / "s.db"

    def take_away(clock, batch_output):
        if path.exists() and (not last or batch_output.reached.position == 244):
            path.unlink()
            if replaced:
                path.write_bytes(b"another")

    with pytest.raises(StreamCcsdError, match="was deleted or replaced"):
        Session(FileSource(some), model, tmp_path, path).run(progress=take_away, batch=40)


def test_resume_notices_what_changed_in_what_was_read(model, stream_file, tmp_path):
    data, state = tmp_path / "data.csv", tmp_path / "s.db"
    good = stream_file.read_bytes()
    lines = good.splitlines(keepends=True)
    assert len(good) > 100_000
    data.write_bytes(good)
    reached = 0

    def stop():
        return reached > 2000

    def progress(clock, batch_output):
        nonlocal reached
        reached = batch_output.reached.position

    Session(FileSource(data), model, tmp_path, state).run(stop=stop, progress=progress, batch=500)
    kept = state.read_bytes()
    assert 2000 < reached < len(lines) - 100
    far = b"".join(lines[: reached - 5])
    assert len(far) > 1 << 16
    for content, message in (
        (far + lines[reached - 5].replace(b",", b";", 1) + b"".join(lines[reached - 4 :]), "has changed within"),
        (far + b"\n" + b"".join(lines[reached - 5 :]), "has changed within"),  # lines, and so ids, have moved
        (far, "is shorter than it was"),
    ):
        data.write_bytes(content)
        with pytest.raises(StreamCcsdError, match=message):
            Session(FileSource(data), model, tmp_path, state, resume=True).run()
        assert state.read_bytes() == kept
    data.write_bytes(good + lines[-1].replace(b"T", b"U"))  # grown, and changed in what was not read
    assert Session(FileSource(data), model, tmp_path, state, resume=True).run()["complete"]


def test_another_way_in_is_another_source(some, model, stream, tmp_path):
    file, listed = FileSource(some), ListSource("x", stream.transactions[:50])
    sources = {"file": file, "sorted": SortedSource(file), "list": listed}
    for name, source in sources.items():
        Session(source, model, tmp_path / "out", tmp_path / name).run(stop=StopAfter(20), batch=10)
        for other in sources.values():
            if other is not source:
                with pytest.raises(StreamCcsdError, match="another source"):
                    Session(other, model, tmp_path / "out", tmp_path / name, resume=True).run()


@pytest.mark.parametrize("order", [FileSource, lambda path: SortedSource(FileSource(path))])
def test_a_last_line_that_is_not_whole_is_read_again(some, model, tmp_path, order):
    text = some.read_text()
    whole = go_on(tmp_path / "whole.db", order(some), model, tmp_path / "whole")
    path, data = tmp_path / "s.db", tmp_path / "some.csv"
    ends = [text.index("\n", 3000), len(text) - 1]
    for cut in (ends[0] - 20, ends[0] - 20, ends[0], ends[1] - 12, len(text), len(text)):
        data.write_text(text[:cut])
        os.utime(data, (0, 0))  # nobody is writing to it
        found = go_on(path, order(data), model, tmp_path / "out")
        rows = pq.read_table(tmp_path / "out" / "scores.parquet").num_rows
        dead = len(found["dead_letters.jsonl"].splitlines())
        assert rows + dead == len(text[:cut].splitlines()) - 1
    assert found == whole


@pytest.mark.parametrize(
    ("order", "later"),
    [
        (FileSource, "b,2,m,1234\n"),  # 12 was not all of the amount
        (lambda path: SortedSource(FileSource(path)), "b,2,m,12\nc,0,m,5\n"),  # its place is before what was read
    ],
)
def test_what_cannot_be_gone_on_with_is_said(model, tmp_path, order, later):
    data, begin = tmp_path / "d.csv", "account,time,merchant,amount\na,1,m,2\n"
    data.write_text(begin + "b,2,m,12")
    os.utime(data, (0, 0))
    go_on(tmp_path / "s.db", order(data), model, tmp_path / "out")
    data.write_text(begin + later)
    with pytest.raises(StreamCcsdError, match="has changed within the 2 records"):
        go_on(tmp_path / "s.db", order(data), model, tmp_path / "out")


def test_a_quoted_field_that_is_still_open_at_the_end_is_read_again(model, tmp_path):
    path, data = tmp_path / "s.db", tmp_path / "d.csv"
    text = 'account,time,amount,merchant,memo\na,1,2,m,x\nb,2,3,m,"two\nlines"\n'
    for cut in (text.index("lines"), len(text)):
        data.write_text(text[:cut])
        os.utime(data, (0, 0))
        found = go_on(path, FileSource(data), model, tmp_path / "out")
    assert not found["dead_letters.jsonl"]
    assert pq.read_table(tmp_path / "out" / "scores.parquet")["account"].to_pylist() == ["a", "b"]


@pytest.mark.parametrize(
    ("now", "later"),
    [("b,x,2,12", "34,m\n"), ('b,"forwarded:\nvictim,x,0,99999,m\n', 'end",2,1234,m\n')],
    ids=["line", "quoted field"],
)
def test_what_is_being_written_is_waited_for(tmp_path, now, later):
    data = tmp_path / "d.csv"
    data.write_text("account,memo,time,amount,merchant\na,,1,2,m\n" + now)

    def write_on():
        with data.open("a") as file:
            file.write(later)

    writer = threading.Timer(0.3, write_on)
    writer.start()
    assert [item.parsed.amount for item in FileSource(data).items()] == [2.0, 1234.0]
    writer.join()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "folder", "pipe", "loop", "gone/s.db", "file/s.db", "/proc/s.db"])
def test_a_state_that_cannot_be_is_said(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(p.name for p in tmp_path.iterdir())
    for make in (StateFile.open, lambda path: StateFile.create(path, FACTS)):
        with pytest.raises(StreamCcsdError):
            make(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert (tmp_path / "pipe").is_fifo()


def test_a_link_to_a_state_is_followed(tmp_path):
    (tmp_path / "far").mkdir()
    link, target = tmp_path / "s.db", tmp_path / "far" / "real.db"
    link.symlink_to(target)
    Path(f"{target}-wal").write_bytes(b"old")
    StateFile.create(link, FACTS).close()
    assert link.is_symlink()
    assert target.stat().st_size > 0
    assert StateFile.open(target).facts == FACTS


def test_advice_goes_by_codes_not_by_words(tmp_path):
    path = tmp_path / "s.db"
    StateFile.create(path, FACTS).close()
    with closing(schema.connect(path)) as connection:
        with pytest.raises(DamageError), schema.explained(path):
            connection.execute("SELECT * FROM 'disk I/O full locked readonly'")
        connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(StreamCcsdError, match="the disk is full or failing"), schema.explained(path):
            connection.execute("CREATE TABLE more AS SELECT zeroblob(1000000)")
    with (
        closing(schema.connect(path, read_only=True)) as connection,
        pytest.raises(StreamCcsdError, match="may be written to"),
        schema.explained(path),
    ):
        connection.execute("DELETE FROM progress")
    with closing(sqlite3.connect(path)) as first, closing(sqlite3.connect(path, timeout=0)) as second:
        first.execute("BEGIN IMMEDIATE")
        with pytest.raises(StreamCcsdError, match="another process is writing"), schema.explained(path):
            second.execute("BEGIN IMMEDIATE")


def test_outputs_follow_links_and_write_to_pipes(some, model, tmp_path):
    whole = go_on(tmp_path / "s.db", FileSource(some), model, tmp_path / "whole")
    out, far = tmp_path / "out", tmp_path / "far.jsonl"
    out.mkdir()
    far.write_text("old")
    (out / "alerts.jsonl").symlink_to(far)
    taken = {}
    readers = []
    for name in ("dead_letters.jsonl", "scores.parquet"):
        os.mkfifo(out / name)
        read = threading.Thread(target=lambda name=name: taken.update({name: (out / name).read_bytes()}), daemon=True)
        read.start()
        readers.append(read)
    with closing(StateFile.open(tmp_path / "s.db", read_only=True)) as state:
        export(state.records, out)
    for read in readers:
        read.join(20)
    assert taken | {"alerts.jsonl": far.read_bytes()} == whole
    assert (out / "alerts.jsonl").is_symlink()
    assert all((out / name).is_fifo() for name in taken)


def test_outputs_are_whole_or_as_they_were(tmp_path):
    for name in FILES:
        (tmp_path / name).write_text("old")

    def break_off():
        with OutputFiles(tmp_path, "m", live=False) as files:
            files.add_lines(["new"], ["new"])
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        break_off()
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == dict.fromkeys(FILES, "old")
    (tmp_path / "scores.parquet").unlink()
    (tmp_path / "scores.parquet").mkdir()
    with pytest.raises(StreamCcsdError, match="cannot write"):
        OutputFiles(tmp_path, "m", live=False).close()
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(FILES)
    with pytest.raises(StreamCcsdError, match="cannot write"):
        OutputFiles(tmp_path / "zero\0byte", "m")


def test_a_pipe_nobody_reads_any_more_is_said(some, model, tmp_path):
    os.mkfifo(tmp_path / "alerts.jsonl")
    threading.Thread(target=lambda: (tmp_path / "alerts.jsonl").open("rb").close(), daemon=True).start()
    with pytest.raises(StreamCcsdError, match="cannot write to"):
        Session(FileSource(some), model, tmp_path, threshold=0.0).run(batch=40)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alerts.jsonl", "dead_letters.jsonl"]


def test_scores_of_nothing_have_their_columns(model, tmp_path):
    StateFile.create(tmp_path / "s.db", FACTS).close()
    with closing(StateFile.open(tmp_path / "s.db")) as state:
        export(state.records, tmp_path)
    found = pq.read_table(tmp_path / "scores.parquet")
    assert found.num_rows == 0
    assert {str(kind) for kind in found.schema.types} == {"int64", "string", "double", "bool", "list<element: float>"}
