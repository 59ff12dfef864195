"""The live page: how long each view takes over a large state file, and what it costs a replay to be watched.

Both are measured over HTTP against a real server in a process of its own. For the cost, the same file is replayed at
full speed with and without a page that follows it, one after the other and several times over: what is compared are
the medians.

The large state file is a real replay, multiplied.

Scores and alerts are those of a replay of a simulated population; each copy has accounts of its own. Copies are mixed
batch by batch, so that an account's transactions are spread over as many batches as they would be in one large stream.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pyarrow as pa

from replay.run.fitting import fit_file, simulated_replay, write_simulated
from replay.run.loop import replay_stream
from replay.sources.simulator.population import Population
from replay.sources.source import Position
from replay.state.batch_output import BatchOutput
from replay.state.file import StateFile, model_beside
from stream_ccsd.alerts.alert import Alert
from stream_ccsd.alerts.policy import build_policy, threshold_by_budget
from stream_ccsd.engine import Engine
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import Progress
from stream_ccsd.settings import Settings

# Transactions of the population that are kept together, and of a stored batch.
_TOGETHER, _BATCH = 200, 2000


def write_large_state(path: Path, transactions: int, alerts: int, progress: Progress) -> dict[str, int]:
    """So many transactions, and so many alerts as nearly as a budget gives them; returns how many there are."""
    model, source = simulated_replay(400, 120, 0, Settings())
    asked = threshold_by_budget(min(0.5, alerts / transactions))
    best: list[BatchOutput] = []
    for _ in range(6):  # fewer transactions are alerted than ask for it: accounts alert once until they go higher
        batch_outputs: list[BatchOutput] = []
        replay_stream(source, Engine(model, {}, asked), batch_outputs.append, batch=_TOGETHER)
        count = sum(batch_output.scores.num_rows for batch_output in batch_outputs)
        raised = sum(len(batch_output.alerts) for batch_output in batch_outputs)
        best = batch_outputs
        if raised * transactions >= 0.95 * alerts * count:
            break
        asked -= 0.4
    copies = -(-transactions // count)
    facts = {
        "source": {"name": source.name},
        "model": model.version,
        "threshold": asked,
        "policy": build_policy(model.settings, asked)._asdict(),
        "calendar": model.calendar.to_dict(),
        "learning": None,
    }
    model.save(model_beside(path))
    file = StateFile.create(path, facts)
    file.notes |= {"source": "a town, many times", "finished": True, "model": str(model_beside(path))}
    written = raised = 0
    for number, batch_output in enumerate(best):
        for first in range(0, copies, _BATCH // _TOGETHER):
            copied = range(first, min(copies, first + _BATCH // _TOGETHER))
            file.record(_copies(batch_output, copied, written))
            written += batch_output.scores.num_rows * len(copied)
            raised += len(batch_output.alerts) * len(copied)
        progress(number + 1, len(best))
    file.close()
    return {"transactions": written, "alerts": raised}


def _copies(batch_output: BatchOutput, copied: Sequence[int], before: int) -> BatchOutput:
    """A batch of the population's scores for several copies of it; positions go on behind those before."""
    rows = batch_output.scores.num_rows
    positions = {position: place for place, position in enumerate(batch_output.scores.column("position").to_pylist())}
    batches, alerts = [], []
    for number, copy in enumerate(copied):
        start = before + number * rows + 1
        batches.append(_renamed(batch_output.scores, copy, start))
        alerts += [(start + positions[position], _alert(alert, copy)) for position, alert in batch_output.alerts]
    scores = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return BatchOutput(Position(before + rows * len(copied)), scores, alerts, [])


def _renamed(scores: pa.RecordBatch, copy: int, start: int) -> pa.RecordBatch:
    columns: dict[str, Any] = dict(zip(scores.schema.names, scores.columns, strict=True))
    columns["account"] = pa.array([f"{name}-{copy}" for name in scores.column("account").to_pylist()])
    columns["id"] = pa.array([f"{name}-{copy}" for name in scores.column("id").to_pylist()])
    columns["position"] = pa.array(range(start, start + scores.num_rows), pa.int64())
    return pa.RecordBatch.from_arrays([*columns.values()], schema=scores.schema)


def _alert(alert: Alert, copy: int) -> Alert:
    account, transaction = f"{alert.account}-{copy}", f"{alert.transaction}-{copy}"
    name = blake2b(f"{account}\0{transaction}".encode(), digest_size=12).hexdigest()
    return replace(alert, id=name, account=account, transaction=transaction)


_WARM_UP = 3
# What a person may ask for in a second is limited: a benchmark waits as a person would.
_PAUSE = 0.03
_FITTED = 0.5


