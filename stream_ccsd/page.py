"""A self-contained HTML page: tables to read, plots to look at. All reports are made of these."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stream_ccsd.writing import WriteError, write_whole

# A cell that is a number, a list of them like "3 / 1 / 2", or nothing.
_NUMBER = re.compile(r"[-+0-9.,%e/ ]*")

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
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow to import; most commands draw nothing)

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def picture(figure: Any, alternative: str) -> str:
    """The figure inside the page, with a text for those who cannot see it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alternative)}" src="data:image/png;base64,{data}">'
