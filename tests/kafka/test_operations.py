"""What those who run workers rely on: probes, metrics, logs, shutdown, new models, clear errors."""

import json
import signal
import socket
import time

import pytest
from typer.testing import CliRunner

from stream_ccsd.cli.main import app
from stream_ccsd.engine import Engine
from tests.conftest import with_settings
from tests.kafka.cluster import Expectation, messages, wait_for


def buckets(text, name):
    """The counts of a histogram by upper bound."""
    lines = [line for line in text.splitlines() if line.startswith(name + "_bucket")]
    return {float(line.split('le="')[1].split('"')[0]): float(line.rpartition(" ")[2]) for line in lines}


def test_probes_metrics_logs_and_shutdown(cluster, many, model):
    part = many[:3000]
    worker = cluster.worker("a")
    assert worker.url().startswith("http://127.0.0.1:")  # nobody else can reach it
    assert worker.ask("/healthz")[0] == 200
    worker.wait_until_ready()
    status, said = worker.ask("/readyz")
    assert status == 200
    assert json.loads(said)["partitions"] == [0, 1, 2, 3]
    sent = [*messages(part), (b"C1", b"garbage")]
    cluster.send(sent, rate=1000)
    cluster.wait_until_done(len(sent))
    wait_for(lambda: worker.metric("stream_ccsd_lag") == 0, "no lag", worker)
    _, text = worker.ask("/metrics")
    assert worker.metric("stream_ccsd_events_total") == len(part)
    assert 'stream_ccsd_rejects_total{kind="malformed"} 1.0' in text
    assert worker.metric("stream_ccsd_alerts_total") == len(Expectation(model, part).alerts)
    assert worker.metric("stream_ccsd_accounts") == len({t.account for t in part})
    assert f'stream_ccsd_model_info{{version="{model.version}"}} 1.0' in text
    assert "stream_ccsd_recovery_progress 1.0" in text
    assert "stream_ccsd_ready 1.0" in text
    for name in ("stream_ccsd_scoring_milliseconds", "stream_ccsd_end_to_end_milliseconds"):
        counts = buckets(text, name)
        total = counts[float("inf")]
        assert total > 0
        assert 0 < counts[1000.0] <= total
        assert counts[0.5] < total  # they do not all land in the first bucket, nor in the last
    begun = time.monotonic()
    assert worker.stop() == 0
    # Within the commit interval, and what Faust and Python need to close.
    assert worker.said("worker stopped")[0]["seconds"] <= cluster.settings.commit_interval + 1.0
    assert time.monotonic() - begun < 10
    for line in worker.log.read_text().splitlines():
        assert {"time", "level", "logger", "message"} <= set(json.loads(line))
    worker.start()  # everything was committed: nothing is read again
    worker.wait_until_ready()
    time.sleep(1.0)
    assert worker.metric("stream_ccsd_passed_over_total") == 0
    assert cluster.count(cluster.settings.scores) == len(part)


def test_a_new_model_is_picked_up_and_states_stay(cluster, many, model, tmp_path):
    folder = tmp_path / "served"
    model.save(folder)
    worker = cluster.worker("a", model=folder)
    first, second = many[:1500], many[1500:3000]
    cluster.send(messages(first))
    cluster.wait_until_done(len(first))
    wider = with_settings(model, window=9)
    wider.save(folder)  # states do not fit it: it is refused, and the old one goes on
    wait_for(lambda: worker.said("the new model is not used"), "a refusal", worker)
    assert worker.metric("stream_ccsd_model_failures_total") == 1
    newer = with_settings(model, alert_margin=0.5, takeover_drift=0.1)
    newer.save(folder)
    assert newer.version != model.version
    wait_for(lambda: worker.said("new model"), "the new model", worker)
    cluster.send(messages(second))
    cluster.wait_until_done(len(first) + len(second))
    states = {}
    results = Engine(model, states).process_many(first) + Engine(newer, states).process_many(second)
    found = {json.loads(r.value)["id"]: json.loads(r.value) for r in cluster.records(cluster.settings.scores)}
    assert len(found) == len(results)
    for result in results:
        score = found[result.transaction.id]
        assert (score["model"], score["takeover"], score["maximum"]) == (result.model, result.takeover, result.maximum)
    assert {score["model"] for score in found.values()} == {model.version, newer.version}
    assert f'version="{newer.version}"' in worker.ask("/metrics")[1]


