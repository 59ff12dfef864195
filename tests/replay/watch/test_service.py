"""What the page knows: the same as the commands say, while a replay writes and after it."""

import json
import shutil
import threading
import time
from contextlib import closing

import pyarrow as pa
import pytest

from replay.budget import budgets
from replay.cases.audit_log import audit_log_beside
from replay.cases.cases import Analyst, Cases
from replay.cases.verdicts import VerdictLog
from replay.run.session import Session
from replay.sources.source import ListSource
from replay.state.file import StateFile
from replay.watch.formats import NotFoundError
from replay.watch.live import follower
from replay.watch.live.follower import StateReader
from replay.watch.service import PageService
from replay.watch.views import tune as tune_view
from stream_ccsd.alerts.policy import threshold_by_budget
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.verdict import Verdict

WHO, SEAT = "ann", "1"


def replayed(model, stream, folder, **settings):
    source = ListSource("town", stream.transactions, stream.fraud)
    return Session(source, model, folder / "out", folder / "replay.db", threshold=4.0, **settings)


@pytest.fixture(scope="module")
def finished(model, stream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    replayed(model, stream, folder).run()
    return folder / "replay.db"


@pytest.fixture
def state(finished, tmp_path):
    shutil.copy(finished, tmp_path)
    return tmp_path / "replay.db"


@pytest.fixture
def watched(state):
    with closing(PageService(state)) as made:
        assert made.caught_up(30)
        yield made


@pytest.fixture
def alerts(state):
    with closing(StateFile.open(state, read_only=True)) as file:
        return [*file.records.alerts()]


def look(watched, view, **query):
    found = watched.view(view, {name: str(value) for name, value in query.items()}, WHO, SEAT)
    json.dumps(found, allow_nan=False)  # everything in it can be exported
    return found


def test_the_queue_holds_every_open_alert_once_by_account(watched, alerts):
    by_account = {}
    for alert in alerts:
        by_account.setdefault(alert["account"], []).append(alert["id"])
    cases, page = [], 1
    while True:
        queue = look(watched, "queue", by="score", page=page)
        cases += queue["cases"]
        if page == queue["pages"]:
            break
        page += 1
    assert {case["account"]: [a["id"] for a in case["alerts"]] for case in cases} == by_account
    assert [case["score"] for case in cases] == sorted((case["score"] for case in cases), reverse=True)
    losses = [case["expected_loss"] for case in look(watched, "queue")["cases"]]
    assert losses == sorted(losses, reverse=True)
    assert queue["total"] == len(by_account)
    with pytest.raises(StreamCcsdError, match="by: expected loss or score"):
        look(watched, "queue", by="luck")


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"score": 6}, lambda a, last: a["score"] >= 6),
        ({"amount_from": 50, "amount_to": 400}, lambda a, last: 50 <= a["amount"] <= 400),
        ({"age": 10}, lambda a, last: a["time"] >= last - 10),
    ],
)
def test_filters(watched, alerts, query, wanted):
    last = watched.pulse()["time"]
    expected = {a["id"] for a in alerts if wanted(a, last)}
    found = {a["id"] for case in look(watched, "queue", **query)["cases"] for a in case["alerts"]}
    assert 0 < len(expected) < len(alerts)
    assert found == expected or len(found) < len(expected) == look(watched, "queue", **query)["total"]


def test_filters_by_name_and_by_claim(watched, alerts):
    for name in ("merchant", "category", "account"):
        value = alerts[0][name]
        found = look(watched, "queue", **{name: value})
        assert found["filters"] == {name: value}
        assert all(a[name] == value for case in found["cases"] for a in case["alerts"])
        assert found["total"] >= 1
    assert look(watched, "queue", mine=1)["total"] == 0
    watched.claim(alerts[0]["account"], WHO, SEAT)
    (case,) = look(watched, "queue", mine=1)["cases"]
    assert (case["account"], case["claim"]["mine"]) == (alerts[0]["account"], True)
    assert watched.view("queue", {}, "bob", "2")["mine"] == 0
    with pytest.raises(StreamCcsdError, match="score: expected a number, got 'high'"):
        look(watched, "queue", score="high")
    with pytest.raises(NotFoundError):
        watched.claim("nobody", WHO, SEAT)


