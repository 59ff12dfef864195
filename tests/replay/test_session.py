import json
import sqlite3
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline.fraud.data import LabelledData, load_labelled
from offline.fraud.stream import score_stream
from replay.explain import Explanation
from replay.run.session import Session
from replay.sources.source import START, FileSource, ListSource, Pace, SortedSource, Wanted
from replay.state.file import StateFile
from replay.state.statistics import RunStatistics
from stream_ccsd.errors import StreamCcsdError
from tests.conftest import scores_at, with_settings

FILES = ("scores.parquet", "alerts.jsonl", "dead_letters.jsonl", "drift.jsonl")


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(model, stream_file, tmp_path_factory):
    """An uninterrupted replay in memory: its outputs and its summary."""
    out = tmp_path_factory.mktemp("whole")
    summary = Session(FileSource(stream_file, label="pattern"), model, out).run()
    return contents(out), summary


def test_every_record_is_scored_or_a_dead_letter(whole, stream, stream_file, tmp_path):
    files, summary = whole
    (tmp_path / "s.parquet").write_bytes(files["scores.parquet"])
    scores = pq.read_table(tmp_path / "s.parquet")
    dead = [json.loads(line) for line in files["dead_letters.jsonl"].splitlines()]
    lines = stream_file.read_text().splitlines()
    assert scores["id"].to_pylist() == [t.id for t in stream.transactions]
    assert len(scores) + len(dead) == len(lines) - 1
    assert {d["kind"] for d in dead} == {"malformed", "duplicate", "too late"}
    for letter in dead:
        assert letter["raw"] == lines[int(letter["line"]) - 1]
    positions = sorted([*scores["position"].to_pylist(), *(d["position"] for d in dead)])
    assert positions == list(range(1, len(lines)))
    assert summary["transactions"] == len(scores)
    assert summary["alerts"] == sum(scores["alert"].to_pylist()) == len(files["alerts.jsonl"].splitlines())
    assert summary["dead_letters"] == len(dead)
    assert scores.schema.metadata[b"model"].decode() == summary["model"]


def test_scores_are_those_of_the_evaluation_to_the_bit(whole, model, stream, tmp_path):
    (tmp_path / "s.parquet").write_bytes(whole[0]["scores.parquet"])
    scores = pq.read_table(tmp_path / "s.parquet")
    data = LabelledData("stream", stream.transactions, np.zeros(len(stream.transactions), bool), 0, "")
    offline = score_stream(model, data, np.arange(len(stream.transactions)))
    for name in ("evidence", "takeover", "divergence"):
        np.testing.assert_array_equal(scores[name].to_numpy(zero_copy_only=False), offline.scores[name])
    np.testing.assert_array_equal(scores["score"].to_numpy(), offline.scores["alert"])
    assert np.flatnonzero(scores["alert"].to_numpy()).tolist() == sorted(offline.alerts)


@pytest.mark.parametrize(("batch", "lines"), [(1, 700), (13, 3000), (10_000, None)])
def test_a_state_file_changes_nothing(model, stream_file, tmp_path, batch, lines):
    """In small batches only the first lines: each batch is a transaction of the database."""
    file = tmp_path / "first.csv"
    file.write_text("".join(stream_file.read_text().splitlines(keepends=True)[:lines]))
    source = FileSource(file, label="pattern")
    straight = Session(source, model, tmp_path / "straight").run()
    summary = Session(source, model, tmp_path / "out", tmp_path / "state.db").run(batch=batch)
    assert contents(tmp_path / "out") == contents(tmp_path / "straight")
    timed = {"outputs", "state", "events_per_s", "scoring_share", "latency_p50_ms", "latency_p99_ms"}
    assert {k: v for k, v in summary.items() if k not in timed} == {k: v for k, v in straight.items() if k not in timed}


class StopAfter:
    """Asks to stop after some looks."""

    def __init__(self, looks):
        self.left = looks

    def __call__(self):
        self.left -= 1
        return self.left < 0


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stops=st.lists(st.integers(1, 300), max_size=4), batch=st.sampled_from([17, 200, 2000]))
def test_stopped_anywhere_and_resumed_is_the_same(whole, model, stream_file, tmp_path_factory, stops, batch):
    folder = tmp_path_factory.mktemp("resumed")
    for turn, looks in enumerate([*stops, None]):
        session = Session(FileSource(stream_file, label="pattern"), model, folder, folder / "state.db", resume=turn > 0)
        summary = session.run(batch=batch, **({} if looks is None else {"stop": StopAfter(looks)}))
    assert summary["complete"]
    assert contents(folder) == whole[0]
    for name in ("transactions", "alerts", "caught_accounts", "false_accounts", "patterns"):
        assert summary[name] == whole[1][name]


