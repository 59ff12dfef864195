"""Every view, whole and in parts, with texts of the worst kind: nothing inline, nothing unescaped."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from tests.replay.watch import gallery, samples

PAGES = gallery.pages()
VOID = {"meta", "link", "input", "br", "img", "hr"}
TEXTUAL = {"text", "search", "number", "password", "radio", "checkbox"}


class Reader(HTMLParser):
    """What elements there are, which are open around each, and whether all are closed again."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), list(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.open)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.elements if name == tag]


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_inline(name):
    page = Reader(PAGES[name])
    for tag, attributes, _ in page.elements:
        assert "style" not in attributes
        assert not [key for key in attributes if key.startswith("on")]
        assert tag not in ("style", "iframe", "img", "object", "base")
    assert [a["src"] for a in page.all("script")] == ["/static/page.js?v=1"]
    for tag, key in (("a", "href"), ("form", "action"), ("link", "href")):
        for attributes in page.all(tag):
            if attributes.get("method") == "dialog":  # stays in the browser
                continue
            address = attributes[key]
            assert re.match(r"/(?!/)|\?|#|data:,$", address) or (address == "" and tag == "a"), address  # our own site


@pytest.mark.parametrize("name", [name for name in PAGES if name.endswith("-evil")])
def test_evil_texts_are_texts(name):
    assert "<script>alert" not in PAGES[name]
    assert "<img" not in PAGES[name]
    shown = "&lt;script&gt;alert(1)" in PAGES[name]
    assert shown or name in ("login-evil",), name


@pytest.mark.parametrize("name", PAGES)
def test_landmarks_headings_and_labels(name):
    page = Reader(PAGES[name])
    assert (
        len(page.all("main"))
        == len(page.all("h1"))
        == len(page.all("title")) - PAGES[name].count('<svg class="chart')
        == 1
    )
    levels = [int(tag[1]) for tag, _, around in page.elements if re.fullmatch("h[1-6]", tag) and "dialog" not in around]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    labelled = {attributes.get("for") for attributes in page.all("label")}
    for tag, attributes, around in page.elements:
        if tag in ("input", "select") and attributes.get("type", "text") in TEXTUAL:
            assert "label" in around or attributes.get("id") in labelled or attributes.get("aria-label"), attributes
        if tag == "th":
            assert attributes.get("scope") in ("col", "row")
    assert PAGES[name].count("<table") == PAGES[name].count("<caption")
    ids = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", PAGES)
def test_posts_carry_their_secret_and_the_way_back(name):
    for form in re.findall(r"<form[^>]*method=\"post\".*?</form>", PAGES[name], flags=re.DOTALL):
        assert 'name="csrf" value="c5rf"' in form
        back = re.search(r'name="back" value="([^"]*)"', form)
        assert 'action="/logout"' in form or (back and re.match(r"/(?!/)", back[1]))
    assert not re.search(r"<form(?![^>]*method=)", PAGES[name])


@pytest.mark.parametrize(("view", "part"), [(view, part) for view, parts in gallery.PARTS.items() for part in parts])
def test_a_part_is_what_stands_in_its_place(view, part):
    assert f'id="part-{part}"' in PAGES[view]
    alone = gallery.part(view, part, samples.full()[view])
    assert alone.strip()
    assert alone in PAGES[view]  # to the letter: a page that replaces it is the page as it would be loaded
    assert f'id="part-{part}"' not in alone


def test_who_may_only_look_finds_no_buttons():
    for view, page in samples.full().items():
        if view not in ("login", "error"):
            text = gallery.rendered(view, page, may_judge=False, may_tune=False, role="view", login=False)
            assert 'method="post"' not in text, view


def test_who_may_judge_cannot_tune():
    judge = {view: gallery.rendered(view, page, may_tune=False) for view, page in samples.full().items()}
    assert 'action="/judge"' in judge["queue"]
    assert 'action="/judge"' in judge["account"]
    for address in ("/budget", "/suppress", "/lift", "/pin"):
        assert not [view for view, text in judge.items() if f'action="{address}"' in text]


def test_a_case_has_all_its_alerts_in_its_form():
    page = samples.queue()
    cases = re.findall(r"<li class=\"case.*?</details>", PAGES["queue"], flags=re.DOTALL)
    for case, text in zip(page["cases"], cases, strict=True):
        if case["claim"] and not case["claim"]["own"]:
            assert '<form class="judge"' not in text  # somebody else works on it
            continue
        form = re.search(r"<form class=\"judge\".*?</form>", text, flags=re.DOTALL)[0]
        assert re.findall(r'name="alert" value="(\w+)"', form) == [a["id"] for a in case["alerts"]]
        assert re.findall(r'name="finding" value="(\w+)"', form) == ["fraud", "normal", "unsure"]
        assert all(reason.replace("'", "&#39;") in text for reason in case["reasons"])


def test_overruled_verdicts_stay_and_are_called_so():
    assert PAGES["account"].count("overruled</span>") == 2  # in the history of the alert, and in the account's
    assert PAGES["account"].count("card lost abroad") == 2
    assert PAGES["account"].count("he often buys phones") == 2


def test_a_broken_chain_is_said_loudly():
    text = gallery.rendered("audit", samples.audit() | {"whole": False})
    assert "broken" in text
    assert 'role="alert"' in text


def test_whose_verdicts_stand_out_is_said_in_counts():
    plain = " ".join(re.sub(r"<[^>]+>", " ", PAGES["audit"]).split())
    assert "eve says fraud more often than others: 30 of 60 (50%), others 50 of 500 (10%)" in plain
    assert "eve contradicts most others" in plain
    assert PAGES["audit"].count(">stands out</span>") == 1
    assert "5 of 61 people are shown" in plain
    page = samples.audit()
    calm = page | {"people": 1, "reviewers": [one | {"stands_out": False} for one in page["reviewers"][:1]]}
    assert "Nobody&#39;s" in gallery.rendered("audit", calm) or "Nobody's" in gallery.rendered("audit", calm)
    assert "being compared" in gallery.rendered("audit", page | {"people": None, "reviewers": []})


def test_the_script_sets_markup_only_from_our_own_parts():
    script = (gallery.HERE / "static" / "page.js").read_text(encoding="utf-8")
    assert script.count("innerHTML") == 1
    for word in ("outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "http://", "https://"):
        assert word not in script.replace("http://www.w3.org/2000/svg", ""), word
