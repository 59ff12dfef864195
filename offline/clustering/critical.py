"""The critical-difference picture: methods along their mean ranks, bars over those that do not differ."""

from __future__ import annotations

from typing import Any

from stream_ccsd.page import BLUE, GREY, RED, axes

# In units of the picture's height: where the axis is, and how far names and bars lie from it and from each other.
_AXIS, _FIRST_NAME, _NAME_STEP, _FIRST_BAR, _BAR_STEP = 0.0, -0.9, -0.5, -0.25, -0.18


def draw_critical_difference(compared: dict[str, Any]) -> Any:
    """A figure: the best rank on the left, the reference in colour, a bar a clique of the comparison."""
    ranks = sorted(compared["mean_rank"].items(), key=lambda item: item[1])
    bars = compared["cliques"]
    names_begin = _FIRST_NAME + _BAR_STEP * max(0, len(bars) - 2)
    half = (len(ranks) + 1) // 2
    bottom = names_begin + _NAME_STEP * half
    figure, panels = axes(1, 1, 9, 0.9 - 0.55 * bottom)
    ax = panels[0, 0]
    low, high = 1, len(ranks)
    ax.plot([low, high], [_AXIS, _AXIS], color="black", lw=1)
    for tick in range(low, high + 1):
        ax.plot([tick, tick], [_AXIS, _AXIS + 0.12], color="black", lw=1)
        ax.text(tick, _AXIS + 0.2, str(tick), ha="center", va="bottom", fontsize=9)
    for place, (name, rank) in enumerate(ranks):
        left = place < half
        height = names_begin + _NAME_STEP * (place if left else len(ranks) - 1 - place)
        edge = low - 0.25 if left else high + 0.25
        colour = RED if name == compared["reference"] else GREY
        ax.plot([rank, rank, edge], [_AXIS, height, height], color=colour, lw=1)
        mean = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        ax.text(
            edge, height, f"{mean} " if left else f" {mean}", ha="right" if left else "left", va="center", fontsize=9
        )
    for number, clique in enumerate(bars):
        ends = [compared["mean_rank"][name] for name in (clique[0], clique[-1])]
        height = _FIRST_BAR + _BAR_STEP * number
        ax.plot([ends[0] - 0.04, ends[1] + 0.04], [height, height], color=BLUE, lw=4, solid_capstyle="round")
    ax.set(xlim=(low - 1.3, high + 1.3), ylim=(bottom, 0.6))
    ax.axis("off")
    return figure
