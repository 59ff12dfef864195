"""One account under the lamp: its timeline, its scores, and the densities behind its alert, as text and picture."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from replay.harvest import SCORES
from replay.state import StateFile
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.page import BLUE, GREY, RED, axes


@dataclass(frozen=True, eq=False)
class Explanation:
    """An account's scored transactions in order, and its alerts as they were raised."""

    account: str
    scores: pa.Table
    alerts: list[dict[str, Any]]
    threshold: float

    @classmethod
    def of(cls, state: StateFile, account: str) -> Explanation:
        """Read from a replay's state.

        Raises
        ------
        StreamCcsdError
            If the account does not occur in it; names that do are given.
        """
        if not state.query("SELECT 1 FROM accounts WHERE account = ?", (account,)):
            some = state.query("SELECT account FROM accounts ORDER BY alerts DESC, maximum DESC LIMIT 5")
            names = ", ".join(row[0] for row in some) or "none"
            raise StreamCcsdError(f"no account {account!r} in {state.path}; the most suspicious ones: {names}")
        parts = [b.filter(pc.equal(b.column("account"), account)) for b in state.scores()]
        found = state.query("SELECT json FROM alerts WHERE account = ? ORDER BY position", (account,))
        alerts = [json.loads(line) for (line,) in found]
        return cls(account, pa.Table.from_batches(parts, SCORES), alerts, float(state.facts["threshold"]))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "account": self.account,
            "threshold": self.threshold,
            "transactions": self.scores.to_pylist(),
            "alerts": self.alerts,
        }

    def draw(self, path: Path) -> Path:
        """The picture, as PNG, SVG or PDF by the name's ending."""
        figure, panels = axes(2, 2, 12, 7)
        columns = {name: self.scores.column(name).to_pylist() for name in self.scores.column_names}
        alerted = [i for i, alert in enumerate(columns["alert"]) if alert]
        self._draw_amounts(panels[0, 0], columns, alerted)
        self._draw_scores(panels[0, 1], columns, alerted)
        self._draw_divergence(panels[1, 0], columns)
        self._draw_densities(panels[1, 1])
        figure.suptitle(f"account {self.account}: {len(columns['time'])} transactions, {len(alerted)} alerts")
        try:
            figure.savefig(path, dpi=110)
        except (OSError, ValueError) as error:
            raise StreamCcsdError(f"cannot write the picture to {path}: {error}") from error
        return path

    def _draw_amounts(self, ax: Any, columns: dict[str, list[Any]], alerted: list[int]) -> None:
        time, amount = columns["time"], columns["amount"]
        ax.plot(time, amount, ".-", color=GREY, lw=0.5, ms=3)
        fraud = [i for i, label in enumerate(columns["label"]) if label]
        if fraud:
            ax.plot([time[i] for i in fraud], [amount[i] for i in fraud], "o", color=BLUE, ms=4, label="labelled fraud")
        if alerted:
            ax.plot(
                [time[i] for i in alerted], [amount[i] for i in alerted], "o", mfc="none", mec=RED, ms=9, label="alert"
            )
            ax.legend(fontsize=8)
        ax.set(yscale="log" if min(amount) > 0 else "symlog", xlabel="time", ylabel="amount", title="amounts")

    def _draw_scores(self, ax: Any, columns: dict[str, list[Any]], alerted: list[int]) -> None:
        ax.plot(columns["time"], columns["score"], color=RED, lw=0.9, label="alert score")
        ax.plot(columns["time"], columns["maximum"], color=GREY, lw=0.9, ls=":", label="account's maximum")
        ax.axhline(self.threshold, color="k", lw=0.8, ls="--", label="threshold")
        ax.plot([columns["time"][i] for i in alerted], [columns["score"][i] for i in alerted], "o", color=RED, ms=4)
        ax.set(xlabel="time", ylabel="nats of rarity", title="scores of its transactions")
        ax.legend(fontsize=8)

    def _draw_divergence(self, ax: Any, columns: dict[str, list[Any]]) -> None:
        values = [float("nan") if v is None else v for v in columns["divergence"]]
        ax.plot(columns["time"], values, color=BLUE, lw=0.9)
        ax.set(xlabel="time", ylabel="nats", title="divergence of its windows from normal ones")
        ax.set_xlim(columns["time"][0], columns["time"][-1] or 1.0)
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
