"""Pages, parts, forms and errors."""

import logging
import socket
import time

import pytest

from replay.watch.actions import local_path
from replay.watch.auth.access import Access
from replay.watch.auth.limits import Limits
from replay.watch.auth.middleware import POLICY
from replay.watch.formats import filters, json_text
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from tests.replay.watch.fake import EVIL, FORMS, HOST, Stream, app_of, client_of, csrf_of, people, served

JSON = {"Accept": "application/json"}
VIEWS = ("now", "queue", "account", "tune", "model", "audit")


@pytest.fixture
def stream():
    made = Stream()
    made.add(1, 2, 3)
    return made


@pytest.fixture
def client(stream):
    return client_of(stream)


def test_pages(client):
    assert client.get("/").headers["location"] == "/now"
    for view in VIEWS:
        page = client.get(f"/{view}", params={"by": "loss", "x": "a&b"})
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert f"/{view}.csv?by=loss&amp;x=a%26b" in page.text
        assert '<meta name="at" content="3.0">' in page.text
        assert page.headers["cache-control"] == "no-store"


def test_a_link_to_an_alert(client, stream):
    stream.add(7, id="a/7 é?")
    page = client.get("/alert/a%2F7%20%C3%A9%3F")
    assert page.status_code == 200
    assert "/account.csv?alert=a%2F7+%C3%A9%3F" in page.text
    assert client.get("/alert/none").status_code == 404
    assert client.get("/alert/none", headers=JSON).json() == {"error": "there is no alert none"}


def test_a_part_is_one_block_with_what_its_template_imports(client, stream):
    stream.rows = ["one"]
    part = client.get("/queue", params={"part": "list", "x": "two"})
    assert part.text.startswith('<ul id="part-list"><li><b>one</b></li>')
    assert "<b>two</b>" in part.text
    assert "list" not in part.text.partition(">")[2]  # the query of a part is that of its page
    assert "<meta" not in part.text
    assert client.get("/queue", params={"part": "none"}).status_code == 404
    assert client.get("/queue", params={"part": "__init__"}).status_code == 404


def test_texts_from_outside_are_texts(client, stream):
    stream.rows = [EVIL]
    for answer in (
        client.get("/queue", params={"x": EVIL}),
        client.get("/queue", params={"part": "list"}),
        client.get("/alert/" + EVIL.replace("/", "%2F")),
        client.get(f"/queue?part={EVIL}"),
        client.get(f"/now.csv?table={EVIL}"),
        client.get(f"/{EVIL}"),
        client.post("/release", data={"account": EVIL, "csrf": csrf_of(client.get("/queue"))}),
    ):
        assert "<script>" not in answer.text or answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "&lt;script&gt;" in client.get("/queue").text


def test_every_answer_has_its_headers(client, stream, tmp_path):
    stream.broken = ZeroDivisionError("inside")
    csrf = csrf_of(client.get("/nowhere"))
    answers = [
        client.get("/"),
        client.get("/queue"),  # a fault
        client.get("/nowhere"),
        client.get("/nowhere", headers=JSON),
        client.get("/take"),
        client.get("/healthz"),
        client.get("/static/none.css"),
        client.get("/queue", headers={"Host": "evil.example"}),
        client.post("/judge", data={"csrf": "x"}),
        client.post("/judge", data={"csrf": csrf}),
        client.post("/judge", content=b"x" * 70_000),
        client.get("/events?after=x"),
        client_of(stream, Access(users=people())).get("/login"),
        client_of(stream, Access(users=people())).get("/queue"),
    ]
    assert {a.status_code for a in answers} == {200, 303, 400, 403, 404, 405, 413, 421, 500}
    for answer in answers:
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
    assert "unsafe" not in POLICY


def test_a_fault_is_logged_and_not_shown(client, stream, caplog):
    stream.broken = ZeroDivisionError("the inside of it")
    with caplog.at_level(logging.ERROR):
        page, plain = client.get("/queue"), client.get("/queue.json")
    assert page.status_code == plain.status_code == 500
    assert "inside of it" not in page.text + plain.text
    assert "Traceback" not in page.text + plain.text
    assert "the inside of it" in caplog.text
    stream.broken = StreamCcsdError("the file is <gone>: start again")
    assert client.get("/queue").status_code == 400
    assert "the file is &lt;gone&gt;: start again" in client.get("/queue").text


def test_even_a_broken_template_of_errors_answers(stream):
    from jinja2 import DictLoader

    from replay.watch.app import build_app
    from tests.replay.watch.fake import TestClient

    app = build_app(stream, Access(who="me"), loader=DictLoader({"error.html": "{{ 1 / 0 }}"}))
    answer = TestClient(app, f"http://{HOST}").get("/queue")
    assert answer.status_code == 500
    assert answer.headers["content-type"].startswith("text/plain")


