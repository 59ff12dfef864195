"""Model updates of a replay: the same models and scores however often it is killed, whatever people do meanwhile."""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import replay.run.session
from replay.cases.verdicts import VerdictLog, audit_log_beside
from replay.run.learning import Learning
from replay.run.session import Session
from replay.sources.source import ListSource, Pace
from replay.state.file import StateFile
from stream_ccsd.cli.main import app
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.model.registry import Registry
from stream_ccsd.verdict import Verdict
from tests.conftest import FIELDS
from tests.replay.test_session import StopAfter
from tests.replay.test_survival import position

FILES = ("scores.parquet", "alerts.jsonl", "dead_letters.jsonl", "drift.jsonl")
LEARNING = Learning(every=4.0, delay=3.0, labels=True)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr(replay.run.session, "write_report", lambda *anything: None)


@pytest.fixture(scope="module")
def population_file(stream, tmp_path_factory):
    path = tmp_path_factory.mktemp("town") / "town.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*FIELDS, "country", "device", "fraud"])
        for t in stream.transactions:
            own = [getattr(t, name) for name in FIELDS]
            more = [t.fields.get("country", ""), t.fields.get("device", ""), int(t.id in stream.fraud)]
            writer.writerow([*own, *more])
    return path


@pytest.fixture(scope="module")
def population_folder(population_model, tmp_path_factory):
    return population_model.save(tmp_path_factory.mktemp("models") / "town")


@pytest.fixture
def begin(stream, population_model):
    def session(folder, *, learning=LEARNING, resume=False, fraud=stream.fraud, state=True, **more):
        folder.mkdir(exist_ok=True)
        place = folder / "replay.db" if state else None
        source = ListSource("town", stream.transactions, fraud)
        return Session(source, population_model, folder / "out", place, resume, learning=learning, **more)

    return session


def left(folder):
    """Everything that a replay leaves, but for times of the clock."""
    models = folder / "replay.db.models"
    found = {name: (folder / "out" / name).read_bytes() for name in FILES}
    found["lessons"] = (folder / "replay.db.lessons").read_bytes()
    found["models"] = sorted(place.name for place in models.iterdir() if not place.name.startswith("."))
    for name in Registry(models).names():
        found[name] = (models / name / "model.json").read_bytes()
    return found


def log(folder):
    """By moment, what is known of each model update in the end."""
    lines = (folder / "replay.db.lessons").read_text().splitlines()
    return {said["moment"]: said for said in map(json.loads, lines)}


def scores(folder):
    return pq.read_table(folder / "out" / "scores.parquet")


@pytest.fixture(scope="module")
def whole(stream, population_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    source = ListSource("town", stream.transactions, stream.fraud)
    summary = Session(source, population_model, folder / "out", folder / "replay.db", learning=LEARNING).run()
    return folder, summary


class Nursery:
    """Starts commands quickly; see ``killed.py``."""

    def __init__(self, model, folder):
        command = [sys.executable, "-m", "tests.replay.killed", str(model), str(folder)]
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=ROOT
        )

    def start(self, *arguments):
        self._process.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def ended(self):
        return int(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._errors.close()


def test_killed_twenty_times(population_file, population_folder, tmp_path):
    options = [
        "--learn",
        "4d",
        "--delay",
        "3d",
        "--verdicts-from",
        "fraud",
        "--data",
        population_file,
        "--model",
        population_folder,
    ]
    chance, kills, reached, updates = random.Random(5), 0, set(), set()
    for name in ("warm", "whole", "killed"):
        (tmp_path / name).mkdir()
    quick_start = Nursery(population_folder, tmp_path / "warm")

    def command(folder):
        return ["replay", *options, "--out", folder / "out", "--state", folder / "replay.db"]

    quick_start.start(*command(tmp_path / "whole"))
    assert quick_start.ended() == 0, (tmp_path / "warm" / "errors").read_text()
    folder = tmp_path / "killed"
    state = folder / "replay.db"
    while kills < 20:
        more = ["--resume"] if state.exists() else []
        before, deadline = position(state), time.monotonic() + 60
        child = quick_start.start(*command(folder), "--speed", "500", *more)
        while position(state) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.25))
        os.kill(child, signal.SIGKILL)
        assert quick_start.ended() == -signal.SIGKILL, (tmp_path / "warm" / "errors").read_text()
        kills += 1
        reached.add(position(state))
        updates.add(len(log(folder)) if (folder / "replay.db.lessons").exists() else 0)
    quick_start.start(*command(folder), "--resume")
    assert quick_start.ended() == 0, (tmp_path / "warm" / "errors").read_text()
    quick_start.close()
    assert len(reached) > 15
    assert len(updates) > 3  # the model was updated between the kills
    assert left(folder) == left(tmp_path / "whole")
    assert len(Registry(folder / "replay.db.models").names()) > 5