def test_a_verdict_changes_queue_account_tune_and_model(watched, alerts, monkeypatch):
    monkeypatch.setattr(tune_view, "_ENOUGH", 1)  # else the source's labels say more
    case = look(watched, "queue")["cases"][0]
    ids = [a["id"] for a in case["alerts"]]
    assert watched.judge(ids, "fraud", "stolen card", WHO, SEAT) == len(ids)
    assert case["account"] not in {c["account"] for c in look(watched, "queue")["cases"]}
    account = look(watched, "account", name=case["account"])
    assert {v["why"] for v in account["verdicts"]} == {"stolen card"}
    assert all(a["verdict"] == "fraud" and a["history"][0]["counts"] for a in account["alerts"] if a["id"] in ids)
    tune = look(watched, "tune")
    assert tune["judged"]["fraud"] == len(ids)
    assert tune["known_from"] == "verdicts"
    assert [row["precision"] for row in tune["curve"] if row["current"]] == [1.0]
    weeks = look(watched, "model")["weeks"]
    assert sum(week["fraud"] for week in weeks) == len(ids)
    # Somebody overrules it: the history shows both.
    watched.judge(ids[:1], "normal", "was travelling", "bob", "2")
    (overruled,) = [a for a in look(watched, "account", alert=ids[0])["alerts"] if a["id"] == ids[0]]
    assert [(v["who"], v["verdict"]) for v in overruled["history"]] == [("ann", "fraud"), ("bob", "normal")]
    assert overruled["disputed"]
    with pytest.raises(NotFoundError, match="no alert 'xyz'"):
        watched.judge(["xyz"], "fraud", "", WHO, SEAT)


