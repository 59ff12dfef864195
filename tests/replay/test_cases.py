"""Cases: claims that never overlap, verdicts, budgets and suppressions, all in one whole chain."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from replay.cases.audit_log import AuditLog, audit_log_beside
from replay.cases.cases import Analyst, Cases, EffectiveVerdicts, TakenError
from replay.cases.verdicts import VerdictLog
from replay.run.hooks import BudgetChanges
from replay.run.session import Session
from replay.sources.source import ListSource
from replay.state.file import StateFile
from stream_ccsd.cli.main import app
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.verdict import Reached, Verdict

ANN, BOB, ANN_ELSEWHERE = Analyst("ann", "1"), Analyst("bob", "2"), Analyst("ann", "3")


class Moved:
    """Records of a stream that has gone on since; where it is None, nothing is left of them but alerts."""

    def __init__(self, records, by=1.0):
        self._records, self._by = records, by

    def newest_time(self):
        return None if self._by is None else self._records.newest_time() + self._by


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def desk(tmp_path, clock):
    with closing(Cases(tmp_path / "book", claim_seconds=60.0, now=clock)) as made:
        yield made


@pytest.fixture(scope="module")
def state(model, stream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    Session(ListSource("town", stream.transactions), model, folder / "out", folder / "replay.db", threshold=3.0).run()
    return folder / "replay.db"


@pytest.fixture(scope="module")
def records(state):
    with closing(StateFile.open(state, read_only=True)) as file:
        yield file.records


def test_a_claim_keeps_others_away_until_it_ends(desk, clock):
    desk.claim("C1", ANN)
    desk.claim("C1", ANN)  # for longer
    with pytest.raises(TakenError, match=r"ann is working on C1 until \d\d:\d\d"):
        desk.claim("C1", BOB)
    with pytest.raises(TakenError):
        desk.release("C1", BOB)
    assert desk.claim_on("C1").person == ANN
    clock.now += 61.0
    assert desk.claim_on("C1") is None
    assert desk.claim("C1", BOB).person == BOB
    desk.release("C1", BOB)
    assert desk.claim_on("C1") is None


def test_a_claim_goes_along_to_another_window_if_it_is_claimed_there(desk, records):
    alert = records.highest_alerts(1)[0]
    desk.claim(alert["account"], ANN)
    with pytest.raises(TakenError, match="in another window: claim it here"):
        desk.judge([alert], "fraud", "", ANN_ELSEWHERE, records)
    desk.claim(alert["account"], ANN_ELSEWHERE)
    with pytest.raises(TakenError, match="in another window"):
        desk.judge([alert], "fraud", "", ANN, records)
    desk.judge([alert], "fraud", "", ANN_ELSEWHERE, records, unfinished=[alert["account"]])
    assert desk.claim_on(alert["account"]).person == ANN_ELSEWHERE  # other alerts are open
    desk.release(alert["account"], ANN)
    assert desk.claim_on(alert["account"]) is None


def test_take_gives_the_first_that_is_free_and_the_same_to_who_asks_twice(desk):
    accounts = ["C1", "C2", "C3"]
    assert desk.take(accounts, ANN) == "C1"
    assert desk.take(accounts, ANN) == "C1"
    assert desk.take(accounts, BOB) == "C2"
    assert desk.take(accounts, ANN_ELSEWHERE) == "C3"
    assert desk.take(accounts, Analyst("eve", "9")) is None
    assert desk.take([], ANN) is None


def test_people_at_four_desks_never_hold_one_account(tmp_path):
    accounts = [f"C{i}" for i in range(3)]
    desks = [Cases(tmp_path / "book") for _ in range(4)]  # as in four processes: each has its own connection

    def work(number):
        person = Analyst(f"p{number}", str(number))
        for _ in range(15):
            account = desks[number].take(accounts, person)
            if account is not None:
                desks[number].release(account, person)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held: dict[str, str] = {}
    with AuditLog.open(tmp_path / "book") as book:
        for line in book.lines():
            if line.said.kind == "claim":
                assert line.said.account not in held
                held[line.said.account] = line.said.who
            else:
                assert held.pop(line.said.account) == line.said.who
        assert book.check().sequence >= 60
    assert held == {}
    for each in desks:
        each.close()


def test_judging_a_case_is_all_or_nothing_and_ends_the_claim(desk, records):
    alerts = records.highest_alerts(3)
    account = alerts[0]["account"]
    desk.claim(account, ANN)
    with pytest.raises(TakenError):
        desk.judge(alerts, "fraud", "", BOB, records)
    with pytest.raises(StreamCcsdError, match="expected fraud, normal or unsure"):
        desk.judge(alerts, "guilty", "", ANN, records)
    assert desk.refresh().stands == {}
    added = desk.judge(alerts, "fraud", "two\nlines", ANN, records)
    assert [entry.verdict.why for entry in added] == ["two lines"] * 3
    assert desk.claim_on(account) is None
    assert desk.judge(alerts, "fraud", "two lines", ANN, records) == []  # said before
    # No answer came, the stream went on, and it is sent again.
    assert desk.judge(alerts, "fraud", "two lines", ANN, Moved(records)) == []
    desk.judge(alerts[:1], "normal", "", BOB, records)
    key = account, alerts[0]["transaction"]
    assert desk.refresh().stands[key].disputed
    assert [entry.verdict.who for entry in desk.refresh().said[key]] == ["ann", "bob"]
    with pytest.raises(StreamCcsdError, match="at least one alert"):
        desk.judge([], "fraud", "", ANN, records)
    assert desk.check().sequence == desk.refresh().sequence


def test_what_a_verdict_costs_does_not_grow_with_those_before_it(tmp_path, monkeypatch):
    """By one person or by many, on one transaction: in looks at verdicts, and in steps of SQLite."""
    looks, steps = [0], [0]
    own_hash = Verdict.__hash__

    def counted(verdict):
        looks[0] += 1
        return own_hash(verdict)

    monkeypatch.setattr(Verdict, "__hash__", counted)

    def work(people, count):
        said = [Verdict("x7", "C1", "fraud", f"p{i % people}", float(i // people), str(i)) for i in range(count)]
        with VerdictLog.create(tmp_path / f"{people}-{count}") as book:
            steps[0] = 0
            book._connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 100)
            book.append(said)
            book._connection.set_progress_handler(None, 0)
        looks[0] = 0
        with closing(Cases(tmp_path / f"{people}-{count}")) as desk:
            assert desk.refresh().stands["C1", "x7"].label == "fraud"
        return looks[0], steps[0]

    for people in (1, 400):
        (few_looks, few_steps), (looks_of_many, steps_of_many) = work(people, 400), work(people, 1600)
        assert looks_of_many <= 5 * few_looks
        assert steps_of_many <= 5 * few_steps


def test_a_verdict_dated_far_ahead_locks_nothing(tmp_path, records):
    """A later verdict overrules it, at the time of the stream, and the model learns from it; also on another page."""
    alert = records.highest_alerts(1)[0]
    key, newest = (alert["account"], alert["transaction"]), records.newest_time()
    with VerdictLog.create(tmp_path / "book") as book:
        book.append([Verdict(key[1], key[0], "normal", "eve", newest + 3000.0)])
    with closing(Cases(tmp_path / "book")) as desk:
        (entry,) = desk.judge([alert], "fraud", "", ANN, records)
        assert entry.verdict.time == newest
        assert (desk.refresh().stands[key].label, len(desk.refresh().said[key])) == ("fraud", 2)
        desk.reach(Reached(newest + 2999.0))
        assert desk.refresh().stands[key].label == "fraud"
        desk.reach(Reached(newest))  # whoever says so late
        assert desk.refresh().reached.newest == newest + 2999.0
        desk.reach(Reached(newest + 3001.0))
        assert desk.refresh().stands[key].disputed  # its time has come: two disagree
    with closing(Cases(tmp_path / "book")) as desk:  # where the stream has ended, its time never comes
        desk.reach(Reached(newest, ended=True))
        assert desk.refresh().stands[key].verdict == entry.verdict


def test_what_cannot_be_sent_is_not_recorded(tmp_path, records):
    def send(verdicts):
        raise StreamCcsdError("the broker is away")

    with closing(Cases(tmp_path / "book", send=send)) as desk:
        with pytest.raises(StreamCcsdError, match="the broker is away"):
            desk.judge(records.highest_alerts(1), "fraud", "", ANN, records)
        assert desk.refresh().stands == {}
        assert desk.check() is None


def test_suppressions_hide_by_merchant_account_and_reason_for_a_time(desk, records):
    alert = records.highest_alerts(1)[0]
    terms = [reason["term"] for reason in alert["reasons"] if reason["term"]]
    assert terms
    for what, value in (("merchant", alert["merchant"]), ("account", alert["account"])):
        desk.suppress(what, value, alert["time"], alert["time"] + 1.0, ANN, "known")
        (suppression,) = [each for each in desk.refresh().suppressions.values() if each.what == what]
        assert suppression.hides(alert)
        assert not suppression.hides(alert | {"time": alert["time"] + 1.0})
        assert not suppression.hides(alert | {what: "another"})
    number = max(desk.refresh().suppressions)
    desk.lift(number, BOB, "over")
    assert not desk.refresh().suppressions[number].hides(alert)
    assert desk.refresh().suppressions[number].lifted["who"] == "bob"
    for refused, message in (
        (("merchant", "m", 1.0, 0.0, ANN, "x"), "ends after it begins"),
        (("colour", "m", 0.0, 1.0, ANN, "x"), "not 'colour'"),
        (("merchant", " ", 0.0, 1.0, ANN, "x"), "say which merchant"),
        (("merchant", "m", 0.0, 1.0, ANN, " "), "say why"),
        (("merchant", "m", 0.0, 1.0, ANN, "x" * 3000), "at most 2000"),
    ):
        with pytest.raises(StreamCcsdError, match=message):
            desk.suppress(*refused)
    with pytest.raises(StreamCcsdError, match="no suppression 999"):
        desk.lift(999, ANN, "")
    with pytest.raises(StreamCcsdError, match="no suppression"):
        desk.lift(number, ANN, "")


def test_a_reason_is_suppressed_by_its_term(desk, records):
    alerts = records.highest_alerts(None)
    by_term = {}
    for alert in alerts:
        best = next((r["term"] for r in alert["reasons"] if r["term"]), None)
        if alert["raised_by"] == "evidence" and best:
            by_term.setdefault(best, alert)
    assert len(by_term) > 1
    term, alert = next(iter(by_term.items()))
    desk.suppress("reason", term, 0.0, 1e9, ANN, "known")
    (suppression,) = desk.refresh().suppressions.values()
    assert suppression.hides(alert)
    assert not any(suppression.hides(other) for name, other in by_term.items() if name != term)


acts = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.sampled_from("ab"), st.sampled_from("12")),
        st.tuples(st.just("release"), st.sampled_from("ab"), st.sampled_from("12")),
        st.tuples(st.just("budget"), st.floats(1, 20), st.just("")),
        st.tuples(st.just("wait"), st.floats(0, 100), st.just("")),
    ),
    max_size=25,
)


@settings(max_examples=30, deadline=None)
@given(acts)
def test_any_acts_fold_to_the_same_whoever_reads_them(tmp_path_factory, done):
    path, clock = tmp_path_factory.mktemp("acts") / "book", Clock()
    with closing(Cases(path, claim_seconds=60.0, now=clock)) as desk:
        holder = {}
        for act, what, seat in done:
            if act == "wait":
                clock.now += what
            elif act == "budget":
                desk.set_budget(what, 5.0, ANN, "")
            else:
                person = Analyst(f"p{seat}", seat)
                held = holder.get(what)
                free = held is None or held[1] <= clock.now or held[0] == person
                try:
                    getattr(desk, act)(what, person)
                    assert free
                    holder.pop(what, None)
                    if act == "claim":
                        holder[what] = person, clock.now + 60.0
                except TakenError:
                    assert not free
        again = EffectiveVerdicts()
        for line in AuditLog.open(path, read_only=True).lines():
            again.take(line)
        assert again == desk.refresh()


def test_budgets_are_taken_up_by_a_replay_that_runs(tmp_path, model, stream):
    """From the next batch on, and by one that is resumed; by a new one of the same name they are not."""
    state = tmp_path / "replay.db"
    halfway = len(stream.transactions) // 2

    def session(resume=False, threshold=3.0):
        source = ListSource("town", stream.transactions)
        return Session(source, model, tmp_path / "out", state, resume, threshold)

    seen = []

    def progress(clock, batch_output):
        seen.append(clock.events)
        if clock.events >= halfway and len(seen) and not changed:
            with closing(Cases(audit_log_beside(state))) as desk:
                desk.set_budget(50.0, 3.0, ANN, "quiet")
            changed.append(clock.events)

    changed = []
    result = session().run(progress=progress, batch=100)
    assert result["threshold"] == 50.0
    with closing(StateFile.open(state, read_only=True)) as file:
        positions = [alert["position"] for alert in file.records.alerts()]
        assert file.notes["threshold"] == 50.0
        assert file.notes["finished"]
    assert positions
    assert max(positions) <= changed[0] + 100
    assert session(resume=True).run()["threshold"] == 50.0
    state.unlink()
    assert session().run()["threshold"] == 3.0


def test_only_new_budgets_are_found(tmp_path):
    state = tmp_path / "replay.db"
    notes = {}
    changes = BudgetChanges(state, notes)
    assert changes.newest() is None
    with closing(Cases(audit_log_beside(state))) as desk:
        desk.set_budget(5.0, 6.0, ANN, "")
        desk.set_budget(7.0, 5.0, ANN, "")
        assert changes.newest() == 7.0
        assert changes.newest() is None
        desk.claim("C1", ANN)
        assert changes.newest() is None
    assert BudgetChanges(state, notes).newest() == 7.0  # of a replay that is resumed
    later = {}
    assert BudgetChanges(state, later).newest() is None  # of a new one, whose audit log is older
    assert BudgetChanges(state, later).newest() is None  # and resumed
    assert BudgetChanges(None, {}).newest() is None


JUDGE = """
import sys
from contextlib import closing
from pathlib import Path
from replay.cases.cases import Desk, Person
from replay.cases.audit_log import book_beside
from replay.state.file import StateFile
state = Path(sys.argv[1])
with closing(StateFile.open(state, read_only=True)) as file, closing(Desk(book_beside(state))) as desk:
    print("ready", flush=True)
    for number in range(10_000):
        for alert in file.records.highest_alerts(20):
            (entry,) = desk.judge([alert], "fraud", f"{sys.argv[2]}-{number}", Person(sys.argv[2], "1"), file.records)
            print(entry.sequence, entry.verdict.why, flush=True)