def test_a_slow_worker_reads_no_further_ahead(cluster, many):
    """Back-pressure: a backlog stays in the topic, not in the worker."""
    cluster.send(messages(many) * 3)
    worker = cluster.worker("a", batch=50)
    worker.wait_until_ready()
    wait_for(lambda: worker.metric("stream_ccsd_batch_size_count") > 20, "some batches", worker)
    counts = buckets(worker.ask("/metrics")[1], "stream_ccsd_batch_size")
    assert counts[50.0] == counts[float("inf")]
    assert worker.metric("stream_ccsd_lag") > 0
    assert worker.stop() == 0


def test_best_effort_says_the_same_without_failures(cluster, many, model):
    part = many[:3000]
    cluster.worker("a", guarantee="best-effort")
    cluster.send(messages(part))
    cluster.wait_until_done(len(part))
    Expectation(model, part).check(cluster, exactly_once_each=True)


def test_a_standby_that_has_to_catch_up_first(cluster, many, model):
    """It reads thousands of changelog records while a rebalance ends, and must not lose one of them."""
    many = many[:9000]
    first = cluster.worker("a", standby_replicas=1, batch=20)  # small batches: many changelog records
    first.wait_until_ready()
    cluster.send(messages(many[:6000]))
    cluster.wait_until_done(6000)
    second = cluster.worker("b", standby_replicas=1, batch=20)
    second.wait_until_ready()
    time.sleep(4.0)
    first.kill()
    cluster.send(messages(many[6000:]))
    cluster.wait_until_done(len(many))
    Expectation(model, many).check(cluster)


def test_workers_that_come_one_after_the_other_while_the_first_messages_do(cluster, many, model):
    """Rebalances in quick succession on a topic that nothing was committed of yet."""
    many = many[:6000]
    cluster.worker("a")

    def more(sent):
        if sent % 1000 == 0 and len(cluster.workers) < 4:
            cluster.worker("abcd"[len(cluster.workers)])

    cluster.send(messages(many), rate=1000, during=more)
    cluster.wait_until_done(len(many))
    Expectation(model, many).check(cluster)


def test_alerts_are_followed(cluster, many, model):
    many = many[:5000]
    expected = Expectation(model, many)
    cluster.worker("a")
    cluster.send(messages(many))
    cluster.wait_until_done(len(many))
    url = f"kafka://{cluster.brokers}/{cluster.settings.alerts}"
    arguments = ["alerts", "--from", url, "--beginning", "--limit", str(len(expected.alerts))]
    followed = CliRunner().invoke(app, [*arguments, "--format", "json"])
    assert followed.exit_code == 0, followed.output
    assert {json.loads(line)["id"] for line in followed.stdout.splitlines()} == {a.id for a in expected.alerts}
    one = expected.alerts[0]
    arguments = ["alerts", "--from", url, "--beginning", "--limit", "1", "--account", one.account]
    people = CliRunner().invoke(app, arguments)
    assert one.account in people.stdout


def ended(worker):
    """How a worker that cannot work ends: its exit code and its last line."""
    worker.process.wait(timeout=60)
    return worker.process.returncode, worker.log.read_text().splitlines()[-1]


def test_what_cannot_work_ends_with_a_reason(cluster, tmp_path):
    worker = cluster.worker("a")
    worker.wait_until_ready()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wrong = {
            "another worker uses": cluster.worker("a"),
            "--web-port": cluster.worker("b", web_port=taken.getsockname()[1]),
            "is the broker running": cluster.worker("c", broker="kafka://127.0.0.1:1"),
            "no model at": cluster.worker("d", model=tmp_path / "none"),
            "change replication": cluster.worker("e", group="other", replication=3),
            "refuses this session_timeout": cluster.worker("f", session_timeout=3000, heartbeat_interval=1),
        }
        for reason, worker in wrong.items():
            code, said = ended(worker)
            assert code == 1, reason
            assert reason in said


def test_an_interrupt_stops_it_too(cluster):
    worker = cluster.worker("a")
    worker.wait_until_ready()
    worker.signal(signal.SIGINT)
    assert worker.process.wait(timeout=20) == 0


@pytest.mark.parametrize("arguments", [[], ["--state", "x", "--from", "kafka://h:1"]])
def test_alerts_come_from_one_place(arguments):
    assert "name one place" in str(CliRunner().invoke(app, ["alerts", *arguments]).exception)
