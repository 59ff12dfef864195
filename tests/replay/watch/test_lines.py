"""Connections on a real line: who asks for half of something, or takes nothing, keeps nobody out and is let go."""

import socket
import time
from contextlib import ExitStack
from ipaddress import ip_network
from itertools import product

from replay.watch import server
from replay.watch.auth.access import Access
from replay.watch.auth.connections import Connections
from replay.watch.auth.limits import Limits
from replay.watch.server import listen
from tests.replay.watch import fake
from tests.replay.watch.fake import Stream, app_of, people, served
from tests.replay.watch.test_events import Reader, until

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
OK = b'{"ok":true}'
HALF = WHOLE[:20]
BODY = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\nx"


def said_until(line, end=b""):
    """What comes until that, or until the other end has closed."""
    said = b""
    try:
        while not (end and end in said) and (piece := line.recv(1 << 16)):
            said += piece
    except ConnectionError:
        pass
    return said


def asked(address, first, then, own="127.0.0.1"):
    """A connection over which one thing was said, and after the answer to that another."""
    line = socket.create_connection(address, 10, source_address=(own, 0))
    if first:
        line.sendall(first)
        assert OK in said_until(line, OK)
    line.sendall(then)
    return line


def is_open(line):
    """Whether a byte more is taken, and no end of it is in sight."""
    try:
        line.sendall(b"x")
        line.setblocking(False)
        return bool(line.recv(1 << 16))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    finally:
        line.settimeout(10)


def test_a_request_that_does_not_become_whole_is_let_go(monkeypatch):
    """Also where it goes on for ever, a byte at a time: uvicorn's own patience begins again with each."""
    monkeypatch.setattr(server, "_PATIENCE", 0.3)
    with served(app_of(Stream())) as (client, address, _, _), ExitStack() as stack:
        cases = [*product((b"", WHOLE, WHOLE + WHOLE), (HALF, BODY[:-1])), (b"", BODY), (b"", b"")]
        silent, trickling = ([stack.enter_context(asked(address, *case)) for case in cases] for _ in range(2))
        until(lambda: not sum(is_open(line) for line in trickling))
        for line in silent:
            said_until(line)
        assert client.get("/healthz").status_code == 200


def test_whoever_takes_nothing_is_let_go_and_whoever_is_slow_is_not(monkeypatch):
    monkeypatch.setattr(server, "_PATIENCE", 0.2)
    monkeypatch.setattr(server, "_STUCK", 1.0)
    narrow = listen("127.0.0.1", 0)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)  # it is that of each connection, too
    monkeypatch.setattr(fake, "listen", lambda *_: narrow)
    stream = Stream()
    stream.rows = ["x" * 1000] * 1500
    app = app_of(stream)
    with served(app) as (_, address, _, _), ExitStack() as stack:
        lines = [stack.enter_context(socket.socket()) for _ in range(2)]
        for line in lines:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(10)
            line.connect(address)
            line.sendall(b"GET /now.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        slow, stuck = lines
        until(lambda: app.state.lines.taken == 2)
        said = b""
        while app.state.lines.taken > 1 and (piece := slow.recv(1024)):
            said += piece
            time.sleep(0.002)
        assert len(said_until(stuck)) < 1_000_000
        assert (said + said_until(slow)).endswith(b"}\n")


def test_half_requests_keep_nobody_out(monkeypatch):
    """From one address or from many: room is made at once, and whoever reads events goes on reading."""
    monkeypatch.setattr(server, "_PATIENCE", 3600.0)
    stream = Stream()
    stream.add(1)
    app = app_of(stream, limits=Limits(connections=200, connections_an_address=50))
    with served(app) as (client, address, _, _), ExitStack() as stack:
        reader = Reader(client)
        for number in range(260):
            own = f"127.0.0.{1 if number < 80 else 2 + number % 20}"
            stack.enter_context(asked(address, WHOLE if number % 5 == 0 else b"", BODY if number % 2 else HALF, own))
            if number in (79, 259):
                assert client.get("/healthz").status_code == 200
                assert app.state.lines.taken == (50 if number == 79 else 200)
        stream.add(2)
        until(lambda: reader.positions() == [2])


def test_those_who_wait_make_room_by_address_and_in_all(caplog):
    now = [0.0]
    lines = Connections(
        Limits(connections=5, connections_an_address=3), lambda address: address == "10.9.9.9", lambda: now[0]
    )
    assert [lines.enter(name, "10.0.0.1") for name in "abc"] == [None] * 3
    lines.asked("a")
    lines.asked("b")
    lines.waits("a")
    assert lines.enter("d", "10.0.0.1") == "c"  # waits for longest
    assert lines.enter("e", "10.0.0.1") == "a"
    lines.asked("d")
    lines.asked("e")
    assert lines.enter("f", "::ffff:10.0.0.1") == "f"  # nobody else waits
    assert caplog.text.count("10.0.0.1 has more than 3 connections") == 1
    assert [lines.enter(name, "10.9.9.9") for name in "gh"] == [None] * 2
    now[0] = 60.0
    assert lines.enter("i", "10.9.9.9") == "g"
    assert "there are more than 5 connections" in caplog.text
    assert lines.taken == 5
    for name in "abcdefghi":
        lines.leave(name)
        lines.asked(name)
        lines.waits(name)
    assert (lines.taken, lines._places, lines._waiting) == (0, {}, {})


def test_connections_of_a_trusted_proxy_are_those_of_many():
    access = Access(users=people(), proxies=(ip_network("127.0.0.1"),))
    with served(app_of(Stream(), access, limits=Limits(connections_an_address=1))) as (client, address, _, _):
        with socket.create_connection(address, 10) as first, socket.create_connection(address, 10) as second:
            for line in (first, second):
                line.sendall(WHOLE)
            for line in (first, second):
                assert OK in said_until(line, OK)
        assert client.get("/healthz").status_code == 200
