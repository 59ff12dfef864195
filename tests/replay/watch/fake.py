"""A small stream in memory that can be watched, and templates that show what they are told: for what HTTP does."""

import threading
from contextlib import contextmanager

import httpx
from jinja2 import DictLoader
from starlette.testclient import TestClient

from replay.cases.cases import TakenError
from replay.watch.app import build_app
from replay.watch.auth.access import Access
from replay.watch.auth.users import Person, Users
from replay.watch.formats import NotFoundError
from replay.watch.protocol import Since
from replay.watch.server import PageServer, listen
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError

HOST = "localhost:8360"
TOO_MANY = 500
EVIL = '<script>alert("1")</script>'
BASE = """<meta name="run" content="{{ run }}"><meta name="at" content="{{ at }}">
<i id="csrf">{{ csrf }}</i>{{ who }} {{ role }}"""
PAGE = """{% extends "base.html" %}{% from "parts.html" import bold %}
{% block main %}<main>
{% block list %}<ul id="part-list">{% for row in page.rows_ %}<li>{{ bold(row) }}</li>{% endfor %}</ul>{% endblock %}
{{ exports.csv }} {{ query }}</main>{% endblock %}"""
TEMPLATES = {
    "base.html": BASE + "{% block main %}{% endblock %}",
    "parts.html": "{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}",
    "error.html": '{% extends "base.html" %}{% block main %}{{ page.status }}: {{ page.error }}{% endblock %}',
    "login.html": '{% extends "base.html" %}{% block main %}{{ page.error }} {{ page.back }}{% endblock %}',
    **{f"{name}.html": PAGE for name in ("now", "queue", "account", "tune", "model", "audit")},
}


def alert(position, **other):
    return {"position": position, "id": f"a{position}", "account": f"c{position % 7}", "score": 7.5} | other


class Stream:
    """In memory, and locked, as the page asks from many threads."""

    title, calendar = "a stream", Calendar("days")

    def __init__(self):
        self._condition = threading.Condition()
        self.trouble = None
        self.changed, self.position, self.closed, self.asked = 0, 0, False, 0
        self.alerts, self.entries, self.claims = [], [], {}
        self.rows, self.broken = [], None

    def add(self, *positions, **other):
        with self._condition:
            self.alerts += [alert(p, **other) for p in positions]
            self.position = max(self.position, *positions)
            self._tell()

    def _tell(self):
        self.changed += 1
        self._condition.notify_all()

    def _enter(self, kind, who, **other):
        with self._condition:
            self.entries.append({"sequence": len(self.entries) + 1, "kind": kind, "who": who, **other})
            self._tell()

    def wait(self, changed, seconds):
        with self._condition:
            self._condition.wait_for(lambda: self.changed != changed, seconds)
            return self.changed

    def now_at(self):
        return self.position, len(self.entries)

    def since(self, position, sequence, limit):
        with self._condition:
            self.asked += 1
            new = [a for a in self.alerts if a["position"] > position]
            if len(new) > TOO_MANY:
                return Since([], [], self.position, len(self.entries), True)
            entries = self.entries[sequence : sequence + limit]
            end = new[limit - 1]["position"] if len(new) > limit else self.position
            return Since(new[:limit], entries, end, sequence + len(entries), False)

    def pulse(self):
        return {"position": self.position, "threshold": float("nan")}

    def view(self, name, query, who, seat):
        if self.broken is not None:
            raise self.broken
        if "alert" in query and query["alert"] not in [a["id"] for a in self.alerts]:
            raise NotFoundError(f"there is no alert {query['alert']}")
        tables = {"newest": self.alerts, "entries": self.entries, "rows": self.rows}
        return {"rows_": [*map(str, self.rows), seat, *query.values()], "cases": [], "curve": [], **tables}

    def take(self, query, who, seat):
        for account in sorted({a["account"] for a in self.alerts} - set(self.claims)):
            self.claim(account, who, seat)
            return {"account": account}
        return None

    def claim(self, account, who, seat):
        if self.claims.setdefault(account, (who, seat)) != (who, seat):
            raise TakenError(f"{account} is {self.claims[account][0]}'s")
        self._enter("claim", who, account=account)

    def release(self, account, who, seat):
        if self.claims.pop(account, None) is None:
            raise StreamCcsdError(f"{account} is nobody's")
        self._enter("release", who, account=account)

    def judge(self, ids, finding, why, who, seat):
        for number in ids:
            self._enter("verdict", who, transaction=number, finding=finding, why=why)
        return len(ids)

    def set_budget(self, threshold, who, why):
        self._enter("budget", who, threshold=threshold)

    def suppress(self, what, value, days, who, why):
        self._enter("suppress", who, what=what, value=value, days=days)

    def lift(self, sequence, who, why):
        self._enter("lift", who, suppression=sequence)

    def pin(self, version, who, why):
        self._enter("pin", who, version=version)

    def close(self):
        self.closed = True


TOKENS = {"ann": "ann-0123456789abcdef", "bob": "bob-0123456789abcdef", "eve": "eve-0123456789abcdef"}
FORMS = {
    "/take": {"by": "loss"},
    "/claim": {"account": "c1"},
    "/release": {"account": "c1"},
    "/judge": {"alert": ["a1", "a2"], "finding": "fraud", "why": "card lost"},
    "/budget": {"threshold": "7.5", "why": "fewer"},
    "/suppress": {"what": "merchant", "value": "m1", "days": "7", "why": "known"},
    "/lift": {"suppression": "1", "why": "over"},
    "/pin": {"version": "0001", "why": "better"},
}
JUDGING = ("/take", "/claim", "/release", "/judge")


def people():
    """Ann may tune, Bob may judge, Eve may look."""
    from hashlib import sha256

    roles = {"ann": "tune", "bob": "judge", "eve": "view"}
    return Users({n: Person(n, role, sha256(TOKENS[n].encode()).digest()) for n, role in roles.items()})


def app_of(stream, access=None, **options):
    return build_app(stream, access or Access(who="me"), loader=DictLoader(TEMPLATES), **options)


def client_of(stream, access=None, peer="127.0.0.1", **options):
    app = app_of(stream, access, **options)
    return TestClient(app, f"http://{HOST}", follow_redirects=False, client=(peer, 50000), raise_server_exceptions=True)


def csrf_of(response):
    return response.text.partition('<i id="csrf">')[2].partition("<")[0]


def log_in(client, name):
    form = client.get("/login")
    sent = {"csrf": csrf_of(form), "token": TOKENS[name], "back": "/queue"}
    return client.post("/login", data=sent)


@contextmanager
def served(app):
    """A real server on a free port; gives its address and the server."""
    listening = listen("127.0.0.1", 0)
    stop = threading.Event()
    server = PageServer(app, stop.is_set)
    thread = threading.Thread(target=server.run, args=([listening],))
    address = listening.getsockname()
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{address[1]}", timeout=10) as client:
            yield client, address, stop, thread
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive()