def test_model_updates_change_scores_and_say_what_they_learnt(whole, begin, tmp_path):
    folder, summary = whole
    plain = begin(tmp_path, learning=None).run()
    assert plain["lessons"] is None
    before, after = scores(tmp_path), scores(folder)
    assert before["id"].equals(after["id"])
    assert before["inputs"].null_count == len(before)
    assert after["inputs"].null_count == 0
    first = Registry(folder / "replay.db.models").load("1").facts["lessons"]["moment"]
    early = sum(t < first for t in after["time"].to_pylist())
    assert before["score"][:early].equals(after["score"][:early])
    assert not before["score"].equals(after["score"])
    last = summary["lessons"]["last"]
    assert summary["lessons"]["held"] == len(log(folder)) == 14
    assert last["frauds"] > 100
    assert 0.5 < last["average_precision"] <= 1.0
    assert not (tmp_path / "replay.db.lessons").exists()


def test_in_memory_is_the_same(whole, begin, tmp_path):
    summary = begin(tmp_path, state=False).run()
    for name in FILES:
        assert (tmp_path / "out" / name).read_bytes() == (whole[0] / "out" / name).read_bytes(), name
    names = Registry(tmp_path / "out" / "replay.models").names()
    assert names == Registry(whole[0] / "replay.db.models").names()
    assert summary["lessons"]["last"] == whole[1]["lessons"]["last"]


@pytest.mark.parametrize("batch", [60, 400])
def test_stopped_and_resumed_is_the_same(whole, begin, tmp_path, batch):
    for turn, looks in enumerate([60, 800, 801, 400]):
        begin(tmp_path, resume=turn > 0).run(batch=batch, stop=StopAfter(looks))
    assert begin(tmp_path, resume=True).run(batch=batch)["complete"]
    assert left(tmp_path) == left(whole[0])


def test_a_new_replay_takes_nothing_from_an_older_one(whole, begin, tmp_path):
    begin(tmp_path, fraud={}).run(stop=StopAfter(300))
    begin(tmp_path, resume=True, fraud={}).run()
    Registry(tmp_path / "replay.db.models").add(begin(tmp_path).model)
    Registry(tmp_path / "replay.db.models").pin("1")
    with pytest.raises(StreamCcsdError, match="go on with --resume"):
        begin(tmp_path).run()
    assert Registry(tmp_path / "replay.db.models").choice().pinned  # of the replay that is there
    (tmp_path / "replay.db").unlink()
    begin(tmp_path).run()
    assert left(tmp_path) == left(whole[0])


def said(stream, moment, count, who="ann"):
    """Verdicts on frauds of the days before, as an investigator gives them."""
    frauds = [t for t in stream.transactions if t.id in stream.fraud and t.time < moment - 1.0]
    return [Verdict(t.id, t.account, "fraud", who, moment) for t in frauds[:count]]


def test_the_next_update_learns_from_verdicts_recorded_while_it_is_stopped(begin, stream, tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    begin(a, fraud={}).run(stop=StopAfter(1500), batch=100)
    stopped = max(log(a))
    with VerdictLog.create(audit_log_beside(a / "replay.db")) as audit_log:
        audit_log.append(said(stream, stopped, 25))
    shutil.copytree(a, b)
    begin(a, fraud={}, resume=True).run()
    for looks in (150, 333, 500):
        begin(b, fraud={}, resume=True).run(stop=StopAfter(looks), batch=50)
    begin(b, fraud={}, resume=True).run()
    assert left(b) == left(a)
    heard = {moment: line["heard"] for moment, line in log(a).items()}
    assert heard[stopped] == 0
    assert heard[stopped + LEARNING.every] == 25
    first = Registry(a / "replay.db.models").load("1").facts["lessons"]
    assert (first["moment"], first["heard"]) == (stopped + LEARNING.every, 25)
    assert first["frauds"] + first["too_late"] + first["waiting"] == 25


class GoneError(Exception):
    """As if the process had been killed here."""


def killed_at(monkeypatch, owner, name, call):
    """The next method call after so many others is the last thing that the process does not do."""
    real, calls = getattr(owner, name), []

    def dying(*arguments, **named):
        calls.append(1)
        if len(calls) == call:
            raise GoneError
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, dying)


