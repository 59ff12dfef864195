"""The server is killed while verdicts come in over HTTP: none that was acknowledged is lost, and the chain is whole."""

import re
import threading
import time
from contextlib import closing

import httpx

from replay.cases.verdicts import VerdictLog, audit_log_beside
from replay.run.session import Session
from replay.sources.source import ListSource
from replay.state.file import StateFile
from tests.replay.watch.browser import page_over


def judging(url, name, ids, acknowledged, over):
    """A person whose verdicts on some alerts come as fast as the server takes them."""
    with httpx.Client(base_url=url, timeout=10) as client:
        try:
            csrf = re.search('name="csrf" content="([^"]+)"', client.get("/queue").text)[1]
            number = 0
            while not over.is_set():
                for alert in ids:
                    number += 1
                    why = f"{name}-{number}"
                    said = {"alert": alert, "finding": "unsure", "why": why}
                    answer = client.post("/judge", data=said, headers={"X-CSRF-Token": csrf})
                    if answer.status_code in (200, 303):
                        acknowledged.append(why)
                    else:
                        assert answer.status_code == 429  # more than one person may ask for
                        time.sleep(0.2)
        except httpx.TransportError:
            pass  # killed


def test_killed_while_people_judge(model, stream, tmp_path):
    state = tmp_path / "replay.db"
    Session(ListSource("town", stream.transactions), model, tmp_path / "out", state, threshold=4.0).run()
    with closing(StateFile.open(state, read_only=True)) as file:
        alerts = {alert["account"]: alert["id"] for alert in file.records.alerts()}
    acknowledged = []
    for kill in range(3):
        with page_over("--state", state) as (url, process):
            over = threading.Event()
            people = [
                threading.Thread(
                    target=judging,
                    args=(url, f"{kill}{i}", [*alerts.values()][i::3], acknowledged, over),
                )
                for i in range(3)
            ]
            for person in people:
                person.start()
            wanted, patience = len(acknowledged) + 8 * (kill + 1), time.monotonic() + 60
            while len(acknowledged) < wanted and time.monotonic() < patience:
                time.sleep(0.01)
            process.kill()
            over.set()
            for person in people:
                person.join()
        with VerdictLog.open(audit_log_beside(state), read_only=True) as audit_log:
            assert audit_log.check() is not None
            recorded = [entry.verdict.why for entry in audit_log.entries()]
        assert len(recorded) == len(set(recorded))
        assert set(acknowledged) <= set(recorded)
    assert len(acknowledged) > 20
