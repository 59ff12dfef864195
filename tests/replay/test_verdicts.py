"""The audit log: nothing is lost, changed or taken out; and the commands that fill and show it."""

import csv
import gzip
import io
import json
import lzma
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace

import jsonschema
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from replay.cases.verdicts import (
    BOOK,
    ColumnVerdicts,
    PendingVerdicts,
    VerdictEntry,
    VerdictLog,
    audit_log_beside,
    open_beside,
    read_verdicts,
)
from replay.run.session import Session
from replay.sources.source import FileSource, ListSource
from replay.state.file import StateFile
from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.main import app
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.model.model import Model
from stream_ccsd.records import json_schemas
from stream_ccsd.transaction import Refusal, Transaction
from stream_ccsd.verdict import Verdict

ANN = Verdict("x7", "C1", "fraud", "ann", 12.0, "card lost")
BOB = Verdict("x7", "C1", "normal", "bob", 13.0)


def many(count, who="ann", start=0):
    return [Verdict(f"t{i}", f"C{i % 7}", "fraud", who, float(i)) for i in range(start, start + count)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "r.db.verdicts"


@pytest.fixture
def audit_log(path):
    with VerdictLog.create(path) as made:
        yield made


def test_what_is_recorded_can_be_read_again(audit_log, path):
    before = time.time()
    added = audit_log.append([ANN, *many(3)])
    assert all(before <= entry.recorded <= time.time() for entry in added)
    assert [entry.sequence for entry in added] == [1, 2, 3, 4]
    assert [entry.verdict for entry in added] == [ANN, *many(3)]
    assert [entry.sequence for entry in audit_log.append([BOB])] == [5]
    with VerdictLog.open(path, read_only=True) as reader:
        assert [*reader.entries()] == [*added, *reader.entries(after=4)]
        assert [entry.verdict for entry in reader.of("C1", "x7")] == [ANN, BOB]
        assert reader.of("C1", "x8") == []
        assert reader.standing("C1", "x7").sides == {"fraud": ["ann"], "normal": ["bob"]}
        assert reader.standing("C1", "x8") is None
        assert [*reader.history()] == [("C1", "x7"), ("C0", "t0"), ("C1", "t1"), ("C2", "t2")]
        assert [*reader.history(account="C1")] == [("C1", "x7"), ("C1", "t1")]
        assert [*reader.history(transaction="t2")] == [("C2", "t2")]
        assert reader.history("C2", "x7") == {}
        assert VerdictEntry.of(reader.check()) == [*reader.entries()][-1]
    for entry in added:
        shape = {name: value for name, value in entry.to_dict().items() if name not in ("sequence", "recorded")}
        jsonschema.validate(shape, json_schemas()["verdict"])


def test_doubled_verdicts_are_recorded_once(audit_log):
    assert len(audit_log.append([ANN, ANN, BOB])) == 2
    assert audit_log.append([BOB, ANN]) == []
    assert len(audit_log.append([replace(ANN, why="")])) == 1
    assert [*audit_log.entries()][-1].sequence == 3


@given(st.lists(st.lists(st.sampled_from([*many(4), ANN, BOB, replace(ANN, time=-0.0)]), max_size=5), max_size=6))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_batches_make_one_whole_chain(tmp_path_factory, batches):
    place = tmp_path_factory.mktemp("book") / "b.verdicts"
    with VerdictLog.create(place) as made:
        for batch in batches:
            made.append(batch)
        said = [entry.verdict for entry in made.entries()]
        assert said == [*dict.fromkeys(verdict for batch in batches for verdict in batch)]
        last = made.check()
        assert (last.sequence if last else 0) == len(said)


def test_what_is_no_verdict_is_not_recorded(audit_log):
    with pytest.raises(StreamCcsdError, match="cannot be recorded: who: must not be empty"):
        audit_log.append([ANN, replace(BOB, who="")])
    assert [*audit_log.entries()] == []


def test_sqlite_itself_refuses_to_change_or_delete(audit_log, path):
    audit_log.append([ANN, BOB])
    with closing(sqlite3.connect(path)) as other:
        for statement in (
            "UPDATE lines SET body = '{}' WHERE sequence = 1",
            "DELETE FROM lines",
            "INSERT OR REPLACE INTO lines SELECT 1, recorded, kind, who, account, transaction_id, time, '{}', hash "
            "FROM lines WHERE sequence = 1",
            "INSERT INTO lines SELECT 9, recorded, kind, who, account, transaction_id, time, body, hash FROM lines "
            "WHERE sequence = 1",
        ):
            with pytest.raises(sqlite3.IntegrityError, match=r"never|behind"):
                other.execute(statement)
            other.rollback()
    assert [entry.verdict for entry in audit_log.entries()] == [ANN, BOB]


def tampered(path, *statements):
    """Whoever may write to the file can also take out what protects it."""
    with closing(sqlite3.connect(path)) as other:
        triggers = other.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            other.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            other.execute(statement)
        for _, made in triggers:
            other.execute(made)
        other.commit()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE lines SET body = '{}' WHERE sequence = 3",
        "UPDATE lines SET who = 'eve' WHERE sequence = 1",
        "UPDATE lines SET time = time + 1 WHERE sequence = 5",
        "UPDATE lines SET time = 'soon' WHERE sequence = 5",
        "UPDATE lines SET body = x'ff' WHERE sequence = 2",
        "UPDATE lines SET recorded = 0 WHERE sequence = 4",
        "UPDATE lines SET hash = x'00' WHERE sequence = 5",
        "UPDATE lines SET hash = 'text' WHERE sequence = 2",
        "DELETE FROM lines WHERE sequence = 1",
        "DELETE FROM lines WHERE sequence = 3",
        "UPDATE lines SET sequence = 6 WHERE sequence = 5",
        "INSERT INTO lines SELECT 6, recorded, kind, who, account, transaction_id, time, body, hash FROM lines "
        "WHERE sequence = 5",
    ],
)
def test_tampering_is_found(audit_log, path, change):
    audit_log.append(many(5))
    audit_log.check()
    audit_log.close()
    tampered(path, change)
    with VerdictLog.open(path) as again:
        with pytest.raises(StreamCcsdError, match=r"line \d is not what was recorded.*move it away"):
            again.check()
        with pytest.raises(StreamCcsdError, match="is not what was recorded"):
            [*again.entries()]


