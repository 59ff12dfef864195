"""Who is let in, and what they may do there."""

import os
import re
from hashlib import sha256

import pytest

from replay.watch.auth.access import Access, chosen_access
from replay.watch.auth.limits import Buckets, Limits, Places, by_address
from replay.watch.auth.users import BrowserSessions, Users
from stream_ccsd.errors import StreamCcsdError
from tests.replay.watch.fake import FORMS, HOST, JUDGING, TOKENS, Stream, client_of, csrf_of, log_in, people

JSON = {"Accept": "application/json"}
HEADER = Access(
    who="me",
    role="view",
    header="X-User",
    proxies=chosen_access(
        "me",
        loopback=True,
        users=None,
        header="X-User",
        proxies=["10.0.0.0/24", "fd00::7"],
        role=None,
        host="127.0.0.1",
        host_names=(),
        behind_https=False,
        read_only=False,
    ).proxies,
)


@pytest.fixture
def stream():
    made = Stream()
    made.add(1, 2, 3)
    return made


@pytest.fixture
def locked(stream):
    """Whoever comes must log in."""
    return client_of(stream, Access(users=people()))


def bearer(name):
    return {"Authorization": f"Bearer {TOKENS[name]}"}


def users_file(tmp_path, text, mode=0o600):
    path = tmp_path / "users.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def chosen(**options):
    plain = {
        "loopback": True,
        "users": None,
        "header": None,
        "proxies": (),
        "role": None,
        "host": "127.0.0.1",
        "host_names": (),
        "behind_https": False,
        "read_only": False,
    }
    return chosen_access("me", **(plain | options))


def test_on_this_machine_nobody_logs_in(stream):
    client = client_of(stream)
    first = client.get("/queue")
    assert first.status_code == 200
    assert "me tune" in first.text
    cookie = first.headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie
    assert "Secure" not in cookie
    assert "set-cookie" not in client.get("/queue").headers
    assert client.get("/login").headers["location"] == "/now"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loopback": False, "host": "0.0.0.0"}, "--users FILE"),
        ({"header": "X-User"}, "needs --trusted-proxy"),
        ({"header": "X-User", "proxies": ["proxy.example"]}, "is no address"),
        ({"header": "X User", "proxies": ["10.0.0.1"]}, "is no name of a header"),
        ({"header": "X-User", "proxies": ["10.0.0.1"], "role": "boss"}, "expected one of view"),
        ({"role": "tune"}, "it needs --user-header"),
        ({"host_names": ["localhost", "fraud.example"]}, "--host-name is for .* --users FILE"),
        ({"host_names": ["10.0.0.7"]}, "--host-name is for"),
        ({"behind_https": True}, "--behind-https is for .* --user-header NAME"),
    ],
)
def test_rules_that_are_refused_at_the_start(options, said):
    with pytest.raises(StreamCcsdError, match=said):
        chosen(**options)


def test_beyond_this_machine_with_people_or_a_proxy():
    assert chosen(loopback=False, users=people()).login
    by_proxy = chosen(loopback=False, header="X-User", proxies=["10.0.0.1"])
    assert not by_proxy.login
    assert by_proxy.role_of("anybody") == "view"
    for more in ({"host_names": ["fraud.example"]}, {"behind_https": True}):
        assert chosen(users=people(), **more).login
        assert chosen(header="X-User", proxies=["10.0.0.1"], **more).header
    assert "a.localhost" in chosen(host_names=["a.localhost", "127.0.0.2", "[::1]:8360"]).hosts
    assert "0.0.0.0" not in chosen(loopback=False, users=people(), host="0.0.0.0").hosts


