"""Trouble around a worker: damaged stores, full disks, models copied over, brokers gone, early signals, scrapers."""

import ast
import asyncio
import io
import json
import logging
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import aiohttp
import pytest
from aiokafka import errors
from faust.transport.drivers import aiokafka as driver
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from replay.sources.simulator.population import simulate
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.client import explain
from stream_ccsd.kafka.faust import internals
from stream_ccsd.kafka.ops.logs import Repeats, TextFormatter
from stream_ccsd.kafka.ops.metrics import Metrics, Web
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.model.registry import Registry
from tests.conftest import with_settings
from tests.kafka.cluster import Cluster, Expectation, messages, wait_for
from tests.kafka.test_topics import last_words


def test_a_damaged_store_says_which_folder_to_delete(cluster, many, model):
    part = many[:2000]
    worker = cluster.worker("a")
    cluster.send(messages(part[:1000]))
    cluster.wait_until_done(1000)
    assert worker.stop() == 0
    for file in worker.folder.rglob("CURRENT"):
        file.write_bytes(b"nonsense")
    worker.start()
    said = last_words(worker)
    assert f"the store in {worker.folder} is damaged" in said
    assert "delete the folder" in said
    shutil.rmtree(worker.folder)  # as it says; and nothing is lost
    worker.start()
    cluster.send(messages(part[1000:]))
    cluster.wait_until_done(len(part))
    Expectation(model, part).check(cluster)
    # A store that cannot be written, as on a full disk: files of this process may not grow any further.
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (200_000, 200_000))
    cluster.send(messages(many[2000:6000]))
    said = last_words(worker)
    assert f"the store in {worker.folder} cannot be written" in said
    assert "make room" in said


def test_a_model_copied_over_the_one_in_use_hurts_nobody(cluster, many, model, tmp_path):
    folder, other = tmp_path / "served", tmp_path / "other"
    model.save(folder)
    newer = with_settings(model, takeover_drift=0.1)
    newer.save(other)
    (folder / "windows.arrow").touch()
    worker = cluster.worker("a", model=folder)
    worker.wait_until_ready()
    cluster.send(messages(many[:1000]))
    cluster.wait_until_done(1000)
    for name in ("windows.arrow", "laws.arrow", "names.arrow"):  # as `cp` does: into the files that are there
        (folder / name).write_bytes(b"")
    (folder / "model.json").write_text("[" * 100_000)
    wait_for(lambda: worker.said("the new model is not used"), "a refusal", worker)
    cluster.send(messages(many[1000:2000]))
    cluster.wait_until_done(2000)
    for name in ("laws.arrow", "model.json", "names.arrow", "windows.arrow"):
        (folder / name).write_bytes((other / name).read_bytes())
        time.sleep(0.7)  # longer than between two looks: a model that is half there is no model
    wait_for(lambda: worker.said("new model"), "the new model", worker)
    cluster.send(messages(many[2000:3000]))
    cluster.wait_until_done(3000)
    states = {}
    results = Engine(model, states).process_many(many[:2000]) + Engine(newer, states).process_many(many[2000:3000])
    found = {json.loads(r.value)["id"]: json.loads(r.value) for r in cluster.records(cluster.settings.scores)}
    for result in results:
        score = found[result.transaction.id]
        assert (score["model"], score["takeover"], score["score"]) == (result.model, result.takeover, result.score)
    assert worker.stop() == 0


def test_a_broker_that_is_gone_for_a_while(own_broker, tmp_path, model_folder, many):
    """Little is said, the probes tell, everything goes on; and a worker ends also without a broker."""
    cluster = Cluster(own_broker.address, tmp_path, model_folder)
    sending = None
    try:
        worker = cluster.worker("a")
        worker.wait_until_ready()
        cluster.send(messages(many[:500]))
        cluster.wait_until_done(500)
        wait_for(lambda: "stream_ccsd_lag{" in worker.ask("/metrics")[1], "a lag", worker)
        topic = f"kafka://{own_broker.address}/{cluster.settings.transactions}"
        replay = ["replay", "--customers", "50", "--days", "30", "--speed", "300", "--to", topic, "--json", "-"]
        command = [sys.executable, "-m", "stream_ccsd", *replay, "--out", str(tmp_path / "out")]
        with (tmp_path / "replay.log").open("wb") as log:
            sending = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        wait_for(lambda: worker.metric("stream_ccsd_events_total") > 600, "events", worker)
        own_broker.stop()
        wait_for(lambda: worker.ask("/readyz")[0] == 503, "not ready", worker)
        time.sleep(3.0)  # long enough for much to be repeated
        assert worker.ask("/healthz")[0] == 200
        assert json.loads(worker.ask("/readyz")[1])["broker_answers"] is False
        assert worker.ask("/metrics")[1].count("stream_ccsd_lag{") == 4  # what was last known
        assert worker.metric("stream_ccsd_ready") == 0
        own_broker.start()
        wait_for(lambda: worker.ask("/readyz")[0] == 200, "ready again", worker)
        out, _ = sending.communicate(timeout=90)
        assert sending.returncode == 0
        sent = json.loads(out)["sent"]
        assert sent == len(simulate(accounts=50, days=30).transactions)
        cluster.wait_until_done(500 + sent)
        for log in (worker.log, tmp_path / "replay.log"):
            assert log.stat().st_size < 40_000
        wait_for(lambda: any("repeated" in line for line in worker.said()), "what was counted", worker)
        own_broker.stop()
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(timeout=60) == 0
    finally:
        if sending is not None and sending.poll() is None:
            sending.kill()
        cluster.stop()


