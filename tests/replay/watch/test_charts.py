"""Pictures of any numbers are well-formed, and their marks are where they belong."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.watch import charts
from replay.watch.charts.frame import Linear, Log, Symlog, below, steps, time_ticks
from stream_ccsd.calendar import Calendar
from tests.replay.watch import samples
from tests.replay.watch.samples import CALENDAR, EVIL

NUMBERS = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1.7e308, -1.7e308, 1e-9, 3]),
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
LISTS = st.lists(NUMBERS, max_size=12)
TEXTS = st.sampled_from(["m1", EVIL, "", "ab\u0001c"])


def parsed(markup) -> ElementTree.Element:
    """As XML, which is stricter than HTML; of control characters, HTML takes what XML refuses."""
    text = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f]", "", str(markup))
    return ElementTree.fromstring(f"<div>{text}</div>")


def checked(markup) -> ElementTree.Element:
    root = parsed(markup)
    for element in root.iter():
        assert not {"style"} & set(element.attrib)
        assert not [name for name in element.attrib if name.startswith("on")]
        assert element.tag != "script"
        for name in ("x", "y", "cx", "cy", "x1", "x2", "y1", "y2", "width", "height", "points", "r"):
            assert not re.search("nan|inf|e[+-]", element.attrib.get(name, "")), element.attrib
    for svg in root.iter("svg"):
        if svg.get("role"):
            assert svg.find("title").text
            assert svg.find("desc").text
        else:
            assert svg.get("aria-hidden") == "true" or svg.get("class") == "stretch"
    return root


def share(text: str) -> float:
    return float(text.rstrip("%"))


@given(edges=LISTS, counts=LISTS, threshold=NUMBERS)
def test_histogram_of_anything(edges, counts, threshold):
    checked(charts.histogram({"edges": edges, "counts": counts}, threshold))


@given(values=LISTS, starts=LISTS)
def test_rates_of_anything(values, starts):
    checked(charts.minutes({"starts": starts, "alerts": values}, "alerts"))
    bins = [
        {"start": s, "when": None, "alerts": v} for s, v in zip(sorted(s or 0.0 for s in starts), values, strict=False)
    ]
    for calendar in (None, CALENDAR, Calendar()):
        checked(charts.over_time(bins, "alerts", calendar))


POINTS = st.fixed_dictionaries(
    {
        "time": NUMBERS,
        "amount": NUMBERS,
        "score": NUMBERS,
        "alert": st.booleans(),
        "id": st.sampled_from([None, "ab12", EVIL]),
        "when": st.sampled_from([None, "2026-01-05T11:36:23+00:00"]),
        "merchant": TEXTS,
        "category": TEXTS,
        "verdict": st.sampled_from([None, "fraud", "normal", "unsure"]),
        "label": st.sampled_from([None, "new regime", EVIL]),
    }
)


@given(points=st.lists(POINTS, max_size=8), window=st.tuples(NUMBERS, NUMBERS), threshold=NUMBERS)
def test_timeline_of_anything(points, window, threshold):
    told = {"points": points, "from": window[0], "to": window[1], "first": None, "last": None, "threshold": threshold}
    for calendar in (None, CALENDAR):
        checked(charts.timeline(told, calendar, "ab12"))
    charts.windows(told)


@given(nats=LISTS, text=TEXTS)
def test_evidence_of_anything(nats, text):
    checked(charts.reasons([{"nats": n, "text": text} for n in nats]))
    checked(charts.merchants([{"name": text, "count": n, "amount": n} for n in nats]))
    checked(charts.contributions([{"name": text, "mean_nats": n, "fraud_nats": n, "normal_nats": None} for n in nats]))
    checked(charts.hours({"own": nats, "alerts": nats[::-1]}))


@given(axis=LISTS, values=LISTS, value=NUMBERS)
def test_densities_of_anything(axis, values, value):
    checked(charts.densities({"change": axis, "account": values, "normal": values[::-1]}))
    curve = {"axis": axis, "normal": values, "own": None, "fraud": values[:3], "value": value, "unit": EVIL}
    checked(charts.law(curve, "amount"))


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=8), threshold=NUMBERS)
def test_budgets_of_anything(rows, threshold):
    curve = [
        {"threshold": t, "alerts": a, "alerts_per_day": a, "current": k == 0, "precision": p, "recall": p}
        | {"money_caught": None}
        for k, (t, a, p) in enumerate(rows)
    ]
    checked(charts.budget(curve, threshold))
    checked(charts.quality(curve, threshold))
    checked(charts.weeks([{"start": t, "when": None, "judged": a, "precision": p} for t, a, p in rows]))


@given(low=FINITE, high=FINITE, values=st.lists(FINITE, min_size=2))
def test_scales_keep_the_order(low, high, values):
    low, high = sorted((low, high))
    for scale in (Linear(low, high), Symlog(low, high), Log(max(low, 1e-300), max(high, 1e-300))):
        places = [scale.at(v) for v in sorted(values)]
        assert places == sorted(places)
        assert 0 <= places[0] <= places[-1] <= 100
        ticks = scale.ticks(5)
        assert len(ticks) <= 30
        assert all(math.isfinite(t) for t in ticks)


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(0, 10, [0, 2, 4, 6, 8, 10]), (-3, 3, [-2, 0, 2]), (0, 0.03, [0, 0.01, 0.02, 0.03])]
)
def test_ticks_are_round(low, high, ticks):
    assert steps(low, high, 5 if high > 5 else 3) == pytest.approx(ticks)


def test_the_threshold_moves_right_as_it_grows():
    places = []
    for threshold in (1.0, 4.0, 6.91, 20.0):
        root = checked(charts.histogram(samples.pulse()["histogram"], threshold))
        places.append(share(root.find(".//line[@class='mark limit']").get("x1")))
        over = [share(bar.get("x")) for bar in root.iterfind(".//rect[@class='bar over']")]
        assert min(over) >= places[-1] - 2  # a bar is counted by its middle
    assert places == sorted(places)
    assert places[0] == pytest.approx(100 / 32, abs=0.1)


def test_bars_are_as_high_as_their_counts():
    root = checked(charts.minutes({"starts": [0, 60, 120], "alerts": [1, 2, 4]}, "alerts"))
    heights = [share(bar.get("height")) for bar in root.iterfind(".//rect[@class='bar alerts']")]
    assert heights == pytest.approx([heights[2] / 4, heights[2] / 2, heights[2]], abs=0.02)


def test_alerts_on_the_timeline_are_links_at_their_time():
    told = samples.account()["timeline"]
    root = checked(charts.timeline(told, CALENDAR, told["points"][-5]["id"]))
    links = root.findall(".//a")
    assert [a.get("href") for a in links] == [f"/alert/{p['id']}" for p in told["points"] if p["alert"]]
    places = [share(a.find("circle").get("cx")) for a in links]
    assert places == sorted(places)
    assert len(root.findall(".//circle[@data-tip]")) == len(told["points"])
    svg = root.find("svg")
    assert svg.get("role") == "group"  # an image would hide its links from screen readers
    assert float(svg.get("data-from")) < told["first"] < told["last"] < float(svg.get("data-to"))


def test_a_window_is_drawn_as_it_was_asked_for():
    told = samples.account()["timeline"] | {"from": 20.0, "to": 40.0}
    told["points"] = [p for p in told["points"] if 20 <= p["time"] <= 40]
    svg = checked(charts.timeline(told, CALENDAR)).find("svg")
    assert (float(svg.get("data-from")), float(svg.get("data-to"))) == (20.0, 40.0)
    assert charts.windows(told)["in"] == (25.0, 35.0)


def test_reasons_against_fraud_go_to_the_left():
    root = checked(charts.reasons([{"nats": 4.0, "text": "a"}, {"nats": -2.0, "text": "b"}]))
    zero = share(root.find(".//line").get("x1"))
    towards, against = (root.find(f".//rect[@class='bar {kind}']") for kind in ("for", "against"))
    assert share(towards.get("x")) == pytest.approx(zero)
    assert share(against.get("x")) + share(against.get("width")) == pytest.approx(zero)
    assert share(towards.get("width")) == pytest.approx(2 * share(against.get("width")), abs=0.02)


def test_the_current_threshold_is_marked_on_the_budget():
    tune = samples.tune()
    root = checked(charts.budget(tune["curve"], tune["threshold"]))
    dots = root.findall(".//circle")
    here = share(root.find(".//line[@class='mark limit']").get("x1"))
    assert share(root.find(".//circle[@class='dot current']").get("cx")) == pytest.approx(here, abs=0.01)
    heights = [share(dot.get("cy")) for dot in dots]
    assert heights == sorted(heights)  # fewer alerts at higher thresholds, and y grows downwards


@pytest.mark.parametrize(
    ("span", "said"),
    [(0.1, "16 Jan 01:00"), (1.5, "17 Jan"), (20, "19 Jan 2026"), (300, "1 Mar 2026"), (4000, "1 Jan 2028")],
)
def test_times_are_round_dates(span, said):
    ticks = time_ticks(Linear(11.03, 11.03 + span), CALENDAR, 7)
    assert said in [text for _, text in ticks]
    assert 2 <= len(ticks) <= 8


def test_texts_below_a_plot_give_way_to_each_other():
    root = parsed(below([(k * 5.0, f"{k} January") for k in range(21)]))
    shown, narrow = ([t for t in root.iter("text") if kind in t.get("class")] for kind in ("tick", "more"))
    assert len(shown) <= 8
    assert 0 < len(shown) - len(narrow) <= 4


def test_nothing_yet_is_said():
    assert "no score yet" in charts.histogram({"edges": [], "counts": []}, 7.0)
    assert "no alert yet" in charts.over_time([], "alerts")
    assert "no alert was judged yet" in charts.weeks([])
