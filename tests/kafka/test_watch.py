"""What a mirror of the topics answers is what a replay of the same stream answers, whatever happens in between."""

import json
import os
import random
import re
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import httpx
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from replay.cases.verdicts import VerdictLog, audit_log_beside
from replay.mirror.mirror import open_mirror
from replay.run.session import Session
from replay.sources.simulator.population import simulate
from replay.sources.source import ListSource
from replay.state import schema
from replay.state.file import StateFile
from replay.watch.service import PageService
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.codec import verdict_message
from stream_ccsd.model.model import Model
from stream_ccsd.model.registry import Registry
from stream_ccsd.verdict import Verdict
from tests.kafka.cluster import PARTITIONS, PATIENCE, Cluster, messages, place_of, wait_for
from tests.kafka.test_topics import administer, make_anew
from tests.replay.watch.browser import page_over

GARBAGE = [(None, b"{"), (b"C1", b"[]"), (b"C1", b'{"id": 1}'), (b"C1", b'{"partition": 0, "position": 0}')]
REFUSED = [(b"C1", b"no JSON"), (b"C2", b'{"account": "C2"}'), (b"C3", b'{"account": "C4"}')]
PROCESS = """
import sys, time
from pathlib import Path
from replay.mirror import file, follow
from replay.mirror.mirror import open_mirror
follow._TOGETHER = file._LARGEST = 40
mirror = open_mirror(sys.argv[1], config=Path(sys.argv[2]), state=Path(sys.argv[3]))
print("begun", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def scored(brokers, tmp_path_factory, model, model_folder):
    """Two workers have scored a stream with garbage in it, one of them was killed; and a replay of the stream."""
    folder = tmp_path_factory.mktemp("watched")
    stream = simulate(accounts=60, days=45, fraud_share=0.5, seed=8).transactions
    cluster = Cluster(brokers, folder, model_folder, threshold=3.0)
    cluster.worker("a")
    cluster.worker("b")
    for worker in cluster.workers:
        worker.wait_until_ready()
    half = len(stream) // 2
    cluster.send([*messages(stream[:half]), *REFUSED])
    cluster.workers[0].kill()
    cluster.send(messages(stream[half:]))
    cluster.wait_until_done(len(stream) + len(REFUSED))
    # Also what a worker's failure would leave, and what anybody might send.
    for topic in (cluster.settings.scores, cluster.settings.alerts):
        copies = [(r.key, r.value) for r in cluster.records(topic)[::7]]
        cluster.send([*GARBAGE, *copies], topic=topic)
    Session(ListSource("stream", stream), model, folder / "out", folder / "replay.db", threshold=3.0).run()
    with closing(StateFile.open(folder / "replay.db", read_only=True)) as file:
        assert len(list(file.records.alerts())) > 50
    yield SimpleNamespace(cluster=cluster, url=f"kafka://{brokers}", replay=folder / "replay.db", count=len(stream))
    cluster.stop()


def mirrored(scored, path, **options):
    return open_mirror(scored.url, config=scored.cluster.config, state=path, **options)


def caught_up(mirror):
    wait_for(lambda: mirror.status()["state"] == "following" and mirror.status()["lag"] == 0, f"{mirror.status()}")


def plain(record):
    """Without what says where it was read."""
    places = ("partition", "position", "timestamp", "offset")
    return {name: value for name, value in record.items() if name not in places}


def answers(path):
    """Everything that does not depend on the order in which partitions were read."""
    schema.check(path)
    with closing(StateFile.open(path, read_only=True)) as file:
        records = file.records
        accounts = records.accounts_by_maximum(10**6)
        alerts = sorted(records.alerts(), key=lambda alert: alert["id"])
        positions = [alert["position"] for alert in records.alerts()]
        assert positions == sorted(set(positions))
        named = [records.alerts_named(alert["id"]) for alert in alerts]
        assert named == [[alert] for alert in alerts]
        totals = records.totals()
        return {
            "accounts": accounts,
            "alerts": [plain(alert) for alert in alerts],
            "highest": [alert["id"] for alert in records.highest_alerts(20)],
            "scores": {a.account: [plain(score) for score in records.scores_of(a.account)] for a in accounts},
            "over time": records.counts_over_time(7.0),
            "totals": (totals.transactions, totals.late, totals.accounts, totals.alerts),
            "threshold": (file.facts["threshold"], file.facts["model"]),
        }


def test_a_mirror_answers_as_a_replay(scored, tmp_path):
    with mirrored(scored, tmp_path / "m.db") as mirror:
        caught_up(mirror)
        assert mirror.status()["error"] is None
    assert mirror.status()["state"] == "closed"
    assert answers(tmp_path / "m.db") == answers(scored.replay)
    origins = {(r.partition, r.offset) for r in scored.cluster.records(scored.cluster.settings.transactions)}
    with closing(StateFile.open(tmp_path / "m.db", read_only=True)) as file:
        assert file.notes["foreign"] == {"scores": len(GARBAGE), "alerts": len(GARBAGE)}
        assert file.notes["mirror"]["state"] == "following"
        letters = list(file.records.dead_letters())
        assert sorted(letter["raw"] for letter in letters) == sorted(value.decode() for _, value in REFUSED)
        assert {letter["kind"] for letter in letters} == {"malformed"}
        found = {(r["partition"], r["offset"]) for batch in file.records.score_batches() for r in batch.to_pylist()}
        assert found | {(letter["partition"], letter["offset"]) for letter in letters} == origins
        for alert in file.records.alerts():
            (score,) = [s for s in file.records.scores_of(alert["account"]) if s["position"] == alert["position"]]
            assert (score["id"], score["offset"]) == (alert["transaction"], alert["offset"])


def test_killed_at_any_moment_it_goes_on(scored, tmp_path):
    path, chance = tmp_path / "m.db", random.Random(4)
    command = [sys.executable, "-c", PROCESS, scored.url, str(scored.cluster.config), str(path)]
    reached = [0]
    for _ in range(4):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ))
        assert process.stdout.readline() == b"begun\n"
        wait_for(lambda: position(path) > reached[-1], "a batch")
        time.sleep(chance.uniform(0.0, 0.15))
        process.kill()
        process.wait()
        schema.check(path)
        reached.append(position(path))
    assert reached[-2] < scored.count  # the last was not at the end when it began
    with mirrored(scored, path) as mirror:
        caught_up(mirror)
    assert answers(path) == answers(scored.replay)


def test_bounds_hold(scored, tmp_path):
    with mirrored(scored, tmp_path / "m.db", keep=500, keep_alerts=10) as mirror:
        caught_up(mirror)
    schema.check(tmp_path / "m.db")
    with closing(StateFile.open(tmp_path / "m.db", read_only=True)) as file:
        kept = [row for batch in file.records.score_batches() for row in batch.to_pylist()]
        assert 400 <= len(kept) <= 500
        assert len(list(file.records.alerts())) == 10
        accounts = {row["account"] for row in kept}
        assert {a.account for a in file.records.accounts_by_maximum(10**6)} == accounts
        for account in accounts:
            own = [row["position"] for row in kept if row["account"] == account]
            assert [score["position"] for score in file.records.scores_of(account)] == own
        assert file.records.totals().transactions == scored.count


def test_verdicts_go_to_the_topic_and_come_back_once(scored, tmp_path):
    cluster = scored.cluster
    other = Verdict("t9", "C9", "normal", "bob", 4.0, "by the command line")
    own = [Verdict("t1", "C1", "fraud", "ann", 3.5, "card lost"), Verdict("t2", "Ü2", "unsure", "ann", 3.5)]
    cluster.send([(b"C9", verdict_message(other)), *GARBAGE], topic=cluster.settings.verdicts)
    with mirrored(scored, None) as mirror:
        with closing(VerdictLog.create(audit_log_beside(mirror.path))) as audit_log:
            audit_log.append(own)  # as a page does
            mirror.send(own)
            mirror.send(own[:1])
            sent = [r for r in cluster.records(cluster.settings.verdicts) if b"ann" in r.value]
            assert sorted((r.key.decode(), json.loads(r.value)["transaction"]) for r in sent) == [
                *[("C1", "t1")] * 2,
                ("Ü2", "t2"),
            ]
            wait_for(lambda: len(list(audit_log.entries())) == 3, "the other's verdict")
            caught_up(mirror)
            assert {entry.verdict for entry in audit_log.entries()} == {*own, other}
            assert len(list(audit_log.entries())) == 3
            assert audit_log.check() is not None
        path = mirror.path
    assert not path.exists()  # a temporary one
    with pytest.raises(StreamCcsdError, match="closed"):
        mirror.send(own)


def test_a_page_over_kafka_shows_alerts_and_sends_verdicts(scored, tmp_path, model_folder):
    """The command itself: alerts of the workers in the queue, a verdict from a form in the topic, and kept at home."""
    state = tmp_path / "page.db"
    arguments = ["--from", scored.url, "--kafka-config", scored.cluster.config, "--state", state]
    topic = scored.cluster.settings.verdicts
    with (
        page_over(*arguments, "--model", model_folder, "--who", "vera") as (url, _),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        with closing(StateFile.open(scored.replay, read_only=True)) as file:
            accounts = {alert["account"] for alert in file.records.alerts()}
        wait_for(lambda: client.get("/queue.json").json()["total"] == len(accounts), "all cases")
        case = client.get("/queue.json").json()["cases"][0]
        csrf = re.search('name="csrf" content="([^"]+)"', client.get("/queue").text)[1]
        alerts = [alert["id"] for alert in case["alerts"]]
        said = {"alert": alerts, "finding": "fraud", "why": "seen on the page"}
        answer = client.post("/judge", data=said, headers={"X-CSRF-Token": csrf, "Accept": "application/json"})
        assert answer.status_code == 200, answer.text
        sent = [json.loads(r.value) for r in scored.cluster.records(topic) if b"seen on the page" in r.value]
        assert {(v["account"], v["transaction"]) for v in sent} == {
            (case["account"], alert["transaction"]) for alert in case["alerts"]
        }
        assert client.get("/queue.json").json()["total"] == len(accounts) - 1
        densities = client.get("/account.json", params={"name": case["account"]}).json()["laws"]
        assert len(densities["amount"]["normal"]) > 10
    # Opened again, over the versions that workers follow, it goes on where it was, and the verdict did not come twice.
    versions = Registry(tmp_path / "versions")
    version = versions.add(Model.load(model_folder))
    with (
        page_over(*arguments, "--model", versions.folder) as (url, _),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_for(lambda: client.get("/queue.json").json()["total"] == len(accounts) - 1, "what is left")
        csrf = re.search('name="csrf" content="([^"]+)"', client.get("/model").text)[1]
        said, headers = {"version": version, "why": "for now"}, {"X-CSRF-Token": csrf, "Accept": "application/json"}
        assert client.post("/pin", data=said, headers=headers).status_code == 200
        assert versions.choice().pinned == version
    with VerdictLog.open(audit_log_beside(state), read_only=True) as audit_log:
        assert sum(entry.verdict.why == "seen on the page" for entry in audit_log.entries()) == len(alerts)
        assert audit_log.check() is not None


def test_what_a_mirror_refuses_at_its_start(scored, tmp_path):
    for url, options, words in (
        ("http://x", {}, "kafka://host:port"),
        ("kafka://127.0.0.1:9", {}, "is the broker running"),
        (scored.url, {"keep": 0}, "at least one"),
        (scored.url, {"state": scored.replay}, "belongs to a replay"),
    ):
        with pytest.raises(StreamCcsdError, match=words):
            open_mirror(url, **options)


def test_a_mirror_waits_for_topics_and_for_its_broker(scored, own_broker, tmp_path, model_folder):
    """Begins before there is anything, sees the broker go and come, and misses nothing."""
    url, path = f"kafka://{own_broker.address}", tmp_path / "m.db"
    said = Verdict("t1", "C1", "fraud", "ann", 3.5)
    with open_mirror(url, state=tmp_path / "empty.db", model=model_folder) as mirror:
        wait_for(lambda: mirror.status()["state"] == "following", "the mirror")
        assert mirror.status()["missing"] == ["scores", "alerts", "dead-letters", "verdicts"]
        with pytest.raises(StreamCcsdError, match="has no topic 'verdicts'"):
            mirror.send([said])
    cluster = Cluster(own_broker.address, tmp_path, model_folder)
    with open_mirror(url, config=cluster.config, state=path) as mirror:
        half = as_written(scored, cluster, slice(0, None, 2))
        wait_for(lambda: count(path) == half, "the first half")
        own_broker.stop()
        wait_for(lambda: mirror.status()["state"] == "reconnecting", "the mirror to notice")
        with pytest.raises(StreamCcsdError, match="try again"):
            mirror.send([said])
        with closing(StateFile.open(path, read_only=True)) as file:
            assert file.notes["mirror"]["state"] == "reconnecting"
            assert "does not answer" in file.notes["mirror"]["error"]
        own_broker.start()
        as_written(scored, cluster, slice(1, None, 2))
        wait_for(lambda: count(path) == scored.count, "the second half")
        mirror.send([said])
        wait_for(lambda: said_in(path) == [said], "the verdict")
        caught_up(mirror)
    own_broker.stop()
    with open_mirror(url, config=cluster.config, state=path) as mirror:  # what is there is shown
        assert count(path) == scored.count
        assert mirror.status()["state"] == "reconnecting"
    wanted, found = answers(scored.replay), answers(path)
    for name in ("alerts", "totals", "over time"):  # each account's scores were sent in two halves
        assert found[name] == wanted[name], name


def test_what_topics_lose_is_told_by_page_and_learner(scored, tmp_path, model, model_folder, monkeypatch):
    """Retention ahead of both, and then a topic of verdicts that is another one of the same name."""
    monkeypatch.setattr("replay.mirror.follow._LOOK", 0.5)
    cluster, path = Cluster(scored.cluster.brokers, tmp_path, model_folder), tmp_path / "m.db"
    scores, verdicts = cluster.settings.scores, cluster.settings.verdicts
    early = [Verdict(f"t{number}", "C1", "fraud", "ann", 3.5) for number in range(3)]
    late = Verdict("t9", "C1", "normal", "bob", 4.0)
    versions = Registry(tmp_path / "versions")
    versions.add(model)
    try:
        half = as_written(scored, cluster, slice(0, None, 2))
        cluster.send([(b"C1", verdict_message(said)) for said in early], topic=verdicts)
        with open_mirror(scored.url, config=cluster.config, state=path) as mirror:
            wait_for(lambda: count(path) == half and said_in(path) == early, "the first half")
        reached = [sum(r.partition == p for r in cluster.records(scores)) for p in range(PARTITIONS)]
        as_written(scored, cluster, slice(1, None, 2))
        gone = {TopicPartition(scores, p): RecordsToDelete(end + 10) for p, end in enumerate(reached)}
        administer(cluster.brokers, lambda admin: admin.delete_records(gone))
        learner = cluster.learner("learner", versions.folder, every=10, delay=7)
        with open_mirror(scored.url, config=cluster.config, state=path) as mirror:
            wait_for(lambda: count(path) == scored.count - 10 * PARTITIONS, "the rest")
            caught_up(mirror)
            with closing(PageService(path)) as watched:
                assert watched.caught_up(30)
                assert f"{10 * PARTITIONS} messages" in watched.trouble
            wait_for(lambda: learner.said("ready"), "the learner", learner)
            deleted = sum(reached) + 10 * PARTITIONS
            assert learner.metric("stream_ccsd_learner_lost_messages_total") == deleted
            lines = learner.said("messages were deleted before they were read: keep the topic for longer")
            assert sum(line["messages"] for line in lines) == deleted
            make_anew(cluster.brokers, verdicts)
            cluster.send([(b"C1", verdict_message(late))], topic=verdicts)
            wait_for(lambda: said_in(path) == [*early, late], "the verdict on the other topic")
            wait_for(lambda: len(learner.said("ready")) > 1, "the learner to begin again", learner)
            anew = "topics are others than before: all is read again, and learning goes on from the newest model"
            assert learner.said(anew)
            assert learner.metric("stream_ccsd_learner_topics_made_anew_total") >= 1
        with closing(StateFile.open(path, read_only=True)) as file:
            assert file.notes["lost"] == {scores: 10 * PARTITIONS}
    finally:
        cluster.stop()


def as_written(scored, cluster, part):
    """Send what workers have written elsewhere, a part of the scores and their alerts; returns how many scores."""
    theirs, first = scored.cluster, {}
    for record in theirs.records(theirs.settings.scores):
        if record.key is not None and b'"evidence"' in record.value:
            first.setdefault(place_of(record), record)
    chosen = dict(list(first.items())[part])
    cluster.send([(r.key, r.value) for r in chosen.values()], topic=cluster.settings.scores)
    alerts = [r for r in theirs.records(theirs.settings.alerts) if b'"headline"' in r.value]
    cluster.send([(r.key, r.value) for r in alerts if place_of(r) in chosen], topic=cluster.settings.alerts)
    return len(chosen)


def position(path):
    with closing(schema.connect(path, read_only=True)) as connection:
        return connection.execute("SELECT position FROM progress").fetchone()[0]


def count(path):
    with closing(StateFile.open(path, read_only=True)) as file:
        return file.records.totals().transactions


def said_in(path):
    with closing(VerdictLog.open(audit_log_beside(path), read_only=True)) as audit_log:
        return [entry.verdict for entry in audit_log.entries()]