def test_a_wish_to_stop_that_comes_early(cluster, model, tmp_path):
    """As soon as a worker or learner hears of signals, it ends as asked, though nothing has begun yet."""
    versions = Registry(tmp_path / "versions")
    versions.add(model)
    for number, start in (
        (signal.SIGTERM, lambda: cluster.worker("terminated")),
        (signal.SIGINT, lambda: cluster.worker("interrupted")),
        (signal.SIGTERM, lambda: cluster.learner("learner", versions.folder)),
    ):
        early = start()
        while not _catches(early.process.pid, number):
            assert early.process.poll() is None
            time.sleep(0.01)
        early.signal(number)
        assert early.process.wait(timeout=20) == 0
        assert not early.said()


def _catches(pid, number):
    caught = int(re.search(r"SigCgt:\s*(\w+)", open(f"/proc/{pid}/status").read())[1], 16)  # noqa: SIM115
    started = "numpy" in open(f"/proc/{pid}/maps").read()  # noqa: SIM115  (Python itself catches SIGINT from the start)
    return bool(caught >> (number - 1) & 1) and started


class Counting(Collector):
    """Counts how often the page is made, and where."""

    def __init__(self):
        self.threads = []

    def collect(self):
        self.threads.append(threading.current_thread())
        yield GaugeMetricFamily("counting", "how often", value=len(self.threads))


def test_metrics_are_made_once_for_all_who_ask():
    metrics, counting = Metrics(), Counting()
    metrics.registry.register(counting)
    counting.threads.clear()

    async def run():
        web = Web(WorkerSettings(web_port=0), metrics, lambda: (True, {}), lambda: (True, {}))
        await web.start()
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{web.port}") as session:
                pages = await asyncio.gather(*(_page(session) for _ in range(100)))
        finally:
            await web.stop()
        return pages, threading.current_thread()

    begun = time.monotonic()
    pages, loop_thread = asyncio.run(run())
    assert len(counting.threads) <= 1 + (time.monotonic() - begun)  # at most one a second
    assert loop_thread not in counting.threads
    assert all("counting 1.0" in page or len(counting.threads) > 1 for page in pages)


async def _page(session):
    async with session.get("/metrics") as answer:
        return await answer.text()


def test_a_line_that_repeats_is_shown_once_and_counted():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    repeats = Repeats(handler, every=3600.0, quiet=3600.0)
    handler.addFilter(repeats)
    client, ours = logging.getLogger("aiokafka.repeats"), logging.getLogger("stream_ccsd.repeats")
    for logger in (client, ours):
        logger.addHandler(handler)
        logger.propagate = False
    for number in range(1000):
        client.error("Unable connect to node with id %s: %s", number, "refused")
    client.error("another line")
    for _ in range(3):
        ours.warning("ours are all shown")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 5
    assert "id 0: refused" in lines[0]
    repeats.tell()
    assert len(stream.getvalue().splitlines()) == 5  # neither over nor long enough
    repeats.tell(everything=True)
    assert stream.getvalue().splitlines()[5].endswith("id 999: refused  repeated=999")
    client.error("Unable connect to node with id %s: %s", 1, "refused")  # after the end it is new
    assert len(stream.getvalue().splitlines()) == 7


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errors.KafkaConnectionError("CERTIFICATE of the Authentication ssl Authorization"), "does not answer"),
        (ssl.SSLCertVerificationError("x"), "no TLS"),
        (errors.SaslAuthenticationFailed("x"), "refused the login"),
        (errors.UnsupportedSaslMechanismError("x"), "refused the login"),
        (errors.TopicAuthorizationFailedError("x"), "does not allow this"),
        (errors.UnsupportedCodecError("x"), "stream-ccsd"),
        (errors.InvalidSessionTimeoutError(), "session_timeout"),
        (errors.MessageSizeTooLargeError(), "max.message.bytes"),
        (OSError("ssl uthentication"), "does not answer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_the_kind_of_an_error_decides(error, said):
    assert said in explain("h:1", error)
    outer = errors.KafkaConnectionError("Unable to bootstrap")
    outer.__cause__ = error
    assert said in explain("h:1", outer)


def test_private_parts_are_where_they_were():
    """If this fails after an upgrade, these are the parts of Faust or aiokafka to look for."""
    assert internals.moved() == []


def test_a_part_that_moved_is_named(monkeypatch):
    monkeypatch.setitem(internals.PARTS, driver.Consumer, ("_new_offset", "_gone"))
    assert internals.moved() == ["faust.transport.drivers.aiokafka.Consumer._gone"]
    with pytest.raises(StreamCcsdError, match=r"Consumer\._gone"):
        internals.check_parts()


def test_nobody_else_touches_what_is_private():
    """Names with an underscore, of anything but the object itself, are used in internals.py only."""
    found = []
    folder = Path(internals.__file__).parents[1]
    for file in sorted(folder.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if (
                file.name != "internals.py"
                and isinstance(node, ast.Attribute)
                and node.attr.startswith("_")
                and not node.attr.startswith("__")
                and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os"))
            ):
                found.append(f"{file.name}:{node.lineno} {node.attr}")
    assert found == []
