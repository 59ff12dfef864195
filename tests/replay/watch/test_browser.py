"""The live page in a real Chromium, over real servers: what an investigator sees and does."""

import http.server
import json
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from replay.cases.audit_log import AuditLog, audit_log_beside
from replay.run.session import Session
from replay.sources.source import ListSource
from replay.state.file import StateFile, model_beside
from tests.conftest import with_settings
from tests.replay.watch.browser import Wire, chromium, page_over

VIEWS = ("now", "queue", "account", "tune", "model", "audit")
EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>\'"&{{7*7}}'


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def finished(model, stream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    source = ListSource("town", stream.transactions)
    Session(source, model, folder / "out", folder / "replay.db", threshold=4.0).run()
    model.save(model_beside(folder / "replay.db"))
    return folder / "replay.db"


@pytest.fixture
def state(finished, tmp_path):
    (tmp_path / "replay.db").write_bytes(finished.read_bytes())
    return tmp_path / "replay.db"


@contextmanager
def opened(browser, url, **settings):
    """A browser of one person, with what it complained about."""
    context = browser.new_context(**settings)
    page = context.new_page()
    page.complaints = []
    page.on("console", lambda said: page.complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    try:
        page.goto(url)
        yield page
    finally:
        context.close()


def account_url(url, case):
    return f"{url}account?name={quote(case['account'])}"


def values(url, view, **query):
    asked = "&".join(f"{name}={quote(str(value))}" for name, value in query.items())
    with urlopen(f"{url}{view}.json?{asked}") as answer:
        return json.load(answer)


def lines(state):
    with AuditLog.open(audit_log_beside(state), read_only=True) as audit_log:
        return [*audit_log.lines()]


def test_the_demo_shows_alerts_without_reloading(browser):
    begun = time.monotonic()
    with page_over("--speed", "500") as (url, _), opened(browser, url) as page:
        page.evaluate("window.sameDocument = true")
        page.wait_for_selector("#part-newest li[data-position]", timeout=30_000)
        print(f"first alert {time.monotonic() - begun:.1f} s after the start")
        count = page.locator("#part-newest li[data-position]").count()
        page.wait_for_function("n => document.querySelectorAll('#part-newest li[data-position]').length > n", arg=count)
        assert page.evaluate("window.sameDocument") is True
        before = page.locator('[data-pulse="transactions"]').inner_text()
        page.wait_for_function(
            "t => document.querySelector('[data-pulse=\"transactions\"]').textContent !== t", arg=before
        )
        page.goto(url + "queue")
        cases = page.locator("li.case").count()
        page.wait_for_function("n => document.querySelectorAll('li.case').length > n", arg=cases, timeout=30_000)
        assert page.complaints == []


def test_a_verdict_by_key_changes_queue_account_history_and_precision(browser, state):
    with page_over("--state", state) as (url, _), opened(browser, url + "queue") as page:
        first = values(url, "queue")["cases"][0]
        page.keyboard.press("j")
        page.keyboard.press("f")
        page.keyboard.type("card was stolen")
        page.keyboard.press("Enter")
        page.wait_for_selector(f'li.case[data-account="{first["account"]}"]', state="detached")
        recorded = [line.said for line in lines(state) if line.said.kind == "verdict"]
        assert {said.body["why"] for said in recorded} == {"card was stolen"}
        assert len(recorded) == len(first["alerts"])
        page.goto(account_url(url, first))
        assert page.locator(".chip.verdict.fraud").count() > 0
        assert "card was stolen" in page.locator("main").inner_text()
        page.goto(url + "tune")
        assert f"{len(recorded)} fraud" in page.locator("main").inner_text()
        (now,) = [row for row in values(url, "tune")["curve"] if row["current"]]
        assert now["precision"] == 1.0
        # Overruled on the account's own page: the history shows both.
        page.goto(f"{url}alert/{first['alerts'][0]['id']}")
        page.keyboard.press("n")
        page.keyboard.type("was travelling")
        page.keyboard.press("Enter")
        page.wait_for_selector("li.overruled, .chip.verdict.disputed, .chip.verdict.normal")
        said = page.locator("main").inner_text()
        assert "card was stolen" in said
        assert "was travelling" in said
        page.goto(url + "audit")
        assert "was travelling" in page.locator("main").inner_text()
        assert page.complaints == []


def test_keys_move_open_and_go(browser, state):
    with page_over("--state", state) as (url, _), opened(browser, url + "queue") as page:
        accounts = [case["account"] for case in values(url, "queue")["cases"]]
        for key, wanted in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
            page.keyboard.press(key)
            assert page.locator('li.case[aria-current="true"]').get_attribute("data-account") == accounts[wanted]
        page.keyboard.press("Enter")
        page.wait_for_url("**/alert/**")
        assert accounts[1] in page.locator("h1").inner_text()
        page.keyboard.press("g")
        page.keyboard.press("q")
        page.wait_for_url("**/queue")
        page.keyboard.press("?")
        assert page.locator("#help-dialog").is_visible()
        page.keyboard.press("Escape")
        # In a field, letters are letters.
        page.locator("#search").focus()
        page.keyboard.type("fnu")
        assert page.locator("#search").input_value() == "fnu"
        assert not page.locator("#why-dialog").is_visible()
        # A verdict can be called off.
        page.locator("h1").click()
        page.keyboard.press("j")
        page.keyboard.press("u")
        page.keyboard.press("Escape")
        assert not page.locator("#why-dialog").is_visible()
        assert lines(state) == []


def test_two_browsers_never_claim_the_same_case(browser, state):
    with page_over("--state", state) as (url, _):
        taken = []
        with opened(browser, url + "queue") as one, opened(browser, url + "queue") as two:
            for page in (one, two):
                page.keyboard.press("t")
                page.wait_for_url("**/account**")
                taken.append(page.locator("h1").inner_text())
            assert len(set(taken)) == 2
            # Whoever tries nevertheless is told who has it, and nothing is recorded.
            two.goto(one.url)
            assert two.locator(".chip.claim:not(.mine)").count() == 1
            two.keyboard.press("f")
            two.keyboard.press("Enter")
            two.wait_for_selector("#toasts :text('in another window: claim it here')")
            assert two.locator("#why-dialog").is_visible()  # what was written is not lost
            two.keyboard.press("Escape")
            two.goto(url + "queue")
            assert two.locator("li.case.taken").count() == 1
            assert two.locator("li.case.mine").count() == 1
            one.keyboard.press("r")
            one.wait_for_selector('form.claim[action="/claim"]')
            two.wait_for_selector("li.case.taken", state="detached")  # without reloading
        kinds = [line.said.kind for line in lines(state)]
        assert kinds.count("claim") == 2
        assert "verdict" not in kinds


def test_filters_and_export_say_the_same(browser, state):
    with page_over("--state", state) as (url, _), opened(browser, url + "queue") as page:
        some = values(url, "queue")["cases"][3]["alerts"][0]
        page.locator('input[name="merchant"]').fill(some["merchant"])
        page.locator('input[name="amount_from"]').fill("1")
        page.get_by_role("button", name="Filter").click()
        page.wait_for_url(f"**merchant={some['merchant']}**")
        shown = page.locator("li.case").evaluate_all("all => all.map(one => one.dataset.account)")
        asked = values(url, "queue", merchant=some["merchant"], amount_from=1)
        assert shown == [case["account"] for case in asked["cases"]]
        assert 0 < len(shown) < values(url, "queue")["total"]
        with page.expect_download() as download:
            page.get_by_role("link", name="CSV").click()
        assert download.value.path().read_text(encoding="utf-8-sig").count("\n") >= len(shown)
        assert page.complaints == []


def test_tuning_takes_effect_and_is_written_down(browser, state):
    with page_over("--state", state) as (url, _), opened(browser, url + "tune") as page:
        before = values(url, "queue")
        page.locator("a[data-choose]").nth(12).click()
        page.wait_for_selector("#trial")
        wanted = float(page.locator("#threshold").input_value())
        page.locator('#budget input[name="why"]').fill("too many")
        page.get_by_role("button", name="Set the budget").click()
        page.wait_for_selector("text=too many")
        after = values(url, "queue")
        assert after["below_threshold"] > 0
        assert after["total"] < before["total"]
        (line,) = lines(state)
        assert (line.said.kind, line.said.body["to"]) == ("budget", pytest.approx(wanted))
        # A suppression from a form, and its end.
        merchant = after["cases"][0]["alerts"][0]["merchant"]
        page.locator('form[action="/suppress"] input[name="value"]').fill(merchant)
        page.locator('form[action="/suppress"] input[name="why"]').fill("their terminal is broken")
        page.get_by_role("button", name="Suppress").click()
        page.wait_for_selector("text=their terminal is broken")
        assert values(url, "queue")["suppressed"] > 0
        page.locator('form[action="/lift"] input[name="why"]').fill("repaired")
        page.get_by_role("button", name="Lift").first.click()
        page.wait_for_function("() => !document.querySelector('form[action=\"/lift\"]')")
        assert values(url, "queue")["suppressed"] == 0
        assert [line.said.kind for line in lines(state)] == ["budget", "suppress", "lift"]
        assert page.complaints == []


def test_a_cut_wire_loses_nothing_and_doubles_nothing(browser, model, stream, tmp_path):
    """A replay goes on while the way to the page is cut again and again; what is shown at the end is all there is."""
    state, go = tmp_path / "replay.db", threading.Event()
    begun = threading.Event()

    def progress(clock, batch_output):
        begun.set()
        go.wait(0.25)

    source = ListSource("town", stream.transactions)
    session = Session(source, model, tmp_path / "out", state, threshold=4.0)
    replaying = threading.Thread(target=lambda: session.run(progress=progress, batch=len(stream.transactions) // 40))
    replaying.start()
    assert begun.wait(60)
    with page_over("--state", state) as (url, _), closing(Wire(url)) as wire:
        with opened(browser, wire.url + "now") as page:
            page.evaluate(
                """() => { window.told = []; new MutationObserver(all => all.forEach(one => one.addedNodes.forEach(
                node => node.dataset?.position && node.className == "fresh" && told.push(Number(node.dataset.position))
                ))).observe(document.querySelector("#part-newest"), {childList: true, subtree: true}); }"""
            )
            at = page.locator('meta[name="at"]').get_attribute("content")
            for _ in range(3):
                page.wait_for_timeout(1500)
                wire.cut()
                page.wait_for_selector("#state:text('reconnecting')")
                page.wait_for_timeout(700)
                wire.mend()
                page.wait_for_function("() => document.querySelector('#state').textContent === ''", timeout=60_000)
            replaying.join()
            newest = values(url, "now")["newest"]
            page.wait_for_selector(f'#part-newest li[data-position="{newest[0]["position"]}"]', timeout=30_000)
            told = page.evaluate("told")
            shown = page.locator("#part-newest li[data-position]").evaluate_all(
                "all => all.map(one => Number(one.dataset.position))"
            )
        with closing(StateFile.open(state, read_only=True)) as file:
            later = [a["position"] for a in file.records.alerts(after=int(at.partition(".")[0]))]
    assert shown[: len(newest)] == [alert["position"] for alert in newest]
    assert len(shown) == len(set(shown))
    assert len(told) == len(set(told))
    assert set(told) <= set(later)
    assert len(later) > 10


def test_whatever_a_transaction_is_called_it_is_text(browser, model, stream, tmp_path):
    """Every text of a transaction holds markup and script: it is shown, and none of it runs."""
    evil = [
        replace(
            t,
            account=f"{EVIL}{t.account}",
            merchant=f"{EVIL}{t.merchant}",
            category=f"{EVIL}{t.category}",
            id=f"{EVIL}{t.id}",
        )
        for t in stream.transactions
    ]
    state = tmp_path / "replay.db"
    labels = {t.id: EVIL for t in evil[::7]}
    source = ListSource(EVIL, evil, labels)
    Session(source, with_settings(model), tmp_path / "out", state, threshold=4.0).run()
    with page_over("--state", state, "--who", EVIL) as (url, _), opened(browser, url) as page:
        case = values(url, "queue")["cases"][0]
        page.goto(url + "queue")
        page.keyboard.press("j")
        page.keyboard.press("f")
        page.keyboard.type(EVIL)
        page.keyboard.press("Enter")
        page.wait_for_selector("#toasts *")
        page.goto(url + "tune")
        page.locator('form[action="/suppress"] input[name="value"]').fill(EVIL)
        page.locator('form[action="/suppress"] input[name="why"]').fill(EVIL)
        page.get_by_role("button", name="Suppress").click()
        page.wait_for_load_state()
        for place in (*VIEWS[:2], *VIEWS[3:], f"account?name={quote(case['account'])}", f"account?name={quote(EVIL)}"):
            page.goto(url + place)
            page.wait_for_timeout(300)
            assert page.evaluate("window.pwned") is None, place
            assert page.locator("img").count() == 0
            assert page.locator("script:not([src])").count() == 0
            # Marks of charts, too.
            for mark in page.locator("[data-tip]").all()[:5]:
                mark.hover(force=True)
            assert page.evaluate("window.pwned") is None, place
        page.goto(url + "queue")
        assert "onerror" in page.locator("main").inner_text()


USERS = """
[vera]
token = "vera-vera-vera-vera"
role = "view"
[judith]
token = "judith-judith-judith"
role = "judge"
[tom]
token = "tom-tom-tom-tom-tom"
role = "tune"
"""


def log_in(page, url, name, token):
    page.goto(url)
    page.locator('input[name="name"]').fill(name)
    page.locator('input[name="token"]').fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_load_state()


def post(page, path, **fields):
    """As a script on the page itself would, with everything it knows."""
    script = """async ([path, fields]) => {
        const headers = {"X-CSRF-Token": document.querySelector('meta[name="csrf"]').content};
        return (await fetch(path, {method: "POST", body: new URLSearchParams(fields), headers})).status;
    }"""
    return page.evaluate(script, [path, fields])


def test_wrong_token_and_wrong_role_are_refused(browser, state, tmp_path):
    users = tmp_path / "users.toml"
    users.write_text(USERS)
    users.chmod(0o600)
    with page_over("--state", state, "--users", users) as (url, _):
        with opened(browser, url) as page:
            log_in(page, url, "vera", "not-her-token-at-all")
            assert page.locator('[role="alert"]').count() == 1
            log_in(page, url, "vera", "vera-vera-vera-vera")
            page.goto(url + "queue")
            assert page.locator("li.case").count() > 0
            assert page.locator("form.judge, form.take").count() == 0
            alert = page.locator("li.case").first.get_attribute("data-alerts").split()[0]
            assert post(page, "/judge", alert=alert, finding="fraud") == 403
            assert post(page, "/take") == 403
            assert post(page, "/budget", threshold="5") == 403
        with opened(browser, url) as page:
            log_in(page, url, "judith", "judith-judith-judith")
            page.goto(url + "tune")
            assert page.locator('form[action="/budget"]').count() == 0
            assert post(page, "/budget", threshold="5") == 403
            assert post(page, "/judge", alert=alert, finding="fraud", why="hers") == 200
        with opened(browser, url) as page:
            log_in(page, url, "tom", "tom-tom-tom-tom-tom")
            page.goto(url + "tune")
            assert post(page, "/budget", threshold="5") == 200
    assert [(line.said.kind, line.said.who) for line in lines(state)] == [("verdict", "judith"), ("budget", "tom")]


def test_a_form_of_another_site_is_refused(browser, state, tmp_path):
    """A page elsewhere sends a form in the name of whoever visits it."""
    with page_over("--state", state) as (url, _):
        alert = values(url, "queue")["cases"][0]["alerts"][0]["id"]

        class Elsewhere(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = f"""<form id=f method=post action="{url}judge"><input name=alert value="{alert}">
                <input name=finding value=fraud></form><script>document.getElementById("f").submit()</script>"""
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *said):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            with opened(browser, url + "queue") as page:
                with page.expect_response("**/judge") as answer:
                    page.goto(f"http://localhost:{server.server_port}/")
                assert answer.value.status == 403
            server.shutdown()
    assert lines(state) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_serious_for_people_with_assistive_technology(browser, state, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    with page_over("--state", state) as (url, _), opened(browser, url, color_scheme=scheme) as page:
        case = values(url, "queue")["cases"][0]
        page.goto(url + "queue")
        for place in (*VIEWS[:2], account_url("", case), *VIEWS[3:]):
            page.goto(url + place)
            page.wait_for_load_state()
            found = axe.run(page).response["violations"]
            serious = [each["id"] + ": " + each["nodes"][0]["html"][:200] for each in found if each["impact"] in GRAVE]
            assert serious == [], place
        page.set_viewport_size({"width": 360, "height": 740})
        for place in (*VIEWS[:2], account_url("", case), *VIEWS[3:]):
            page.goto(url + place)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= 360, f"{place} scrolls sideways: {wide} px"


GRAVE = ("serious", "critical")


def test_without_script_everything_can_be_done(browser, state):
    with page_over("--state", state) as (url, _), opened(browser, url + "queue", java_script_enabled=False) as page:
        while not (cases := values(url, "queue")["cases"]):  # a busy machine is still reading
            time.sleep(0.1)
        first = cases[0]
        page.reload()
        form = page.locator(f'li.case[data-account="{first["account"]}"] form.judge')
        form.locator('input[name="why"]').fill("no script here")
        form.locator("button.normal").click()
        page.wait_for_load_state()
        assert page.locator(f'li.case[data-account="{first["account"]}"]').count() == 0
        page.get_by_role("button", name="Take next").click()
        page.wait_for_url("**/account**")
    kinds = [line.said.kind for line in lines(state)]
    assert kinds.count("verdict") == len(first["alerts"])
    assert kinds[-1] == "claim"