def test_an_account_shows_what_was_recorded(watched, state, alerts):
    name = max(alerts, key=lambda a: a["score"])["account"]
    page = look(watched, "account", name=name)
    with closing(StateFile.open(state, read_only=True)) as file:
        rows = file.records.scores_of(name)
    assert page["transactions"] == len(rows) == len(page["timeline"]["points"])
    for shown, row in zip(page["rows"], rows[::-1], strict=False):
        assert {k: v for k, v in shown.items() if k != "when"} == {k: v for k, v in row.items() if k != "inputs"}
    assert [p["amount"] for p in page["timeline"]["points"]] == [row["amount"] for row in rows]
    assert sum(m["count"] for m in page["merchants"]) <= len(rows)
    middle = rows[len(rows) // 2]["time"]
    zoomed = look(watched, "account", name=name, **{"from": middle})
    assert all(p["time"] >= middle for p in zoomed["timeline"]["points"])
    assert (zoomed["timeline"]["first"], zoomed["timeline"]["last"]) == (rows[0]["time"], rows[-1]["time"])
    by_alert = look(watched, "account", alert=page["alerts"][-1]["id"])
    assert (by_alert["account"], by_alert["chosen"]) == (name, page["alerts"][-1]["id"])
    for query in ({"name": "nobody"}, {"alert": "none"}, {}):
        with pytest.raises(NotFoundError):
            look(watched, "account", **query)


def test_densities_behind_an_alert(model, stream, tmp_path):
    from replay.state.file import model_beside

    replayed(model, stream, tmp_path).run()
    model.save(model_beside(tmp_path / "replay.db"))
    with closing(PageService(tmp_path / "replay.db")) as watched:
        assert watched.caught_up(30)
        alert = max(look(watched, "now")["newest"], key=lambda a: a["score"])
        curve = look(watched, "account", alert=alert["id"])["laws"]["amount"]
    assert curve["value"] == alert["amount"]
    assert curve["axis"] == sorted(curve["axis"])
    assert curve["axis"][0] < alert["amount"] < curve["axis"][-1]
    for name in ("normal", "own", "fraud"):
        assert len(curve[name]) == len(curve["axis"])
        assert min(curve[name]) >= 0


def test_tune_agrees_with_the_budget_command(watched, state):
    with closing(StateFile.open(state, read_only=True)) as file:
        expected = {row["threshold"]: row for row in budgets(file.records, [])["budgets"]}
    tune = look(watched, "tune")
    assert tune["known_from"] == "labels"
    (row,) = [row for row in tune["curve"] if row["current"]]
    told = expected[row["threshold"]]
    assert (row["alerts"], row["alerts_per_day"]) == (told["alerts"], told["alerts_per_day"])
    assert row["precision"] == told["transaction"]["precision"]
    assert row["recall"] == told["transaction"]["recall"]
    counts = [row["alerts"] for row in tune["curve"]]
    assert counts == sorted(counts, reverse=True)


def test_a_budget_hides_what_is_below_it_and_who_set_it_stays_known(watched, alerts):
    threshold = sorted(a["score"] for a in alerts)[len(alerts) // 2]
    watched.set_budget(threshold, WHO, "too many")
    queue = look(watched, "queue")
    assert queue["below_threshold"] == sum(a["score"] < threshold for a in alerts) > 0
    (change,) = look(watched, "tune")["changes"]
    assert (change["who"], change["from"], change["to"], change["why"]) == (WHO, 4.0, threshold, "too many")
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(StreamCcsdError):
            watched.set_budget(wrong, WHO, "")


def test_suppressed_alerts_leave_the_queue_until_it_is_lifted(watched, alerts):
    merchant = alerts[0]["merchant"]
    before = look(watched, "queue")
    watched.suppress("merchant", merchant, 7, WHO, "their terminal is broken")
    queue = look(watched, "queue")
    assert queue["suppressed"] == sum(a["merchant"] == merchant for a in alerts)
    (suppression,) = look(watched, "tune")["suppressions"]
    assert (suppression["active"], suppression["hidden"]) == (True, queue["suppressed"])
    assert any(a["suppressed"] for a in look(watched, "account", alert=alerts[0]["id"])["alerts"])
    watched.lift(suppression["sequence"], "bob", "repaired")
    assert look(watched, "queue")["total"] == before["total"]
    (lifted,) = look(watched, "tune")["suppressions"]
    assert (lifted["active"], lifted["lifted"]["who"]) == (False, "bob")
    for days in (0, -1, 1e9, float("nan")):
        with pytest.raises(StreamCcsdError, match="days"):
            watched.suppress("merchant", merchant, days, WHO, "why")


def test_news_since_a_place_come_once_and_in_order(watched, alerts):
    place, told = (alerts[0]["position"] - 1, 0), []
    while True:
        since = watched.since(*place, limit=7)
        assert not since.behind
        told += [a["position"] for a in since.alerts]
        if not since.alerts:
            break
        place = since.position, since.sequence
    assert told == [a["position"] for a in alerts]
    position, sequence = watched.now_at()
    watched.judge([alerts[0]["id"]], "unsure", "", WHO, SEAT)
    since = watched.since(position, sequence, 10)
    assert [entry["kind"] for entry in since.entries] == ["verdict"]
    assert watched.since(since.position, since.sequence, 10).entries == []
    with closing(Cases(audit_log_beside(watched._state))) as cases:
        for number in range(501):
            cases.claim(f"C{number}", Analyst("eve", "9"))
    behind = watched.since(position, sequence, 10)
    assert (behind.behind, behind.alerts, behind.sequence) == (True, [], watched.now_at()[1])


def test_what_others_do_is_known_at_once(watched, state, alerts):
    with closing(Cases(audit_log_beside(state))) as cases:
        cases.claim(alerts[0]["account"], Analyst("bob", "7"))
    (case,) = look(watched, "queue", account=alerts[0]["account"])["cases"]
    assert case["claim"]["who"] == "bob"
    assert watched.take({"account": alerts[0]["account"]}, WHO, SEAT) is None
    taken = watched.take({}, WHO, SEAT)["account"]
    assert taken != alerts[0]["account"]


def test_following_a_replay_that_runs(model, stream, tmp_path):
    """At every moment the page is a prefix of the stream, and at its end all of it."""
    begun, seen = threading.Event(), []

    def progress(clock, batch_output):
        begun.set()
        resumed.wait(0.02)

    resumed = threading.Event()
    thread = threading.Thread(target=lambda: replayed(model, stream, tmp_path).run(progress=progress, batch=200))
    thread.start()
    assert begun.wait(60)
    with closing(PageService(tmp_path / "replay.db")) as watched:
        changed = -1
        while thread.is_alive():
            changed = watched.wait(changed, 1.0)
            seen.append(watched.pulse()["transactions"])
            look(watched, "queue")
        thread.join()
        changed = watched.changed
        watched.wait(changed, 2.0)
        pulse = watched.pulse()
        queue = look(watched, "queue")
    assert seen == sorted(seen)
    assert len(set(seen)) > 2
    assert pulse["state"] == "finished"
    with closing(StateFile.open(tmp_path / "replay.db", read_only=True)) as file:
        totals = file.records.totals()
    assert (pulse["transactions"], pulse["alerts"]) == (totals.transactions, totals.alerts)
    assert sum(len(case["alerts"]) for case in queue["cases"]) <= totals.alerts
    assert pulse["latency_ms"]["p50"] > 0


def test_a_damaged_row_is_said_and_the_rest_goes_on(state):
    import sqlite3

    with closing(sqlite3.connect(state)) as other:
        other.execute("UPDATE alerts SET headline = 'x' WHERE position = (SELECT max(position) FROM alerts)")
        other.commit()
    with closing(PageService(state)) as watched:
        assert watched.caught_up(30)
        time.sleep(0.6)  # it stays said
        assert "does not match its checksum" in watched.pulse()["problem"]
        look(watched, "queue")


def test_an_older_logs_budget_is_not_for_a_new_replay(model, stream, tmp_path):
    with closing(Cases(audit_log_beside(tmp_path / "replay.db"))) as cases:
        cases.set_budget(threshold_by_budget(1e-5), 4.0, Analyst("ann"), "long ago")
    replayed(model, stream, tmp_path).run()
    with closing(PageService(tmp_path / "replay.db")) as watched:
        assert watched.caught_up(30)
        assert watched.pulse()["threshold"] == 4.0


def test_a_mirrors_batch_that_is_stored_again_counts_once():
    from replay.watch.live.index import SCORE_COLUMNS, ScoreIndex

    def batch(count):
        columns = {"position": range(1, count + 1), "account": ["C1"] * count, "id": [f"t{i}" for i in range(count)]}
        numbers = {"time": [float(i) for i in range(count)], "amount": [1.0] * count, "score": [9.0] * count}
        return pa.RecordBatch.from_pydict(columns | numbers | {"label": pa.array([None] * count, pa.string())}).select(
            SCORE_COLUMNS
        )

    scores = ScoreIndex(5.0)
    for count in range(1, 21):
        scores.add(batch(count), count)
    assert scores.transactions == len(scores.keys) == len(scores.scored.time) == 20
    assert sum(scores.histogram()["counts"]) == 20


def test_what_is_kept_of_scores_is_bounded(monkeypatch):
    from replay.watch.live import index

    monkeypatch.setattr(index, "MOST_SCORES", 100)
    scores = index.ScoreIndex(5.0)
    for start in range(0, 400, 10):
        columns = {"position": range(start + 1, start + 11), "account": [f"C{start % 7}"] * 10}
        columns |= {"id": [f"t{start + i}" for i in range(10)], "time": [float(start + i) for i in range(10)]}
        columns |= {"amount": [1.0] * 10, "score": [9.0] * 10, "label": pa.array([None] * 10, pa.string())}
        scores.add(pa.RecordBatch.from_pydict(columns), start + 10)
    assert 100 <= len(scores.keys) <= 120
    assert scores.transactions == 400
    assert scores.first_time == scores.scored.time[0] == 400 - len(scores.keys)
    assert all(scores.keys[place] == key for key, place in scores.places.items())


def test_a_state_file_that_is_replaced_is_said_and_not_cleared(state, tmp_path):
    with closing(PageService(state)) as watched:
        assert watched.caught_up(30)
        (tmp_path / "other.db").write_bytes(state.read_bytes())
        (tmp_path / "other.db").replace(state)
        deadline = time.monotonic() + 10
        while not watched.pulse()["problem"] and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.7)
        assert "was deleted or replaced" in watched.pulse()["problem"]


def test_an_account_with_other_open_alerts_stays_claimed(watched):
    case = next(case for case in look(watched, "queue", by="score")["cases"] if len(case["alerts"]) > 1)
    watched.claim(case["account"], WHO, SEAT)
    first, *others = (alert["id"] for alert in case["alerts"])
    watched.judge([first], "fraud", "", WHO, SEAT)
    assert look(watched, "account", name=case["account"])["claim"]["mine"]
    watched.judge(others, "normal", "", WHO, SEAT)
    assert look(watched, "account", name=case["account"])["claim"] is None


def test_the_audit_page_finds_a_line_that_was_changed(watched, state, alerts):
    import sqlite3

    watched.judge([alert["id"] for alert in alerts[:3]], "fraud", "", WHO, SEAT)
    assert look(watched, "audit")["whole"] is True
    with closing(sqlite3.connect(audit_log_beside(state))) as other:
        kept = other.execute("SELECT sql FROM sqlite_master WHERE name = 'lines_are_not_changed'").fetchone()[0]
        other.execute("DROP TRIGGER lines_are_not_changed")
        other.execute("UPDATE lines SET who = 'eve' WHERE sequence = 1")
        other.execute(kept)
        other.commit()
    watched._inspection._due = 0.0
    found = look(watched, "audit")
    assert found["whole"] is False
    assert "line 1 is not what was recorded" in found["problem"]


def test_the_audit_page_says_whose_verdicts_stand_out(watched, state):
    assert (look(watched, "audit")["people"], look(watched, "audit")["reviewers"]) == (0, [])
    with closing(VerdictLog.open(audit_log_beside(state))) as audit_log:
        for who, first, last, often in (
            ("ann", 0, 150, 10),
            ("bob", 150, 300, 10),
            ("eve", 300, 360, 2),
            ("few", 1, 10, 100),
        ):
            found = ["normal" if n % often else "fraud" for n in range(first, last)]
            audit_log.append(Verdict(f"t{first + n}", "c", finding, who, 1.0) for n, finding in enumerate(found))
    watched._reviewing._due = 0.0
    page = look(watched, "audit")
    assert page["people"] == 4
    by_name = {one["who"]: one for one in page["reviewers"]}
    assert [who for who, one in by_name.items() if one["stands_out"]] == ["eve"] == list(by_name)[:1]
    assert by_name["few"]["judged"] == 9
    assert by_name["eve"]["differs"][0].startswith("says fraud more often than others: 30 of 60 (50%), others 3")


def test_odd_numbers_in_a_query_are_no_fault(watched):
    for query in ({"before": "1e30"}, {"before": "-5"}):
        look(watched, "audit", **query)
    look(watched, "queue", page="1e30")
    with pytest.raises(StreamCcsdError, match="expected a number"):
        look(watched, "queue", page="nan")


def test_money_is_counted_as_the_budget_command_counts_it(watched, state):
    with closing(StateFile.open(state, read_only=True)) as file:
        (told,) = budgets(file.records, [])["budgets"]
    (row,) = [row for row in look(watched, "tune")["curve"] if row["current"]]
    assert row["money_caught"] == told["money_caught"]


def test_what_another_threshold_would_add(watched, alerts):
    (now,) = [row for row in look(watched, "tune")["curve"] if row["current"]]
    trial = look(watched, "tune", threshold=9.0)["trial"]
    assert trial["gained"] == 0
    assert trial["lost"] == now["alerts"] - trial["alerts"] > 0
    with pytest.raises(StreamCcsdError, match="counts scores from 4"):
        watched.set_budget(2.0, WHO, "")


def test_a_look_that_failed_or_was_not_whole_is_followed_by_another(state, alerts, monkeypatch):
    """Also where the file does not change any more."""
    read, failures = StateReader.notes, iter([True, False, True])

    def notes(reader):
        if next(failures, False):
            raise StreamCcsdError("busy")
        return read(reader)

    monkeypatch.setattr(follower, "_ALERTS", 3)
    monkeypatch.setattr(follower, "_RETRY", 0.05)
    monkeypatch.setattr(StateReader, "notes", notes)
    with closing(PageService(state)) as watched:
        until = time.monotonic() + 20
        while len(watched._follower.alerts.rows) < len(alerts) and time.monotonic() < until:
            time.sleep(0.02)
        assert len(watched._follower.alerts.rows) == len(alerts) > 6
        assert watched._follower.problem is None
