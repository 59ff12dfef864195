"""Explain one account: its timeline, its scores, and the reasons of its alert, as text and picture."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_ccsd.calendar import Calendar
from stream_ccsd.cli.report import BLUE, GREY, RED, along_time, axes, drawn
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import write_whole
from stream_ccsd.stores import Record, RecordStore

KINDS = ("png", "svg", "pdf")
"""What a picture can be, by the ending of its name."""

_SUGGESTED = 5  # accounts that are named when one is not there
_VISIBLE = 0.05  # nats of a reason that is drawn
_MOST_REASONS, _LONGEST_REASON = 8, 90
_LONGEST_NAME = 50  # characters of up to 4 bytes: a file's name has room for 255 bytes


@dataclass(frozen=True, eq=False)
class Explanation:
    """An account's scored transactions in order, and its alerts as they were raised."""

    account: str
    scores: list[Record]
    alerts: list[Record]
    threshold: float
    calendar: Calendar

    @classmethod
    def of(cls, records: RecordStore, account: str) -> Explanation:
        """Read from what a replay recorded.

        Raises
        ------
        StreamCcsdError
            If the account does not occur in it; names that do are given.
        """
        with records.at_one_moment():
            if records.account(account) is None:
                names = ", ".join(a.account for a in records.accounts_by_maximum(_SUGGESTED)) or "none"
                raise StreamCcsdError(f"no account {account!r} was recorded; the most suspicious ones: {names}")
            scores, alerts = records.scores_of(account), list(records.alerts(account=account))
        calendar = Calendar.from_dict(records.facts["calendar"])
        return cls(account, scores, alerts, float(records.facts["threshold"]), calendar)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        transactions = [row | {"when": self.calendar.iso(row["time"])} for row in self.scores]
        return {
            "account": self.account,
            "threshold": self.threshold,
            "calendar": self.calendar.to_dict(),
            "transactions": transactions,
            "alerts": self.alerts,
        }

    def draw(self, path: Path) -> Path:
        """The picture, as PNG, SVG or PDF by the name's ending."""
        kind = picture_kind(path)
        columns = {name: [row[name] for row in self.scores] for name in self.scores[0]}
        compared = any(value is not None for value in columns["divergence"])
        figure, panels = axes(3 if compared else 2, 2, 12, 10 if compared else 7)
        timed = (panels[0, 0], panels[0, 1], panels[1, 0], *panels[2:, 0])
        columns["place"] = along_time(timed, self.calendar, columns["time"])
        alerted = [i for i, alert in enumerate(columns["alert"]) if alert]
        self._draw_amounts(panels[0, 0], columns, alerted)
        self._draw_scores(panels[0, 1], columns, alerted)
        self._draw_evidence(panels[1, 0], columns, alerted)
        self._draw_reasons(panels[1, 1])
        if compared:
            self._draw_divergence(panels[2, 0], columns)
            self._draw_densities(panels[2, 1])
        for ax in timed[2:]:
            ax.set_xlim(panels[0, 1].get_xlim())
        name = self.account if len(self.account) <= 60 else self.account[:59] + "…"
        # A name is a name: dollar signs in it are no formula.
        title = f"account {name}   transactions: {len(columns['time'])}, alerts: {len(alerted)}"
        figure.suptitle(title, parse_math=False)
        return write_whole(path, drawn(figure, kind))

    def _draw_amounts(self, ax: Any, columns: dict[str, list[Any]], alerted: list[int]) -> None:
        time, amount = columns["place"], columns["amount"]
        ax.plot(time, amount, ".-", color=GREY, lw=0.5, ms=3)
        fraud = [i for i, label in enumerate(columns["label"]) if label]
        if fraud:
            ax.plot([time[i] for i in fraud], [amount[i] for i in fraud], "o", color=BLUE, ms=4, label="labelled fraud")
        if alerted:
            ax.plot(
                [time[i] for i in alerted], [amount[i] for i in alerted], "o", mfc="none", mec=RED, ms=9, label="alert"
            )
            ax.legend(fontsize=8)
        ax.set(yscale="log" if min(amount) > 0 else "symlog", ylabel="amount", title="amounts")

    def _draw_scores(self, ax: Any, columns: dict[str, list[Any]], alerted: list[int]) -> None:
        time = columns["place"]
        ax.plot(time, columns["score"], ".-", color=RED, lw=0.9, ms=3, label="alert score")
        ax.plot(time, columns["maximum"], color=GREY, lw=0.9, ls=":", label="account's maximum")
        ax.axhline(self.threshold, color="k", lw=0.8, ls="--", label="threshold")
        ax.plot([time[i] for i in alerted], [columns["score"][i] for i in alerted], "o", color=RED, ms=4)
        ax.set(ylabel="nats of rarity", title="scores of its transactions")
        ax.legend(fontsize=8)

    def _draw_evidence(self, ax: Any, columns: dict[str, list[Any]], alerted: list[int]) -> None:
        time = columns["place"]
        for name, colour in (("evidence", RED), ("takeover", BLUE)):
            values = [float("nan") if v is None else v for v in columns[name]]
            ax.plot(time, values, ".-", color=colour, lw=0.9, ms=3, label=name)
            ax.plot([time[i] for i in alerted], [values[i] for i in alerted], "o", mfc="none", mec=colour, ms=8)
        ax.axhline(0.0, color="k", lw=0.5)
        ax.set(ylabel="nats", title="what speaks for fraud, circled at alerts")
        ax.legend(fontsize=8)

    def _draw_reasons(self, ax: Any) -> None:
        if not self.alerts:
            ax.set_axis_off()
            ax.text(0.5, 0.5, "no alert", transform=ax.transAxes, ha="center", color=GREY)
            return
        highest = max(self.alerts, key=lambda a: a["score"])
        draw_reasons(ax, highest)
        ax.set_title(f"its highest alert, {self.calendar.show(highest['time'])}", parse_math=False)

    def _draw_divergence(self, ax: Any, columns: dict[str, list[Any]]) -> None:
        values = [float("nan") if v is None else v for v in columns["divergence"]]
        ax.plot(columns["place"], values, ".-", color=BLUE, lw=0.9, ms=3)
        ax.set(ylabel="nats", title="divergence of its windows from normal ones")

    def _draw_densities(self, ax: Any) -> None:
        ax.set(xlabel="abs(Δz)", ylabel="density", title="laws behind its highest alert")
        shown = [a for a in self.alerts if a["densities"]["change"]]
        if not shown:
            ax.text(0.5, 0.5, "no alert after a full window", transform=ax.transAxes, ha="center", color=GREY)
            return
        densities = max(shown, key=lambda a: a["score"])["densities"]
        ax.plot(densities["change"], densities["account"], color=RED, label="account's recent windows")
        ax.plot(densities["change"], densities["normal"], color=BLUE, label="library neighbours")
        ax.legend(fontsize=8)