class FailingDisk:
    """A recorder's batch that breaks off half-way, like a process that dies."""

    def __init__(self, record, after):
        self.record, self.left = record, after

    def __call__(self, batch_output):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("gone")
        self.record(batch_output)


def test_a_batch_is_recorded_whole_or_not_at_all(whole, model, stream_file, tmp_path, monkeypatch):
    session = Session(FileSource(stream_file, label="pattern"), model, tmp_path, tmp_path / "s.db")
    real = StateFile.record
    left = FailingDisk(lambda h: None, 5)
    monkeypatch.setattr(StateFile, "record", lambda self, batch_output: (left(batch_output), real(self, batch_output)))
    with pytest.raises(RuntimeError, match="gone"):
        session.run(batch=100)
    monkeypatch.undo()
    state = StateFile.open(tmp_path / "s.db", read_only=True)
    assert state.position == 500  # five batches; the states of the sixth are not there
    assert sum(s.num_rows for s in state.records.score_batches()) + len(list(state.records.dead_letters())) == 500
    state.close()
    Session(FileSource(stream_file, label="pattern"), model, tmp_path, tmp_path / "s.db", resume=True).run()
    assert contents(tmp_path) == whole[0]


def test_two_replays_cannot_write_one_state(model, stream_file, tmp_path):
    path = tmp_path / "s.db"
    Session(FileSource(stream_file), model, tmp_path, path).run(stop=StopAfter(900), batch=50)
    real = StateFile.record

    def overtaken(self, batch_output):
        sqlite3.connect(path).execute("SELECT 1")
        self.reached = self.reached._replace(position=self.position + 1)  # as if the other one had gone further
        real(self, batch_output)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateFile, "record", overtaken)
        with pytest.raises(StreamCcsdError, match="another replay is writing"):
            Session(FileSource(stream_file), model, tmp_path, path, resume=True).run()


def test_resume_refuses_another_stream_or_model(model, stream, stream_file, tmp_path):
    path = tmp_path / "s.db"
    Session(FileSource(stream_file), model, tmp_path, path).run(stop=StopAfter(10))
    with pytest.raises(StreamCcsdError, match="exists: go on with --resume"):
        Session(FileSource(stream_file), model, tmp_path, path).run()
    with pytest.raises(StreamCcsdError, match="another source"):
        Session(ListSource("x", stream.transactions), model, tmp_path, path, resume=True).run()
    with pytest.raises(StreamCcsdError, match="another threshold"):
        Session(FileSource(stream_file), model, tmp_path, path, resume=True, threshold=1.0).run()
    with pytest.raises(StreamCcsdError, match="another model"):
        Session(FileSource(stream_file), with_settings(model, grace=2.0), tmp_path, path, resume=True).run()
    with pytest.raises(StreamCcsdError, match="no state file"):
        Session(FileSource(stream_file), model, tmp_path, tmp_path / "none.db", resume=True).run()


