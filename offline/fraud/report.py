"""The fraud evaluation as tables of means over its runs, and as one self-contained HTML page with plots."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from offline import published
from offline.fraud.stream import DRAWN, evaluated_scores
from stream_ccsd.cli.report import BLUE, GREEN, GREY, RED, axes, picture, table, write_page

Runs = list[dict[str, Any]]

# Columns of the paper's table, and where a run has them.
_PAPER_COLUMNS = {
    "VAL AUC": ("val", "auc"),
    "VAL AP": ("val", "ap"),
    "TEST AUC": ("test", "auc"),
    "TEST AP": ("test", "ap"),
    "accuracy": ("test", "accuracy"),
    "precision": ("test", "precision"),
    "recall": ("test", "recall"),
    "F1": ("test", "f1"),
}
_RANKING_METRICS = {"auc": "AUC", "ap": "AP", "f1": "F1"}


def paper_table(runs: Runs) -> pd.DataFrame:
    """A row a variant of the paper's method, and one of what the paper prints for the whole of it."""
    ours = pd.DataFrame(
        {"variant": name, **_paper_figures(figures)}
        for run in runs
        for name, figures in {"full": run, **run.get("ablation", {})}.items()
    )
    theirs = pd.DataFrame([_paper_figures(published.FRAUD["full"])], index=["the paper's full"])
    return pd.concat([ours.groupby("variant", sort=False).mean(), theirs])


def label_blind_auc(runs: Runs) -> pd.Series:
    """TEST AUC of the paper's method with one stride for all accounts, by stride; empty where that was not run."""
    return pd.DataFrame(
        {name: figures["test"]["auc"] for name, figures in run.get("label_blind", {}).items()} for run in runs
    ).mean()


def ranking_table(runs: Runs) -> pd.DataFrame:
    """TEST figures of every score and baseline: "account AUC", "transaction AP" …; NaN where there is none.

    Rows are known by ``baseline`` (a bool), ``score`` and ``supervised``, the engine's own scores first.
    """
    table = pd.DataFrame(
        {
            "baseline": baseline,
            "score": name,
            "supervised": judgement.get("supervised", False),
            **{f"{level} {title}": _number(judgement["test"].get(m)) for m, title in _RANKING_METRICS.items()},
        }
        for run in runs
        for level in ("account", "transaction")
        for baseline in (False, True)
        for name, judgement in (run[level]["baselines"] if baseline else run[level]).items()
        if name != "baselines"
    )
    return table.groupby(["baseline", "score", "supervised"], sort=False).mean()


def pattern_table(runs: Runs, level: str, metric: str, of: str = "patterns") -> pd.DataFrame:
    """A row a score or baseline (marked so), a column a pattern (or kind) of fraud."""
    ours = evaluated_scores()
    table = pd.DataFrame(
        {"score": name if name in ours else f"baseline {name}", "pattern": pattern, metric: _number(figures[metric])}
        for run in runs
        for pattern, levels in run[of].items()
        for name, figures in levels[level].items()
    )
    return table.pivot_table(index="score", columns="pattern", values=metric, sort=False, dropna=False)


def budget_sentence(runs: Runs) -> str:
    """What the alert budget led to on TEST."""
    table = pd.DataFrame(
        {
            "rate": run["operation"]["alerts_per_1000_transactions"],
            "detected": run["operation"]["thresholds"]["budget"]["detected_share"],
            "immediate": run["operation"]["thresholds"]["budget"]["immediate_share"] or 0.0,
        }
        for run in runs
    ).mean()
    return (
        f"By alert budget: {table['rate']:.1f} alerts per 1,000 transactions, {table['detected']:.0%} of fraud "
        f"accounts detected, {table['immediate']:.0%} of those at their first fraud."
    )


def cells(values: Iterable[float]) -> list[str]:
    """Numbers as tables show them; nothing where there is none."""
    return ["" if pd.isna(value) else f"{value:.3f}" for value in values]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _paper_figures(judgement: dict[str, Any]) -> dict[str, float]:
    return {title: judgement[part][metric] for title, (part, metric) in _PAPER_COLUMNS.items()}


