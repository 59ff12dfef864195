"""One's own file: declared fields, a fit on its first part, alert budgets, and what another one would have meant."""

import csv
import json
import subprocess
import sys
from contextlib import closing

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from replay.budget import budgets
from replay.run.fitting import FirstPart, fit_file, per_day, rate_of, with_rate
from replay.run.session import Session
from replay.sources.source import FileSource, ListSource, Wanted
from replay.state.file import StateFile, model_beside
from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.main import app
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fields import declared
from stream_ccsd.fitting import fit
from stream_ccsd.records import score_records
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Guess, Schema
from tests.conftest import FIELDS as OWN
from tests.conftest import with_settings

SETTINGS = ("window=8", "local_history=12", "divergence=false", "time_unit=days", "time_origin=2026-01-05")
SET = [part for setting in SETTINGS for part in ("--set", setting)]
DECLARED = ["--field", "country:category", "--field", "hops:number", "--columns", "country=ctry"]


def run(*arguments, code=0):
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80"})
    assert done.exit_code == code, (done.output, done.exception)
    return done


@pytest.fixture(scope="module")
def own_file(stream, tmp_path_factory):
    """With a country under another name and a number that is missing now and then."""
    path = tmp_path_factory.mktemp("own") / "mine.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*OWN, "ctry", "hops", "pattern"])
        for number, t in enumerate(stream.transactions):
            hops = "" if number % 7 == 0 else number % 5
            writer.writerow([*(getattr(t, n) for n in OWN), t.fields["country"], hops, stream.fraud.get(t.id, "")])
    return path


@pytest.fixture(scope="module")
def whole(own_file, tmp_path_factory):
    """A replay of it without a model, in one go, in memory."""
    out = tmp_path_factory.mktemp("whole")
    done = run("replay", "--data", own_file, *DECLARED, *SET, "--label", "pattern", "--out", out, "--json", "-")
    return out, json.loads(done.stdout)


def test_the_first_part_is_fitted_on_and_the_rest_streamed(whole, stream):
    out, result = whole
    times = np.sort([t.time for t in stream.transactions])
    stray = len(times) // 1000
    until = times[stray] + 0.3 * (times[-1 - stray] - times[stray])
    assert result["fit"]["until"] == pytest.approx(until)
    assert result["fit"]["contamination"] == 0.015
    rest = [t for t in stream.transactions if t.time >= until]
    assert result["transactions"] == len(rest)
    assert result["fit"]["transactions"] == len(stream.transactions) - len(rest)
    scores = score_records(pq.read_table(out / "scores.parquet"))
    assert [row["id"] for row in scores] == [t.id for t in rest]
    for row, t in zip(scores, rest, strict=True):
        assert row["fields"]["country"] == t.fields["country"]
        assert sum(row["terms"].values()) == pytest.approx(row["evidence"], abs=1e-3)
    assert {"amount", "country", "country_own", "hops"} <= {name for row in scores for name in row["terms"]}
    assert {row["fields"]["hops"] for row in scores} == {None, 0.0, 1.0, 2.0, 3.0, 4.0}


def test_states_go_on_from_the_first_part(own_file, stream):
    schema = Guess(declared(["country:category"]), {"country": "ctry"})
    settings = Settings(window=8, local_history=12, divergence=False, fields=("country:category",))
    part = FirstPart.of(FileSource(own_file, schema))
    model = part.fit(settings)
    engine = Engine(model, threshold=1e9)
    rest = [i.parsed for i in FileSource(own_file, schema, wanted=Wanted(start=part.until)).items()]
    engine.process_many(part.transactions)
    expected = engine.process_many(rest)
    assert Engine(model, part.states(model), 1e9).process_many(rest) == expected


def test_labels_change_no_bit_of_it(whole, own_file, tmp_path):
    run("replay", "--data", own_file, *DECLARED, *SET, "--out", tmp_path)
    with_labels, without = (pq.read_table(folder / "scores.parquet") for folder in (whole[0], tmp_path))
    assert with_labels.drop(["label"]).equals(without.drop(["label"]))


def test_it_is_resumed_with_the_model_it_began_with(whole, own_file, tmp_path):
    """Killed half-way, and the file has grown since: a fit from now would be another one."""
    grown = tmp_path / "mine.csv"
    grown.write_bytes(own_file.read_bytes())
    command = ["replay", "--data", str(grown), *DECLARED, *SET, "--label", "pattern"]
    command += ["--out", str(tmp_path / "out"), "--state", str(tmp_path / "r.db")]
    kill = (
        "import os, sys, replay.state.file as s; from stream_ccsd.__main__ import run; real = s.StateFile.record\n"
        "def record(self, harvest):\n    real(self, harvest); os._exit(9)\n"
        "s.StateFile.record = record; import replay.run.loop\n"
        "replay.run.loop.replay_stream.__kwdefaults__['batch'] = 700\n"
        "import replay.run.session; replay.run.session.Session.run.__kwdefaults__['batch'] = 700; run()"
    )
    assert subprocess.run([sys.executable, "-c", kill, *command], check=False, capture_output=True).returncode == 9
    with closing(StateFile.open(tmp_path / "r.db")) as file:
        assert 0 < file.records.totals().transactions <= 700
    run(*command, code=1)  # it is there: never overwritten
    with pytest.raises(StreamCcsdError, match="other fields or settings"):
        CliRunner().invoke(app, [*command, "--resume", "--set", "grace=1"], catch_exceptions=False)
    with grown.open("a") as file:
        file.write("c00001,61.5,10.0,groceries,m0001,late-comer,GB,2,\n")
    assert (model_beside(tmp_path / "r.db") / "model.json").is_file()
    run(*command, "--resume")
    now, before = (pq.read_table(folder / "scores.parquet") for folder in (tmp_path / "out", whole[0]))
    assert now.slice(0, len(before)).equals(before)
    assert len(now) == len(before) + 1
    assert (tmp_path / "out" / "alerts.jsonl").read_bytes().startswith((whole[0] / "alerts.jsonl").read_bytes())


