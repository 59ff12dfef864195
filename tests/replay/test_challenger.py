"""A challenger beside the champion: nothing of the champion changes, and both survive whatever kills them."""

import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from replay.run.challenger import challenger_beside
from replay.run.session import Session
from replay.sources.source import FileSource, SortedSource
from stream_ccsd.cli.main import app
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.model.registry import Registry
from tests.commands import RUN
from tests.replay.test_session import StopAfter

# Changes of the stream are looked for by the champion alone.
FILES = ("scores.parquet", "alerts.jsonl", "dead_letters.jsonl")


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def other(model):
    """A challenger: another threshold, and another weight of what was fitted."""
    return replace(model, threshold=model.threshold - 1.5, sigma_y=model.sigma_y * 2)


@pytest.fixture(scope="module")
def alone(model, other, stream_file, tmp_path_factory):
    """What each says by itself, in one go."""
    folder = tmp_path_factory.mktemp("alone")
    for name, one in (("champion", model), ("challenger", other)):
        Session(FileSource(stream_file, label="pattern"), one, folder / name).run()
    said = {name: contents(folder / name) for name in ("champion", "challenger")}
    assert said["champion"]["alerts.jsonl"] != said["challenger"]["alerts.jsonl"]
    return said


def both(folder):
    return {"champion": contents(folder), "challenger": contents(folder / "challenger")}


def session(model, other, path, out, state=None, resume=False, wrap=lambda source: source):
    def own():
        return wrap(FileSource(path, label="pattern"))

    challenger = Session(own(), other, out / "challenger", state and challenger_beside(state), resume)
    return Session(own(), model, out, state, resume, challenger=challenger)


@pytest.mark.parametrize("durable", [False, True])
def test_each_says_what_it_says_alone(alone, model, other, stream_file, tmp_path, durable):
    state = tmp_path / "s.db" if durable else None
    summary = session(model, other, stream_file, tmp_path, state).run(batch=300)
    assert both(tmp_path) == alone
    assert (summary["model"], summary["challenger"]["model"]) == (model.version, other.version)
    assert summary["challenger"]["threshold"] == other.threshold
    assert (tmp_path / "challenger" / "report.html").is_file()
    assert (tmp_path / "s.db.challenger").exists() == durable


def test_stopped_often_and_resumed(alone, model, other, stream_file, tmp_path):
    chance, state, resume = random.Random(2), tmp_path / "s.db", False
    while True:
        looks = StopAfter(chance.randint(100, 900))
        summary = session(model, other, stream_file, tmp_path, state, resume).run(stop=looks, batch=70)
        resume = True
        if summary["complete"]:
            break
    assert both(tmp_path) == alone


@pytest.mark.parametrize("behind", ["champion", "challenger", "missing"])
def test_the_one_that_is_behind_catches_up(alone, model, other, stream_file, tmp_path, behind):
    """Of two files no moment of death can make a pair that does not go on; a challenger may also come later."""
    state = tmp_path / "s.db"
    session(model, other, stream_file, tmp_path, state).run(stop=StopAfter(400), batch=50)
    early = {path: path.read_bytes() for path in (state, challenger_beside(state))}
    session(model, other, stream_file, tmp_path, state, resume=True).run(stop=StopAfter(1200), batch=50)
    if behind == "missing":
        challenger_beside(state).unlink()
    else:
        path = state if behind == "champion" else challenger_beside(state)
        path.write_bytes(early[path])
    session(model, other, stream_file, tmp_path, state, resume=True).run()
    assert both(tmp_path) == alone


def test_a_challenger_of_a_replay_that_is_done(alone, model, other, stream_file, tmp_path):
    state = tmp_path / "s.db"
    Session(FileSource(stream_file, label="pattern"), model, tmp_path, state).run()
    summary = session(model, other, stream_file, tmp_path, state, resume=True).run()
    assert both(tmp_path) == alone
    assert summary["challenger"]["transactions"] == summary["transactions"]


def test_a_sorted_stream(model, other, stream_file, tmp_path):
    for name, one in (("a", model), ("b", other)):
        Session(SortedSource(FileSource(stream_file, label="pattern")), one, tmp_path / name).run()
    session(model, other, stream_file, tmp_path / "o", tmp_path / "s.db", wrap=SortedSource).run(batch=111)
    assert both(tmp_path / "o") == {"champion": contents(tmp_path / "a"), "challenger": contents(tmp_path / "b")}


def test_what_does_not_belong_together_is_refused(model, other, stream_file, tmp_path):
    state = tmp_path / "s.db"
    session(model, other, stream_file, tmp_path, state).run(stop=StopAfter(400), batch=50)
    with pytest.raises(StreamCcsdError, match=r"s\.db\.challenger was begun with another model"):
        session(model, model, stream_file, tmp_path, state, resume=True).run()
    state.unlink()
    with pytest.raises(StreamCcsdError, match=r"s\.db\.challenger exists"):
        session(model, other, stream_file, tmp_path, state).run()
    assert not state.exists()  # said before there is anything


@pytest.fixture(scope="module")
def other_folder(other, tmp_path_factory):
    return other.save(tmp_path_factory.mktemp("other") / "model")