_COLOURS = dict(zip(DRAWN, (RED, "#ef8a62", BLUE, GREY, GREEN, "#bbbbbb"), strict=True))
_LABELS = {"gradient_boosting": "gradient boosting (supervised ceiling)", "isolation_forest": "isolation forest"}


def write_report(result: dict[str, Any], folder: Path) -> Path:
    """Write ``report.html`` into the folder; returns its path."""
    runs = {p: [r for r in result["runs"] if r["protocol"] == p] for p in ("paper", "stream", "time")}
    facts = result["data"]
    parts = [
        f"<p>{facts['transactions']:,} transactions of {facts['accounts']:,} accounts, {facts['fraud_accounts']:,} of "
        f"them with fraud; {facts['refused']} rows refused. Results are means over the splits named.</p>"
    ]
    if runs["stream"]:
        parts += _stream_section(runs["stream"])
    if runs["time"]:
        parts += ["<h2>Split by time</h2>", _ranking_table(runs["time"]), *_kinds_section(runs["time"])]
    if runs["paper"]:
        parts += _paper_section(runs["paper"], result.get("sensitivity", []))
    return write_page(folder / "report.html", f"Fraud evaluation: {facts['name']}", parts)


def _stream_section(runs: Runs) -> list[str]:
    first = runs[0]
    fitted, fraud = first["fitted"]["transactions"], first["fitted"]["fraud"]
    known = f"{fraud:,} of them fraud that was not known" if first["split"] == "unlabelled" else "none of them fraud"
    chosen = " The threshold is chosen on VAL." if first["split"] == "sets" else ""
    parts = [
        "<h2>On a stream: causal, label-blind</h2>",
        f"<p>TEST accounts, splits {_seeds(runs)}. Every transaction is scored from an account's first one on; nothing "
        f"from the future, no label.{chosen} Fitted on {fitted:,} other transactions, {known}.</p>",
        _ranking_table(runs),
        f"<p>{budget_sentence(runs)}</p>",
        *_kinds_section(runs),
        picture(_draw_curves(first["curves"]), "ROC and precision-recall curves"),
        picture(_draw_distribution(first["curves"]["distribution"]), "distribution of the alert score"),
    ]
    if first["example"]:
        alert = first["example"]["alert"]
        reasons = "".join(f"<li>{r['nats']:.1f} nats: {html.escape(r['text'])}</li>" for r in alert["reasons"])
        parts += [
            f"<h3>One alert: account {html.escape(alert['account'])}</h3>",
            f"<p>Its score is reached by a share of {alert['tail_rate']:.1e} of normal transactions (calibrated on "
            f"{alert['calibrated_on']:,}, extrapolated beyond). Reasons:</p>",
            f"<ul>{reasons}</ul>",
            picture(
                _draw_example(first["example"]), "timeline of an alerted account and the densities behind its alert"
            ),
        ]
    return parts


def _kinds_section(runs: Runs) -> list[str]:
    """Each kind of fraud alone, where a column names them."""
    if "kinds" not in runs[0]:
        return []
    parts = ["<h3>By kind of fraud</h3>", "<p>Its fraud against all transactions that are none.</p>"]
    for metric, name in (("auc", "AUC"), ("ap", "average precision")):
        kinds = pattern_table(runs, "transaction", metric, "kinds")
        rows = [[_LABELS.get(str(score), str(score).replace("_", " ")), *cells(row)] for score, row in kinds.iterrows()]
        parts.append(table([f"transaction {name}", *kinds.columns], rows))
    return parts


def _paper_section(runs: Runs, sensitivity: Runs) -> list[str]:
    variants = paper_table(runs)
    remains = ", ".join(f"{v:.3f} ({n.replace('_', ' ')})" for n, v in label_blind_auc(runs).items())
    parts = [
        "<h2>The paper's protocol</h2>",
        table(["variant", *variants.columns], [[str(name), *cells(row)] for name, row in variants.iterrows()]),
        f"<p class=note>Splits {_seeds(runs)}. Windows at stride 1 for fraud accounts and 15 for normal ones: the "
        "stride depends on the label, and the account score is a maximum, which more windows raise. "
        f"{'With one stride for all accounts, TEST AUC is ' + remains + '.' if remains else ''}</p>",
    ]
    if sensitivity:
        parts += [
            "<h3>Sensitivity</h3>",
            "<p>The paper claims stability in these settings; here they are, one split.</p>",
            picture(_draw_sensitivity(sensitivity), "sensitivity to window length, attenuation and boosts"),
        ]
    return parts