def test_forms_of_the_page_and_of_its_script(client, stream):
    csrf = csrf_of(client.get("/queue"))
    plain = client.post("/judge", data=FORMS["/judge"] | {"csrf": csrf, "back": "/account?name=c1"})
    assert (plain.status_code, plain.headers["location"]) == (303, "/account?name=c1")
    script = client.post("/judge", data=FORMS["/judge"], headers=JSON | {"X-CSRF-Token": csrf})
    assert script.json() == {"done": "fraud: 2 verdicts recorded", "to": "/queue"}
    assert [entry["transaction"] for entry in stream.entries] == ["a1", "a2"] * 2
    files = {name: (None, value) for name, value in {"account": "c1"}.items()}  # as a script's FormData is sent
    assert client.post("/claim", files=files, headers=JSON | {"X-CSRF-Token": csrf}).status_code == 200
    upload = {"account": ("a.txt", b"c2")}
    assert client.post("/claim", files=upload, headers=JSON | {"X-CSRF-Token": csrf}).status_code == 400


def test_a_case_of_many_alerts_is_judged_at_once(client, stream):
    """Whether a browser sends the form as it is, or as its script does in parts."""
    csrf = csrf_of(client.get("/queue"))
    ids = [f"2026-02-23-{number:06}" for number in range(1900)]
    plain = client.post("/judge", data={"alert": ids, "finding": "fraud", "why": "", "csrf": csrf})
    assert plain.status_code == 303, plain.text
    assert [entry["transaction"] for entry in stream.entries] == ids
    few = [("alert", (None, number)) for number in ids[:600]]
    sent = client.post("/judge", files=[*few, ("finding", (None, "fraud"))], headers=JSON | {"X-CSRF-Token": csrf})
    assert sent.json()["done"] == "fraud: 600 verdicts recorded"


def test_a_budget_promises_nothing_for_workers(client):
    csrf = csrf_of(client.get("/tune"))
    done = client.post("/budget", data=FORMS["/budget"], headers=JSON | {"X-CSRF-Token": csrf}).json()["done"]
    assert done.startswith("recorded: open alerts below 7.5 nats are hidden;")
    assert "workers on Kafka keep theirs" in done


def test_taking_goes_to_the_case_and_two_browsers_get_two(stream):
    stream.add(8, account="a&b/é")
    one, two = client_of(stream), client_of(stream)
    places = []
    for browser in (one, two):
        csrf = csrf_of(browser.get("/queue"))
        places.append(browser.post("/take", data={"csrf": csrf, "back": "/queue"}).headers["location"])
    assert places == ["/account?name=a%26b%2F%C3%A9", "/account?name=c1"]
    csrf = csrf_of(two.get("/queue"))
    taken = two.post("/claim", data={"account": "a&b/é"}, headers=JSON | {"X-CSRF-Token": csrf})
    assert taken.status_code == 409
    assert taken.json() == {"error": "a&b/é is me's"}
    stream.claims |= {f"c{i}": ("x", "y") for i in range(7)}
    none = two.post("/take", data={}, headers=JSON | {"X-CSRF-Token": csrf})
    assert none.json()["to"] == "/queue"
    assert "no case is free" in none.json()["done"]


@pytest.mark.parametrize(
    ("path", "form", "said"),
    [
        ("/judge", {"finding": "fraud"}, "alert is missing"),
        ("/judge", {"alert": "a1"}, "finding is missing"),
        ("/judge", {"alert": "a1", "finding": "guilty"}, "expected one of fraud"),
        ("/claim", {"account": " "}, "account is missing"),
        ("/budget", {"threshold": "nan"}, "expected a number"),
        ("/budget", {"threshold": "1e999"}, "expected a number"),
        ("/budget", {"threshold": "seven"}, "expected a number"),
        ("/budget", {}, "threshold is missing"),
        ("/suppress", {"what": "merchant", "value": "m1"}, "days is missing"),
        ("/suppress", {"value": "m1", "days": "3"}, "what is missing"),
        ("/lift", {"suppression": "-1"}, "expected a whole number"),
        ("/lift", {"suppression": "９"}, "expected a whole number"),
        ("/lift", {"suppression": "9" * 400}, "expected a whole number"),
    ],
)
def test_forms_that_make_no_sense(client, stream, path, form, said):
    csrf = csrf_of(client.get("/queue"))
    answer = client.post(path, data=form, headers=JSON | {"X-CSRF-Token": csrf})
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert stream.entries == []


@pytest.mark.parametrize(
    "back",
    [
        *("//evil.example", "https://evil.example/queue", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)"),
        *("/\t/evil.example", "/\n/evil.example", " //evil.example", "queue", "", "/queue\r\nSet-Cookie: a=b", "///x"),
        *("http:/queue", "/" + "x" * 3000, "/ /evil.example", "//[", "/\u202equeue"),
    ],
)
def test_there_is_no_way_back_to_elsewhere(client, back):
    assert local_path(back) == "/queue"
    csrf = csrf_of(client.get("/queue"))
    answer = client.post("/judge", data=FORMS["/judge"] | {"csrf": csrf, "back": back})
    assert answer.headers["location"] == "/queue"
    locked = client_of(Stream(), Access(users=people()))
    assert "evil" not in locked.get("/login", params={"back": back}).text


