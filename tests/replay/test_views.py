"""What a person sees of a replay, with dates and with names that were made to break things."""

import csv
import io
import json
import re
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from replay.explain import picture_name
from replay.run.session import Session
from replay.sources.source import ListSource
from replay.state.file import StateFile
from replay.state.statistics import RunStatistics
from stream_ccsd.calendar import UNITS, Calendar
from stream_ccsd.cli.main import app
from stream_ccsd.cli.report import along_time, axes, drawn
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import MAX_NUMBER
from tests.conftest import scores_at

runner = CliRunner()

AWKWARD = ["$x_{$", "=cmd|' /C calc'!A0", "a.b", "a/b", ":bomb: [bold]", "[/red]", "n" * 256, "@sum", "-1"]


def run(*arguments, code=0):
    done = runner.invoke(app, [str(a) for a in arguments], env={"COLUMNS": "80"})
    assert done.exit_code == code, (done.output, done.exception)
    return done


@pytest.fixture(scope="module")
def state(model, stream, tmp_path_factory):
    """A durable replay of days since April 2018, its accounts renamed, one merchant with a very long name."""
    fields = {name: getattr(model, name) for name in model.__dataclass_fields__}
    dated = Model(**{**fields, "calendar": Calendar.choose("days", "2018-04-01", [])})
    accounts = list(dict.fromkeys(t.account for t in stream.transactions))
    names = dict(zip(accounts, AWKWARD, strict=False))
    long = stream.transactions[0].merchant
    transactions = [
        replace(t, account=names.get(t.account, t.account), merchant="m" * 200 if t.merchant == long else t.merchant)
        for t in stream.transactions
    ]
    folder = tmp_path_factory.mktemp("views")
    source = ListSource("awkward", transactions, stream.fraud)
    Session(source, dated, folder / "out", folder / "state.db", threshold=1.0).run()
    return folder / "state.db"


@pytest.fixture(scope="module")
def lines(state):
    return [json.loads(line) for line in (state.parent / "out" / "alerts.jsonl").read_text().splitlines()]