"""


def test_killed_while_verdicts_come_in_none_that_was_acknowledged_is_lost(state):
    acknowledged = set()
    for kill in range(4):
        people = [
            subprocess.Popen(
                [sys.executable, "-c", JUDGE, str(state), f"p{kill}{i}"], stdout=subprocess.PIPE, text=True
            )
            for i in range(2)
        ]
        for person in people:
            assert person.stdout.readline() == "ready\n"
        time.sleep(0.15 * (kill + 1))
        for person in people:
            os.kill(person.pid, signal.SIGKILL)
            said, _ = person.communicate()
            acknowledged |= {line for line in said.splitlines(keepends=True) if line.endswith("\n")}
        with VerdictLog.open(audit_log_beside(state), read_only=True) as book:
            assert book.check().sequence == sum(1 for _ in book.lines())
            recorded = {f"{entry.sequence} {entry.verdict.why}\n" for entry in book.entries()}
        assert acknowledged <= recorded
    assert len(acknowledged) > 20


def test_the_audit_command_lists_and_checks(tmp_path, state, records):
    book = audit_log_beside(state)
    run = CliRunner()
    with closing(Cases(book)) as desk:
        desk.judge(records.highest_alerts(1), "normal", "a <b>", Analyst("eve"), records)
        desk.set_budget(6.0, 7.0, ANN, "more")
        head = desk.check()
    shown = run.invoke(app, ["audit", "--state", str(state), "--json", "-"])
    assert shown.exit_code == 0, shown.output
    result = json.loads(shown.stdout)
    assert (result["whole"], result["lines"], result["head"]) == (True, head.sequence, head.hash)
    assert result["entries"][-1]["kind"] == "budget"
    assert "alerts from 6 nats on, before from 7: more" in run.invoke(app, ["audit", "--state", str(state)]).output
    expected = run.invoke(app, ["audit", "--state", str(state), "--expect", "0" * 64])
    assert expected.exit_code == 1
    assert "does not contain a line with the hash" in str(expected.exception)
    assert run.invoke(app, ["audit", "--state", str(state), "--expect", head.hash]).exit_code == 0


def test_an_alert_whose_scores_are_gone_can_be_judged(desk, records):
    """A topic of scores may be kept for less time than that of alerts."""
    (alert,) = records.highest_alerts(1)
    (entry,) = desk.judge([alert], "fraud", "", ANN, Moved(records, None))
    assert entry.verdict.time == alert["time"]
