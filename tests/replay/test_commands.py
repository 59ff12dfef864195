"""The commands around a replay, in process: what a person types, and what comes of it."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from replay.sources.files import read_transactions
from replay.sources.simulator.population import FIELDS, simulate
from stream_ccsd.cli.main import app
from stream_ccsd.fields import declared
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import Schema

runner = CliRunner()


def run(*arguments, code=0):
    done = runner.invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, done.output
    return done


def test_without_arguments_it_shows_alerts_and_counts_the_catch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("replay", "--customers", 80, "--days", 80)
    assert "normal transactions score this high" in done.output
    assert "fraud pattern" in done.output
    assert {p.name for p in (tmp_path / "replay-output").iterdir()} == {
        "alerts.jsonl",
        "scores.parquet",
        "dead_letters.jsonl",
        "drift.jsonl",
        "report.html",
    }
    page = (tmp_path / "replay-output" / "report.html").read_text(encoding="utf-8")
    assert page.count("<img") == 3  # over time, scores, and reasons of the highest alerts
    result = json.loads(run("replay", "--customers", 80, "--days", 80, "--json", "-").stdout)
    assert result["caught_accounts"] <= result["fraud_accounts"]
    assert sum(p["accounts"] for p in result["patterns"].values()) == result["fraud_accounts"]


@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz", "s.parquet"])
def test_simulate_writes_what_simulate_makes(tmp_path, name):
    run("simulate", "--out", tmp_path / name, "--customers", 20, "--days", 12, "--fraud-share", 0.5, "--seed", 3)
    made = simulate(accounts=20, days=12, fraud_share=0.5, seed=3).transactions
    assert list(read_transactions(tmp_path / name, Schema(fields=declared(FIELDS)))) == made
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A simulated file, a model of half its normal accounts, and a durable replay of the others."""
    folder = tmp_path_factory.mktemp("place")
    run("simulate", "--out", folder / "s.csv", "--customers", 120, "--days", 70, "--fraud-share", 0.3)
    run("fit", "--data", folder / "s.csv", "--model", folder / "m", "--label", "fraud", "--share", 0.5)
    options = ["--data", folder / "s.csv", "--model", folder / "m", "--unseen", "--label", "pattern"]
    run("replay", *options, "--out", folder / "out", "--state", folder / "state.db")
    return folder


