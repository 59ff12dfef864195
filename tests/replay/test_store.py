"""Every question to what a replay recorded, against going through its output files."""

import json
import sqlite3
from collections import Counter
from contextlib import closing, contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.run.session import Session
from replay.sources.source import FileSource, ListSource, Position
from replay.state.batch_output import BatchOutput
from replay.state.file import StateFile
from replay.state.schema import DamageError
from stream_ccsd.calendar import Calendar
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.records import score_records
from stream_ccsd.stores import ALERT_CAP, AccountSummary, DeadLetterCount, MappingStates, TimeBin, Totals
from tests.conftest import scores_at, with_settings

FACTS = {"model": "m", "threshold": 3.0, "source": "s", "calendar": Calendar().to_dict()}
BATCH = 50


@pytest.fixture(scope="module")
def folder(model, stream_file, tmp_path_factory):
    """A durable replay in small batches, with many alerts and every kind of dead letter."""
    path = tmp_path_factory.mktemp("store")
    Session(FileSource(stream_file, label="pattern"), model, path, path / "s.db", threshold=1.0).run(batch=BATCH)
    return path


@pytest.fixture(scope="module")
def records(folder):
    with closing(StateFile.open(folder / "s.db", read_only=True)) as file:
        yield file.records


@pytest.fixture(scope="module")
def scores(folder):
    return score_records(pq.read_table(folder / "scores.parquet"))


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def alerts(folder):
    found = lines(folder, "alerts.jsonl")
    assert len(found) > 50
    return found


def test_alerts_by_name_and_place(records, alerts):
    for alert in (alerts[0], alerts[-1]):
        assert records.alert_at(alert["position"]) == alert
        assert records.alerts_named(alert["id"]) == [alert]
        same = [other for other in alerts if other["transaction"] == alert["transaction"]]
        assert records.alerts_named(alert["transaction"]) == same
    assert records.alert_at(0) is None
    assert records.alert_at(10**30) is None
    assert records.alerts_named("none") == []


def test_which_transactions_were_scored(records, scores):
    known = {(row["account"], row["id"]) for row in (scores[0], scores[BATCH], scores[-1])}
    others = {(scores[0]["account"], "none"), ("nobody", scores[0]["id"])}
    assert records.scored(known | others) == known
    assert records.scored(others) == set()
    assert records.scored([]) == set()
    assert records.newest_time() == max(row["time"] for row in scores)


LIMITS = st.none() | st.integers(1, 30) | st.just(10**30)


@settings(max_examples=60)
@given(st.data())
def test_alerts_of_an_account_since_a_time_in_pages(records, alerts, data):
    account = data.draw(st.none() | st.sampled_from([a["account"] for a in alerts]) | st.just("nobody"))
    since = data.draw(st.none() | st.sampled_from([a["time"] for a in alerts]) | st.just(1e9))
    bound = data.draw(st.none() | st.sampled_from([a["position"] for a in alerts]))
    limit = data.draw(LIMITS)
    chosen = [a for a in alerts if account in (None, a["account"]) and (since is None or a["time"] >= since)]
    later = [a for a in chosen if a["position"] > (bound or 0)]
    assert list(records.alerts(account=account, since=since, after=bound or 0, limit=limit)) == later[:limit]
    earlier = [a for a in chosen if bound is None or a["position"] < bound][::-1]
    newest = records.newest_alerts(limit or 7, account=account, since=since, before=bound)
    assert newest == earlier[: limit or 7]


def test_the_highest_alerts(records, alerts):
    ordered = sorted(alerts, key=lambda a: (-a["score"], a["position"]))
    assert records.highest_alerts(25) == ordered[:25]
    assert records.highest_alerts(10**30) == ordered


def test_an_accounts_scores_are_all_its_scores(records, scores):
    for account in {row["account"] for row in scores}:
        assert records.scores_of(account) == [row for row in scores if row["account"] == account]
    assert records.scores_of("nobody") == []