@pytest.mark.parametrize(
    "name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via"]
)
def test_a_proxy_before_a_page_without_people_is_refused(stream, name):
    """On the same machine, under a name that is ours: it may still speak for anybody."""
    client = client_of(stream)
    csrf = csrf_of(client.get("/queue"))
    for value in ("for=203.0.113.7", ""):
        answer = client.get("/queue", headers={name: value})
        assert answer.status_code == 403
        assert "a proxy needs --users or --user-header" in answer.text
        assert client.post("/judge", data=FORMS["/judge"] | {"csrf": csrf}, headers={name: value}).status_code == 403
    assert stream.entries == []
    assert client.get("/healthz", headers={name: "x"}).status_code == 200
    named = client_of(stream, Access(users=people()))
    assert named.get("/queue.json", headers=bearer("ann") | {name: "x"}).status_code == 200


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[ann]\ntoken = "short"\nrole = "view"', "at least 16 characters"),
        ('[ann]\nrole = "view"', "give one of token"),
        ('[ann]\ntoken = "0123456789abcdef"\nrole = "boss"', "expected one of view"),
        ('[ann]\ntoken = "0123456789abcdef"\nrole = "view"\nage = 7', "expected a table"),
        ('[ann]\ntoken_sha256 = "12"\nrole = "view"', "64 hexadecimal digits"),
        ('ann = "view"', "expected a table"),
        ("", "names nobody"),
        ("[ann", "is no TOML"),
        ('[""]\ntoken = "0123456789abcdef"', "is no name"),
        ('[a]\ntoken = "0123456789abcdef"\n[b]\ntoken = "0123456789abcdef"', "the same token"),
    ],
)
def test_users_that_are_refused(tmp_path, text, said):
    with pytest.raises(StreamCcsdError, match=said):
        Users.load(users_file(tmp_path, text))


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_tokens_that_everyone_reads_are_refused_and_hashes_are_not(tmp_path):
    plain, hashed = '[ann]\ntoken = "0123456789abcdef"', f'[ann]\ntoken_sha256 = "{sha256(b"x" * 20).hexdigest()}"'
    with pytest.raises(StreamCcsdError, match="chmod 600"):
        Users.load(users_file(tmp_path, plain, 0o644))
    with pytest.raises(StreamCcsdError, match="chmod 600"):
        Users.load(users_file(tmp_path, hashed, 0o666))
    assert Users.load(users_file(tmp_path, hashed, 0o644)).by_token("x" * 20).role == "view"
    assert Users.load(users_file(tmp_path, plain, 0o640)).by_token("0123456789abcdef").name == "ann"
    with pytest.raises(StreamCcsdError, match="cannot be read"):
        Users.load(tmp_path / "none.toml")


def test_nothing_without_a_login(locked):
    for path in ("/now", "/queue", "/account?name=c1", "/alert/a1", "/tune", "/model", "/audit", "/"):
        answer = locked.get(path)
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?back=%2F")
    for path in ("/queue.csv", "/now.json", "/events", "/queue?part=list"):
        assert locked.get(path).status_code == 401
    for path, form in FORMS.items():
        assert locked.post(path, data=form, headers=JSON).status_code == 401
    assert locked.get("/healthz").json() == {"ok": True}
    assert not locked.cookies


def test_a_login_and_its_end(locked, stream):
    done = log_in(locked, "bob")
    assert (done.status_code, done.headers["location"]) == (303, "/queue")
    page = locked.get("/queue")
    assert "bob judge" in page.text
    first = locked.cookies["stream_ccsd"]
    assert locked.post("/logout", data={"csrf": "wrong"}).status_code == 403
    assert locked.post("/logout", data={"csrf": csrf_of(page)}).headers["location"] == "/login"
    assert locked.get("/queue").status_code == 303
    locked.cookies.set("stream_ccsd", first)
    assert locked.get("/queue").status_code == 303  # gone at the server, too


def test_a_login_gets_another_session_than_one_that_was_there(locked):
    locked.cookies.set("stream_ccsd", "chosen-by-somebody-else")
    log_in(locked, "ann")
    assert "chosen-by-somebody-else" not in locked.app.state.sessions
    assert "ann tune" in locked.get("/now").text


@pytest.mark.parametrize(
    "token", ["", "wrong", TOKENS["ann"][:-1], TOKENS["ann"] + "x", "é" * 20, "\ud800".encode("utf-8", "replace")]
)
def test_a_wrong_token(locked, token):
    sent = {"csrf": csrf_of(locked.get("/login")), "token": token}
    answer = locked.post("/login", data=sent)
    assert answer.status_code == 401
    assert "stream_ccsd" not in locked.cookies
    assert (
        locked.get(
            "/queue.json",
            headers={"Authorization": b"Bearer " + (token if isinstance(token, bytes) else token.encode())},
        ).status_code
        == 401
    )