def _seeds(runs: Runs) -> str:
    return ", ".join(str(r["seed"]) for r in runs)


def _ranking_table(runs: Runs) -> str:
    columns = ["account AUC", "account AP", "transaction AUC", "transaction AP"]
    rows = [
        [_LABELS.get(name, name.replace("_", " ")), *cells(row)]
        for (_, name, _), row in ranking_table(runs)[columns].iterrows()
    ]
    return table(["score", *columns], rows)


def _draw_curves(curves: dict[str, Any]) -> Any:
    figure, panels = axes(2, 2, 11, 9)
    for row, level in enumerate(("account", "transaction")):
        for column, (kind, x, y) in enumerate(
            (("roc", "false positive rate", "recall"), ("pr", "recall", "precision"))
        ):
            ax = panels[row, column]
            for name, drawn in curves[level].items():
                ax.plot(*drawn[kind], color=_COLOURS.get(name), label=_LABELS.get(name, name), lw=1.6)
            ax.set(xlabel=x, ylabel=y, title=f"{level}s", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
            ax.grid(alpha=0.3)
    panels[0, 0].legend(loc="lower right", fontsize=9)
    return figure


def _draw_distribution(distribution: dict[str, Any]) -> Any:
    figure, panels = axes(1, 1, 11, 4)
    ax, edges = panels[0, 0], distribution["edges"]
    for name, colour in (("normal", BLUE), ("fraud", RED)):
        ax.stairs(distribution[name], edges, fill=True, alpha=0.5, color=colour, label=name)
    ax.set(yscale="log", xlabel="alert score: -log(tail rate), nats", ylabel="transactions of TEST accounts")
    ax.legend()
    return figure


def _draw_example(example: dict[str, Any]) -> Any:
    figure, panels = axes(2, 2, 11, 6.5)
    top, scores, density, divergence = panels[0, 0], panels[0, 1], panels[1, 0], panels[1, 1]
    at = example["position"]
    fraud = [i for i, f in enumerate(example["fraud"]) if f]
    steps = range(len(example["amount"]))
    top.plot(steps, example["amount"], ".-", color=GREY, lw=0.6, ms=3)
    top.plot(fraud, [example["amount"][i] for i in fraud], "o", color=RED, ms=4, label="fraud (label)")
    top.set(yscale="symlog", xlabel="transaction", ylabel="amount", title="amounts")
    scores.plot(steps, example["score"], color=RED, lw=0.9)
    scores.axhline(example["alert"]["threshold"], color="k", lw=0.8, ls="--", label="threshold")
    scores.set(xlabel="transaction", ylabel="nats", title="alert score")
    densities = example["alert"]["densities"]
    density.plot(densities["change"], densities["account"], color=RED, label="account's recent windows")
    density.plot(densities["change"], densities["normal"], color=BLUE, label="library neighbours")
    density.set(xlabel="abs(Δz)", ylabel="density", title="both laws behind the divergence score")
    values = [float("nan") if v is None else v for v in example["divergence"]]
    divergence.plot(steps, values, color=BLUE, lw=0.9)
    divergence.set(xlabel="transaction", ylabel="nats", title="divergence score")
    for ax in (top, scores, divergence):
        ax.axvline(at, color="k", lw=0.6, alpha=0.6)
    for ax in (top, scores, density):
        ax.legend(fontsize=8)
    return figure


def _draw_sensitivity(sensitivity: Runs) -> Any:
    settings = pd.json_normalize(sensitivity).groupby("setting", sort=False)
    figure, panels = axes(1, len(settings), 11, 3.6)
    for ax, (name, rows) in zip(panels[0], settings, strict=True):
        for metric, marker in (("auc", "o-"), ("f1", "s--")):
            ax.plot(rows["value"], rows[f"test.{metric}"], marker, label=f"TEST {metric.upper()}")
        ax.set(xlabel=name, ylim=(0.4, 1.0))
        ax.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8)
    return figure
