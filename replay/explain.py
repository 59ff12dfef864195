"""One account under the lamp: its timeline, its scores, and the densities behind its alert, as text and picture."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.page import BLUE, GREY, RED, along_time, axes, drawn
from stream_ccsd.stores import Record, RecordStore
from stream_ccsd.writing import write_whole

KINDS = ("png", "svg", "pdf")
"""What a picture can be, by the ending of its name."""

_SUGGESTED = 5  # accounts that are named when one is not there
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
        figure, panels = axes(2, 2, 12, 7)
        columns = {name: [row[name] for row in self.scores] for name in self.scores[0]}
        columns["place"] = along_time((panels[0, 0], panels[0, 1], panels[1, 0]), self.calendar, columns["time"])
        alerted = [i for i, alert in enumerate(columns["alert"]) if alert]
        self._draw_amounts(panels[0, 0], columns, alerted)
        self._draw_scores(panels[0, 1], columns, alerted)
        self._draw_divergence(panels[1, 0], columns)
        panels[1, 0].set_xlim(panels[0, 1].get_xlim())
        self._draw_densities(panels[1, 1])
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

    def _draw_divergence(self, ax: Any, columns: dict[str, list[Any]]) -> None:
        values = [float("nan") if v is None else v for v in columns["divergence"]]
        ax.plot(columns["place"], values, ".-", color=BLUE, lw=0.9, ms=3)
        ax.set(ylabel="nats", title="divergence of its windows from normal ones")
        if all(v is None for v in columns["divergence"]):
            ax.text(0.5, 0.5, "starts after a full window", transform=ax.transAxes, ha="center", color=GREY)

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