def test_an_audit_log_without_its_guards_is_refused(audit_log, path):
    audit_log.append([ANN])
    audit_log.close()
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TRIGGER lines_are_not_deleted")
    with pytest.raises(StreamCcsdError, match="its tables are not those of a book of verdicts"):
        VerdictLog.open(path)


def test_what_is_no_audit_log(tmp_path):
    with pytest.raises(StreamCcsdError, match="there is no book of verdicts"):
        VerdictLog.open(tmp_path / "none")
    (tmp_path / "text").write_text("hello " * 1000)
    with pytest.raises(StreamCcsdError, match="is not a book of verdicts"):
        VerdictLog.open(tmp_path / "text")
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE a (b)")
    with pytest.raises(StreamCcsdError, match="is not a book of verdicts of stream-ccsd"):
        VerdictLog.open(tmp_path / "other")
    with pytest.raises(StreamCcsdError, match="check that the folder exists"):
        VerdictLog.create(tmp_path / "nowhere" / "book")
    VerdictLog.create(tmp_path / "newer").close()
    with closing(sqlite3.connect(tmp_path / "newer")) as other:
        other.execute(f"PRAGMA user_version = {BOOK.version + 1}")
    with pytest.raises(StreamCcsdError, match="written by another version"):
        VerdictLog.create(tmp_path / "newer")


APPEND = """
import sys
from pathlib import Path
from replay.cases.verdicts import VerdictLog
from stream_ccsd.verdict import Verdict
path, who, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
with VerdictLog.create(path) as audit_log:
    for i in range(count):
        audit_log.append([Verdict(f"t{i}", f"C{j}", "fraud", who, float(i)) for j in range(3)])
        print(i, flush=True)
"""