def test_a_token_under_another_name(locked):
    sent = {"csrf": csrf_of(locked.get("/login")), "token": TOKENS["ann"], "name": "bob"}
    assert locked.post("/login", data=sent).status_code == 401
    assert locked.post("/login", data=sent | {"name": "ann"}).status_code == 303


def test_a_login_form_that_is_not_ours(locked):
    locked.get("/login")
    assert locked.post("/login", data={"csrf": "é", "token": TOKENS["ann"]}).status_code == 403
    given = csrf_of(locked.get("/login"))
    locked.cookies.clear()
    assert locked.post("/login", data={"csrf": given, "token": TOKENS["ann"]}).status_code == 403


@pytest.mark.parametrize("by", ["form", "script"])
def test_wrong_tokens_are_few_and_lock_nobody_out(locked, by):
    """In whatever way they come; right ones of the same address are not counted, and always get in."""
    sent = {"csrf": csrf_of(locked.get("/login")), "token": "wrong"}

    def right():
        assert locked.get("/queue.json", headers=bearer("bob")).status_code == 200
        assert locked.post("/login", data=sent | {"token": TOKENS["ann"], "name": "ann"}).status_code == 303
        locked.post("/logout", data={"csrf": csrf_of(locked.get("/queue"))})

    def wrong():
        if by == "script":
            return locked.get("/queue.json", headers={"Authorization": "Bearer no"})
        return locked.post("/login", data=sent)

    for _ in range(15):
        right()
    assert [wrong().status_code for _ in range(10)] == [401] * 10
    late = wrong()
    assert late.status_code == 429
    assert 1 <= int(late.headers["retry-after"]) <= 60
    right()
    assert locked.get("/queue.json", headers={"Authorization": "Bearer no"}).status_code == 429
    assert locked.post("/login", data=sent | {"token": TOKENS["ann"], "name": "bob"}).status_code == 429


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.parametrize("path", FORMS)
def test_each_role_does_what_it_may(locked, stream, name, path):
    stream.claims["c1"] = (name, "script")
    may = name == "ann" or (name == "bob" and path in JUDGING)
    answer = locked.post(path, data=FORMS[path], headers=JSON | bearer(name))
    assert answer.status_code == (200 if may else 403), answer.text
    assert ("done" in answer.json()) == may
    assert bool(stream.entries) == may
    assert all(entry["who"] == name for entry in stream.entries)


def test_nobody_writes_where_it_is_read_only(stream):
    client = client_of(stream, Access(who="me", read_only=True))
    page = client.get("/queue")
    assert "me view" in page.text
    for path, form in FORMS.items():
        assert client.post(path, data=form | {"csrf": csrf_of(page)}, headers=JSON).status_code == 403
    assert stream.entries == []


