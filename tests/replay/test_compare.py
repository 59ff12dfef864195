"""Champion against challenger: every count against a slow and obvious one, intervals against their meaning."""

import json
import shutil
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest
from typer.testing import CliRunner

from replay.cases.verdicts import VerdictLog, audit_log_beside
from replay.compare import RECALL_NOTE, compare, effective_verdicts_of, recorded_labels, wilson
from replay.run.challenger import challenger_beside
from replay.run.session import Session
from replay.sources.source import FileSource, ListSource
from replay.state.file import StateFile
from stream_ccsd.cli.main import app
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.verdict import Verdict


@pytest.fixture(scope="module")
def place(population_model, stream, tmp_path_factory):
    """A champion and a challenger of a stream with dates and labels."""
    folder = tmp_path_factory.mktemp("compared")
    state = folder / "replay.db"
    source = ListSource("stream", stream.transactions, stream.fraud)
    other = replace(
        population_model, threshold=population_model.threshold - 1.0, takeover_share=population_model.takeover_share / 2
    )
    challenger = Session(source, other, folder / "challenger", challenger_beside(state))
    Session(source, population_model, folder, state, challenger=challenger).run()
    return folder


@pytest.fixture
def stores(place):
    with (
        closing(StateFile.open(place / "replay.db", read_only=True)) as old,
        closing(StateFile.open(place / "replay.db.challenger", read_only=True)) as new,
    ):
        yield old.records, new.records


def rows(place):
    return [pq.read_table(folder / "scores.parquet").to_pylist() for folder in (place, place / "challenger")]


def naive_accounts(scores, label):
    """Accounts caught, and those falsely alerted, among those that somebody judged."""
    caught, false, frauds = set(), set(), set()
    judged = {row["account"] for row in scores if label(row) is not None}
    for row in scores:
        if label(row) == "fraud":
            frauds.add(row["account"])
        if row["alert"] and row["account"] in frauds:
            caught.add(row["account"])
        elif row["alert"] and row["account"] in judged:
            false.add(row["account"])
    return caught, false - caught, frauds


def half_judged(row):
    """Verdicts on half of the accounts' transactions, and not on every alert."""
    if sum(map(ord, row["id"])) % 3 == 0:
        return None
    return "fraud" if row["label"] else "normal"


@pytest.mark.parametrize("judge", [lambda row: "fraud" if row["label"] else "normal", half_judged])
def test_every_count_is_that_of_plain_sets(place, stores, judge):
    old, new = rows(place)
    said = {(row["account"], row["id"]): judge(row) for row in old}
    result = compare(*stores, lambda account, transaction: said[account, transaction], limit=5)
    alerts = [{row["id"] for row in side if row["alert"]} for side in (old, new)]
    assert result["transactions"] == len(old)
    assert result["by_transaction"] == {
        "shared": len(alerts[0] & alerts[1]),
        "gained": len(alerts[1] - alerts[0]),
        "lost": len(alerts[0] - alerts[1]),
    }
    assert result["by_transaction"]["gained"] > 0
    assert result["by_transaction"]["lost"] > 0
    accounts = [{row["account"] for row in side if row["alert"]} for side in (old, new)]
    assert result["by_account"]["gained"] == len(accounts[1] - accounts[0])
    frauds = {row["id"] for row in old if judge(row) == "fraud"}
    normals = {row["id"] for row in old if judge(row) == "normal"}
    measured = result["judged"]
    assert (measured["frauds"], measured["normals"]) == (len(frauds), len(normals))
    caught = []
    for name, own, side in zip(("champion", "challenger"), alerts, (old, new), strict=True):
        precision, recall = (measured["by_transaction"][m][name] for m in ("precision", "recall"))
        assert precision == wilson(len(own & frauds), len(own & (frauds | normals)))
        assert recall == wilson(len(own & frauds), len(frauds))
        assert measured["unjudged_alerts"][name] == len(own - frauds - normals)
        found, false, fraudulent = naive_accounts(side, judge)
        assert measured["by_account"]["precision"][name] == wilson(len(found), len(found) + len(false))
        assert measured["by_account"]["recall"][name] == wilson(len(found), len(fraudulent))
        caught.append(found)
    gained, lost = len(caught[1] - caught[0]), len(caught[0] - caught[1])
    p = binomtest(gained, gained + lost).pvalue if gained + lost else None
    assert measured["by_account"]["mcnemar"]["caught"] == {"gained": gained, "lost": lost, "p": p}
    assert measured["note"] == RECALL_NOTE
    for level in ("by_transaction", "by_account"):
        for measure in ("precision", "recall"):
            row = measured[level][measure]
            wanted = row["challenger"]["value"] - row["champion"]["value"]
            assert row["difference"]["value"] == pytest.approx(wanted)
            assert row["difference"]["low"] <= wanted <= row["difference"]["high"]


