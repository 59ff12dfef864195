"""Server-sent events on a real line: in order, whole, each once; however slow or gone the reader is."""

import json
import socket
import threading
import time

import httpx
import pytest

from replay.watch.auth.access import Access
from replay.watch.auth.limits import Limits
from tests.replay.watch.fake import TOKENS, Stream, app_of, client_of, csrf_of, log_in, people, served

PATIENCE = 10.0


def until(condition):
    """Wait for what is to come, which may take its time on a busy machine."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Reader:
    """Reads a stream of events in a thread."""

    def __init__(self, client, after=None, query="", headers=None):
        self.events, self.comments, self.status = [], 0, None
        self._headers = (headers or {}) | ({"Last-Event-ID": after} if after else {})
        self._url = f"{client.base_url}/events{query}".replace("//events", "/events")
        self._leave, self.ended = threading.Event(), threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        until(lambda: self.status is not None)

    def _read(self):
        event = {}
        try:
            with httpx.stream("GET", self._url, headers=self._headers, timeout=30) as answer:
                self.status, self.headers = answer.status_code, answer.headers
                for line in answer.iter_lines():
                    if self._leave.is_set():
                        return
                    if not line and event.get("event"):
                        self.events.append(event)
                    if not line:
                        event = {}
                    elif line.startswith(":"):
                        self.comments += 1
                    else:
                        name, _, value = line.partition(": ")
                        event[name] = json.loads(value) if name == "data" else value
        finally:
            self.ended.set()

    def of(self, kind):
        return [event for event in list(self.events) if event["event"] == kind]

    def positions(self):
        return [event["data"]["position"] for event in self.of("alert")]

    def leave(self):
        self._leave.set()


@pytest.fixture
def stream():
    made = Stream()
    made.add(*range(1, 4))
    return made


def test_from_now_on(stream):
    with served(app_of(stream)) as (client, _, _, _):
        reader = Reader(client)
        assert reader.headers["content-type"].startswith("text/event-stream")
        assert "content-security-policy" in reader.headers
        assert reader.headers["cache-control"] == "no-store"
        until(lambda: reader.of("pulse"))
        hello = reader.events[0]
        assert hello["event"] == "hello"
        assert f'content="{hello["data"]["run"]}"' in client.get("/now").text
        assert hello["id"] == "3.0"
        assert hello["retry"].isdigit()
        assert reader.of("pulse")[0]["data"] == {"position": 3, "threshold": None}
        assert "id" not in reader.of("pulse")[0]
        stream.add(5, headline="a\nb\n\nevent: alert\ndata: {}")
        stream.judge(["a5"], "fraud", "", "me", "s")
        until(lambda: reader.of("desk"))
        assert reader.positions() == [5]
        (told,) = reader.of("alert")
        assert told["id"] == "5.0"
        assert set(told["data"]) == {
            *("position", "id", "account", "time", "when", "score", "amount", "headline", "raised_by")
        }
        assert told["data"]["headline"] == "a\nb\n\nevent: alert\ndata: {}"
        (action,) = reader.of("desk")
        assert action["id"] == "5.1"
        assert action["data"] == {"sequence": 1, "kind": "verdict", "who": "me", "account": None, "transaction": "a5"}


def test_whoever_comes_again_gets_the_rest_and_nothing_twice(stream):
    """Many alerts and entries while readers break off at every event, and go on with its id."""
    with served(app_of(stream)) as (client, _, _, _):
        done = threading.Event()

        def go_on():
            for number in range(4, 304):
                stream.add(number)
                if number % 3 == 0:
                    stream.judge([f"a{number}"], "fraud", "", "me", "s")
                time.sleep(0.002)
            done.set()

        place, alerts, entries = "3.0", [], []
        threading.Thread(target=go_on).start()
        cut = 1
        while not (done.is_set() and len(alerts) >= 300 and len(entries) >= 100):
            reader = Reader(client, after=place)
            known = len(alerts) + len(entries)
            until(lambda r=reader, k=known: len(r.of("alert")) + len(r.of("desk")) > 0 or k >= 400)
            events = [e for e in list(reader.events) if e["event"] in ("alert", "desk")][:cut]
            reader.leave()
            for event in events:
                if event["event"] == "alert":
                    alerts.append(event["data"]["position"])
                else:
                    entries.append(event["data"]["sequence"])
                place = event["id"]
            cut = cut * 2 % 97 + 1
    assert alerts == list(range(4, 304))
    assert entries == list(range(1, 101))


def test_more_than_fits_into_one_piece_comes_in_several(stream):
    stream.add(*range(4, 400))
    with served(app_of(stream)) as (client, _, _, _):
        reader = Reader(client, query="?after=0.0")
        until(lambda: len(reader.positions()) >= 399)
        assert reader.positions() == list(range(1, 400))
        late = Reader(client, after="390.0", query="?after=0.0")  # where it really was counts
        until(lambda: len(late.positions()) >= 9)
        assert late.positions() == list(range(391, 400))


def test_too_much_is_said_at_once(stream):
    stream.add(*range(4, 1000))
    with served(app_of(stream)) as (client, _, _, _):
        reader = Reader(client, after="1.0")
        until(lambda: reader.of("behind"))
        assert reader.positions() == []
        assert reader.of("behind")[0]["id"] == "999.0"
        assert reader.of("behind")[0]["data"] == {}
        stream.add(1000)
        until(lambda: reader.positions() == [1000])


@pytest.mark.parametrize("place", ["x", "1", "1.x", "-1.0", "1.2.3", "1" * 30 + ".0", "１.０"])
def test_a_place_that_is_none(stream, place):
    assert client_of(stream).get("/events", params={"after": place}).status_code == 400


def test_silence_is_kept_alive_and_changes_are_not_lost_on_it(stream):
    with served(app_of(stream, beat=0.1)) as (client, _, _, _):
        reader = Reader(client)
        until(lambda: reader.comments >= 3)
        stream.add(9)
        until(lambda: reader.positions() == [9])


def test_what_is_watched_may_be_away_for_a_moment(stream, caplog):
    with served(app_of(stream)) as (client, _, _, _):
        reader = Reader(client)
        until(lambda: reader.of("pulse"))
        wait = stream.wait
        stream.wait = lambda changed, seconds: 1 / 0
        until(lambda: "cannot be followed" in caplog.text)
        stream.wait = wait
        stream.add(9)
        until(lambda: reader.positions() == [9])


def test_so_many_streams_a_session_and_in_all(stream):
    limits = Limits(streams_a_session=2, streams=3)
    with served(app_of(stream, Access(users=people()), limits=limits)) as (client, _, _, _):
        ann, bob = ({"Authorization": f"Bearer {TOKENS[name]}"} for name in ("ann", "bob"))
        readers = [Reader(client, headers=ann), Reader(client, headers=ann), Reader(client, headers=ann)]
        assert [r.status for r in readers] == [200, 200, 503]
        assert "content-security-policy" in readers[2].headers
        assert readers[2].headers["retry-after"] == "30"
        others = [Reader(client, headers=bob), Reader(client, headers=bob)]
        assert [r.status for r in others] == [200, 503]
        readers[0].leave()
        stream.add(9)  # that one reads this, and goes
        until(readers[0].ended.is_set)
        until(lambda: (again := Reader(client, headers=bob)).status == 200 and again)


@pytest.mark.parametrize("how", ["logged out", "expired", "silent"])
def test_a_stream_ends_with_its_session(stream, how):
    """At the next beat, or before anything is told; that somebody listens is no use of a session."""
    app = app_of(stream, Access(users=people()), beat=30.0 if how == "expired" else 0.1)
    with served(app) as (client, _, _, _):
        log_in(client, "bob")
        cookie = {"Cookie": f"stream_ccsd={client.cookies['stream_ccsd']}"}
        reader = Reader(client, headers=cookie)
        other = Reader(client, headers={"Authorization": f"Bearer {TOKENS['ann']}"})
        until(lambda: reader.of("pulse") and other.of("pulse"))
        if how == "expired":
            app.state.sessions._idle = 0.0
        else:
            csrf = csrf_of(client.get("/queue"))
            assert client.post("/logout", data={"csrf": csrf}).headers["location"] == "/login"
        if how != "silent":
            stream.add(9)
            until(lambda: other.positions() == [9])
        until(reader.ended.is_set)
        assert reader.positions() == []
        assert not other.ended.is_set()
        assert Reader(client, headers=cookie).status == 401
        until(lambda: app.state.streams.readers == 1)


def stuck(address, after="0.0"):
    """A reader that asks, and reads nothing."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect(address)
    line.sendall(f"GET /events?after={after} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return line


def test_a_reader_that_does_not_read_holds_nothing_up(stream):
    """It is asked for no more than its line takes, while others get everything; then it is behind."""
    app = app_of(stream)
    with served(app) as (client, address, _, _):
        line = stuck(address, "3.0")
        until(lambda: app.state.streams.readers == 1)
        quick = Reader(client, after="3.0")
        last = 3
        for _ in range(18):  # some 18 MB, far more than lines take
            stream.add(*range(last + 1, last + 51), headline="x" * 20_000)
            last += 50
            until(lambda: quick.positions()[-1:] == [last])  # noqa: B023
        assert quick.positions() == list(range(4, last + 1))
        asked = stream.asked
        stream.add(last + 1)
        until(lambda: quick.positions()[-1] == last + 1)
        assert stream.asked - asked <= 4  # the quick one alone asks
        line.settimeout(PATIENCE)
        said = b""
        while b"event: behind" not in said[-500:]:  # what it was sent, then that it missed much
            piece = line.recv(1 << 20)
            assert piece
            said += piece
        assert len(said) < 12 << 20
        line.close()
        until(lambda: app.state.streams.readers == 1)


def test_the_server_ends_with_streams_open(stream):
    app = app_of(stream)
    with served(app) as (client, _, stop, thread):
        readers = [Reader(client) for _ in range(5)]
        begun = time.monotonic()
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert time.monotonic() - begun < PATIENCE
        until(lambda: all(reader.ended.is_set() for reader in readers))
    assert app.state.streams.readers == 0


def test_the_server_ends_with_a_reader_that_does_not_read(stream):
    app = app_of(stream)
    stream.add(*range(4, 400), headline="x" * 50_000)
    with served(app) as (_, address, stop, thread):
        line = stuck(address)
        until(lambda: app.state.streams.readers == 1)
        time.sleep(0.5)  # its line is full now
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        line.close()


def test_a_head_has_no_stream(stream):
    assert client_of(stream).head("/events").status_code == 200