def test_alerts_are_dated_in_every_format(state, lines, tmp_path):
    assert {alert["account"] for alert in lines} >= set(AWKWARD)
    days = [Calendar.choose("days", "2018-04-01", []).iso(alert["time"]) for alert in lines]
    assert [alert["when"] for alert in lines] == days
    rows = list(csv.DictReader(io.StringIO(run("alerts", "--state", state, "--format", "csv").stdout)))
    assert [row["when"] for row in rows] == days
    run("alerts", "--state", state, "--format", "parquet", "--out", tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet")["when"].to_pylist() == days
    page = (state.parent / "out" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"2018-0[456]-\d\d \d\d:\d\d", page)
    assert re.search(r"half of them within \d+ transactions \([\d.]+ (days|h|min|s)", page)


@pytest.mark.parametrize("since", ["2018-05-01", "30", "2018-05-01T00:00Z", "2018-05-01T02:00+02:00", "3e1"])
def test_since_takes_numbers_and_dates(state, lines, since):
    found = run("alerts", "--state", state, "--since", since, "--format", "json").stdout.splitlines()
    assert [json.loads(line) for line in found] == [alert for alert in lines if alert["time"] >= 30]


@pytest.mark.parametrize("since", ["nan", "inf", "soon", "2018-13-01", ""])
def test_since_refuses_what_is_neither(state, since):
    assert "--since" in run("alerts", "--state", state, "--since", since, code=2).output


def test_the_table_of_alerts_cuts_nothing(state, lines):
    shown = run("alerts", "--state", state).output
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    for alert in lines:
        assert f"{alert['when'][:10]} {alert['when'][11:16]}  {alert['score']:>5.1f}" in shown
    assert ":bomb: [bold]" in shown


@pytest.mark.parametrize("account", AWKWARD)
def test_explain_takes_any_name(state, account, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = run("explain", f"--account={account}", "--state", state).output
    (drawn,) = tmp_path.iterdir()
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert drawn.name == picture_name(account)
    assert "…" not in shown
    rows = pq.read_table(state.parent / "out" / "scores.parquet").to_pylist()
    highest = max((row for row in rows if row["account"] == account), key=lambda row: row["score"])
    day = Calendar.choose("days", "2018-04-01", []).show(highest["time"])
    numbers = f"{highest['amount']:,.2f}", f"{highest['score']:.1f}", f"{highest['takeover']:.1f}"
    body = shown.partition("its ten highest scores")[2]
    assert any(line.startswith(day) and all(n in line for n in numbers) for line in body.splitlines()), body
    assert max(len(line) for line in body.splitlines() if not line.startswith("picture")) <= 80


def test_accounts_never_share_a_picture():
    names = [*AWKWARD, "a_b", "a b", "n" * 255, "é" * 256, "C109", "\udcff"]
    assert len({picture_name(name) for name in names}) == len(names)
    assert all(len(picture_name(name).encode()) < 255 for name in names)


def test_explain_draws_to_the_place_it_is_given(state, tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.pdf"
    link.symlink_to(tmp_path / "there" / "real.pdf")
    run("explain", "--state", state, "--account", "a.b", "--out", link)
    assert link.is_symlink()
    assert (tmp_path / "there" / "real.pdf").read_bytes().startswith(b"%PDF")
    done = runner.invoke(app, ["explain", "--state", str(state), "--account", "a.b", "--out", str(tmp_path / "a.xyz")])
    assert "ends in .png, .svg, .pdf" in str(done.exception)


def test_formulas_are_defused_in_csv_only(state, tmp_path):
    formulas = [name for name in AWKWARD if name[0] in "=+-@"]
    for name in formulas:
        own = ["--state", state, f"--account={name}", "--limit", 1]
        (row,) = csv.DictReader(io.StringIO(run("alerts", *own, "--format", "csv").stdout))
        assert row["account"] == f"'{name}"
        assert row["headline"].startswith(f"'{name}")
        assert float(row["score"]) > 0
        assert json.loads(run("alerts", *own, "--format", "json").stdout)["account"] == name
        run("alerts", *own, "--format", "parquet", "--out", tmp_path / "a.parquet")
        assert pq.read_table(tmp_path / "a.parquet")["account"].to_pylist() == [name]
        run("alerts", *own, "--out", tmp_path / "a.tsv")
        assert f"\t'{name}\t" in (tmp_path / "a.tsv").read_text()


def test_an_empty_export_has_the_types_of_a_full_one(state, tmp_path):
    run("alerts", "--state", state, "--format", "parquet", "--out", tmp_path / "full.parquet")
    run("alerts", "--state", state, "--account", "nobody", "--format", "parquet", "--out", tmp_path / "none.parquet")
    none = pq.read_table(tmp_path / "none.parquet")
    assert none.num_rows == 0
    assert none.schema == pq.read_table(tmp_path / "full.parquet").schema


def test_questions_that_are_too_much(state, lines):
    found = run("alerts", "--state", state, "--limit", 10**30, "--format", "json").stdout.splitlines()
    assert len(found) == len(lines)
    for command in ("alerts", "explain"):
        done = runner.invoke(app, [command, "--state", str(state), "--account", "\udcff"])
        assert "is not UTF-8" in str(done.exception)


@pytest.mark.parametrize("style", ["json", "parquet"])
def test_an_export_to_a_full_disk_leaves_nothing(state, tmp_path, style):
    """A quota on the size of files stands for it; SQLite itself needs 32 KiB beside a file it reads."""

    def starve():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (34_000, 34_000))

    target = tmp_path / "alerts.out"
    command = [sys.executable, "-m", "stream_ccsd", "alerts", "--state", state, "--format", style, "--out", target]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=starve)
    assert done.returncode == 1
    assert done.stderr.startswith(f"stream-ccsd: cannot write {target}")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_state_keeps_its_calendar(state):
    opened = StateFile.open(state, read_only=True)
    try:
        assert Calendar.from_dict(opened.facts["calendar"]).show(1.0) == "2018-04-02"
    finally:
        opened.close()


@pytest.mark.parametrize(
    ("calendar", "span", "width"),
    [
        (Calendar("seconds"), 86_400.0, "10 min"),
        (Calendar("seconds"), 90 * 86_400.0, "6 h"),
        (Calendar(), 900.0, "4 units of time"),
    ],
)
def test_events_are_counted_in_widths_that_people_know(calendar, span, width):
    import numpy as np

    statistics = RunStatistics(calendar)
    times = np.linspace(1.5e9, 1.5e9 + span, 5000, endpoint=False)
    for part in np.array_split(times, 7):
        statistics.add_scores(scores_at(part))
    over = statistics.over_time
    assert calendar.length(over.width) == width
    places, counts = np.unique(np.floor(times / over.width).astype(int), return_counts=True)
    assert over.of("transactions") == dict(zip(places.tolist(), counts.tolist(), strict=True))


@given(
    st.sampled_from([Calendar(), Calendar("days"), *(Calendar.choose(u, "2018-04-01", []) for u in UNITS[:3])]),
    st.lists(st.floats(-MAX_NUMBER, MAX_NUMBER) | st.integers(0, 10**10).map(float), min_size=1, max_size=4),
)
@settings(max_examples=40)
def test_every_stream_has_an_axis(calendar, times):
    figure, panels = axes(1, 1, 4, 3)
    places = along_time(panels[0], calendar, times)
    panels[0, 0].plot(places, times)
    assert drawn(figure).startswith(b"\x89PNG")


def test_dates_before_there_is_a_model(tmp_path, stream):
    """``fit --until`` understands dates by the settings, or by the file's own times."""
    for shift, factor, options in (
        (0.0, 1.0, ["time_unit=days", "time_origin=2018-04-01"]),
        (1522540800.0, 86400.0, []),
    ):
        path = tmp_path / "s.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["account", "time", "amount", "category", "merchant", "id"])
            for t in stream.transactions:
                writer.writerow([t.account, shift + factor * t.time, t.amount, t.category, t.merchant, t.id])
        chosen = [part for option in [*options, "window=8", "local_history=12"] for part in ("--set", option)]
        arguments = ["--data", path, "--model", tmp_path / "m", *chosen, "--until", "2018-04-21", "--json", "-"]
        facts = json.loads(run("fit", *arguments).stdout)
        expected = sum(t.time < 20 for t in stream.transactions)
        assert facts["transactions"] == expected
        assert Path(tmp_path / "m" / "model.json").is_file()
    options = [
        "--data",
        path,
        "--model",
        tmp_path / "m",
        "--out",
        tmp_path / "out",
        "--from",
        "2018-04-11",
        "--json",
        "-",
    ]
    done = json.loads(run("replay", *options).stdout)
    assert done["transactions"] == sum(t.time >= 10 for t in stream.transactions)


def test_a_fit_says_whom_it_left_out_and_why(stream_file, tmp_path):
    arguments = ["--data", stream_file, "--model", tmp_path / "m", "--label", "pattern", "--share", "0.5"]
    facts = json.loads(run("fit", *arguments, "--json", "-").stdout)
    assert facts["left_out_label"] > 0
    assert facts["left_out_share"] > 0
    assert facts["left_out"] == facts["left_out_label"] + facts["left_out_share"]
    assert facts["accounts"] + facts["left_out"] == 40
    assert facts["contamination"] == 0
    shown = " ".join(run("fit", *arguments).output.split())
    assert f"learnt from {facts['accounts']} accounts" in shown
    assert "all of what is left counts as normal (contamination 0)" in shown
    assert f"{facts['left_out_label']} accounts for their label, {facts['left_out_share']} by chance" in shown
