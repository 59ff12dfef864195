"""One public shape of each record: written out, and held to by everything that makes one."""

import json
import re
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import stream_ccsd
from replay.run.session import Session
from replay.sources.source import FileSource
from stream_ccsd import scores as declared
from stream_ccsd.cli.main import app
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.worker.scoring import PartitionScorer
from stream_ccsd.learning.learner import listening
from stream_ccsd.records import (
    Origin,
    json_schemas,
    score_batch,
    score_columns,
    score_record,
    score_records,
    score_schema,
    scored_batch,
    transaction_record,
)
from stream_ccsd.scores import Score, register, unregister
from stream_ccsd.transaction import Schema
from tests.conftest import SMALL

SCHEMAS = Path(stream_ccsd.__file__).parent / "schemas"


def test_the_schemas_that_are_written_out_are_true():
    """Written anew with ``python -m tests.test_records``."""
    written = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}
    assert written == json_schemas()


@pytest.fixture(scope="module")
def outputs(model, stream_file, tmp_path_factory):
    out = tmp_path_factory.mktemp("records")
    Session(FileSource(stream_file, label="pattern"), model, out, out / "s.db").run()
    return out


def check(name, *records):
    """Against the schema of that name, which is itself checked once for all of them."""
    schema = json_schemas()[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for record in records:
        validator.validate(json.loads(json.dumps(record)))


def test_a_replay_holds_to_them(outputs):
    table = pq.read_table(outputs / "scores.parquet")
    assert table.schema.remove_metadata().equals(score_schema())
    check("score", *score_records(table.slice(0, 300)))
    for name, file in (("alert", "alerts.jsonl"), ("dead_letter", "dead_letters.jsonl")):
        lines = (outputs / file).read_text().splitlines()
        assert lines
        check(name, *map(json.loads, lines))


@pytest.mark.parametrize("kind", ["plain", "declared", "learning"])
def test_a_batch_of_results_is_what_their_records_are(model, population_model, stream, kind):
    chosen = {"plain": model, "declared": population_model, "learning": listening(model)}[kind]
    results = Engine(chosen).process_many(stream.transactions[:1500])
    entered = [result for result in results if result.entered]
    labels = [None if i % 3 else "fraud" for i in range(len(entered))]
    rows = zip(range(7, 7 + len(entered)), entered, labels, strict=True)
    records = score_batch([score_record(Origin(place), result, label) for place, result, label in rows])
    assert scored_batch(range(7, 7 + len(entered)), entered, labels).equals(records)
    assert any(records.column("fields").to_pylist()) == (kind == "declared")
    assert any(records.column("inputs").to_pylist()) == (kind == "learning")
    assert scored_batch([], [], []).equals(score_batch([]))


def kafka_outputs(model, transactions):
    """What a worker would send about these, by topic."""
    from tests.kafka.test_scoring import record

    settings = WorkerSettings()
    sent = [json.dumps(transaction_record(t)).encode() for t in transactions]
    records = [record(i, raw, t.account.encode()) for i, (raw, t) in enumerate(zip(sent, transactions, strict=True))]
    records.append(record(len(records), b"garbage", b"x"))
    schema = Schema(fields=model.settings.declared)
    sent = PartitionScorer(model, settings, schema, {}.get).score(records).outputs
    return {
        topic: [o for o in sent if o.topic == getattr(settings, topic)]
        for topic in ("scores", "alerts", "dead_letters")
    }


@pytest.mark.parametrize("declared_fields", [False, True])
def test_a_worker_holds_to_them(model, population_model, stream, declared_fields):
    sent = kafka_outputs(population_model if declared_fields else model, stream.transactions[:2000])
    scores = [json.loads(message.value) for message in sent["scores"]]
    check("score", *scores)
    for score in scores:
        assert sum(score["terms"].values()) == pytest.approx(score["evidence"], abs=1e-3)
        assert set(score["fields"] or {}) == ({"country", "device"} if declared_fields else set())
    assert sent["alerts"]
    check("alert", *(json.loads(message.value) for message in sent["alerts"]))
    (letter,) = sent["dead_letters"]
    names = {name for name, _ in letter.headers}
    assert names <= {*json_schemas()["dead_letter"]["properties"], "topic"}
    assert {"kind", "reason", "partition", "position", "timestamp"} <= names


@pytest.fixture
def added():
    """A score that no file of the package knows: the size of the amount, where it was unusual at all."""

    def size(outputs, events):
        return np.where(outputs["scores"][:, declared.EVIDENCE] > -4.0, np.log1p(events["amount"]), np.nan)

    yield register(Score("size", "How much was paid, where the place was unusual", unit="log", compute=size))
    unregister("size")


def printed(arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_score_from_outside_is_everywhere(added, stream, stream_file, tmp_path):
    normal = stream.normal_accounts()
    model = fit((t for t in stream.transactions if t.account in normal), SMALL)
    assert "size" in model.tails
    model.save(tmp_path / "model")
    summary = Session(FileSource(stream_file), model, tmp_path / "out", tmp_path / "s.db").run()
    assert summary["alerts"] > 0
    table = pq.read_table(tmp_path / "out" / "scores.parquet")
    rows = zip(table["amount"].to_pylist(), table["evidence"].to_pylist(), strict=True)
    expected = [np.log1p(amount) if evidence > -4.0 else None for amount, evidence in rows]
    assert table["size"].to_pylist() == expected
    assert any(v is None for v in expected)
    assert any(v is not None for v in expected)
    alert = json.loads((tmp_path / "out" / "alerts.jsonl").read_text().splitlines()[0])
    assert alert["scores"]["size"] in expected
    assert ">size</th>" in (tmp_path / "out" / "report.html").read_text()
    explain = [
        "explain",
        "--state",
        str(tmp_path / "s.db"),
        "--account",
        alert["account"],
        "--out",
        str(tmp_path / "a.png"),
    ]
    assert re.search(r"\bscore +evidence +takeover +divergence +size\b", printed(explain))
    explained = json.loads(printed([*explain, "--json", "-"]))
    own = [
        size
        for account, size in zip(table["account"].to_pylist(), expected, strict=True)
        if account == alert["account"]
    ]
    assert [row["size"] for row in explained["transactions"]] == own
    assert explained["alerts"][0]["scores"]["size"] == alert["scores"]["size"]
    message = json.loads(kafka_outputs(model, stream.transactions[:50])["scores"][0].value)
    assert "size" in message
    check("score", message)
    assert [declared.recorded_scores(columns) for columns in (message, table.column_names)] == [
        [*(score.name for score in declared.COMPILED), "size"]
    ] * 2
    assert "size" in [column.name for column in score_columns()]
    one, many = Engine(model), Engine(model).process_many(stream.transactions[:300])
    assert [one.process(t) for t in stream.transactions[:300]] == many
    assert any(r.rarities["size"] for r in many)


def test_names_that_cannot_be_scores():
    def nothing(outputs, events):
        return np.zeros(len(outputs))

    for name in ("evidence", "terms", "account", "Size", "a b", ""):
        with pytest.raises(StreamCcsdError, match=r"score|called"):
            register(Score(name, "x", compute=nothing))
    with pytest.raises(StreamCcsdError, match="needs a function"):
        register(Score("size", "x"))
    with pytest.raises(StreamCcsdError, match="cannot join"):
        Score("size", "x", compute=nothing, joins_alert=True)


def test_a_score_from_outside_that_fails_says_which(model, stream):
    register(Score("broken", "x", compute=lambda outputs, events: np.zeros(3)))
    try:
        with pytest.raises(StreamCcsdError, match="'broken' gave"):
            Engine(model).process_many(stream.transactions[:5])
    finally:
        unregister("broken")


if __name__ == "__main__":
    for stem, schema in json_schemas().items():
        (SCHEMAS / f"{stem}.json").write_text(json.dumps(schema, indent=2) + "\n")
    print(f"written to {SCHEMAS}", file=sys.stderr)