def appender(path, who, count):
    command = [sys.executable, "-c", APPEND, str(path), who, str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def go(process):
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_append_to_one_audit_log_at_once(path):
    """It is made by one of them, too."""
    processes = [appender(path, who, 40) for who in ("ann", "bob", "eve")]
    for process in processes:
        go(process)
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    with VerdictLog.open(path) as audit_log:
        assert audit_log.check().sequence == 3 * 40 * 3
        for who in ("ann", "bob", "eve"):
            own = [e.verdict.transaction for e in audit_log.entries() if e.verdict.who == who]
            assert own == [f"t{i}" for i in range(40) for _ in range(3)]


def test_killed_while_appending(path):
    said = 0
    for number in range(8):
        process = appender(path, f"p{number}", 100_000)
        go(process)
        for _ in range(1 + 3 * number):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        heard = process.communicate()[0].splitlines()
        said = 1 + int(heard[-1]) if heard else 1 + 3 * number
        with VerdictLog.open(path) as audit_log:
            last = audit_log.check()
            own = [entry for entry in audit_log.entries() if entry.verdict.who == f"p{number}"]
            assert len(own) % 3 == 0  # whole batches
            assert len(own) >= 3 * said  # what was said to be recorded is
            audit_log.append([replace(ANN, time=float(number))])
            assert audit_log.check().sequence == last.sequence + 1


def test_verdicts_are_heard_when_their_time_has_come():
    verdicts = [replace(ANN, time=float(t)) for t in (5, 3, 9, 3)]
    pending = PendingVerdicts(verdicts)
    assert pending.audible(2.9) == []
    assert pending.audible(3.0) == [verdicts[1], verdicts[3]]
    assert pending.audible(3.0) == []
    assert pending.waiting() == [verdicts[0], verdicts[2]]
    pending.add([BOB, replace(BOB, time=1.0)])  # a year late, or before its transaction: given from its time on
    assert pending.audible(5.0) == [replace(BOB, time=1.0), verdicts[0]]
    assert PendingVerdicts(pending.waiting()).audible(99.0) == [verdicts[2], BOB]


@given(st.lists(st.integers(0, 20), max_size=20), st.lists(st.integers(0, 25), max_size=6).map(sorted))
def test_pending_verdicts_do_not_depend_on_the_moments_asked_for(times, moments):
    verdicts = [replace(ANN, time=float(t), why=str(i)) for i, t in enumerate(times)]
    pending = PendingVerdicts(verdicts)
    heard = [v for moment in [*moments, 99] for v in pending.audible(moment)]
    assert heard == sorted(verdicts, key=lambda v: v.time)


def test_a_column_becomes_verdicts(stream, stream_file):
    items = [*FileSource(stream_file, label="pattern").items()]
    verdicts = ColumnVerdicts(7.0)
    verdicts.see(items)
    half = verdicts.audible(30.0)
    resumed = ColumnVerdicts(7.0, verdicts.waiting())
    heard = [*half, *resumed.audible(1e9)]
    frauds = {t.id: t for t in stream.transactions if stream.fraud.get(t.id)}
    assert {v.transaction for v in heard} == set(frauds)
    assert all(v.time == frauds[v.transaction].time + 7.0 and v.account == frauds[v.transaction].account for v in heard)
    assert {(v.verdict, v.who, v.source) for v in heard} == {("fraud", "label", "label")}
    assert {v.transaction for v in half} == {i for i, t in frauds.items() if t.time + 7.0 <= 30.0}


LINES = """transaction,account,verdict,who,time,why
x1,C1,fraud,ann,3,"lost,
abroad"
x2,C1,perhaps,ann,3,
,C1,fraud,ann,3,
x3,C1,normal,,soon,
x4,C2,NORMAL,bob,2018-04-05,=cmd
cut short
"""


@pytest.mark.parametrize(("name", "opener"), [("v.csv", open), ("v.csv.gz", gzip.open), ("v.csv.xz", lzma.open)])
def test_a_file_of_verdicts_and_garbage(tmp_path, name, opener):
    with opener(tmp_path / name, "wt", encoding="utf-8") as file:
        file.write(LINES)
    rows = [*read_verdicts(tmp_path / name, Calendar.choose("days", "2018-04-01", []))]
    good = [parsed for _, parsed in rows if isinstance(parsed, Verdict)]
    assert good == [
        Verdict("x1", "C1", "fraud", "ann", 3.0, "lost, abroad"),
        Verdict("x4", "C2", "normal", "bob", 4.0, "=cmd"),
    ]
    refused = [(row.line, parsed.field) for row, parsed in rows if isinstance(parsed, Refusal)]
    assert refused == [("4", "verdict"), ("5", "transaction"), ("6", "who"), ("8", None)]


def test_what_a_row_leaves_out_can_be_given(tmp_path):
    (tmp_path / "v.jsonl").write_text(
        '{"transaction": 1, "account": 2, "verdict": "fraud"}\n{"transaction": 1, "account": 2, "verdict": "normal", '
        '"who": "bob", "source": "", "time": 5}\nnull\n{"transaction": 1}\n'
    )
    given_ones = {"who": "bank", "source": "chargeback", "time": 9.0}
    found = [parsed for _, parsed in read_verdicts(tmp_path / "v.jsonl", None, given_ones)]
    assert found[:2] == [
        Verdict("1", "2", "fraud", "bank", 9.0, "", "chargeback"),
        Verdict("1", "2", "normal", "bob", 5.0, "", "chargeback"),
    ]
    assert [refusal.reason for refusal in found[2:]] == [
        "expected a JSON object with named fields",
        "account: is missing",
    ]
    (tmp_path / "v.csv").write_text("id,account\n1,2\n")
    with pytest.raises(StreamCcsdError, match=r"no column named transaction, verdict, time: it has id, account"):
        [*read_verdicts(tmp_path / "v.csv", None, {"who": "x"})]
    (tmp_path / "v.csv").write_text("")
    with pytest.raises(StreamCcsdError, match="holds no verdict"):
        [*read_verdicts(tmp_path / "v.csv")]


runner = CliRunner()


def run(*arguments, code=0):
    done = runner.invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80", "LOGNAME": "ann"})
    assert done.exit_code == code, (done.output, done.exception)
    return done


def as_json(*arguments, code=0):
    return json.loads(run(*arguments, "--json", "-", code=code).stdout)


def error(*arguments):
    return str(run(*arguments, code=1).exception)


@pytest.fixture(scope="module")
def replayed(model, stream, tmp_path_factory):
    """A durable replay of days since April 2018; two accounts share the ids of their transactions."""
    fields = {name: getattr(model, name) for name in model.__dataclass_fields__}
    dated = Model(**{**fields, "calendar": Calendar.choose("days", "2018-04-01", [])})
    twins = [
        Transaction(account, 59.0 + i / 100, 20.0 if i < 5 else 9e6, "c1", "m1", f"same{i}")
        for i in range(6)
        for account in ("twin1", "twin2")
    ]
    folder = tmp_path_factory.mktemp("judged")
    source = ListSource("days", [*stream.transactions, *twins])
    Session(source, dated, folder / "out", folder / "state.db", threshold=1.0).run()
    return folder


@pytest.fixture
def state(replayed, tmp_path):
    copy = tmp_path / "state.db"
    copy.write_bytes((replayed / "state.db").read_bytes())
    return copy


@pytest.fixture(scope="module")
def alerts(replayed):
    return [json.loads(line) for line in (replayed / "out" / "alerts.jsonl").read_text().splitlines()]


def test_a_verdict_by_hand(state, alerts):
    alert = alerts[0]
    before = state.read_bytes()
    for name in (alert["transaction"], alert["id"], f"@{alert['position']}"):
        result = as_json("verdict", "--state", state, "--alert", name, "fraud", "--why", "card\nlost")
    assert (result["recorded"], result["known"], result["waiting"], result["disputed"]) == (0, 1, 0, 0)
    with closing(StateFile.open(state, read_only=True)) as file:
        newest = max(a.last_time for a in file.records.accounts_by_maximum(10**6))
    with open_beside(state) as audit_log:
        (entry,) = audit_log.entries()
    assert entry.verdict == Verdict(alert["transaction"], alert["account"], "fraud", "ann", newest, "card lost")
    assert result["entry"] == entry.to_dict()
    assert state.read_bytes() == before  # the replay's own file is not touched
    at = as_json("verdict", "--state", state, "--alert", f"@{alert['position']}", "normal", "--at", "2018-04-03T12:00")
    assert at["entry"]["time"] == 2.5
    assert at["standing"]["verdict"] == "fraud"  # what was found later counts
    said = run("verdict", "--state", state, "--alert", f"@{alert['position']}", "unsure", "--at", "1").output
    assert "what counts is a later one: fraud, by ann" in said


def test_a_verdict_while_a_replay_is_writing(state, alerts):
    with closing(StateFile.open(state)) as file:
        file.begin()
        assert as_json("verdict", "--state", state, "--alert", alerts[0]["id"], "fraud")["recorded"] == 1
        assert as_json("verdicts", "--state", state)["verdicts"] == 1
        file.undo()


def test_overruling_and_returning_while_the_stream_stands_still(state, alerts):
    name = f"@{alerts[0]['position']}"
    for finding in ("fraud", "normal", "fraud", "normal", "unsure", "normal"):
        result = as_json("verdict", "--state", state, "--alert", name, finding)
        assert result["recorded"] == 1
        assert result["standing"]["verdict"] == finding
        assert not result["disputed"]
    other = ["verdict", "--state", state, "--alert", name, "--who", "x"]
    assert as_json(*other, "fraud", "--at", 1000)["disputed"]
    assert not as_json(*other, "normal", "--at", 1001)["disputed"]
    assert "it was overruled since: give a later --at" in error(*other, "fraud", "--at", 1000)
    entry = as_json(*other[:-2], "fraud")["entry"]
    assert entry["time"] == pytest.approx(result["entry"]["time"])  # nothing inherits a time that is yet to come
    with closing(StateFile.open(state, read_only=True)) as file:
        assert entry["time"] == pytest.approx(file.records.newest_time())
        horizon = file.notes["latest_time"]
    assert "is it a mistake?" in error(*other, "fraud", "--at", horizon + 1.0)


def test_a_dispute_and_how_it_is_settled(state, alerts):
    alert = alerts[1]
    which = ["--state", state, "--alert", f"@{alert['position']}"]
    run("verdict", *which, "fraud", "--who", "ann", "--why", "never [bold] there")
    said = run("verdict", *which, "normal", "--who", "bob").output
    assert "disputed (fraud: ann; normal: bob): it is not learnt from until they agree" in said.replace("\n", " ")
    (found,) = as_json("verdicts", "--state", state, "--disputed")["transactions"]
    assert (found["verdict"], found["who"], found["label"], found["disputed"]) == ("normal", "bob", None, True)
    assert [(e["who"], e["verdict"], e["counts"]) for e in found["history"]] == [
        ("ann", "fraud", False),
        ("bob", "normal", True),
    ]
    shown = run("verdicts", "--state", state, "--disputed").output
    assert f"{alert['transaction']} of {alert['account']}: disputed (fraud: ann; normal: bob)" in shown
    assert "fraud   ann: never [bold] there" in shown
    settled = as_json("verdict", *which, "fraud", "--who", "bank", "--source", "chargeback")
    assert (settled["standing"]["label"], settled["disputed"]) == ("fraud", 0)
    assert as_json("verdicts", "--state", state, "--disputed")["transactions"] == []
    assert "bank (chargeback)" in run("verdicts", "--state", state).output
    assert as_json("verdicts", "--state", state)["verdicts"] == 3  # the history stays


def test_alerts_show_what_was_found(state, alerts, tmp_path):
    plain = run("alerts", "--state", state, "--format", "json").stdout
    assert "verdict" not in run("alerts", "--state", state).output
    for alert, finding, who in ((alerts[0], "fraud", "ann"), (alerts[1], "normal", "bob"), (alerts[1], "fraud", "eve")):
        run("verdict", "--state", state, "--alert", alert["id"], finding, "--who", who)
    rows = [json.loads(row) for row in run("alerts", "--state", state, "--format", "json").stdout.splitlines()]
    assert [(row["verdict"], row["disputed"]) for row in rows[:3]] == [("fraud", False), ("fraud", True), (None, False)]
    for row in rows:
        del row["verdict"], row["disputed"]
    assert rows == [json.loads(row) for row in plain.splitlines()]
    table = list(csv.DictReader(io.StringIO(run("alerts", "--state", state, "--format", "csv").stdout)))
    assert [(row["verdict"], row["disputed"]) for row in table[:3]] == [
        ("fraud", "False"),
        ("fraud", "True"),
        ("", "False"),
    ]
    run("alerts", "--state", state, "--format", "parquet", "--out", tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet")["disputed"].to_pylist()[:3] == [False, True, False]
    shown = run("alerts", "--state", state).output
    assert "disputed" in shown
    assert f"@{alerts[1]['position']} " in shown
    account = alerts[1]["account"]
    explain = ["explain", "--state", state, "--account", account, "--out", tmp_path / "a.png"]
    assert "verdict: disputed" in run(*explain).output
    assert as_json(*explain)["alerts"][0]["disputed"]


def test_a_verdict_may_come_before_its_transaction_and_for_an_account_that_left(state, stream):
    first = stream.transactions[0]
    waiting = ["--transaction", "to come", "--account", "nobody"]
    said = run("verdict", "--state", state, *waiting, "fraud", "--at", 400).output
    assert "it waits: no transaction of that id was scored yet" in said
    # A year after its transaction, of an account that may have left: recorded as any other.
    late = as_json(
        "verdict", "--state", state, "--transaction", first.id, "--account", first.account, "normal", "--at", 365
    )
    assert (late["waiting"], late["standing"]["label"]) == (0, "normal")
    (found,) = as_json("verdicts", "--state", state, "--waiting")["transactions"]
    assert (found["transaction"], found["account"], found["waiting"]) == ("to come", "nobody", True)
    assert "to come of nobody: fraud; waits for its transaction" in run("verdicts", "--state", state).output
    mixed = as_json("verdict", "--state", state, "--transaction", first.id, "--account", "nobody", "fraud")
    assert mixed["waiting"] == 1  # an id is one of its account's


def test_alerts_that_cannot_be_told_apart(state, alerts):
    same = [a for a in alerts if a["account"].startswith("twin")]
    assert {a["account"] for a in same} == {"twin1", "twin2"}
    name = same[0]["transaction"]
    message = error("verdict", "--state", state, "--alert", name, "fraud")
    assert "alerted in several accounts, twin1, twin2: add --account" in message
    result = as_json("verdict", "--state", state, "--alert", name, "--account", "twin2", "fraud")
    assert result["entry"]["account"] == "twin2"


def test_mistakes_are_explained_and_leave_nothing(state):
    for arguments, message in (
        (["fraud"], "say which one"),
        (["--alert", "x"], "say what it is: fraud, normal or unsure"),
        (["fraud", "--alert", "none"], "there is no alert 'none'"),
        (["fraud", "--alert", "@99999999999999999999999"], "there is no alert"),
        (["fraud", "--alert", "a", "--transaction", "b"], "say which one"),
        (["fraud", "--transaction", "b"], "--transaction needs --account"),
        (["guilty", "--transaction", "b", "--account", "a"], "expected fraud, normal or unsure, got 'guilty'"),
        (["fraud", "--transaction", "b", "--account", "a", "--why", "x" * 2001], "at most 2000"),
        (["fraud", "--transaction", "b", "--account", "\udcff"], "is not UTF-8"),
        (["fraud", "--from", "x.csv"], "the file says that: leave out what was found"),
        (["--from", "x.csv", "--alert", "1"], "leave out --alert"),
        (["fraud", "--alert", "1", "--dead-letters", "d"], "only with --from"),
        (["--from", "nowhere.csv"], "there is no file nowhere.csv"),
    ):
        assert message in error("verdict", "--state", state, *arguments)
    for arguments in (["--source", "rumour"], ["--at", "soon"]):
        run("verdict", "--state", state, "fraud", "--transaction", "b", "--account", "a", *arguments, code=2)
    assert not audit_log_beside(state).exists()
    assert as_json("verdicts", "--state", state, "--check")["chain"] == {"verdicts": 0, "lines": 0, "hash": None}
    assert "no verdict was recorded yet" in run("verdicts", "--state", state, "--check").output
    assert "there is no state file" in error("verdicts", "--state", state.parent / "none.db")
    assert "--json is a format" in error("verdicts", "--state", state, "--format", "csv", "--json", "-")


def test_a_file_with_garbage_is_recorded_as_far_as_it_is_good(state, tmp_path, stream):
    first = stream.transactions[0]
    file = tmp_path / "v.csv"
    file.write_text(f"{LINES}{first.id},{first.account},fraud,ann,50,\n{first.id},{first.account},normal,bob,51,\n")
    result = as_json("verdict", "--state", state, "--from", file, code=3)
    counts = {name: result[name] for name in ("recorded", "known", "waiting", "disputed", "dead_letters")}
    assert counts == {"recorded": 4, "known": 0, "waiting": 2, "disputed": 1, "dead_letters": 4}
    beside = tmp_path / "state.db.verdicts.dead_letters.jsonl"
    assert result["dead_letter_file"] == str(beside)
    letters = [json.loads(line) for line in beside.read_text().splitlines()]
    for letter in letters:
        jsonschema.validate(letter, json_schemas()["dead_letter"])
    assert [(letter["line"], letter["field"]) for letter in letters] == [
        ("4", "verdict"),
        ("5", "transaction"),
        ("6", "who"),
        ("8", None),
    ]
    assert letters[0]["raw"] == "x2,C1,perhaps,ann,3,"
    # Once more, as after a kill: nothing is recorded twice.
    again = as_json("verdict", "--state", state, "--from", file, "--dead-letters", tmp_path / "d", code=3)
    assert (again["recorded"], again["known"], again["dead_letter_file"]) == (0, 4, str(tmp_path / "d"))
    file.write_text("transaction,account,verdict\nx9,C1,fraud\n")
    done = run("verdict", "--state", state, "--from", file, "--who", "bank", "--source", "chargeback", "--at", 52)
    assert "verdicts recorded: 1" in done.output
    assert beside.read_text() == ""  # what it said was of another file
    rows = list(csv.DictReader(io.StringIO(run("verdicts", "--state", state, "--format", "csv").stdout)))
    assert [row["sequence"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[1]["why"] == "'=cmd"  # a spreadsheet shows it and does not run it
    assert (rows[4]["who"], rows[4]["source"], rows[4]["when"]) == ("bank", "chargeback", "2018-05-23T00:00:00+00:00")
    assert len(run("verdicts", "--state", state, "--account", "C1", "--format", "json").stdout.splitlines()) == 2
    run("verdicts", "--state", state, "--format", "parquet", "--out", tmp_path / "v.parquet")
    assert pq.read_table(tmp_path / "v.parquet")["waiting"].to_pylist() == [True, True, False, False, True]


def test_the_chain_is_checked_on_request(state, alerts):
    run("verdict", "--state", state, "--alert", alerts[0]["id"], "fraud")
    run("verdict", "--state", state, "--alert", alerts[1]["id"], "fraud")
    chain = as_json("verdicts", "--state", state, "--check")["chain"]
    with open_beside(state) as audit_log:
        assert chain == {"verdicts": 2, "lines": 2, "hash": audit_log.check().hash}
    shown = run("verdicts", "--state", state, "--check").output
    assert f"the chain of 2 verdicts is whole; its last hash is {chain['hash']}" in shown.replace("\n", " ")
    tampered(audit_log_beside(state), "UPDATE lines SET body = '{}' WHERE sequence = 2")
    assert "line 2 is not what was recorded" in error("verdicts", "--state", state, "--check")
    assert "line 2 is not what was recorded" in error("alerts", "--state", state)
