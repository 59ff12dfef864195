"""Workers, learner and verdicts on a real broker equal one process; killed anywhere, the learner repeats itself."""

import json
import random
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from replay.sources.simulator.population import simulate
from stream_ccsd.cli.main import app
from stream_ccsd.engine import Engine
from stream_ccsd.kafka.codec import verdict_message
from stream_ccsd.learning.learner import Learner
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.model.registry import Registry
from stream_ccsd.verdict import Verdict
from tests.kafka.cluster import SCORE_FIELDS, Cluster, messages, wait_for

SCHEDULE = Schedule(every=10.0, delay=7.0)
MOMENTS = (10.0, 20.0, 30.0, 40.0)
LESSONS = ("lesson", "a lesson without anything to learn")
GARBAGE = [(b"C1", None), (b"C1", b"{"), (None, b"[]"), (b"C1", b'{"verdict": "fraud"}'), (b"C1", b" " * 100_000)]


def say(stream):
    """Frauds are found three days later, one in ten by a mistake, which is put right after five days more."""
    verdicts = []
    for number, t in enumerate(t for t in stream.transactions if t.id in stream.fraud):
        wrong = number % 10 == 0
        verdicts.append(Verdict(t.id, t.account, "normal" if wrong else "fraud", "ann", t.time + 3.0))
        if wrong:
            verdicts.append(Verdict(t.id, t.account, "fraud", "bank", t.time + 8.0, "", "chargeback"))
    for number, t in enumerate(t for t in stream.transactions if t.id not in stream.fraud):
        if number % 40 == 0:
            verdicts.append(Verdict(t.id, t.account, "normal", "bob", t.time + 1.0))
    return sorted(verdicts, key=lambda v: v.time)


@pytest.fixture(scope="module")
def taught(brokers, tmp_path_factory, model, model_folder):
    """Fifty days through two workers and a learner, and through one process in the same steps."""
    stream = simulate(accounts=100, days=50, fraud_share=0.5, seed=5)
    verdicts, folder = say(stream), tmp_path_factory.mktemp("learning")
    versions = Registry(folder / "versions")
    versions.add(model)
    cluster = Cluster(brokers, folder, model_folder)
    cluster.worker("a", model=versions.folder)
    cluster.worker("b", model=versions.folder)
    learner = cluster.learner("learner", versions.folder, every=10, delay=7)
    for process in cluster.workers:
        process.wait_until_ready()
    twin = Twin(model)
    unsent = stream.transactions
    for before, moment in zip((0.0, *MOMENTS), (*MOMENTS, 60.0), strict=True):
        heard = [v for v in verdicts if before < v.time <= moment]
        said = [(v.account.encode(), verdict_message(v)) for v in heard]
        cluster.send([*said[::-1], *GARBAGE, *said[::2]], topic=cluster.settings.verdicts)  # in no order, and doubled
        chunk, unsent = [t for t in unsent if t.time < moment], [t for t in unsent if t.time >= moment]
        cluster.send(messages(chunk))
        wait_until_scored(cluster, len(stream.transactions) - len(unsent))
        twin.score(chunk)
        if moment == 60.0:
            break
        # The model is updated when the stream goes on: by one transaction a partition, which the old model scores.
        where = {r.key.decode(): r.partition for r in cluster.records(cluster.settings.transactions)}
        closing = {where[t.account]: t for t in unsent[::-1] if t.account in where}
        assert len(closing) == 4
        chosen = sorted(closing.values(), key=lambda t: t.time)
        unsent = [t for t in unsent if t not in chosen]
        cluster.send(messages(chosen))
        twin.score(chosen)
        wait_for(lambda moment=moment: moment in held(learner), f"the lesson of {moment}", learner)
        at = {
            json.loads(r.value)["id"]: place
            for r in cluster.records(cluster.settings.transactions)
            for place in [(r.partition, r.offset)]
        }
        twin.learn(moment, heard, at)
        current = twin.learner.model.version
        for worker in cluster.workers[:2]:
            wait_for(lambda worker=worker, current=current: scores_with(worker) == current, f"model {current}", worker)
    yield SimpleNamespace(cluster=cluster, learner=learner, versions=versions, twin=twin, model=model)
    cluster.stop()