@pytest.mark.parametrize("path", FORMS)
def test_a_form_needs_its_token(stream, path):
    client = client_of(stream)
    stream.claims["c1"] = ("somebody", "x")
    assert client.post(path, data=FORMS[path]).status_code == 403  # no session at all
    other = csrf_of(client_of(stream).get("/queue"))
    csrf = csrf_of(client.get("/queue"))
    for wrong in ({}, {"csrf": ""}, {"csrf": other}, {"csrf": "é"}):
        assert client.post(path, data=FORMS[path] | wrong).status_code == 403
    assert client.post(path, data=FORMS[path], headers={"X-CSRF-Token": other}).status_code == 403
    assert stream.entries == []
    stream.claims = {"c1": (client_of, "")} if path == "/release" else {}
    assert client.post(path, data=FORMS[path], headers={"X-CSRF-Token": csrf}).status_code == 303
    assert stream.entries


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://{HOST}.evil.example"},
        {"Origin": "http://localhost:3000"},
        {"Origin": f"file://{HOST}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_what_another_site_sends_is_refused(stream, headers):
    client = client_of(stream)
    csrf = csrf_of(client.get("/queue"))
    form = FORMS["/judge"] | {"csrf": csrf}
    assert client.post("/judge", data=form, headers=headers).status_code == 403
    assert stream.entries == []
    own = {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/judge", data=form, headers=own).status_code == 303


def test_a_proxy_may_ask_under_another_name(stream):
    client = client_of(stream, chosen(host_names=["fraud.example"], users=people()))
    log_in(client, "ann")
    form = FORMS["/judge"] | {"csrf": csrf_of(client.get("/queue"))}
    assert client.post("/judge", data=form, headers={"Origin": "https://fraud.example"}).status_code == 303
    assert client.post("/judge", data=form, headers={"Origin": "https://evil.example"}).status_code == 403


@pytest.mark.parametrize("path", FORMS)
def test_nothing_is_written_by_get(stream, path):
    client = client_of(stream)
    csrf = csrf_of(client.get("/queue"))
    answer = client.get(path, params=FORMS[path] | {"csrf": csrf})
    assert answer.status_code == 405
    assert client.head(path).status_code == 405
    assert client.put(path, data=FORMS[path]).status_code in (403, 405)
    assert stream.entries == []


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8360", "localhost.evil.example", "a@localhost", "", "localhost:x"]
)
def test_a_foreign_host_is_refused(stream, host):
    client = client_of(stream)
    for path in ("/queue", "/queue.json", "/events", "/static/page.css"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 421
        assert not re.search(r"\bc1\b", answer.text)  # an account
    assert client.get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8360", "[::1]:1", "LOCALHOST", "Fraud.example"])
def test_own_names(stream, host):
    client = client_of(stream, chosen(host_names=["fraud.example:443"], users=people()))
    assert client.get("/queue.json", headers={"Host": host} | bearer("ann")).status_code == 200


def test_a_proxy_says_who_somebody_is(stream):
    users = people()
    access = Access(who="me", role="judge", users=users, header="X-User", proxies=HEADER.proxies)
    client = client_of(stream, access, peer="10.0.0.9")
    assert client.get("/queue").status_code == 401
    assert "ann tune" in client.get("/queue", headers={"X-User": "ann"}).text
    seen = client.get("/queue", headers={"X-User": "Zoë".encode()})
    assert "Zoë judge" in seen.text
    assert "eve view" in client.get("/queue", headers={"X-User": "eve"}).text
    assert client.get("/queue", headers=[("X-User", "ann"), ("X-User", "eve")]).status_code == 401
    for odd in ("", " ", "x" * 200, "a\x7fb"):
        assert client.get("/queue", headers={"X-User": odd}).status_code == 401


@pytest.mark.parametrize("peer", ["10.0.1.1", "127.0.0.1", "fd00::8", "unix", ""])
def test_nobody_but_the_proxy_may(stream, peer):
    client = client_of(stream, HEADER, peer=peer)
    for more in ({}, {"X-Forwarded-For": "10.0.0.9"}):
        answer = client.get("/queue", headers={"X-User": "ann", **more})
        assert answer.status_code == 403
    assert client_of(stream, HEADER, peer="fd00::7").get("/queue", headers={"X-User": "ann"}).status_code == 200
    assert client_of(stream, HEADER, peer="::ffff:10.0.0.1").get("/queue", headers={"X-User": "a"}).status_code == 200


def test_another_person_behind_the_proxy_does_not_get_the_session(stream):
    access = Access(who="me", role="tune", header="X-User", proxies=HEADER.proxies)
    client = client_of(stream, access, peer="10.0.0.9")
    csrf = csrf_of(client.get("/queue", headers={"X-User": "ann"}))
    answer = client.post("/judge", data=FORMS["/judge"] | {"csrf": csrf}, headers={"X-User": "bob"})
    assert answer.status_code == 403
    answer = client.post("/judge", data=FORMS["/judge"] | {"csrf": csrf}, headers={"X-User": "ann"})
    assert answer.status_code == 303


def test_cookies_for_https_only(stream):
    assert "; Secure" in client_of(stream, Access(who="me", behind_https=True)).get("/queue").headers["set-cookie"]
    https = {"X-Forwarded-Proto": "https"}
    trusting = Access(users=people(), proxies=HEADER.proxies)
    assert "; Secure" in client_of(stream, trusting, peer="10.0.0.9").get("/login", headers=https).headers["set-cookie"]
    assert "Secure" not in client_of(stream, trusting).get("/login", headers=https).headers["set-cookie"]


def test_a_link_from_elsewhere_keeps_the_session(stream):
    """Browsers keep strict cookies back from it: sent on by us, they come with them."""
    client = client_of(stream)
    elsewhere = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    answer = client.get('/alert/a1?x="><b>', headers=elsewhere)
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0; url=/alert/a1?x=' in answer.text
    assert "<b>" not in answer.text
    assert "set-cookie" not in answer.headers
    client.get("/queue")
    assert "refresh" not in client.get("/alert/a1", headers=elsewhere).text


def test_rates_by_person(stream):
    client = client_of(stream, Access(users=people()), limits=Limits(requests_per_second=0.01, requests_at_once=5))
    codes = [client.get("/queue.json", headers=bearer("ann")).status_code for _ in range(7)]
    assert codes == [200] * 5 + [429] * 2
    assert client.get("/queue.json", headers=bearer("bob")).status_code == 200
    assert client.get("/healthz").status_code == 200


def test_buckets_fill_again_and_stay_few():
    now = [0.0]
    buckets = Buckets(2.0, 3.0, lambda: now[0])
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    now[0] = 0.5
    assert (buckets.take("a"), buckets.take("a")) == (0.0, 0.5)
    for number in range(20_000):
        buckets.take(str(number))
    assert len(buckets._left) <= 10_000
    assert by_address("2001:db8::1") == by_address("2001:db8::2") != by_address("2001:db8:0:1::1")
    assert by_address("::ffff:10.0.0.7") == "10.0.0.7" != by_address("::ffff:10.0.0.8")
    assert by_address("fe80::1%eth0") == by_address("fe80::2")


def test_sessions_are_few_and_end():
    now = [0.0]
    sessions = BrowserSessions(at_most=3, a_person=2, idle=10.0, life=25.0, clock=lambda: now[0])
    first, second, third = (sessions.make("ann") for _ in range(3))
    assert sessions.find(first.id) is None
    assert sessions.find(second.id) is second
    others = [sessions.make(name) for name in ("bob", "cem", "dee")]
    assert len(sessions) == 4
    assert sessions.find(third.id) is None  # used longest ago
    assert second.id in sessions
    for moment, lives in ((9.0, True), (18.0, True), (25.5, False)):
        now[0] = moment
        assert (sessions.find(others[0].id) is not None) == lives
    assert others[1].id not in sessions
    assert sessions.find(others[1].id) is None
    assert sessions.find(None) is None
    assert len({first.id, second.id, third.id}) == len({first.csrf, second.csrf, third.csrf}) == 3


def test_sessions_that_were_used_are_few_too():
    sessions = BrowserSessions(at_most=5, a_person=2)
    made = [sessions.make(f"p{number // 3}") for number in range(30) if sessions.find(sessions.make("x").id)]
    for session in made:
        again = sessions.make(session.who)
        assert sessions.find(again.id) is again
    assert len(sessions) <= 10


@pytest.mark.parametrize("proxied", [False, True])
def test_whoever_keeps_no_cookie_drops_nobodys_session(stream, proxied):
    """Such as curl each second, by the same person."""
    access = Access(who="me", role="tune", header="X-User", proxies=HEADER.proxies) if proxied else None
    client = client_of(stream, access, peer="10.0.0.9", limits=Limits(requests_at_once=1e6))
    client.headers["X-User"] = "ann"
    csrf = csrf_of(client.get("/queue"))
    assert csrf_of(client.get("/queue")) == csrf
    kept = dict(client.cookies)
    for _ in range(700):
        client.cookies.clear()
        client.get("/now")
    assert len(client.app.state.sessions) <= 501
    client.cookies.clear()
    client.cookies.update(kept)
    assert client.post("/judge", data=FORMS["/judge"] | {"csrf": csrf}).status_code == 303


def test_places_for_streams():
    places = Places(2, 3)
    with places.one("a"), places.one("a"):
        with pytest.raises(StreamCcsdError), places.one("a"):
            pass
        with places.one("b"), pytest.raises(StreamCcsdError), places.one("c"):
            pass
    assert places.taken == 0