def draw_reasons(ax: Any, alert: Record, most: int = _MOST_REASONS) -> None:
    """The reasons of an alert as bars in nats, the weightiest on top, each with its sentence."""
    reasons = [reason for reason in alert["reasons"] if abs(reason["nats"]) >= _VISIBLE][:most]
    nats = [reason["nats"] for reason in reasons]
    rows = range(len(reasons))
    ax.barh(rows, nats, height=0.28, color=[RED if n > 0 else GREY for n in nats])
    for row, reason in enumerate(reasons):
        text = reason["text"] if len(reason["text"]) <= _LONGEST_REASON else reason["text"][: _LONGEST_REASON - 1] + "…"
        # Names in it are names: dollar signs are no formula.
        said = f"{reason['nats']:+.1f}  {text}"
        ax.text(0.0, row - 0.2, said, fontsize=8, va="bottom", transform=ax.get_yaxis_transform(), parse_math=False)
    ax.axvline(0.0, color="k", lw=0.6)
    ax.set(xlabel="nats for fraud", yticks=[], ylim=(len(reasons) - 0.4, -0.9))
    ax.set_xlim(min(0.0, *nats, 0.0), max(1.0, *nats, 1.0) * 1.05)
    for side in ("left", "top", "right"):
        ax.spines[side].set_visible(False)


def picture_name(account: str) -> str:
    """A file name for an account's picture, another for every account.

    >>> picture_name("C109"), picture_name("a/b"), picture_name("a.b")
    ('C109.png', 'a_b-82badf67.png', 'a_b-31d1e1bc.png')
    """
    readable = "".join(c if c.isalnum() else "_" for c in account[:_LONGEST_NAME])
    if readable != account:  # something was replaced or cut, which another account may share
        readable += "-" + hashlib.blake2b(account.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{readable}.png"


def picture_kind(path: Path) -> str:
    """What kind of picture a file of this name is.

    Raises
    ------
    StreamCcsdError
        If it is none that can be drawn.
    """
    kind = path.suffix[1:].lower() or "png"
    if kind not in KINDS:
        raise StreamCcsdError(f"cannot draw {path}: name a file that ends in {', '.join('.' + k for k in KINDS)}")
    return kind