def test_a_repeated_update_learns_from_the_same_verdicts(begin, stream, whole, tmp_path, monkeypatch):
    killed_at(monkeypatch, Registry, "add", 3)
    with pytest.raises(GoneError):
        begin(tmp_path).run()
    monkeypatch.undo()
    again = max(log(tmp_path))
    assert log(tmp_path)[again] == {"moment": again, "heard": 0}
    with VerdictLog.create(audit_log_beside(tmp_path / "replay.db")) as audit_log:
        audit_log.append([replace(v, verdict="normal") for v in said(stream, again, 10)])
    begin(tmp_path, resume=True).run()
    undisturbed, models = log(whole[0]), Registry(tmp_path / "replay.db.models").names()
    assert log(tmp_path)[again] == undisturbed[again]  # the same model, though there were more verdicts by then
    assert models[:3] == Registry(whole[0] / "replay.db.models").names()[:3]
    assert log(tmp_path)[again + LEARNING.every]["heard"] == 10
    assert len(models) == len(Registry(whole[0] / "replay.db.models").names())  # none is left over


def test_a_repeated_update_uses_the_same_model(begin, whole, tmp_path, monkeypatch):
    killed_at(monkeypatch, StateFile, "record", 10)
    with pytest.raises(GoneError):
        begin(tmp_path).run()
    monkeypatch.undo()
    again = log(tmp_path)[max(log(tmp_path))]
    versions = Registry(tmp_path / "replay.db.models")
    versions.pin("1")
    begin(tmp_path, resume=True).run(stop=StopAfter(120), batch=10)
    assert log(tmp_path)[max(log(tmp_path))] == again
    assert again["used"] == again["learnt"] == versions.names()[-1] != versions.names()[0]
    versions.unpin()  # before the next model update: it has never counted
    begin(tmp_path, resume=True).run()
    assert scores(tmp_path).equals(scores(whole[0]))
    assert log(tmp_path) == log(whole[0])


def test_a_pinned_version_scores_from_the_next_update_on_while_learning_goes_on(begin, whole, tmp_path):
    def alerts(folder, after):
        lines = map(json.loads, (folder / "out" / "alerts.jsonl").read_text().splitlines())
        return {alert["model"] for alert in lines if alert["time"] >= after}

    begin(tmp_path).run(stop=StopAfter(1500), batch=100)
    versions, stopped = Registry(tmp_path / "replay.db.models"), max(log(tmp_path))
    pinned = versions.pin("2")
    begin(tmp_path, resume=True).run(stop=StopAfter(700), batch=100)
    back = max(log(tmp_path))
    versions.unpin()
    rolled = versions.rollback()
    begin(tmp_path, resume=True).run()
    held = log(tmp_path)
    learnt = [line["learnt"] for moment, line in held.items() if moment > stopped]
    assert len(set(learnt)) == len(learnt) > 5
    assert versions.names()[-1] == learnt[-1]
    used = {moment: line["used"] for moment, line in held.items()}
    assert {name for moment, name in used.items() if stopped < moment <= back} == {pinned}
    assert {name for moment, name in used.items() if moment > back} == {rolled}
    assert alerts(tmp_path, back + LEARNING.every) <= {versions.load(rolled).version}
    late = [t >= back + LEARNING.every for t in scores(tmp_path)["time"].to_pylist()]
    assert any(late)


def test_what_is_disputed_is_not_learnt_from_until_it_is_settled(begin, stream, tmp_path):
    frauds = [t for t in stream.transactions if t.id in stream.fraud and t.time > 20.0][:8]
    ann = [Verdict(t.id, t.account, "fraud", "ann", t.time + 0.5) for t in frauds]
    bob = [Verdict(t.id, t.account, "normal", "bob", t.time + 0.6) for t in frauds[:3]]
    settled = [Verdict(t.id, t.account, "fraud", "bank", 40.0, source="chargeback") for t in frauds[:3]]
    learning = Learning(every=2.0, delay=30.0, verdicts=(*ann, *bob, *settled))
    begin(tmp_path, learning=learning).run()
    versions = Registry(tmp_path / "replay.db.models")
    facts = {f["moment"]: f for f in (versions.load(name).facts["lessons"] for name in versions.names())}
    assert max(f["disputed"] for moment, f in facts.items() if moment < 40.0) == 3
    assert max(f["frauds"] for moment, f in facts.items() if moment < 40.0) == 5
    assert (facts[40.0]["disputed"], facts[40.0]["frauds"]) == (0, 8)


