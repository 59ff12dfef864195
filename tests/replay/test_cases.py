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
def cases(tmp_path, clock):
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


def test_a_claim_keeps_others_away_until_it_ends(cases, clock):
    cases.claim("C1", ANN)
    cases.claim("C1", ANN)  # for longer
    with pytest.raises(TakenError, match=r"ann is working on C1 until \d\d:\d\d"):
        cases.claim("C1", BOB)
    with pytest.raises(TakenError):
        cases.release("C1", BOB)
    assert cases.claim_on("C1").person == ANN
    clock.now += 61.0
    assert cases.claim_on("C1") is None
    assert cases.claim("C1", BOB).person == BOB
    cases.release("C1", BOB)
    assert cases.claim_on("C1") is None


def test_a_claim_goes_along_to_another_window_if_it_is_claimed_there(cases, records):
    alert = records.highest_alerts(1)[0]
    cases.claim(alert["account"], ANN)
    with pytest.raises(TakenError, match="in another window: claim it here"):
        cases.judge([alert], "fraud", "", ANN_ELSEWHERE, records)
    cases.claim(alert["account"], ANN_ELSEWHERE)
    with pytest.raises(TakenError, match="in another window"):
        cases.judge([alert], "fraud", "", ANN, records)
    cases.judge([alert], "fraud", "", ANN_ELSEWHERE, records, unfinished=[alert["account"]])
    assert cases.claim_on(alert["account"]).person == ANN_ELSEWHERE  # other alerts are open
    cases.release(alert["account"], ANN)
    assert cases.claim_on(alert["account"]) is None


def test_take_gives_the_first_that_is_free_and_the_same_to_who_asks_twice(cases):
    accounts = ["C1", "C2", "C3"]
    assert cases.take(accounts, ANN) == "C1"
    assert cases.take(accounts, ANN) == "C1"
    assert cases.take(accounts, BOB) == "C2"
    assert cases.take(accounts, ANN_ELSEWHERE) == "C3"
    assert cases.take(accounts, Analyst("eve", "9")) is None
    assert cases.take([], ANN) is None


def test_people_in_four_browsers_never_hold_one_account(tmp_path):
    accounts = [f"C{i}" for i in range(3)]
    several = [Cases(tmp_path / "book") for _ in range(4)]  # as in four processes: each has its own connection

    def work(number):
        person = Analyst(f"p{number}", str(number))
        for _ in range(15):
            account = several[number].take(accounts, person)
            if account is not None:
                several[number].release(account, person)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held: dict[str, str] = {}
    with AuditLog.open(tmp_path / "book") as audit_log:
        for line in audit_log.lines():
            if line.said.kind == "claim":
                assert line.said.account not in held
                held[line.said.account] = line.said.who
            else:
                assert held.pop(line.said.account) == line.said.who
        assert audit_log.check().sequence >= 60
    assert held == {}
    for each in several:
        each.close()


def test_verdicts_on_a_case_are_all_or_nothing_and_end_the_claim(cases, records):
    alerts = records.highest_alerts(3)
    account = alerts[0]["account"]
    cases.claim(account, ANN)
    with pytest.raises(TakenError):
        cases.judge(alerts, "fraud", "", BOB, records)
    with pytest.raises(StreamCcsdError, match="expected fraud, normal or unsure"):
        cases.judge(alerts, "guilty", "", ANN, records)
    assert cases.refresh().stands == {}
    added = cases.judge(alerts, "fraud", "two\nlines", ANN, records)
    assert [entry.verdict.why for entry in added] == ["two lines"] * 3
    assert cases.claim_on(account) is None
    assert cases.judge(alerts, "fraud", "two lines", ANN, records) == []  # said before
    # No answer came, the stream went on, and it is sent again.
    assert cases.judge(alerts, "fraud", "two lines", ANN, Moved(records)) == []
    cases.judge(alerts[:1], "normal", "", BOB, records)
    key = account, alerts[0]["transaction"]
    assert cases.refresh().stands[key].disputed
    assert [entry.verdict.who for entry in cases.refresh().said[key]] == ["ann", "bob"]
    with pytest.raises(StreamCcsdError, match="at least one alert"):
        cases.judge([], "fraud", "", ANN, records)
    assert cases.check().sequence == cases.refresh().sequence


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
        with VerdictLog.create(tmp_path / f"{people}-{count}") as audit_log:
            steps[0] = 0
            audit_log._connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 100)
            audit_log.append(said)
            audit_log._connection.set_progress_handler(None, 0)
        looks[0] = 0
        with closing(Cases(tmp_path / f"{people}-{count}")) as cases:
            assert cases.refresh().stands["C1", "x7"].label == "fraud"
        return looks[0], steps[0]

    for people in (1, 400):
        (few_looks, few_steps), (looks_of_many, steps_of_many) = work(people, 400), work(people, 1600)
        assert looks_of_many <= 5 * few_looks
        assert steps_of_many <= 5 * few_steps