def test_the_highest_of_what_changes_is_listed(place, stores):
    old, new = rows(place)
    known = {row["id"]: row for row in old}
    alerted = {row["account"] for row in old if row["alert"]}
    gained = sorted((row for row in new if row["alert"] and not known[row["id"]]["alert"]), key=lambda r: -r["score"])
    listed = compare(*stores, limit=4)["gained"]
    assert [a["transaction"] for a in listed] == [row["id"] for row in gained[:4]]
    for alert in listed:
        assert alert["headline"]
        assert alert["reason"]
        assert alert["other_score"] == known[alert["transaction"]]["score"]
        assert alert["other_alerted_account"] == (alert["account"] in alerted)
        assert alert["verdict"] is None
    assert compare(*stores, limit=0)["lost"] == []


def test_against_itself_nothing_changes(stores):
    result = compare(stores[0], stores[0], recorded_labels(stores[0]))
    assert (result["by_account"]["gained"], result["by_account"]["lost"]) == (0, 0)
    assert result["gained"] == result["lost"] == []
    for level in ("by_transaction", "by_account"):
        for measure in ("precision", "recall"):
            assert result["judged"][level][measure]["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert result["judged"]["by_account"]["mcnemar"]["caught"]["p"] is None


def test_intervals_are_those_of_the_seed(stores):
    labels = recorded_labels(stores[0])
    one, again, other = (compare(*stores, labels, seed=seed)["judged"]["by_account"] for seed in (1, 1, 2))
    assert one == again
    assert one["recall"]["champion"] == other["recall"]["champion"]
    assert one["precision"]["difference"] != other["precision"]["difference"]


def test_an_interval_covers_the_truth_as_often_as_it_says():
    chance = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        share = wilson(int(chance.binomial(60, 0.1)), 60)
        inside += share["low"] <= 0.1 <= share["high"]
    assert 0.93 < inside / 2000 < 0.98


def test_without_verdicts_nobody_is_said_to_be_right(stores):
    assert compare(*stores)["judged"] is None
    nobody = compare(*stores, lambda account, transaction: None)["judged"]
    assert nobody["by_account"]["recall"]["champion"]["value"] is None
    assert nobody["by_account"]["recall"]["difference"] == {"value": None, "low": None, "high": None}


def test_a_dispute_counts_for_nobody_until_it_is_settled(place, stores):
    alert = next(row for row in rows(place)[0] if row["alert"] and row["label"])
    said = [Verdict(alert["id"], alert["account"], "fraud", "ann", 1.0)]
    for verdict, who, frauds in (("fraud", "ann", 1), ("normal", "bob", 0), ("fraud", "eve", 1)):
        said.append(Verdict(alert["id"], alert["account"], verdict, who, float(len(said))))
        judged = compare(*stores, effective_verdicts_of(said))["judged"]
        assert (judged["frauds"], judged["normals"]) == (frauds, 0)
        assert judged["by_transaction"]["recall"]["champion"]["of"] == frauds
    assert judged["by_account"]["recall"]["champion"]["value"] == 1.0
    assert judged["unjudged_alerts"]["champion"] == sum(row["alert"] for row in rows(place)[0]) - 1


def test_what_only_one_has_scored_is_counted_and_left_out(place, population_model, stream, stores, tmp_path):
    """A challenger that is behind, or refused something."""
    Session(ListSource("x", stream.transactions[:500]), population_model, tmp_path, tmp_path / "s.db").run()
    with closing(StateFile.open(tmp_path / "s.db", read_only=True)) as short:
        result = compare(stores[0], short.records)
        assert result["transactions"] == 500
        assert result["only_champion_scored"] == len(stream.transactions) - 500
        assert result["by_transaction"]["lost"] == result["by_transaction"]["gained"] == 0
        later = [replace(t, id="y" + t.id) for t in stream.transactions[:50]]
        Session(ListSource("y", later), population_model, tmp_path, tmp_path / "t.db").run()
        with (
            closing(StateFile.open(tmp_path / "t.db", read_only=True)) as foreign,
            pytest.raises(StreamCcsdError, match="no transaction in common"),
        ):
            compare(stores[0], foreign.records)


def run(*arguments, code=0):
    done = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_the_command_says_what_the_function_says(place, stores):
    result = json.loads(run("--champion", place / "replay.db", "--by", "week", "--json", "-").stdout)
    wanted = compare(*stores, recorded_labels(stores[0]), width=7.0)
    assert result["verdicts"] == "labels"
    assert result["judged"] == json.loads(json.dumps(wanted["judged"]))
    for name in ("transactions", "champion", "challenger", "gained", "lost", "frauds"):
        total = len(rows(place)[0]) if name == "transactions" else None
        counted = sum(row[name] for row in result["periods"])
        expected = {"champion": wanted["champion"]["alerts"], "challenger": wanted["challenger"]["alerts"]} | {
            "gained": wanted["by_transaction"]["gained"],
            "lost": wanted["by_transaction"]["lost"],
            "frauds": wanted["judged"]["frauds"],
        }
        assert counted == (total if total is not None else expected[name])
    assert result["periods"][0]["when"].startswith("2026-01-05")


def test_the_command_for_people(place):
    said = " ".join(run("--champion", place / "replay.db", "--by", "day", "--limit", 2).output.split())
    for words in ("shared", "gained", "only the champion alerts", "recall by account", "McNemar", "2026-01-05"):
        assert words in said
    assert RECALL_NOTE in said
    nothing = run("--champion", place / "replay.db", "--verdicts", "none").output
    assert "recall" not in nothing


def test_changes_for_other_programs(place, tmp_path):
    champion = ["--champion", place / "replay.db"]
    found = [json.loads(line) for line in run(*champion, "--format", "json").stdout.splitlines()]
    assert {row["change"] for row in found} == {"gained", "lost"}
    assert all(row["headline"] for row in found)
    run(*champion, "--format", "parquet", "--out", tmp_path / "c.parquet")
    table = pq.read_table(tmp_path / "c.parquet")
    assert [json.loads(text) for text in table["json"].to_pylist()] == found
    assert table["other_score"].to_pylist() == [row["other_score"] for row in found]
    assert len(run(*champion, "--format", "csv").stdout.splitlines()) == len(found) + 1


def test_verdicts_of_the_audit_log_beside_the_champion(place, tmp_path):
    """Once there is one, it is what counts; alerts that nobody judged are said to be so."""
    for name in ("replay.db", "replay.db.challenger"):
        shutil.copy(place / name, tmp_path / name)
    old, _ = rows(place)
    alerts = [row for row in old if row["alert"]][:8]
    with VerdictLog.create(audit_log_beside(tmp_path / "replay.db")) as audit_log:
        for row in alerts:
            said = "fraud" if row["label"] else "normal"
            audit_log.append([Verdict(row["id"], row["account"], said, "ann", row["time"] + 1.0)])
        first = alerts[0]
        opposite = "normal" if first["label"] else "fraud"
        audit_log.append([Verdict(first["id"], first["account"], opposite, "bob", first["time"] + 2.0)])
    champion = ["--champion", tmp_path / "replay.db"]
    result = json.loads(run(*champion, "--json", "-").stdout)
    judged = result["judged"]
    assert result["verdicts"] == str(tmp_path / "replay.db.verdicts")
    assert (judged["frauds"], judged["normals"]) == (
        sum(bool(row["label"]) for row in alerts[1:]),
        sum(not row["label"] for row in alerts[1:]),
    )
    assert judged["unjudged_alerts"]["champion"] == sum(row["alert"] for row in old) - 7
    said = " ".join(run(*champion).output.split())
    assert "nobody has judged" in said
    assert RECALL_NOTE in said
    assert json.loads(run(*champion, "--verdicts", "labels", "--json", "-").stdout)["verdicts"] == "labels"
    named = run("--champion", place / "replay.db", "--verdicts", tmp_path / "replay.db.verdicts", "--json", "-")
    assert json.loads(named.stdout)["judged"] == judged
    wrong = run("--champion", place / "replay.db", "--verdicts", place / "replay.db", code=1)
    assert "book of verdicts" in str(wrong.exception)


def test_what_cannot_be_compared_is_said(place, model, stream_file, tmp_path):
    Session(FileSource(stream_file), model, tmp_path, tmp_path / "s.db").run()
    for arguments, said in (
        (["--champion", tmp_path / "s.db"], "there is no state file"),
        (["--champion", tmp_path / "s.db", "--challenger", tmp_path / "s.db", "--by", "day"], "what a day is"),
        (["--champion", tmp_path / "s.db", "--challenger", tmp_path / "s.db", "--verdicts", "labels"], "no labels"),
    ):
        assert said in str(run(*arguments, code=1).exception)
    run("--champion", place / "replay.db", "--by", "year", code=2)
    run("--champion", place / "replay.db", "--format", "xml", code=2)