def test_resumed_in_another_process_with_a_filter(place):
    """Sets have another order in every process."""
    options = ["--data", place / "s.csv", "--model", place / "m", "--unseen", "--label", "pattern"]
    arguments = ["replay", *options, "--out", place / "out", "--state", place / "state.db", "--resume"]
    run_it = "import sys; from stream_ccsd.cli.main import run; sys.argv[0] = 'stream-ccsd'; run()"
    command = [sys.executable, "-c", run_it, *(str(a) for a in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unseen_accounts_only(place):
    fitted = set(Model.load(place / "m").accounts)
    accounts = set(pq.read_table(place / "out" / "scores.parquet")["account"].to_pylist())
    assert fitted
    assert accounts
    assert not fitted & accounts


def test_alerts_in_every_format(place, tmp_path):
    lines = (place / "out" / "alerts.jsonl").read_text().splitlines()
    state = ["--state", place / "state.db"]
    assert run("alerts", *state, "--format", "json").stdout.splitlines() == lines
    assert len(run("alerts", *state, "--format", "csv").stdout.splitlines()) == len(lines) + 1
    run("alerts", *state, "--format", "parquet", "--out", tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet")["json"].to_pylist() == lines
    first = json.loads(lines[0])
    own = run("alerts", *state, "--account", first["account"], "--format", "json").stdout.splitlines()
    assert own == [line for line in lines if json.loads(line)["account"] == first["account"]]
    late = run("alerts", *state, "--since", 40, "--format", "json").stdout.splitlines()
    assert late == [line for line in lines if json.loads(line)["time"] >= 40]
    assert run("alerts", *state, "--limit", 2, "--format", "json").stdout.splitlines() == lines[-2:]
    assert f"{len(lines)} alerts" in run("alerts", *state).output


def test_explain_as_picture_text_and_json(place, tmp_path):
    account = json.loads((place / "out" / "alerts.jsonl").read_text().splitlines()[0])["account"]
    picture = tmp_path / "a.svg"
    done = run("explain", "--state", place / "state.db", "--account", account, "--out", picture)
    assert "nats" in done.output
    assert "<svg" in picture.read_text()
    found = json.loads(
        run("explain", "--state", place / "state.db", "--account", account, "--out", picture, "--json", "-").stdout
    )
    assert {t["account"] for t in found["transactions"]} == {account}


HEADER = "account,time,amount,category,merchant,id,note\n"
GOOD = [f"a{i % 3},{i},{10 + i},food,m{i % 4},x{i},fine\n" for i in range(40)]
DAMAGE = {
    "a row cut short\n": "the row has 1 values",
    'a1,41,5,food,"m1,y1,open quote\n': "never closes",
    "a1,soon,5,food,m1,y2,\n": "time",
    "a1,41,lots,food,m1,y3,\n": "amount",
    "a1,41,nan,food,m1,y4,\n": "amount",
    ",41,5,food,m1,y5,\n": "account",
    "a1,41,5,food,caf\udce9,y6,\n": "merchant",
    "a0,39,49,food,m3,x39,fine\n": "duplicate",
    "a0,3,5,food,m1,y7,\n": "too late",
}


def test_a_file_with_every_kind_of_damage(model_folder, tmp_path):
    rows = GOOD[:]
    for number, row in enumerate(DAMAGE):
        # A copy and a row from the past are such only behind the good ones.
        rows.insert(len(rows) if row.startswith("a0,") else 4 * number + 2, row)
    rows.append("a2,99,5,fo")  # the last line broke off
    path = tmp_path / "damaged.csv"
    path.write_bytes((HEADER + "".join(rows)).encode("utf-8", "surrogateescape"))
    done = run("replay", "--data", path, "--model", model_folder, "--out", tmp_path / "out", "--json", "-", code=3)
    summary = json.loads(done.stdout)
    scores = pq.read_table(tmp_path / "out" / "scores.parquet")
    assert sorted(scores["id"].to_pylist()) == sorted(f"x{i}" for i in range(40))
    dead = [json.loads(line) for line in (tmp_path / "out" / "dead_letters.jsonl").read_text().splitlines()]
    assert summary["dead_letters"] == len(dead) == len(DAMAGE) + 1
    lines = (HEADER + "".join(rows)).split("\n")
    reasons = {}
    for letter in dead:
        assert letter["raw"] == lines[int(letter["line"]) - 1]
        reasons[letter["raw"] + "\n"] = f"{letter['reason']} {letter['field']}"
    for row, reason in DAMAGE.items():
        assert reason in reasons[row], row


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "nan"], "expected a finite number or a date"),
        (["--until", "inf"], "expected a finite number or a date"),
        (["--accounts", "nobody"], "is chosen by --accounts nobody; there are accounts like a0, a1, a2"),
    ],
)
def test_a_choice_that_cannot_be_meant(model_folder, tmp_path, options, message):
    path = tmp_path / "good.csv"
    path.write_text(HEADER + "".join(GOOD))
    arguments = ["replay", "--data", path, "--model", model_folder, "--out", tmp_path / "out", *options]
    done = runner.invoke(app, [str(a) for a in arguments])
    assert done.exit_code != 0
    assert message in f"{done.exception} {done.output}"


def test_another_encoding_can_be_named(model_folder, tmp_path):
    path = tmp_path / "latin.csv"
    path.write_bytes((HEADER + "a1,1,5,food,café,y1,\n").encode("latin-1"))
    options = ["--data", path, "--model", model_folder, "--out", tmp_path / "out"]
    run("replay", *options, code=3)
    run("replay", *options, "--encoding", "latin-1")
    assert pq.read_table(tmp_path / "out" / "scores.parquet")["merchant"].to_pylist() == ["café"]
    path.write_bytes((HEADER + "a1,1,5,food,café,y1,\n").encode("utf-16"))
    run("replay", *options)
    assert pq.read_table(tmp_path / "out" / "scores.parquet")["merchant"].to_pylist() == ["café"]


@pytest.mark.parametrize("content", [b"", HEADER.encode(), b"\n\n"])
def test_an_empty_file_is_said_to_be_empty(model_folder, tmp_path, content):
    path = tmp_path / "empty.csv"
    path.write_bytes(content)
    done = runner.invoke(app, ["replay", "--data", str(path), "--model", str(model_folder), "--out", str(tmp_path)])
    assert "holds no transaction" in str(done.exception)
