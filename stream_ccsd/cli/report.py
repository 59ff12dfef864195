"""A self-contained HTML page of tables and plots. All reports are made with it."""

from __future__ import annotations

import base64
import html
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from stream_ccsd.calendar import Calendar, plain_number
from stream_ccsd.files import WriteError, write_whole

# A cell that is a number, a list of them like "3 / 1 / 2", or nothing.
_NUMBER = re.compile(r"[-+0-9.,%e/ ]*")

# Times on an axis with more digits than this need fewer labels.
_SHORT_LABEL = 6

RED, BLUE, GREY, GREEN = "#b2182b", "#2166ac", "#777777", "#1b7837"

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }}
th, td {{ padding: .25rem .8rem; text-align: left; border-bottom: 1px solid #ddd; }}
.number {{ text-align: right; }} .short {{ white-space: nowrap; }}
img {{ max-width: 100%; height: auto; }} .note {{ color: #555; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def write_page(path: Path, title: str, parts: Sequence[str]) -> Path:
    """Write the page whole or not at all; returns its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(path, error) from error
    return write_whole(path, _PAGE.format(title=html.escape(title), body="\n".join(parts)))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts; columns of numbers are set to the right."""
    numeric = [all(_NUMBER.fullmatch(row[i]) for row in rows) for i in range(len(header))]

    def cell(kind: str, text: str, number: bool) -> str:
        classes = ("number " if number else "") + ("short" if len(text) < 32 else "")
        return f'<{kind} class="{classes.strip()}">{html.escape(text)}</{kind}>'

    lines = [("th", header), *(("td", row) for row in rows)]
    body = "".join(
        "<tr>" + "".join(cell(kind, c, number) for c, number in zip(line, numeric, strict=True)) + "</tr>"
        for kind, line in lines
    )
    return f"<table>{body}</table>"


def axes(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    """A figure and its grid of axes; drawn without a display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def along_time(panels: Iterable[Any], calendar: Calendar, times: Sequence[float]) -> list[Any]:
    """Make the lower axes of these panels axes of time, with dates if all of the times have one.

    Returns where on these axes the times are.
    """
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    moments: list[Any] = [calendar.moment(time) for time in times]
    # An axis has margins; they must not reach beyond the years that dates have.
    dated = calendar.origin is not None and all(m is not None and 1000 <= m.year <= 9000 for m in moments)
    longest = max((len(plain_number(time)) for time in times), default=0)
    for ax in panels:
        if dated:
            zone = calendar.origin.tzinfo if calendar.origin else None
            locator = AutoDateLocator(tz=zone)  # type: ignore[no-untyped-call]
            ax.xaxis.set_major_locator(locator)
            ax.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))  # type: ignore[no-untyped-call]
            if len(set(moments)) == 1:  # left alone, an axis around one moment is four years long
                ax.set_xlim(moments[0] - timedelta(hours=12), moments[0] + timedelta(hours=12))
        else:
            ax.ticklabel_format(axis="x", style="plain", useOffset=False)
            if longest > _SHORT_LABEL:
                ax.locator_params(axis="x", nbins=4)
        ax.set_xlabel(calendar.axis_label(dated))
    return moments if dated else list(times)


def drawn(figure: Any, kind: str = "png") -> bytes:
    """The figure as a file of that kind: png, svg or pdf."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Names may be in any script. Characters that the font does not have are drawn as boxes, without a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(buffer, format=kind, dpi=110)
    return buffer.getvalue()


def picture(figure: Any, alternative: str) -> str:
    """The figure inside the page, with a text for those who cannot see it."""
    data = base64.b64encode(drawn(figure)).decode()
    return f'<img alt="{html.escape(alternative)}" src="data:image/png;base64,{data}">'