def test_adapting_alone(begin, tmp_path):
    learning = Learning(every=4.0, delay=3.0, adapt=True)
    summary = begin(tmp_path / "a", learning=learning, fraud={}).run()
    for turn, looks in enumerate([500, 900]):
        begin(tmp_path / "b", learning=learning, fraud={}, resume=turn > 0).run(stop=StopAfter(looks), batch=30)
    begin(tmp_path / "b", learning=learning, fraud={}, resume=True).run()
    assert left(tmp_path / "a") == left(tmp_path / "b")
    assert summary["lessons"]["last"] is None
    assert summary["lessons"]["adapted"]["times"] > 5
    versions = Registry(tmp_path / "a" / "replay.db.models")
    beyond = {str(versions.load(name).tails["evidence"]) for name in versions.names()}
    assert len(beyond) == len(versions.names())  # rates follow with every model update


def test_what_is_gone_or_damaged_is_said(begin, stream, tmp_path):
    begin(tmp_path).run(stop=StopAfter(1500), batch=100)
    path, audit_log = tmp_path / "replay.db.lessons", audit_log_beside(tmp_path / "replay.db")
    good = path.read_bytes()
    with VerdictLog.create(audit_log) as entries:
        entries.append(said(stream, max(log(tmp_path)), 4))
    begin(tmp_path, resume=True).run(stop=StopAfter(600), batch=100)
    audit_log.rename(tmp_path / "away")
    with pytest.raises(
        StreamCcsdError, match=r"heard 4 verdicts of which 0 are there: put .*replay\.db\.verdicts back"
    ):
        begin(tmp_path, resume=True).run()
    for content, why in ((b"", "does not know of the lesson"), (b"[]\n" + good, "damaged at byte 0")):
        path.write_bytes(content)
        with pytest.raises(StreamCcsdError, match=why):
            begin(tmp_path, resume=True).run()
    with pytest.raises(StreamCcsdError, match="begun with another learning"):
        begin(tmp_path, resume=True, learning=replace(LEARNING, delay=4.0)).run()


def test_another_file_of_as_many_verdicts_is_another_replay(begin, stream, tmp_path):
    one, other = (replace(LEARNING, verdicts=tuple(said(stream, 30.0, 5, who))) for who in ("ann", "bob"))
    begin(tmp_path, learning=one).run(stop=StopAfter(100))
    with pytest.raises(StreamCcsdError, match="another learning"):
        begin(tmp_path, learning=other, resume=True).run()


def test_a_stream_that_jumps_by_years_has_few_lessons_and_can_be_stopped_among_them(stream, population_model, tmp_path):
    """Eight years without a transaction are no updates; a wish to stop is heard between two, and nothing is lost."""
    part = [t for t in stream.transactions if t.time < 25.0]
    jumped = [replace(t, id=f"late {t.id}", time=t.time + 2900.0) for t in part[-25:]]
    learning = replace(LEARNING, every=1.0, delay=3.0)

    def run(folder, stop=lambda: False, resume=False):
        folder.mkdir(exist_ok=True)
        source = ListSource("town", [*part, *jumped], stream.fraud)
        place = folder / "replay.db"
        return Session(source, population_model, folder / "out", place, resume, learning=learning).run(stop=stop)

    summary, jump = run(tmp_path / "whole"), jumped[0].time - 1.0
    before = [moment for moment in log(tmp_path / "whole") if moment < part[-1].time]
    among = [moment for moment in log(tmp_path / "whole") if part[-1].time <= moment < jump]
    assert summary["lessons"]["held"] == len(log(tmp_path / "whole"))
    assert len(before) > 15
    assert 1 < len(among) < 10  # until silence counts for the last before the jump
    folder = tmp_path / "stopped"
    held = among[0]
    note = folder / "replay.db.lessons"
    assert not run(folder, stop=lambda: note.exists() and f'"moment": {held}, ' in note.read_text())["complete"]
    assert max(log(folder)) == held
    assert run(folder, resume=True)["complete"]
    assert left(folder) == left(tmp_path / "whole")


