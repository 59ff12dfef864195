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
from replay.session import Session
from replay.source import FileSource
from stream_ccsd import scores as declared
from stream_ccsd.cli.main import app
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.kafka.scoring import PartitionScorer
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.records import json_schemas, score_columns, score_records, score_schema
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


def valid(name, record):
    jsonschema.validate(json.loads(json.dumps(record)), json_schemas()[name])


def test_a_replay_holds_to_them(outputs):
    table = pq.read_table(outputs / "scores.parquet")
    assert table.schema.remove_metadata().equals(score_schema())
    for record in score_records(table.slice(0, 300)):
        valid("score", record)
    for name, file in (("alert", "alerts.jsonl"), ("dead_letter", "dead_letters.jsonl")):
        lines = (outputs / file).read_text().splitlines()
        assert lines
        for line in lines:
            valid(name, json.loads(line))


def kafka_outputs(model, transactions):
    """What a worker would send about these, by topic."""
    from tests.kafka.test_scoring import record

    settings = WorkerSettings()
    records = [record(i, json.dumps(_plain(t)).encode(), t.account.encode()) for i, t in enumerate(transactions)]
    records.append(record(len(records), b"garbage", b"x"))
    sent = PartitionScorer(model, settings, Schema(), {}.get).score(records).outputs
    return {
        topic: [o for o in sent if o.topic == getattr(settings, topic)]
        for topic in ("scores", "alerts", "dead_letters")
    }


def _plain(transaction):
    return {name: getattr(transaction, name) for name in transaction.__dataclass_fields__}


def test_a_worker_holds_to_them(model, stream):
    sent = kafka_outputs(model, stream.transactions[:2000])
    for message in sent["scores"]:
        valid("score", json.loads(message.value))
    assert sent["alerts"]
    for message in sent["alerts"]:
        valid("alert", json.loads(message.value))
    (letter,) = sent["dead_letters"]
    names = {name for name, _ in letter.headers}
    assert names <= {*json_schemas()["dead_letter"]["properties"], "topic"}
    assert {"kind", "reason", "partition", "position", "timestamp"} <= names


@pytest.fixture
def added():
    """A score that no file of the package knows: the size of the amount, where it was unusual at all."""

    def size(outputs, events):
        return np.where(outputs["scores"][:, declared.EVIDENCE] > 1.0, np.log1p(events["amount"]), np.nan)

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
    expected = [np.log1p(amount) if evidence > 1.0 else None for amount, evidence in rows]
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
    valid("score", message)
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

    for name in ("evidence", "account", "Size", "a b", ""):
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