def test_a_verdict_dated_far_ahead_locks_nothing(tmp_path, records):
    """A later verdict overrules it, at the time of the stream, and the model learns from it; also on another page."""
    alert = records.highest_alerts(1)[0]
    key, newest = (alert["account"], alert["transaction"]), records.newest_time()
    with VerdictLog.create(tmp_path / "book") as audit_log:
        audit_log.append([Verdict(key[1], key[0], "normal", "eve", newest + 3000.0)])
    with closing(Cases(tmp_path / "book")) as cases:
        (entry,) = cases.judge([alert], "fraud", "", ANN, records)
        assert entry.verdict.time == newest
        assert (cases.refresh().stands[key].label, len(cases.refresh().said[key])) == ("fraud", 2)
        cases.reach(Reached(newest + 2999.0))
        assert cases.refresh().stands[key].label == "fraud"
        cases.reach(Reached(newest))  # whoever says so late
        assert cases.refresh().reached.newest == newest + 2999.0
        cases.reach(Reached(newest + 3001.0))
        assert cases.refresh().stands[key].disputed  # its time has come: two disagree
    with closing(Cases(tmp_path / "book")) as cases:  # where the stream has ended, its time never comes
        cases.reach(Reached(newest, ended=True))
        assert cases.refresh().stands[key].verdict == entry.verdict


def test_what_cannot_be_sent_is_not_recorded(tmp_path, records):
    def send(verdicts):
        raise StreamCcsdError("the broker is away")

    with closing(Cases(tmp_path / "book", send=send)) as cases:
        with pytest.raises(StreamCcsdError, match="the broker is away"):
            cases.judge(records.highest_alerts(1), "fraud", "", ANN, records)
        assert cases.refresh().stands == {}
        assert cases.check() is None


def test_suppressions_hide_by_merchant_account_and_reason_for_a_time(cases, records):
    alert = records.highest_alerts(1)[0]
    terms = [reason["term"] for reason in alert["reasons"] if reason["term"]]
    assert terms
    for what, value in (("merchant", alert["merchant"]), ("account", alert["account"])):
        cases.suppress(what, value, alert["time"], alert["time"] + 1.0, ANN, "known")
        (suppression,) = [each for each in cases.refresh().suppressions.values() if each.what == what]
        assert suppression.hides(alert)
        assert not suppression.hides(alert | {"time": alert["time"] + 1.0})
        assert not suppression.hides(alert | {what: "another"})
    number = max(cases.refresh().suppressions)
    cases.lift(number, BOB, "over")
    assert not cases.refresh().suppressions[number].hides(alert)
    assert cases.refresh().suppressions[number].lifted["who"] == "bob"
    for refused, message in (
        (("merchant", "m", 1.0, 0.0, ANN, "x"), "ends after it begins"),
        (("colour", "m", 0.0, 1.0, ANN, "x"), "not 'colour'"),
        (("merchant", " ", 0.0, 1.0, ANN, "x"), "say which merchant"),
        (("merchant", "m", 0.0, 1.0, ANN, " "), "say why"),
        (("merchant", "m", 0.0, 1.0, ANN, "x" * 3000), "at most 2000"),
    ):
        with pytest.raises(StreamCcsdError, match=message):
            cases.suppress(*refused)
    with pytest.raises(StreamCcsdError, match="no suppression 999"):
        cases.lift(999, ANN, "")
    with pytest.raises(StreamCcsdError, match="no suppression"):
        cases.lift(number, ANN, "")