def test_a_paced_replay_learns_the_same(whole, begin, tmp_path):
    begin(tmp_path).run(pace=Pace(events=20_000.0))
    assert left(tmp_path) == left(whole[0])


def run(*arguments, code=0):
    done = CliRunner().invoke(app, ["replay", *map(str, arguments)])
    assert done.exit_code == code, done.output or done.exception
    return done


def test_a_file_with_garbage_among_its_verdicts(population_file, population_folder, stream, tmp_path):
    good = [v.to_dict() for v in said(stream, 30.0, 6)]
    rows = [*good[:3], {**good[3], "verdict": "perhaps"}, {**good[4], "time": "soon"}, good[5]]
    text = [*map(json.dumps, rows), "{no record", json.dumps({"who": "ann"}), json.dumps({**good[4], "time": 1e9})]
    (tmp_path / "v.jsonl").write_text("\n".join(text) + "\n")
    places = ["--out", tmp_path / "out", "--state", tmp_path / "replay.db"]
    options = ["--data", population_file, "--model", population_folder, "--verdicts", tmp_path / "v.jsonl", *places]
    done = run(*options, "--learn", "4d", "--delay", "20d", "--json", "-", code=3)
    result = json.loads(done.stdout)
    assert (result["refused_verdicts"], result["dead_letters"]) == (5, 0)
    assert result["lessons"]["last"]["frauds"] == 4
    dead = [json.loads(line) for line in (tmp_path / "out" / "verdict_dead_letters.jsonl").read_text().splitlines()]
    assert [(d["line"], d["field"]) for d in dead] == [
        ("4", "verdict"),
        ("5", "time"),
        ("7", None),
        ("8", "transaction"),
        ("9", "time"),
    ]
    assert all(d["reason"] and d["raw"] for d in dead)
    shown = run(*options, "--learn", "4d", "--delay", "20d", "--resume", code=3).output
    assert "5 refused verdicts" in shown
    assert re.search(r"14 lessons: the last learnt from 4 frauds and [\d,]+ others, weighed by sum", shown)
    assert "replay.db.models" in shown


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--learn", "daily"], "no verdicts to learn from"),
        (["--verdicts-from", "fraud"], "--verdicts-from is for lessons: say when they are"),
        (["--delay", "3d"], "--delay is for lessons"),
        (["--verdicts", "none.csv"], "--verdicts is for lessons"),
        (["--learn", "daily", "--verdicts", "none.csv"], "none.csv"),
        (["--learn", "daily", "--verdicts-from", "pattern"], "a simulated town has its labels in 'fraud'"),
        (["--learn", "daily", "--verdicts-from", "a", "--data", "x.csv", "--label", "b"], "are two columns"),
        (["--learn", "daily", "--to", "kafka://x/y", "--verdicts-from", "fraud"], "--learn.* score something"),
    ],
)
def test_options_that_do_not_go_together(options, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["replay", *options])
    assert isinstance(done.exception, StreamCcsdError)
    assert re.search(why, str(done.exception))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--learn", "6h"], "--learn: the times of this stream have no unit, so '6h' means nothing in it: give a bare"),
        (["--adapt"], "--learn: the times of this stream have no unit, so '1d'"),
        (["--learn", "6"], "--delay: the times of this stream have no unit, so '7d'"),
        (["--learn", "often", "--delay", "3"], "--learn: expected a length of time like 7d"),
        (["--learn", "", "--delay", "3"], "--learn: expected a length of time like 7d"),
        (["--learn", "0", "--delay", "3"], "more than 0"),
        (["--learn", "0.00001", "--delay", "3"], "is more than there can be to learn: expected"),
        (["--learn", "1000000000", "--delay", "3"], "the first would come after"),
    ],
)
def test_lengths_in_a_stream_without_a_unit(options, why, stream_file, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ["--data", str(stream_file), "--model", str(model_folder), "--verdicts-from", "pattern"]
    done = CliRunner().invoke(app, ["replay", *data, *options])
    assert isinstance(done.exception, StreamCcsdError)
    assert why in str(done.exception)
    assert list(tmp_path.iterdir()) == []