def held(learner):
    return [line["moment"] for lesson in LESSONS for line in learner.said(lesson)]


def scores_with(worker):
    told = worker.said("new model")
    return told[-1]["model"] if told else worker.said("worker starts")[-1]["model"]


def wait_until_scored(cluster, count):
    wait_for(lambda: cluster.count(cluster.settings.scores) >= count, f"{count} scores", cluster.workers[0])


class Twin:
    """The same in one process."""

    def __init__(self, model):
        self.learner = Learner(model, SCHEDULE)
        self.states, self.results, self.unseen = {}, [], []
        self.models = [model.version]

    def score(self, transactions):
        results = Engine(self.learner.model, self.states).process_many(transactions)
        assert all(r.entered for r in results)
        self.results += results
        self.unseen += results

    def learn(self, moment, heard, at):
        due = [r for r in self.unseen if r.transaction.time < moment]
        self.unseen = [r for r in self.unseen if r.transaction.time >= moment]
        self.learner.see(sorted(due, key=lambda r: (r.transaction.time, at[r.transaction.id])))
        self.learner.hear(sorted(heard, key=lambda v: (v.time, *v.key)))
        before = self.learner.model
        if self.learner.learn(moment) is not before:
            self.models.append(self.learner.model.version)


def version_names(twin):
    return [f"{number:04d}-{version}" for number, version in enumerate(twin.models, 1)]


def test_workers_and_learner_say_what_one_process_says(taught):
    assert len(taught.twin.models) == 4  # nothing was known before the second model update
    assert taught.versions.names() == version_names(taught.twin)
    assert taught.versions.load().facts["lessons"]["weighed_by"] != "sum"  # something was learnt
    said = {}
    for record in taught.cluster.records(taught.cluster.settings.scores):
        score = json.loads(record.value)
        said.setdefault(score["id"], score)
    assert len(said) == len(taught.twin.results)
    for result in taught.twin.results:
        score = said[result.transaction.id]
        for name in SCORE_FIELDS:
            assert score[name] == getattr(result, name), (name, score)
        assert score["inputs"] == result.inputs.tolist()
    assert {score["model"] for score in said.values()} == {taught.twin.results[0].model, *taught.twin.models[1:]}


def test_a_learner_tells_how_it_is_doing(taught):
    heard = taught.learner.metric("stream_ccsd_learner_verdicts_total")
    distinct = {r.value for r in taught.cluster.records(taught.cluster.settings.verdicts)}
    assert heard == len(distinct) - len({value for _, value in GARBAGE})
    assert taught.learner.metric("stream_ccsd_learner_lessons_total") == 4
    assert taught.learner.metric("stream_ccsd_learner_moment") == 40.0
    assert taught.learner.ask("/readyz")[0] == taught.learner.ask("/healthz")[0] == 200
    assert taught.learner.stop() == 0


def test_killed_at_any_moment_the_same_models_come_out(taught, tmp_path):
    """Of a learner that comes later, begins with nothing, and finds copies of scores and a late verdict besides."""
    cluster = taught.cluster
    copies = [(r.key, r.value) for r in cluster.records(cluster.settings.scores)[:300]]
    cluster.send(copies, topic=cluster.settings.scores)
    late = Verdict("nobody", "C1", "fraud", "ann", 15.0)
    cluster.send([(b"C1", verdict_message(late))], topic=cluster.settings.verdicts)
    versions = Registry(tmp_path / "versions")
    versions.add(taught.model)
    learner = cluster.learner("killed", versions.folder, every=10, delay=7)
    chance, left = random.Random(2), []
    for number in range(6):
        wait_for(lambda: learner.said("learner starts"), "the learner", learner)
        # The first three at any moment, the others as soon as there is one model more.
        if number < 3:
            time.sleep(chance.uniform(0.0, 1.0))
        else:
            wait_for(lambda left=left: len(versions.names()) > len(left) or learner.said("ready"), "a model", learner)
        left = versions.names()
        learner.kill()
        learner.start()
    wait_for(lambda: learner.said("ready"), "the end of the topics", learner)
    assert versions.names() == version_names(taught.twin)
    assert learner.stop() == 0


