"""A replay as one page: what came, what was alerted and why, what was refused."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import numpy as np

from replay.explain import draw_reasons
from replay.state.statistics import EDGES, RunStatistics
from replay.text import learning_words, per_thousand, why_words
from stream_ccsd.cli.report import BLUE, GREY, RED, along_time, axes, picture, table, write_page

# Highest alerts whose reasons are drawn, and how many of each.
_DRAWN, _REASONS = 4, 5


def write_report(path: Path, name: str, summary: dict[str, Any], statistics: RunStatistics) -> Path:
    """Write the page; returns its path."""
    parts = [_overview(summary), picture(_draw_time(statistics), "transactions and alerts over time")]
    parts += ["<h2>Alert scores</h2>", picture(_draw_scores(statistics, summary), "distribution of the alert score")]
    if statistics.labelled:
        parts += ["<h2>Against the labels</h2>", *_against_labels(summary, statistics)]
    if summary["why"]:
        words = [[why_words(name), f"{count:,}"] for name, count in summary["why"].items()]
        parts += ["<h2>What raised the alerts</h2>", table(["mostly for", "alerts"], words)]
    if summary.get("lessons"):
        parts += ["<h2>Lessons</h2>", f"<p>{html.escape(learning_words(summary['lessons']))}.</p>"]
    if summary.get("drift"):
        show = statistics.calendar.show
        changes = [[show(event["time"]), event["text"]] for event in summary["drift"]]
        parts += ["<h2>Changes of the stream</h2>", table(["noticed", "what changed"], changes)]
    parts += ["<h2>Highest alerts</h2>", *_alerts(statistics)]
    if statistics.dead_letters:
        rows = [[reason, f"{count:,}"] for reason, count in summary["dead_letters_by_reason"].items()]
        parts += [
            "<h2>Dead letters</h2>",
            "<p>Records that had no effect; each is in dead_letters.jsonl with its line and reason.</p>",
            table(["reason", "records"], rows),
        ]
    return write_page(path, f"Replay: {name}", parts)


def _overview(summary: dict[str, Any]) -> str:
    latency = ""
    if summary.get("latency_p50_ms") is not None:
        latency = (
            f", {summary['events_per_s']:,.0f} records a second, latency p50 {summary['latency_p50_ms']:.2f} ms and "
            f"p99 {summary['latency_p99_ms']:.2f} ms"
        )
    return (
        f"<p>{summary['transactions']:,} transactions of {summary['accounts']:,} accounts, "
        f"{summary['alerts']:,} alerts, {summary['late']:,} late, {summary['dead_letters']:,} dead letters{latency}. "
        f"Model {html.escape(summary['model'])}.</p>{_budget(summary)}"
    )


def _budget(summary: dict[str, Any]) -> str:
    if summary["alert_rate"] is None:
        return ""
    day = "" if summary["alerts_per_day"] is None else f", {summary['alerts_per_day']:,.3g} alerts a day"
    return (
        f"<p>Alert budget: asked for {per_thousand(summary['asked_rate'])} normal transactions; "
        f"{per_thousand(summary['reached_rate'])} reached the threshold, {per_thousand(summary['alert_rate'])} were "
        f"alerted{day} (an account is alerted again only for a higher score).</p>"
    )


def _against_labels(summary: dict[str, Any], statistics: RunStatistics) -> list[str]:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    rows = []
    for name, p in summary["patterns"].items():
        transactions, time = p["median_delay_transactions"], p["median_delay_time"]
        soon = "" if time is None else f"{transactions:.0f} transactions, {statistics.calendar.length(time)}"
        why = ", ".join(f"{why_words(why)} {count:,}" for why, count in p["why"].items())
        rows.append([name, f"{p['accounts']:,}", f"{p['caught']:,}", soon, why])
    text = (
        f"<p>{summary['caught_accounts']:,} of {summary['fraud_accounts']:,} accounts with fraud were alerted "
        f"from their first fraud on (by account: recall {share(summary['recall'])}, "
        f"precision {share(summary['precision'])})"
    )
    if summary["median_delay_time"] is not None:
        text += (
            f"; half of them within {summary['median_delay_transactions']:.0f} transactions "
            f"({statistics.calendar.length(summary['median_delay_time'])})"
        )
    return [
        text + ". The engine never sees a label.</p>",
        table(["pattern", "accounts", "caught", "half within", "for"], rows),
    ]


def _alerts(statistics: RunStatistics) -> list[str]:
    if not statistics.top:
        return ["<p>None.</p>"]
    names = list(dict.fromkeys(name for alert in statistics.top for name in alert["scores"]))
    rows = []
    for alert in statistics.top:
        best = alert["reason"]
        values = [alert["score"], *(alert["scores"].get(name) for name in names)]
        numbers = ["" if value is None else f"{value:.1f}" for value in values]
        what = f"{alert['amount']:,.2f}", alert["merchant"]
        rows.append([alert["account"], statistics.calendar.show(alert["time"]), *what, *numbers, best])
    return [
        picture(_draw_reasons(statistics), "reasons of the highest alerts"),
        table(["account", "time", "amount", "merchant", "rarity", *names, "why"], rows),
        "<p class=note>Rarity, which alerts are made from, is in nats: 6.9 is one in 1,000 normal transactions, 9.2 is "
        "one in 10,000. Beside it, what each score says by itself.</p>",
    ]


def _draw_reasons(statistics: RunStatistics) -> Any:
    drawn = statistics.top[:_DRAWN]
    figure, panels = axes(len(drawn), 1, 11, 0.5 + 2.1 * len(drawn))
    for ax, alert in zip(panels[:, 0], drawn, strict=True):
        draw_reasons(ax, alert, _REASONS)
        title = f"{alert['account'][:60]}, {statistics.calendar.show(alert['time'])}: {alert['amount']:,.2f}"
        ax.set_title(title, fontsize=9, loc="left", parse_math=False)
        if alert is not drawn[-1]:
            ax.set_xlabel("")
    return figure


def _draw_time(statistics: RunStatistics) -> Any:
    figure, panels = axes(2, 1, 11, 4.6)
    timeline = statistics.over_time
    if not timeline.bins:
        return figure
    places = np.arange(min(timeline.bins), max(timeline.bins) + 1)
    edges = along_time(panels[:, 0], statistics.calendar, (np.append(places, places[-1] + 1) * timeline.width).tolist())
    for ax, kinds in (
        (panels[0, 0], [("transactions", GREY)]),
        (panels[1, 0], [("labelled", BLUE), ("alerts", RED)]),
    ):
        for kind, colour in kinds:
            if kind == "labelled" and not statistics.labelled:
                continue
            counts = timeline.of(kind)
            name = "fraudulent transactions (labels)" if kind == "labelled" else kind
            ax.stairs([counts.get(place, 0) for place in places.tolist()], edges, color=colour, label=name, lw=1.2)
        ax.legend(fontsize=8, loc="upper left")
        ax.set(ylim=(0, None), ylabel=f"in {statistics.calendar.length(timeline.width)}")
    panels[0, 0].set_xlabel("")
    return figure


def _draw_scores(statistics: RunStatistics, summary: dict[str, Any]) -> Any:
    figure, panels = axes(1, 1, 11, 3.4)
    ax = panels[0, 0]
    names = {
        "normal": "not labelled as fraud" if statistics.labelled else "all transactions",
        "fraud": "labelled as fraud",
    }
    for kind, colour in (("normal", BLUE), ("fraud", RED)):
        if kind == "fraud" and not statistics.labelled:
            continue
        ax.stairs(statistics.histogram[kind], EDGES, fill=True, alpha=0.5, color=colour, label=names[kind])
    ax.axvline(summary["threshold"], color="k", ls="--", lw=0.9, label="alert threshold")
    used = np.flatnonzero(statistics.histogram["normal"] + statistics.histogram["fraud"])
    highest = max(EDGES[used[-1] + 1] if len(used) else 1.0, summary["threshold"])
    ax.set_xlim(0.0, 1.05 * highest)
    scale = "log" if statistics.transactions else "linear"
    ax.set(yscale=scale, xlabel="alert score, nats of rarity", ylabel="transactions")
    ax.legend(fontsize=8)
    return figure