def test_what_it_says_of_its_fit(own_file, tmp_path):
    shown = run("replay", "--data", own_file, *DECLARED, *SET, "--label", "pattern", "--out", tmp_path).output
    said = " ".join(shown.split())
    assert "fitted on the first 30% of the time" in said
    assert "the fit does not see it" in said
    assert "fraud in that part counts as normal" in said
    assert "--label COLUMN --model model" in said
    assert "asked for 1 in 1,000, " in said
    assert "transactions alerted; " in said
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 80


def test_too_little_to_fit_on(tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("account,time,amount,merchant\n" + "".join(f"a{i % 3},{i},1,m\n" for i in range(50)))
    with pytest.raises(StreamCcsdError, match="hold 15 transactions of 3 accounts, too few"):
        FirstPart.of(FileSource(path))


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("country", "NAME:KIND"),
        ("country:colour", "expected one of category, number"),
        ("score:number", "something else is"),
        ("a b:number", "a word of letters"),
    ],
)
def test_fields_that_are_none(own_file, tmp_path, field, message):
    for command in (["replay", "--data", own_file], ["fit", "--data", own_file, "--model", tmp_path / "m"]):
        assert message in " ".join(run(*command, "--field", field, code=2).output.split())


def test_a_field_that_is_declared_twice(own_file):
    options = ["--field", "ctry:category", "--field", "ctry:number"]
    assert "declared twice" in run("replay", "--data", own_file, *options, code=2).output
    assert "unknown field shoe" in run("replay", "--data", own_file, "--columns", "shoe=ctry", code=2).output


def test_a_column_that_a_table_does_not_have(own_file):
    with pytest.raises(StreamCcsdError, match=r"no column named shoe: it has account, .*ctry, hops, pattern"):
        next(FileSource(own_file, Guess(declared(["shoe:number"]))).items())


def test_values_that_are_none_leave_their_neighbours_alone(model, tmp_path):
    """Lines of JSON: a column that appears half-way, a number that is text, NaN, and values of other kinds."""
    path = tmp_path / "s.jsonl"
    values = ["", '"far"', "NaN", "7", '"7.5"', "[1]", "true", "1e400", "null", "-3"]
    rows = [
        f'{{"account": "a", "time": {i}, "amount": 1, "merchant": "m"{v and f", {chr(34)}km{chr(34)}: {v}"}}}'
        for i, v in enumerate(values)
    ]
    path.write_text("\n".join(rows) + "\n")
    transactions = [i.parsed for i in FileSource(path, Guess(declared(["km:number"]))).items()]
    taken = [None, "km", None, 7.0, 7.5, "km", "km", "km", None, -3.0]
    assert [t.fields["km"] if hasattr(t, "fields") else t.field for t in transactions] == taken
    fitted = with_settings(model)  # it has no fields: they are not looked at
    summary = Session(FileSource(path, Guess(declared(["km:number"]))), fitted, tmp_path / "out").run()
    assert (summary["transactions"], summary["dead_letters_by_reason"]) == (6, {"malformed km": 4})


def test_a_category_may_have_any_number_of_values(stream):
    """Every transaction another: nothing is learnt from it, and nothing breaks."""
    from dataclasses import replace

    rows = [replace(t, fields={"session": f"s{i}"}) for i, t in enumerate(stream.transactions)]
    model = fit(rows, Settings(window=8, local_history=12, divergence=False, fields=("session:category",)))
    assert all(r.entered for r in Engine(model).process_many(rows))


def test_a_model_brings_its_fields(own_file, tmp_path):
    run("fit", "--data", own_file, *DECLARED, *SET, "--model", tmp_path / "m")
    with pytest.raises(StreamCcsdError, match="no column named country"):
        CliRunner().invoke(
            app, ["replay", "--data", str(own_file), "--model", str(tmp_path / "m")], catch_exceptions=False
        )
    renamed = ["--columns", "country=ctry", "--out", tmp_path / "out"]
    run("replay", "--data", own_file, "--model", tmp_path / "m", *renamed)
    (first, *_) = score_records(pq.read_table(tmp_path / "out" / "scores.parquet").slice(0, 1))
    assert first["fields"].keys() == {"country", "hops"}
    for line in (tmp_path / "out" / "alerts.jsonl").read_text().splitlines():
        assert json.loads(line)["fields"].keys() == {"country", "hops"}