def measure_page(
    transactions: int, alerts: int, requests: int, customers: int, runs: int, progress: Progress
) -> dict[str, Any]:
    """Milliseconds of each view, and the share of its speed that a replay loses to a page that follows it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        counts = write_large_state(folder / "large.db", transactions, alerts, lambda done, of: progress(done, 2 * of))
        with _page(folder / "large.db") as url:
            views = _views(url, requests)
        progress(6, 10)
        rates = _rates(folder, customers, runs, progress)
    alone, watched = (statistics.median(rates[name]) for name in ("alone", "watched"))
    return {
        **counts,
        "requests": requests,
        "views": views,
        "replay_events_per_s": rates,
        "replay_slowdown": 1 - watched / alone,
    }


@contextmanager
def _page(state: Path) -> Iterator[str]:
    """A server over a state file; gives its address."""
    command = [sys.executable, "-m", "stream_ccsd", "watch", "--state", str(state), "--port", "0", "--no-browser"]
    process = subprocess.Popen([*command, "--json", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            assert process.stderr is not None
            raise StreamCcsdError(f"the page did not start: {process.stderr.read().strip()}")
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        process.communicate()


class _Browser:
    """One connection that stays open, with its cookie."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._place, timeout=60)
        self._cookie = ""

    def get(self, path: str) -> tuple[float, bytes]:
        """Seconds, and what was answered."""
        begun = time.perf_counter()
        self._connection.request("GET", path, headers={"Cookie": self._cookie} if self._cookie else {})
        answer = self._connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - begun
        if answer.status != 200:
            raise StreamCcsdError(
                f"the page answers {path} with {answer.status}: {body[:200].decode(errors='replace')}"
            )
        self._cookie = (answer.getheader("Set-Cookie") or self._cookie).partition(";")[0]
        return took, body

    def close(self) -> None:
        self._connection.close()


def _views(url: str, requests: int) -> list[dict[str, Any]]:
    browser = _Browser(url)
    while json.loads(browser.get("/now.json")[1])["pulse"]["alerts"] == 0:
        time.sleep(0.2)
    _wait_until_read(browser)
    cases = [case["account"] for case in json.loads(browser.get("/queue.json")[1])["cases"]]
    paths: dict[str, Callable[[int], str]] = {
        "now": lambda i: "/now",
        "queue": lambda i: f"/queue?page={1 + i % 20}",
        "queue, filtered": lambda i: f"/queue?by=score&amount_from={10 + i}&age=60",
        "account": lambda i: f"/account?name={quote(cases[i % len(cases)])}",
        "tune": lambda i: "/tune",
        "model": lambda i: "/model",
        "audit": lambda i: "/audit",
    }
    rows = []
    for name, path in paths.items():
        times = []
        for i in range(_WARM_UP + requests):
            times.append(1000 * browser.get(path(i))[0])
            time.sleep(_PAUSE)
        ordered = sorted(times[_WARM_UP:])
        rows.append(
            {
                "view": name,
                "p50_ms": statistics.median(ordered),
                "p95_ms": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
                "first_ms": times[0],
            }
        )
    browser.close()
    return rows


def _wait_until_read(browser: _Browser) -> None:
    """A page that was just opened still reads: it is measured once the number of open cases stands."""
    before = -1
    while (now := json.loads(browser.get("/now.json")[1])["pulse"]["open_cases"]) != before:
        before = now
        time.sleep(1.0)


def _rates(folder: Path, customers: int, runs: int, progress: Progress) -> dict[str, list[float]]:
    data = folder / "simulated.csv"
    write_simulated(Population(customers, 60), data)
    fit_file(data, Settings(), share=_FITTED).model.save(folder / "model")
    rates: dict[str, list[float]] = {"alone": [], "watched": []}
    for number in range(runs):
        order = ("alone", "watched") if number % 2 == 0 else ("watched", "alone")
        for name in order:
            state = folder / f"{name}{number}.db"
            if name == "alone":
                rates[name].append(_replay(data, folder, state))
            else:
                with _page_to_come(state) as follow:
                    follow()
                    rates[name].append(_replay(data, folder, state))
        progress(6 * runs + 4 * (number + 1), 10 * runs)
    return rates


@contextmanager
def _page_to_come(state: Path) -> Iterator[Any]:
    """A page and a reader of its events, from when the state file appears; ended with the replay."""
    over = threading.Event()

    def look() -> None:
        while not state.exists() and not over.is_set():
            time.sleep(0.05)
        if over.is_set():
            return
        with _page(state) as url:
            browser = _Browser(url)
            threading.Thread(target=_listen, args=(url, over), daemon=True).start()
            while not over.wait(2.0):  # as the script of an open queue does
                browser.get("/queue?part=cases")
            browser.close()

    thread = threading.Thread(target=look)
    try:
        yield thread.start
    finally:
        over.set()
        thread.join()


def _listen(url: str, over: threading.Event) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=5)
    try:
        connection.request("GET", "/events")
        answer = connection.getresponse()
        while not over.is_set() and answer.readline():
            pass
    except OSError:
        pass
    finally:
        connection.close()


def _replay(data: Path, folder: Path, state: Path) -> float:
    """Records a second of a replay in a process of its own."""
    command = [sys.executable, "-m", "stream_ccsd", "replay", "--data", str(data), "--model", str(folder / "model")]
    command += ["--state", str(state), "--out", str(state.with_suffix(".out")), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StreamCcsdError(f"the replay failed: {done.stderr.strip()[-500:]}")
    return float(json.loads(done.stdout)["events_per_s"])