def test_a_reason_is_suppressed_by_its_term(cases, records):
    alerts = records.highest_alerts(None)
    by_term = {}
    for alert in alerts:
        best = next((r["term"] for r in alert["reasons"] if r["term"]), None)
        if alert["raised_by"] == "evidence" and best:
            by_term.setdefault(best, alert)
    assert len(by_term) > 1
    term, alert = next(iter(by_term.items()))
    cases.suppress("reason", term, 0.0, 1e9, ANN, "known")
    (suppression,) = cases.refresh().suppressions.values()
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
    with closing(Cases(path, claim_seconds=60.0, now=clock)) as cases:
        holder = {}
        for act, what, seat in done:
            if act == "wait":
                clock.now += what
            elif act == "budget":
                cases.set_budget(what, 5.0, ANN, "")
            else:
                person = Analyst(f"p{seat}", seat)
                held = holder.get(what)
                free = held is None or held[1] <= clock.now or held[0] == person
                try:
                    getattr(cases, act)(what, person)
                    assert free
                    holder.pop(what, None)
                    if act == "claim":
                        holder[what] = person, clock.now + 60.0
                except TakenError:
                    assert not free
        again = EffectiveVerdicts()
        for line in AuditLog.open(path, read_only=True).lines():
            again.take(line)
        assert again == cases.refresh()


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
            with closing(Cases(audit_log_beside(state))) as cases:
                cases.set_budget(50.0, 3.0, ANN, "quiet")
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
    with closing(Cases(audit_log_beside(state))) as cases:
        cases.set_budget(5.0, 6.0, ANN, "")
        cases.set_budget(7.0, 5.0, ANN, "")
        assert changes.newest() == 7.0
        assert changes.newest() is None
        cases.claim("C1", ANN)
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
from replay.cases.audit_log import audit_log_beside
from replay.cases.cases import Analyst, Cases
from replay.state.file import StateFile
state = Path(sys.argv[1])
with closing(StateFile.open(state, read_only=True)) as file, closing(Cases(audit_log_beside(state))) as cases:
    print("ready", flush=True)
    for number in range(10_000):
        for alert in file.records.highest_alerts(20):
            reason, analyst = f"{sys.argv[2]}-{number}", Analyst(sys.argv[2], "1")
            (entry,) = cases.judge([alert], "fraud", reason, analyst, file.records)
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
        with VerdictLog.open(audit_log_beside(state), read_only=True) as audit_log:
            assert audit_log.check().sequence == sum(1 for _ in audit_log.lines())
            recorded = {f"{entry.sequence} {entry.verdict.why}\n" for entry in audit_log.entries()}
        assert acknowledged <= recorded
    assert len(acknowledged) > 20


def test_the_audit_command_lists_and_checks(tmp_path, state, records):
    audit_log = audit_log_beside(state)
    run = CliRunner()
    with closing(Cases(audit_log)) as cases:
        cases.judge(records.highest_alerts(1), "normal", "a <b>", Analyst("eve"), records)
        cases.set_budget(6.0, 7.0, ANN, "more")
        head = cases.check()
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


def test_an_alert_whose_scores_are_gone_can_be_judged(cases, records):
    """A topic of scores may be kept for less time than that of alerts."""
    (alert,) = records.highest_alerts(1)
    (entry,) = cases.judge([alert], "fraud", "", ANN, Moved(records, None))
    assert entry.verdict.time == alert["time"]