def command(stream_file, model_folder, other_folder, folder, *more):
    places = ["--out", str(folder / "out"), "--state", str(folder / "state.db"), "--challenger", str(other_folder)]
    arguments = ["replay", "--data", str(stream_file), "--model", str(model_folder), "--label", "pattern"]
    return [sys.executable, "-c", RUN, *arguments, *places, *more]


def position(state):
    try:
        with sqlite3.connect(f"{state.as_uri()}?mode=ro", uri=True) as reader:
            return reader.execute("SELECT position FROM progress").fetchone()[0]
    except sqlite3.Error:
        return 0


def test_killed_twelve_times(alone, stream_file, model_folder, other_folder, tmp_path):
    chance, state, kills = random.Random(1), tmp_path / "state.db", 0
    while True:
        more = ["--resume"] if state.exists() else []
        speed = ["--speed", "400"] if kills < 12 else []
        process = subprocess.Popen(
            command(stream_file, model_folder, other_folder, tmp_path, *speed, *more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if kills == 12:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 3, errors
            break
        before, deadline = position(state), time.monotonic() + 60
        while position(state) == before and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.1))
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    assert both(tmp_path / "out") == alone
    assert position(state) == position(challenger_beside(state))


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_a_challenger_with_other_fields_changes_nothing_of_the_champion(
    stream, model_folder, population_model, tmp_path
):
    """Not even where one of its values makes a dead letter."""
    path, rows = tmp_path / "s.jsonl", []
    for number, t in enumerate(stream.transactions[:600]):
        row = {name: getattr(t, name) for name in ("account", "time", "amount", "category", "merchant", "id")}
        row |= {"ctry": t.fields["country"], "device": t.fields["device"]}
        rows.append(row | ({"ctry": {"no": "text"}} if number == 50 else {}))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    population_model.save(tmp_path / "town")
    options = ["replay", "--data", path, "--model", model_folder]
    run(*options, "--out", tmp_path / "alone")
    columns = ["--columns", "country=ctry"]
    run(*options, "--challenger", tmp_path / "town", *columns, "--out", tmp_path / "o", "--state", tmp_path / "s.db")
    assert contents(tmp_path / "o") == contents(tmp_path / "alone")
    (letter,) = map(json.loads, (tmp_path / "o" / "challenger" / "dead_letters.jsonl").read_text().splitlines())
    assert (letter["position"], letter["field"]) == (51, "country")
    good = [t for n, t in enumerate(stream.transactions[:600]) if n != 50]
    wanted = [r.alert.id for r in Engine(population_model).process_many(good) if r.alert]
    found = (tmp_path / "o" / "challenger" / "alerts.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in found] == wanted
    # A replay that was begun without a challenger, and has other fields than it, gets one later, too.
    shutil.rmtree(tmp_path / "o" / "challenger")
    (tmp_path / "s.db.challenger").unlink()
    run(
        *options,
        "--challenger",
        tmp_path / "town",
        *columns,
        "--out",
        tmp_path / "o",
        "--state",
        tmp_path / "s.db",
        "--resume",
    )
    assert (tmp_path / "o" / "challenger" / "alerts.jsonl").read_text().splitlines() == found


def test_a_column_that_only_the_challenger_misses_is_said_first(stream_file, model_folder, population_model, tmp_path):
    population_model.save(tmp_path / "town")
    options = ["replay", "--data", stream_file, "--model", model_folder, "--challenger", tmp_path / "town"]
    done = run(*options, "--out", tmp_path / "o", "--state", tmp_path / "s.db", code=1)
    assert "no column named country" in str(done.exception)
    assert not (tmp_path / "s.db").exists()


def test_beside_a_model_of_the_files_own_first_part(stream_file, other_folder, tmp_path):
    """The challenger knows the accounts' past, too; the budget is that of both."""
    options = ["replay", "--data", stream_file, "--challenger", other_folder, "--alert-rate", 0.01]
    places = ["--out", tmp_path / "o", "--state", tmp_path / "s.db"]
    result = json.loads(run(*options, *places, "--json", "-", code=3).stdout)
    assert result["threshold"] == result["challenger"]["threshold"]
    assert result["transactions"] == result["challenger"]["transactions"]
    before = contents(tmp_path / "o" / "challenger")
    first = json.loads(before["alerts.jsonl"].splitlines()[0])
    assert first["time"] > result["fit"]["until"]
    (tmp_path / "s.db.challenger").unlink()
    run(*options, *places, "--resume", code=3)
    assert contents(tmp_path / "o" / "challenger") == before


def test_a_folder_of_versions_stands_for_its_current_one(alone, model, other, stream_file, tmp_path):
    versions = Registry(tmp_path / "v")
    first = versions.add(model)
    versions.add(other)
    options = ["replay", "--data", stream_file, "--label", "pattern"]
    run(*options, "--model", tmp_path / "v", "--out", tmp_path / "a", code=3)
    assert contents(tmp_path / "a") == alone["challenger"]
    versions.pin(first)
    run(*options, "--model", tmp_path / "v", "--out", tmp_path / "b", code=3)
    assert contents(tmp_path / "b") == alone["champion"]