def test_a_budget_by_the_day(own_file, tmp_path, stream):
    schema = Schema(fields=(), category="category")
    settings = Settings(window=8, local_history=12, divergence=False, time_unit="days")
    fitted = fit_file(own_file, settings, schema=schema, share=0.5).model
    times = [t.time for t in stream.transactions]
    assert fitted.facts["transactions_per_day"] == pytest.approx(len(times) / (max(times) - min(times)))
    assert rate_of(fitted, 2.0) == 2.0 / fitted.facts["transactions_per_day"]
    assert with_rate(fitted, 1e-2).threshold == pytest.approx(-np.log(1e-2))
    with pytest.raises(StreamCcsdError, match="must lie between 0 and"):
        rate_of(fitted, 1e9)
    facts = run("fit", "--data", own_file, *SET, "--model", tmp_path / "m", "--alerts-per-day", 2, "--json", "-")
    assert json.loads(facts.stdout)["alert_rate"] == pytest.approx(2.0 / fitted.facts["transactions_per_day"])
    assert per_day([1.0, 2.0], Calendar()) is None


def test_a_day_needs_a_unit(model_folder, own_file, tmp_path):
    options = ["--model", str(model_folder), "--alerts-per-day", "3", "--out", str(tmp_path)]
    with pytest.raises(StreamCcsdError, match="needs to know what a day is"):
        CliRunner().invoke(app, ["replay", "--data", str(own_file), *options], catch_exceptions=False)


@pytest.mark.parametrize("alert_rate", ["0", "1", "-1", "nan"])
def test_rates_that_are_none(alert_rate):
    assert "--alert-rate" in run("replay", f"--alert-rate={alert_rate}", code=2).output


@pytest.mark.parametrize(
    "policy",
    [{}, {"alert_margin": 0.2}, {"alert_cooldown": 5.0}, {"alert_cap": 2, "alert_interval": 7.0}],
    ids=lambda policy: ",".join(policy) or "default",
)
def test_the_budget_of_the_replay_gives_its_alerts(model, stream, tmp_path, policy):
    """Also those of every other threshold: each as a replay of its own would have it."""
    chosen = with_settings(model, divergence=False, **policy)
    source = ListSource("x", stream.transactions, stream.fraud)
    summary = Session(source, chosen, tmp_path, tmp_path / "s.db", threshold=2.5).run()
    with closing(StateFile.open(tmp_path / "s.db", read_only=True)) as file:
        found = budgets(file.records, rates=[0.2, 1e-2, 1e-3])
    (current,) = (row for row in found["budgets"] if row["current"])
    assert (current["alerts"], current["threshold"]) == (summary["alerts"], 2.5)
    assert summary["alerts"] > 10
    for row in found["budgets"]:
        again = Session(source, chosen, tmp_path / "again", threshold=row["threshold"]).run()
        assert row["alerts"] == again["alerts"]
        assert row["account"] == {"precision": again["precision"], "recall": again["recall"]}
        assert row["share"] == again["alert_rate"]


def test_the_table_of_budgets(own_file, tmp_path):
    state = tmp_path / "r.db"
    replay = ["replay", "--data", own_file, *DECLARED, *SET, "--state", state, "--out", tmp_path / "out"]
    result = json.loads(run(*replay, "--label", "pattern", "--alert-rate", "0.05", "--json", "-").stdout)
    shown = run("budget", "--state", state).output
    assert max(map(len, shown.splitlines())) <= 80
    (line,) = (line for line in shown.splitlines() if line.rstrip().endswith("<"))
    assert f"1 in 20   3.0  {result['alerts']:>6}" in line
    found = json.loads(run("budget", "--state", state, "--json", "-").stdout)
    assert found["labelled"]
    assert all(0 <= (row["money_caught"] or 0) <= 1 for row in found["budgets"])
    alerts = [json.loads(line) for line in (tmp_path / "out" / "alerts.jsonl").read_text().splitlines()]
    for by, key in (("loss", "expected_loss"), ("score", "score")):
        ranked = run("alerts", "--state", state, "--by", by, "--limit", 5, "--format", "json").stdout.splitlines()
        expected = sorted(alerts, key=lambda a, key=key: (-a[key], a["position"]))[:5]
        assert [json.loads(line)["id"] for line in ranked] == [a["id"] for a in expected]
    one = alerts[0]["account"]
    own = run("alerts", "--state", state, "--by", "loss", "--account", one, "--since", "0", "--format", "json").stdout
    assert {json.loads(line)["account"] for line in own.splitlines()} == {one}
    assert "expected time, score or loss" in run("alerts", "--state", state, "--by", "size", code=2).output


def test_every_alert_of_a_summary_has_its_reason(whole):
    result = whole[1]
    assert sum(result["why"].values()) == result["alerts"]
    for row in result["patterns"].values():
        assert sum(row["why"].values()) == row["caught"]
    assert sum(result["why_false"].values()) == result["false_accounts"]