def test_a_damaged_state_is_refused_and_left_alone(whole, model, stream_file, tmp_path):
    path = tmp_path / "s.db"
    Session(FileSource(stream_file, label="pattern"), model, tmp_path, path).run(stop=StopAfter(1500), batch=50)
    good = path.read_bytes()
    damaged = bytearray(good)
    damaged[len(good) // 2 : len(good) // 2 + 6000] = b"\xff" * 6000
    for content in (bytes(damaged), b"not a database at all" * 9, good[:5000]):
        path.write_bytes(content)
        with pytest.raises(StreamCcsdError, match="damaged"):
            Session(FileSource(stream_file, label="pattern"), model, tmp_path, path, resume=True).run()
        assert path.read_bytes() == content
    path.write_bytes(good)
    Session(FileSource(stream_file, label="pattern"), model, tmp_path, path, resume=True).run()
    assert contents(tmp_path) == whole[0]


def test_another_database_is_not_taken_for_a_state(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE progress (position, facts)")
    with pytest.raises(StreamCcsdError, match="not a state file"):
        StateFile.open(path)


def test_alerts_can_be_read_while_a_replay_runs(model, source, tmp_path):
    path, seen = tmp_path / "s.db", []

    def look(clock, batch_output):
        reader = StateFile.open(path, read_only=True)
        seen.append(reader.records.totals().alerts)
        reader.close()

    summary = Session(source, model, tmp_path, path).run(progress=look, batch=300)
    assert seen == sorted(seen)
    assert seen[-1] == summary["alerts"] > 0


def test_a_filtered_replay_is_that_of_the_filtered_file(model, stream, stream_file, tmp_path):
    names = frozenset(sorted({t.account for t in stream.transactions})[:10])
    wanted = Wanted(start=10.0, until=40.0, accounts=names, without=frozenset(sorted(names)[:2]))
    kept = [t for t in stream.transactions if t in wanted]
    assert 0 < len(kept) < len(stream.transactions)
    Session(FileSource(stream_file, wanted=wanted), model, tmp_path / "a").run()
    Session(ListSource("x", kept), model, tmp_path / "b").run()
    a, b = (pq.read_table(tmp_path / n / "scores.parquet") for n in "ab")
    assert a.drop(["position", "label"]).equals(b.drop(["position", "label"]))


def test_from_is_included_and_until_is_not(stream):
    wanted, t = Wanted(start=10.0, until=40.0), stream.transactions[0]
    times = (9.75, 10.0, 39.75, 40.0)
    assert [replace(t, time=time) in wanted for time in times] == [False, True, True, False]


def test_a_source_that_breaks_off_loses_nothing_before_it(model, stream, tmp_path):
    class Broken(ListSource):
        def items(self, after=START):
            for item in super().items(after):
                if item.position > 120:
                    raise StreamCcsdError("the file ends inside a row")
                yield item

    with pytest.raises(StreamCcsdError, match="inside a row"):
        Session(Broken("x", stream.transactions), model, tmp_path / "o", tmp_path / "s.db").run()
    assert pq.read_table(tmp_path / "o" / "scores.parquet").num_rows == 120
    Session(ListSource("x", stream.transactions), model, tmp_path / "o", tmp_path / "s.db", resume=True).run()
    assert pq.read_table(tmp_path / "o" / "scores.parquet").num_rows == len(stream.transactions)


def test_explain_finds_what_the_engine_said(model, source, results, tmp_path):
    Session(source, model, tmp_path, tmp_path / "s.db").run()
    state = StateFile.open(tmp_path / "s.db", read_only=True)
    alerted = next(r for r in results if r.alert)
    found = Explanation.of(state.records, alerted.transaction.account)
    own = [r for r in results if r.transaction.account == found.account]
    assert [row["score"] for row in found.scores] == [r.score for r in own]
    assert [a["id"] for a in found.alerts] == [r.alert.id for r in own if r.alert]
    assert found.draw(tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(StreamCcsdError, match="most suspicious"):
        Explanation.of(state.records, "nobody")
    with pytest.raises(StreamCcsdError, match="name a file that ends in"):
        found.draw(tmp_path / "a.nonsense")
    state.close()


def test_pace():
    now = [0.0]
    slow = Pace(events=10.0, clock=lambda: now[0])
    assert [round(slow.delay(0.0), 3) for _ in range(3)] == [0.0, 0.1, 0.2]
    own = Pace(factor=2.0, clock=lambda: now[0])
    assert [own.delay(t) for t in (100.0, 101.0, 104.0)] == [0.0, 0.5, 2.0]
    now[0] = 5.0
    assert own.delay(104.0) == 0.0
    for text in ("fast", "0", "-1x", "x"):
        with pytest.raises(StreamCcsdError, match="none of: max"):
            Pace.parse(text)


def test_a_paced_replay_is_the_same(whole, model, stream_file, tmp_path):
    Session(FileSource(stream_file, label="pattern"), model, tmp_path).run(pace=Pace(events=20_000.0))
    assert contents(tmp_path) == whole[0]


def test_a_flipped_bit_in_a_stored_account_loses_no_transaction(whole, model, stream_file, tmp_path):
    path = tmp_path / "s.db"
    Session(FileSource(stream_file, label="pattern"), model, tmp_path, path).run(stop=StopAfter(1500), batch=50)
    good = path.read_bytes()
    for table, column in (("states", "state"), ("scores", "rows")):
        path.write_bytes(good)
        with sqlite3.connect(path) as damage:
            key, blob = damage.execute(f"SELECT rowid, {column} FROM {table} LIMIT 1").fetchone()
            flipped = bytes([*blob[:40], blob[40] ^ 1, *blob[41:]])
            damage.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (flipped, key))
        damage.close()
        damaged = path.read_bytes()
        with pytest.raises(StreamCcsdError, match="damaged"):
            Session(FileSource(stream_file, label="pattern"), model, tmp_path / "o", path, resume=True).run()
        assert path.read_bytes() == damaged
    path.write_bytes(good)
    Session(FileSource(stream_file, label="pattern"), model, tmp_path, path, resume=True).run()
    assert contents(tmp_path) == whole[0]


def test_a_fingerprint_knows_the_file_the_filter_and_the_label(stream_file, tmp_path):
    rows = stream_file.read_text().splitlines(keepends=True)
    short, other = tmp_path / "short.csv", tmp_path / "other.csv"
    short.write_text("".join(rows[:50]))
    other.write_text("".join(rows[:49]) + rows[60])
    mark = FileSource(short).fingerprint()
    assert FileSource(short).matches(mark)
    assert not FileSource(other).matches(mark)
    assert not FileSource(short, label="pattern").matches(mark)
    assert not FileSource(short, wanted=Wanted(until=3.0)).matches(mark)
    short.write_text("".join(rows))  # it has grown
    assert FileSource(short).matches(mark)


def test_sorted_by_time_nothing_is_late(model, stream, stream_file, tmp_path):
    rows = stream_file.read_text().splitlines(keepends=True)
    mixed = tmp_path / "mixed.csv"
    mixed.write_text(rows[0] + "".join(sorted(rows[1:], key=lambda row: row[-9:])))
    source = SortedSource(FileSource(mixed))
    summary = Session(source, model, tmp_path / "o", tmp_path / "s.db").run(stop=StopAfter(900), batch=100)
    assert source.matches(source.fingerprint())
    summary = Session(source, model, tmp_path / "o", tmp_path / "s.db", resume=True).run()
    assert "too late" not in summary["dead_letters_by_reason"]
    times = pq.read_table(tmp_path / "o" / "scores.parquet")["time"].to_pylist()
    assert times == sorted(times)


def test_a_missing_label_column_is_said(model, stream_file, tmp_path):
    with pytest.raises(StreamCcsdError, match="no label column 'frod'"):
        Session(FileSource(stream_file, label="frod"), model, tmp_path).run()


NO, YES = ("0", "0.00", "-0.0", "+0", ".0", "0e3", "FALSE", "No"), ("1", "1.0", "1.00", "+1", "01", "TRUE", "y")
LABELS = {
    **dict.fromkeys(NO, ""),
    **dict.fromkeys(YES, "fraud"),
    "nan": "",
    "": "",
    "burst": "burst",
    "1e-999": "1e-999",
}


@pytest.mark.parametrize("text", LABELS)
def test_what_counts_as_a_label(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(f"account,time,amount,merchant,why\na,1,2,m,{text}\n")
    assert [item.label for item in FileSource(path, label="why").items()] == [LABELS[text]]
    if text in NO + YES:
        assert load_labelled(path, label="why").fraud.tolist() == [text in YES]
    else:
        with pytest.raises(StreamCcsdError, match="a label must be 0 or 1"):
            load_labelled(path, label="why")


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ([0, 0], ""),
        ([0.0, -0.0], ""),
        ([Decimal("0.00"), Decimal("0.00")], ""),
        ([False, None], ""),
        ([Decimal("1.00"), Decimal("1.00")], "fraud"),
        ([True, True], "fraud"),
        ([["a"], []], "a list"),
    ],
)
def test_labels_that_are_no_text(tmp_path, values, label):
    path = tmp_path / "t.parquet"
    columns = {"account": ["a", "b"], "time": [1, 2], "amount": [1, 2], "merchant": ["m", "m"]}
    pq.write_table(pa.table({**columns, "why": values}), path)
    assert [item.label for item in FileSource(path, label="why").items()] == [label, label]


def test_a_label_in_another_encoding_can_be_stored(model, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"account,time,amount,merchant,why\na,1,2,m,caf\xe9\n")
    Session(FileSource(path, label="why"), model, tmp_path).run()
    assert pq.read_table(tmp_path / "scores.parquet")["label"].to_pylist() == ["caf\\udce9"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_time_that_is_none_is_refused_by_its_option(value):
    for option in ("start", "until"):
        with pytest.raises(StreamCcsdError, match=f"--{'from' if option == 'start' else option} must be a finite time"):
            Wanted(**{option: value})


def test_a_choice_of_nothing_is_said(stream_file, stream, tmp_path):
    name = stream.transactions[0].account
    near = name + "x"
    for wanted, message in (
        (Wanted(accounts=frozenset({near})), f"chosen by --accounts .*; there are accounts like {name}"),
        (Wanted(accounts=frozenset()), "is chosen by --accounts"),
        (Wanted(start=1e9, until=2e9), r"is chosen by --from 1e\+09 --until 2e\+09$"),
        (Wanted(without=frozenset(t.account for t in stream.transactions)), "without 40 known accounts"),
    ):
        with pytest.raises(StreamCcsdError, match=message):
            list(FileSource(stream_file, wanted=wanted).items())


def test_a_folder_that_cannot_be_written_is_said(model, stream, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StreamCcsdError, match="cannot write to"):
        Session(ListSource("x", stream.transactions[:5]), model, tmp_path / "file" / "out").run()


def test_time_far_away_makes_no_long_axis():
    statistics = RunStatistics()
    statistics.add_scores(scores_at([0.0, 1.7e9]))
    counts = statistics.over_time.of("transactions")
    assert max(counts) - min(counts) < 400
    assert sum(counts.values()) == 2