def test_garbage_is_a_dead_letter_once(taught):
    """Also after it was read by learners that were killed."""
    letters = taught.cluster.records(taught.cluster.settings.dead_letters)
    assert len(letters) == 5 * len(GARBAGE)
    inputs = {(r.partition, r.offset): r for r in taught.cluster.records(taught.cluster.settings.verdicts)}
    for letter in letters:
        about = {name: value.decode() for name, value in letter.headers}
        record = inputs[int(about["partition"]), int(about["position"])]
        assert (letter.key, letter.value) == (record.key, record.value)
        assert (about["topic"], about["kind"]) == (taught.cluster.settings.verdicts, "malformed")
        assert about["reason"]


def test_verdicts_are_sent_from_the_command_line(cluster, tmp_path):
    """Times as numbers, or as dates, which the learner's calendar understands."""
    to = f"kafka://{cluster.brokers}/{cluster.settings.verdicts}"
    one = ["--transaction", "t1", "--account", "C1", "fraud", "--who", "ann", "--why", "card lost"]
    run = CliRunner().invoke
    assert run(app, ["verdict", "--to", to, *one, "--at", "24.5"]).exit_code == 0
    file = tmp_path / "verdicts.csv"
    file.write_text("transaction,account,verdict,time\nt2,C2,normal,2026-02-23\nt3,C3,perhaps,3\nt4,C4,unsure,4\n")
    several = run(app, ["verdict", "--to", to, "--from", str(file), "--who", "bank", "--source", "chargeback"])
    assert several.exit_code == 3
    assert "expected fraud, normal or unsure, got 'perhaps'" in several.output
    sent = {r.key.decode(): json.loads(r.value) for r in cluster.records(cluster.settings.verdicts)}
    assert {account: said["time"] for account, said in sent.items()} == {"C1": 24.5, "C2": "2026-02-23", "C4": 4.0}
    assert (sent["C1"]["why"], sent["C4"]["source"]) == ("card lost", "chargeback")
    for wrong in ([*one], [*one, "--at", "1", "--state", "s.db"], ["--alert", "1", "fraud", "--at", "1"]):
        assert run(app, ["verdict", "--to", to, *wrong]).exit_code != 0


def test_a_learner_needs_a_folder_with_a_fitted_model(tmp_path, model_folder):
    for folder in (tmp_path / "nothing", model_folder):
        refused = CliRunner().invoke(app, ["learn", "--models", str(folder)])
        assert "models add" in str(refused.exception)


def test_a_learner_waits_for_its_broker(own_broker, tmp_path, model, model_folder):
    cluster = Cluster(own_broker.address, tmp_path, model_folder)
    try:
        versions = Registry(tmp_path / "versions")
        versions.add(model)
        learner = cluster.learner("learner", versions.folder, every=10, delay=7)
        learner.wait_until_ready()
        wait_for(lambda: learner.ask("/readyz")[0] == 200, "the learner", learner)
        own_broker.stop()
        wait_for(lambda: learner.ask("/readyz")[0] == 503, "the learner to notice", learner)
        own_broker.start()
        cluster.send(GARBAGE, topic=cluster.settings.verdicts)
        wait_for(lambda: cluster.count(cluster.settings.dead_letters) == len(GARBAGE), "dead letters", learner)
        wait_for(lambda: learner.ask("/readyz")[0] == 200, "the learner to go on", learner)
        own_broker.stop()
        wait_for(lambda: learner.ask("/readyz")[0] == 503, "the learner to notice", learner)
        assert learner.stop() == 0  # also without a broker
    finally:
        cluster.stop()