def test_ways_back_that_are_ours():
    for path in ("/queue?by=loss&page=2", "/alert/a%2F1", "/account?name=a%26b#part-list"):
        assert local_path(path) == path
    assert local_path("/account?name=é") == "/account?name=%C3%A9"


def test_a_body_beyond_the_limit(client, stream):
    csrf = csrf_of(client.get("/queue"))
    long = client.post("/judge", data=FORMS["/judge"] | {"csrf": csrf, "why": "x" * 70_000})
    assert long.status_code == 413

    def pieces():
        yield b"finding=fraud&alert=a1&why="
        for _ in range(80):
            yield b"x" * 1000

    kind = {"Content-Type": "application/x-www-form-urlencoded", "X-CSRF-Token": csrf} | JSON
    assert client.post("/judge", content=pieces(), headers=kind).status_code == 413
    assert client.post("/judge", content=b"a=b", headers=kind | {"Content-Length": "x"}).status_code == 400
    assert stream.entries == []


def test_bodies_without_end_and_without_length_on_a_real_line(stream):
    app = app_of(stream, limits=Limits(body_seconds=0.5))
    with served(app) as (client, address, _, _):
        csrf = csrf_of(client.get("/queue"))
        cookie = "; ".join(f"{k}={v}" for k, v in client.cookies.items())
        head = (
            f"POST /judge HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\nX-CSRF-Token: {csrf}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\nAccept: application/json\r\n"
        )
        for more, code in ((b"Transfer-Encoding: chunked\r\n\r\n", b"413"), (b"Content-Length: 99\r\n\r\na=b", b"408")):
            with socket.create_connection(address, timeout=10) as line:
                line.sendall(head.encode() + more)
                if code == b"413":
                    for _ in range(70):
                        line.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
                said = line.recv(4096)
                assert said.startswith(b"HTTP/1.1 " + code), said
                assert b"content-security-policy" in said.lower()
        assert client.get("/queue").status_code == 200
    assert stream.entries == []


def test_files_of_the_page(stream, tmp_path):
    (tmp_path / "page.css").write_text("body {}")
    (tmp_path / "page.js").write_text("let a;")
    (tmp_path / "folder").mkdir()
    client = client_of(stream, Access(users=people()), static=tmp_path)  # before any login
    plain = client.get("/static/page.css")
    assert plain.text == "body {}"
    assert plain.headers["content-type"].startswith("text/css")
    assert plain.headers["cache-control"] == "no-cache"
    version = plain.headers["etag"].strip('"')
    assert "immutable" in client.get(f"/static/page.css?v={version}").headers["cache-control"]
    assert client.get("/static/page.css?v=older").headers["cache-control"] == "no-cache"
    assert client.get("/static/page.css", headers={"If-None-Match": f'"{version}"'}).status_code == 304
    assert client.get("/static/page.js").headers["content-type"].startswith("text/javascript")
    for trick in ("../fake.py", "..%2Ffake.py", "%2e%2e/fake.py", "folder", "folder/x", "", "page.css/"):
        assert client.get(f"/static/{trick}").status_code in (303, 404)
    (tmp_path / "page.js").write_text("let b;")
    assert client_of(stream, static=tmp_path).get("/static/page.js").headers["etag"] != f'"{version}"'


def test_a_slow_page_does_not_hold_others(stream):
    """Work of a page is done in threads."""

    class Slow(Stream):
        def view(self, name, query, who, seat):
            if name == "tune":
                time.sleep(1.5)
            return super().view(name, query, who, seat)

    import threading

    with served(app_of(Slow())) as (client, _, _, _):
        done = []
        thread = threading.Thread(target=lambda: (client.get("/tune"), done.append("tune")))
        thread.start()
        client.get("/healthz")
        client.get("/now")
        done.append("now")
        thread.join()
    assert done == ["now", "tune"]


def test_websockets_are_refused(client):
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/events"):
        pass


def test_numbers_as_people_read_them():
    written = filters(Calendar("days").show)
    assert written["money"](1234.5) == "1,234.50"
    assert written["nats"](6.907755) == "6.91"
    assert written["number"](-1234567) == "-1,234,567"
    assert written["clock"](3.0) == "3"
    assert written["moment"](1e300) == "1e+300"
    assert written["number"]("text") == "text"
    assert all(write(None) == "–" for write in written.values())
    assert all(write(float("inf")) == "inf" for write in written.values())
    assert json_text([float("inf"), {"a": (float("nan"), 1)}]) == '[null, {"a": [null, 1]}]'