@settings(max_examples=40)
@given(st.data())
def test_an_accounts_scores_in_pages(records, scores, data):
    row = data.draw(st.sampled_from(scores))
    own = [r for r in scores if r["account"] == row["account"]]
    before = data.draw(st.none() | st.just(row["position"]) | st.integers(0, len(scores)))
    limit = data.draw(LIMITS)
    past = [r for r in own if before is None or r["position"] < before]
    assert records.scores_of(row["account"], before=before, limit=limit) == (past if limit is None else past[-limit:])


def test_accounts_by_maximum(records, scores):
    summaries = {}
    for row in scores:
        old = summaries.get(row["account"], AccountSummary(row["account"], 0, row["time"], 0.0, 0))
        last = max(old.last_time, row["time"])
        summaries[row["account"]] = AccountSummary(
            row["account"], old.transactions + 1, last, row["maximum"], old.alerts + row["alert"]
        )
    ordered = sorted(summaries.values(), key=lambda a: (-a.maximum, a.account))
    paged, page = [], records.accounts_by_maximum(7)
    while page:
        paged += page
        page = records.accounts_by_maximum(7, after=page[-1])
    assert paged == ordered == records.accounts_by_maximum(10**30)
    assert [records.account(a.account) for a in ordered] == ordered
    assert records.account("nobody") is None


def test_a_late_transaction_in_a_later_batch_is_not_an_accounts_newest(tmp_path):
    with closing(StateFile.create(tmp_path / "s.db", FACTS)) as file:
        for number, times in enumerate(([3.0, 9.0], [5.0], [7.0, 8.0]), start=1):
            file.record(BatchOutput(Position(10 * number), scores_at(times), [], []))
            assert file.records.account("a").last_time == 9.0
        assert file.records.account("a").transactions == 5


@pytest.mark.parametrize("width", [0.0, 1.0, 2.0, 7.0])
def test_counts_over_time(records, scores, width):
    step = max(1.0, width)
    counts = {}
    for row in scores:
        own = counts.setdefault(row["time"] // step, np.zeros(4, int))
        own += [1, row["status"] == "late", row["alert"], row["label"] is not None]
    expected = [TimeBin(place * step, step, *counts[place].tolist()) for place in sorted(counts)]
    assert records.counts_over_time(width) == expected
    assert sum(b.labelled for b in expected) > 0


def test_dead_letters_and_totals(records, folder, scores, alerts):
    letters = lines(folder, "dead_letters.jsonl")
    assert list(records.dead_letters()) == letters
    counts = Counter((d["kind"], d["field"]) for d in letters)
    assert len(counts) == 3
    expected = [DeadLetterCount(*key, counts[key]) for key in sorted(counts, key=lambda key: (-counts[key], key[0]))]
    assert records.dead_letter_counts() == expected
    for kind, _ in counts:
        own = [d for d in letters if d["kind"] == kind]
        assert list(records.dead_letters(kind=kind, after=own[0]["position"], limit=2)) == own[1:3]
    accounts = len({row["account"] for row in scores})
    late = sum(row["status"] == "late" for row in scores)
    assert records.totals() == Totals(
        len(scores) + len(letters), len(scores), late, accounts, len(alerts), len(letters)
    )


@contextmanager
def statements(file):
    """What SQLite is asked meanwhile, with the values."""
    asked = []
    file._connection.set_trace_callback(asked.append)
    try:
        yield asked
    finally:
        file._connection.set_trace_callback(None)


QUESTIONS = {
    "an account's scores": lambda r, a: r.scores_of(a["account"]),
    "an account": lambda r, a: r.account(a["account"]),
    "an account's alerts": lambda r, a: list(r.alerts(account=a["account"], since=a["time"])),
    "alerts since": lambda r, a: list(r.alerts(since=a["time"], limit=3)),
    "alerts after": lambda r, a: list(r.alerts(after=a["position"], limit=3)),
    "newest alerts": lambda r, a: r.newest_alerts(3, before=a["position"]),
    "newest alerts since": lambda r, a: r.newest_alerts(3, since=a["time"]),
    "highest alerts": lambda r, a: r.highest_alerts(3),
    "accounts": lambda r, a: r.accounts_by_maximum(3, after=r.accounts_by_maximum(1)[0]),
    "dead letters": lambda r, a: list(r.dead_letters(kind="malformed", limit=3)),
    "dead letters by kind": lambda r, a: r.dead_letter_counts(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_question_goes_through_a_table(folder, alerts, question):
    with closing(StateFile.open(folder / "s.db", read_only=True)) as file:
        with statements(file) as asked:
            QUESTIONS[question](file.records, alerts[-5])
        queries = [query for query in asked if query.startswith("SELECT")]
        steps = [row[-1] for q in queries for row in file._connection.execute(f"EXPLAIN QUERY PLAN {q}")]
    assert steps
    for step in steps:  # a scan is through an index, in its order
        assert not step.startswith("SCAN") or "INDEX" in step, steps
    if question.startswith("an account"):
        assert not any(step.startswith("SCAN") for step in steps), steps


def test_an_accounts_scores_are_read_from_its_batches_only(folder, scores):
    account = Counter(row["account"] for row in scores).most_common()[-1][0]
    batches = {(row["position"] - 1) // BATCH for row in scores if row["account"] == account}
    with closing(StateFile.open(folder / "s.db", read_only=True)) as file:
        with statements(file) as asked:
            file.records.scores_of(account)
        assert (
            sum("FROM scores" in query for query in asked) == len(batches) < len({r["position"] for r in scores}) / 100
        )


@settings(max_examples=15)
@given(
    parts=st.lists(st.lists(st.floats(-(2.0**53), 2.0**53) | st.integers(0, 9000), max_size=40), max_size=5),
    start=st.integers(0, 10**6),
)
def test_bins_become_wider_and_nothing_is_lost(tmp_path_factory, parts, start):
    """More than there is room for, and times from anywhere; every part is another process."""
    path = tmp_path_factory.mktemp("bins") / "s.db"
    parts = [*parts, list(range(start, start + 3000)), list(range(start + 3000, start + 6000))]
    StateFile.create(path, FACTS).close()
    for number, times in enumerate(parts, start=1):
        with closing(StateFile.open(path)) as file:
            scores = scores_at(times, label=["fraud"] * len(times))
            file.record(BatchOutput(Position(10_000 * number), scores, [], []))
    times = np.array([t for part in parts for t in part], float)
    with closing(StateFile.open(path, read_only=True)) as file:
        bins = file.records.counts_over_time()
        (width,) = {b.width for b in bins}
        assert 1 < width <= 4  # a time far away costs a bin, not the others' width
        places, counts = np.unique(np.floor(times / width), return_counts=True)
        assert [(b.start, b.transactions) for b in bins] == list(zip(places * width, counts, strict=True))
        assert sum(b.labelled for b in bins) == len(times)
        coarse = file.records.counts_over_time(5 * width)
        assert {b.width for b in coarse} == {5 * width}
        assert sum(b.transactions for b in coarse) == len(times)


def test_a_reader_stays_at_its_moment_while_a_replay_writes(model, source, tmp_path):
    path, readers = tmp_path / "s.db", []

    def look(clock, batch_output):
        """One reader all the time, and one that stays where it is."""
        if not readers:
            readers.extend(StateFile.open(path, read_only=True) for _ in range(2))
            moment = readers[1].records.at_one_moment()
            moment.__enter__()
            readers.append((moment, readers[1].records.totals()))
        assert readers[0].records.totals().position == batch_output.reached.position
        assert readers[1].records.totals() == readers[2][1]

    summary = Session(source, model, tmp_path, path).run(progress=look, batch=300)
    readers[2][0].__exit__(None, None, None)
    assert readers[2][1].position == 300
    for reader in readers[:2]:
        assert reader.records.totals().transactions == summary["transactions"]
        reader.close()


def test_an_open_reader_notices_damage(folder, tmp_path):
    path = tmp_path / "s.db"
    path.write_bytes((folder / "s.db").read_bytes())
    with closing(StateFile.open(path, read_only=True)) as file:
        with closing(sqlite3.connect(path)) as damage, damage:
            damage.execute("UPDATE alerts SET json = replace(json, '1', '2')")
            damage.execute("UPDATE accounts SET maximum = maximum + 1")
        for ask in (lambda r: r.newest_alerts(1), lambda r: r.accounts_by_maximum(1)):
            with pytest.raises(DamageError, match="does not match its checksum"):
                ask(file.records)


def test_a_file_of_the_format_before_is_refused(tmp_path):
    path = tmp_path / "s.db"
    StateFile.create(path, FACTS).close()
    with closing(sqlite3.connect(path)) as old, old:
        old.execute("PRAGMA user_version = 2")
    with pytest.raises(StreamCcsdError, match=r"another version \(format 2, expected 5\)"):
        StateFile.open(path)


def test_the_alert_cap_is_kept_beside_the_accounts(model, stream, tmp_path):
    capped = with_settings(model, alert_cap=1, alert_interval=20.0)
    source = ListSource("x", stream.transactions)
    whole = Session(source, capped, tmp_path / "a", threshold=0.5).run()
    left = [1000]

    def stop():
        left[0] -= 1
        return left[0] < 0

    for resume in (False, True):
        Session(source, capped, tmp_path / "b", tmp_path / "s.db", resume, 0.5).run(batch=70, stop=stop)
        left[0] = 10**9
    assert (tmp_path / "a" / "alerts.jsonl").read_bytes() == (tmp_path / "b" / "alerts.jsonl").read_bytes()
    with closing(StateFile.open(tmp_path / "s.db")) as file:
        assert file.records.totals().alerts == whole["alerts"] > 0
        memory = {}
        Engine(capped, memory, 0.5).process_many(stream.transactions)
        assert file.states.read_alert_cap() == MappingStates(memory).read_alert_cap()
        assert file.states.read("") is None
        assert file.states.read(ALERT_CAP) is None


def test_scores_that_start_late_are_recorded(model, stream, tmp_path):
    """Alerts on the divergence: before a full window there is no score, and no maximum."""
    late = with_settings(model, alert_on="divergence")
    source = ListSource("x", stream.transactions[:500])
    for state in (None, tmp_path / "s.db"):
        Session(source, late, tmp_path / str(state is None), state).run(batch=40)
    a, b = (pq.read_table(tmp_path / name / "scores.parquet") for name in ("True", "False"))
    assert repr(a.to_pylist()) == repr(b.to_pylist())


def test_a_large_batch_is_stored_in_parts_and_read_as_one(tmp_path):
    """An account's history leads from part to part, within a batch as from one batch to the next."""
    accounts, path = ["ab"[i % 7 == 0] for i in range(4500)], tmp_path / "s.db"
    with closing(StateFile.create(path, FACTS)) as file:
        for number in range(2):
            positions = list(range(5000 * number + 1, 5000 * number + 4501))
            scores = scores_at(positions, account=accounts, position=positions)
            file.record(BatchOutput(Position(5000 * (number + 1)), scores, [], []))
    with closing(StateFile.open(path, read_only=True)) as file:
        batches = list(file.records.score_batches())
        assert [batch.num_rows for batch in batches] == [2000, 2000, 500] * 2
        stored = [position for batch in batches for position in batch.column("position").to_pylist()]
        assert stored == [*range(1, 4501), *range(5001, 9501)]
        for name in "ab":
            own = [p for p in stored if accounts[(p - 1) % 5000] == name]
            assert [r["position"] for r in file.records.scores_of(name)] == own
            assert file.records.account(name).transactions == len(own)
            assert [r["position"] for r in file.records.scores_of(name, limit=1500)] == own[-1500:]
